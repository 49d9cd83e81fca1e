"""Histories that every connector must survive, in addition to its other suite::

    class TestOrdersInHistories(SimulationSuite):
        context = OrdersContext

In each, an adversary kills and pauses drivers and tasks, runs copies of them, loses requests and answers, moves clocks and
restores an older checkpoint, in virtual time: ten minutes of outage cost nothing. Then the suite compares every row. A failure
prints the history, with as few of the adversary's moves as possible, and the command that repeats it. The engine and the other
end of the pipeline are models, from :mod:`connectors.testing.simulation`.
"""

from __future__ import annotations

from typing import ClassVar

import pytest

from ..core.epoch_source import EpochSource
from .contexts import SinkContext, SourceContext
from .simulation.history import check


class SimulationSuite:
    """The histories of a source or a sink. A subclass sets ``context``; more ``histories`` find more errors."""

    context: ClassVar[type[SourceContext] | type[SinkContext]]
    histories: ClassVar[int] = 5

    def test_no_history_loses_or_doubles_a_row(self) -> None:
        kind = self.context
        if issubclass(kind, SourceContext) and issubclass(kind.source, EpochSource) and kind.set_time is SourceContext.set_time:
            pytest.skip(f"{kind.__name__}.set_time is not there: without it the leases of its queue end in another time")
        check(kind, range(1, self.histories + 1))
