"""What all suites of sinks begin with: a target of their context, and the carriers that bring rows to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from .contexts import SinkContext


class SinkCases:
    """A suite without cases. A subclass of a suite sets ``context``."""

    context: ClassVar[type[SinkContext]]

    @pytest.fixture
    def target(self, tmp_path: Path) -> Iterator[SinkContext]:
        made = self.context(tmp_path / "target")
        made.folder.mkdir()
        with contextlib.closing(made):
            yield made

    @pytest.fixture(params=["foreach_batch", "format"])
    def carrier(self, target: SinkContext, request: pytest.FixtureRequest) -> str:
        if request.param not in target.carriers:
            pytest.skip(f"not a carrier of {target.sink.name}")
        return str(request.param)
