"""Every case that a source with an epoch log must pass: those of any source, and those of acknowledgements::

    class TestShards(EpochSourceSuite):
        context = ShardsContext
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

import pytest

from ..core.epoch_source import EpochSource
from .compare import same_records
from .contexts import SourceContext
from .faults import ACKNOWLEDGEMENT_POINTS, EPOCH_POINTS, FailureInjector, Injected, Point, faulty_source
from .source_suite import Log, Rows, SourceQuery, SourceSuite

_PATIENCE_SECONDS: Final = 60.0
_BETWEEN_SECONDS: Final = 0.2
"""The seconds between records whose times must differ, also by a clock that counts in larger steps."""


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
        rows.rest(len(written))
        injector.arm(point)
        written += system.write(10)
        rows.rest(len(written))
        written += system.write(10)
        rows.rest(len(written))
        assert injector.struck() == 1
        same_records(written, rows.committed)

    def test_runs_that_stop_at_a_time_leave_what_was_published_later(self, system: SourceContext, log: Log) -> None:
        if not system.source.known_options().knows("stopAt"):
            pytest.skip("options of the source do not have STOP_OPTIONS")
        written = system.write(10)
        time.sleep(_BETWEEN_SECONDS)
        stop = str(time.time_ns() // 1_000_000)
        time.sleep(_BETWEEN_SECONDS)
        late = system.write(10)
        rows: Rows = []
        for _ in range(2):
            run = SourceQuery(system, stopAt=stop, **system.limit)
            run.planner.freeze()
            while (batch := run.next(log)) is not None:
                rows += batch
            run.planner.close()
        same_records(written, rows)
        same_records(late, SourceQuery(system).rest(log))


class _Runs:
    """Runs of one query. Each begins where the previous one ended, as in Spark."""

    def __init__(self, system: SourceContext, injector: FailureInjector, log: Log) -> None:
        self._system = system
        self._injector = injector
        self._log = log
        self._batches = 0
        self.committed: Rows = []

    def rest(self, count: int) -> None:
        """Reads until there are ``count`` rows. It restarts a run that a fault has ended, which may wait for leases to end."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            with contextlib.suppress(Injected):
                self._run()
                if len(self.committed) >= count or time.monotonic() > until:
                    return

    def _run(self) -> None:
        lease = {**self._system.short_lease, "maxEpochTime": "500ms"} if self._system.short_lease else {}
        source = faulty_source(self._system.source, self._injector)
        query = SourceQuery(self._system, source, numPartitions="1", **lease)
        time.sleep(query.source.values["pollInterval"])
        while len(self._log) > self._batches or query.plan(self._log) is not None:
            batch = query.batch(self._log, self._batches)
            self.committed += batch
            self._batches += 1
            if not batch:
                return
