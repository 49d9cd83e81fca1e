"""The toys that the broken ones are made of are correct: they pass every case."""

from connectors.testing import SinkSuite, SourceSuite

from .toys import LinesContext, LogContext, SqliteContext


class TestLog(SourceSuite):
    context = LogContext


class TestLines(SinkSuite):
    context = LinesContext


class TestSqlite(SinkSuite):
    context = SqliteContext
