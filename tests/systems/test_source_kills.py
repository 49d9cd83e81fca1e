"""Drivers that read from all sources at once are killed; then every row that was written to them is compared."""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.testing import SourceContext
from connectors.testing.kills import Kills

from .elasticsearch.contexts import DocumentsContext
from .files.test_source import FilesSourceContext
from .kafka.source_contexts import KafkaContext, TransactionalContext
from .reference_contexts import FilesContext, FileStreamContext

SYSTEMS: dict[str, tuple[type[SourceContext], str]] = {
    "file_stream": (FileStreamContext, "format"),
    "files": (FilesSourceContext, "foreach_batch"),
    "kafka": (KafkaContext, "format"),
    "kafka in transactions": (TransactionalContext, "foreach_batch"),
    "elasticsearch": (DocumentsContext, "foreach_batch"),
}


class CopyContext(FilesContext):
    """What the sources gave, as Parquet. Spark's own writer, behind ``foreach_batch``, leaves the time zone away."""

    def rows(self) -> list[dict[str, Any]]:
        return [{name: _in_utc(value) for name, value in row.items()} for row in super().rows()]


def _in_utc(value: Any) -> Any:
    return value.replace(tzinfo=datetime.timezone.utc) if isinstance(value, datetime.datetime) else value


@pytest.fixture
def kills(tmp_path: Path) -> Iterator[Kills]:
    with contextlib.ExitStack() as closing:
        sources, targets = {}, {}
        for name, (kind, carrier) in SYSTEMS.items():
            for folder in (tmp_path / "systems" / name, tmp_path / "targets" / name):
                folder.mkdir(parents=True)
            sources[name] = closing.enter_context(contextlib.closing(kind(tmp_path / "systems" / name)))
            targets[name] = (CopyContext(tmp_path / "targets" / name), carrier)
        yield Kills(tmp_path, targets, seed=int(os.environ.get("SEED", "1")), sources=sources)


def test_killed_drivers_lose_and_double_nothing_that_a_source_has(kills: Kills) -> None:
    kills.run(2)
    assert any("killed" in round_ for round_ in kills.told), kills.told


@pytest.mark.soak
def test_many_killed_drivers_lose_and_double_nothing_that_a_source_has(
    kills: Kills, capsys: pytest.CaptureFixture[str]
) -> None:
    count = min(100, int(os.environ.get("KILLS", "100")))
    kills.run(count)
    killed = sum("killed" in round_ for round_ in kills.told)
    with capsys.disabled():
        print(f"\n{killed} of {count} drivers killed, {len(SYSTEMS)} sources read: nothing lost, nothing doubled")
