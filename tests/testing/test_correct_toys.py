"""The toys that the broken ones are made of are correct: they pass every case."""

from connectors.testing import SinkSuite, SourceSuite

from .toys import LinesContext, LogContext, PairContext, SqliteContext


class TestLog(SourceSuite):
    context = LogContext


class TestPair(SourceSuite):
    context = PairContext


class TestLines(SinkSuite):
    context = LinesContext
    starts = 10


class TestSqlite(SinkSuite):
    context = SqliteContext
    starts = 20
