"""Schedules of kills for each way in which a sink commits exactly once, without Spark: ``make soak``, ``SCHEDULES`` of each.

Each kills a run up to three times, at points that its seed draws and with another number of tasks each time, and then
compares every row. Whole drivers on Spark are killed in :mod:`.test_kills`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest

from connectors.testing import SinkContext
from connectors.testing.sink_cases import KillSuite, SinkQuery

from .pipelines import kills_of_systems
from .reference_contexts import BufferedContext, LinesContext

pytestmark = pytest.mark.soak
SCHEDULES: dict[type[SinkContext], type[SinkQuery]] = {BufferedContext: SinkQuery, LinesContext: SinkQuery}
for kills in kills_of_systems().values():
    SCHEDULES.update(kills.SCHEDULES)


class Schedules(KillSuite):
    seeds = int(os.environ.get("SCHEDULES", "100"))
    kind: ClassVar[type[SinkQuery]]

    @pytest.fixture
    def query(self, target: SinkContext, tmp_path: Path, carrier: str) -> SinkQuery:
        return self.kind(target, tmp_path, carrier)


for context, kind in SCHEDULES.items():
    name = f"Test{context.__name__.removesuffix('Context')}"
    globals()[name] = type(name, (Schedules,), {"context": context, "kind": kind})
