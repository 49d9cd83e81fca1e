"""The toys that the broken ones are made of are correct: they pass every case."""

from connectors.testing import SinkSuite, SourceSuite

from ..systems.marks import IN_A_FOLDER, every_start_leaves_a_stage
from .toys import LinesContext, LogContext, PairContext, SqliteContext


class TestLog(SourceSuite):
    context = LogContext


class TestPair(SourceSuite):
    context = PairContext


@every_start_leaves_a_stage(IN_A_FOLDER)
class TestLines(SinkSuite):
    context = LinesContext
    starts = 10


class TestSqlite(SinkSuite):
    context = SqliteContext
    starts = 20
