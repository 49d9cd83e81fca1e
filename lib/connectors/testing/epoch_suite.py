"""Every case that a source over an epoch log must pass: those of any source, and those of what is acknowledged::

    class TestShards(EpochSourceSuite):
        context = ShardsContext
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ..core.epoch_source import EpochSource
from .compare import same_records
from .contexts import SourceContext
from .faults import ACKNOWLEDGEMENT_POINTS, EPOCH_POINTS, FailureInjector, Injected, Point, faulty_source
from .source_suite import Log, Rows, SourceQuery, SourceSuite


class EpochSourceSuite(SourceSuite):
    """A subclass sets ``context``."""

    @pytest.mark.parametrize("point", EPOCH_POINTS, ids=lambda point: point.name.lower())
    def test_a_run_that_ends_at_a_point_of_an_epoch_loses_and_doubles_nothing(
        self, system: SourceContext, log: Log, tmp_path: Path, point: Point
    ) -> None:
        if point in ACKNOWLEDGEMENT_POINTS and not issubclass(system.source, EpochSource):
            pytest.skip("a source that can be read again acknowledges nothing")
        injector = FailureInjector(tmp_path / "faults")
        rows = _Runs(system, injector, log)
        written = system.write(10)
        rows.rest()
        injector.arm(point)
        written += system.write(10)
        rows.rest()
        written += system.write(10)
        rows.rest()
        assert injector.struck() == 1
        same_records(written, rows.committed)


class _Runs:
    """Runs of one query, of which each begins where the one before has ended, as Spark's do."""

    def __init__(self, system: SourceContext, injector: FailureInjector, log: Log) -> None:
        self._system = system
        self._injector = injector
        self._log = log
        self._batches = 0
        self.committed: Rows = []

    def rest(self) -> None:
        """Reads until there is nothing new; a run that ends by a fault is started again."""
        while True:
            try:
                return self._run()
            except Injected:
                continue

    def _run(self) -> None:
        query = SourceQuery(self._system, faulty_source(self._system.source, self._injector), numPartitions="1")
        time.sleep(query.source.values["pollInterval"])
        while len(self._log) > self._batches or query.plan(self._log) is not None:
            batch = query.batch(self._log, self._batches)
            self.committed += batch
            self._batches += 1
            if not batch:
                return
