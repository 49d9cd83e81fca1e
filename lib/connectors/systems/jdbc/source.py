"""The source of ``connectors.jdbc``, and the enumerator and reader of a batch, which read a table or query in ranges."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from ...core import (
    REQUIRED,
    Duration,
    Flag,
    Int,
    Misconfigured,
    Options,
    Problem,
    Size,
    Source,
    SplitEnumerator,
    SplitReader,
    Text,
)
from ...core.datasets import Dataset
from ...core.source import Position, ReadLimit, Slice
from ...ground import machine
from ...ground.errors import Fatal
from ...ground.options import Option, Values
from ...ground.time_zones import region_problem
from .dialects import DIALECTS, DatabaseAddress, Dialect, OwnDialects, dialect_of, parse
from .incremental.enumerator import StreamEnumerator
from .incremental.options import INCREMENTAL, is_stream_of_tables, listed_texts
from .incremental.reader import TableReader
from .ranges import KeyRange, plan_ranges
from .rows import ColumnReader, Rows, columns_text, rows_for
from .selection import NAME, Selection, check_selection, read_selection, select
from .snapshot import begin_at, shared_snapshot
from .target import datasets_of


@dataclass(frozen=True)
class RangeSplit(KeyRange):
    """A range, and the ``moment`` at which to read it (``""``: its own). ``begin`` allows the task to begin that moment."""

    moment: str = ""
    begin: bool = True

    def __str__(self) -> str:
        if self.condition:
            return self.condition
        low = "" if self.low is None else f"{self.low!r} <= "
        high = "" if self.high is None else f" < {self.high!r}"
        return f"{low}{self.column}{high}" if low or high else "everything"


class BatchEnumerator(SplitEnumerator[RangeSplit]):
    """Plans a batch read. The position is ``{"read": 0}`` before and ``{"read": 1}`` after; slices hold the ranges."""

    def __init__(self, source: JdbcSource) -> None:
        self.source = source

    def start(self) -> Position:
        return {"read": 0}

    def head(self) -> int:
        return 1

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        return {"read": head}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[RangeSplit]:
        return iter([RangeSplit()] if start != end else [])

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        with contextlib.closing(self.source.dialect().connect_to_read()) as connection:
            ranges = plan_ranges(connection, self.source.values, read_selection(self.source.values, connection))
        moment = machine.token() if len(ranges) > 1 and self.source.shares_moment() else ""
        return [
            Slice(start, end, index, len(ranges), parallelism, {**asdict(key_range), "moment": moment})
            for index, key_range in enumerate(ranges)
        ]

    def splits_of(self, part: Slice) -> Iterator[RangeSplit]:
        moment = f"{part.detail['moment']}/{part.run}" if part.detail["moment"] else ""
        yield RangeSplit(**{**part.detail, "moment": moment, "begin": not part.retried})


class RangeReader(SplitReader[RangeSplit]):
    """Reads a range with one SELECT."""

    def __init__(self, source: JdbcSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema
        self.dialect = source.dialect()
        self._rows: Rows | None = None

    def open(self) -> None:
        with self._open_rows().control() as connection:
            self.selection: Selection = read_selection(self.source.values, connection)
        self.columns = ColumnReader(self.dialect, self.selection, self.schema, self.source.values["timeZone"])

    def read(self, split: RangeSplit) -> Iterator[pa.RecordBatch]:
        return self._read_at(split, begin=split.begin) if split.moment else self._read(split)

    def resume(self, split: RangeSplit, records: int) -> Iterator[pa.RecordBatch]:
        """As in the base class. Only the same moment has the same rows again, in the same order."""
        if not split.moment:
            raise Fatal(
                f"the connection was lost after {records} rows, and the table may have changed since",
                way_out="let Spark try the task again, as it does on a cluster and with local[n,4]; or run the read again",
            )
        return self._without_first(self._read_at(split, begin=False), records)

    def _without_first(self, batches: Iterator[pa.RecordBatch], records: int) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if records < batch.num_rows:
                yield batch.slice(records)
            records = max(0, records - batch.num_rows)

    def _read_at(self, split: RangeSplit, *, begin: bool) -> Iterator[pa.RecordBatch]:
        dialect: Any = self.dialect
        with shared_snapshot(dialect, split.moment, begin=begin) as snapshot:
            rows, committed = self._open_rows(), False
            try:
                for sql in begin_at(snapshot):
                    rows.execute(sql)
                yield from self._read(split)
                rows.execute("COMMIT")
                committed = True
            finally:
                if not committed:
                    self._disconnect(spoilt=True)

    def _read(self, split: RangeSplit) -> Iterator[pa.RecordBatch]:
        """Reads the range. If it does not read all rows, it does not use the connection again."""
        column = self.dialect.quote(split.column)
        statement = select(self.selection.source, self.columns.expressions, split.where(column))
        whole = False
        try:
            for batch in self._open_rows().batches(statement, self.columns.kinds):
                yield self.columns.read(batch)
            whole = True
        finally:
            if not whole:
                self._disconnect(spoilt=True)

    def _open_rows(self) -> Rows:
        if self._rows is None:
            self._rows = rows_for(self.dialect, self.source.values["fetchsize"])
        return self._rows

    def _disconnect(self, *, spoilt: bool = False) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.spoilt |= spoilt
            rows.close()

    def wake_up(self) -> None:
        super().wake_up()
        rows = self._rows
        if rows is not None:
            rows.cancel()

    def close(self) -> None:
        self._disconnect()


_log = logging.getLogger(NAME)

_WRITES = "is an option of the sink; this source reads."
_KERBEROS = "is not supported: give user and password, or sslcert and sslkey in the url."
REFUSED = {
    **dict.fromkeys(
        (
            "batchsize", "truncate", "cascadeTruncate", "createTableOptions", "createTableColumnTypes", "isolationLevel",
            "operation", "keyColumns", "updateColumns", "deleteColumn", "createTable", "evolveSchema",
            "statement",
        ),
        _WRITES,
    ),
    **dict.fromkeys(("keytab", "principal", "refreshKrb5Config", "connectionProvider"), _KERBEROS),
    "customSchema": "is not supported: give .schema(…), which may also leave columns out.",
    "prepareQuery": "is not needed: write WITH … at the beginning of the query itself.",
    "hint": "is not supported: write it into the query.",
}  # fmt: skip
_PUSH_DOWN = (
    "pushDownPredicate", "pushDownAggregate", "pushDownLimit", "pushDownOffset", "pushDownTableSample",
)  # fmt: skip
_LEAST_SPLIT = 10 << 20
_STREAMED = sorted({kind.system for kind in DIALECTS.values() if kind.system})


class Predicates(Option):
    """SQL conditions, as a list in JSON or of Python."""

    def parse(self, text: str) -> tuple[str, ...]:
        conditions = listed_texts(text)
        if not conditions or not all(condition.strip() for condition in conditions):
            raise ValueError("""a JSON list of SQL conditions, such as ["id < 100", "id >= 100"]""")
        return conditions

    def accepts(self) -> str:
        return "JSON list of conditions"


class JdbcSource(Source):
    """The rows of a table or a query of PostgreSQL, MySQL, MariaDB, SQLite or DuckDB.

    By default ``numPartitions`` keeps each partition below ``maxSplitMemorySize``, by the database's estimate of the size;
    without a ``partitionColumn`` it is 1. With ``predicates`` each condition of yours is a partition. ``.schema(…)`` may leave
    columns out and give others a type; it turns JSON into arrays, structs and maps.

    Types without an equal in Spark (uuid, json, enums, intervals, times of a day, network addresses) are text. A numeric
    without a precision is decimal(38,18), whole numbers of SQLite have 64 bits, arrays of PostgreSQL and DuckDB are arrays.
    Such a numeric is rounded, as in Spark; one that would become 0 or does not fit is an error. So is an array of several
    dimensions, unless ``.schema(…)`` makes it text or an array of arrays.

    As a stream: ``incremental`` or ``tables``, see :mod:`connectors.systems.jdbc.incremental`.
    """

    name = "jdbc"
    conditions = (
        "as a stream: incremental or tables; rows are not changed behind the position; by id on MySQL and MariaDB, the "
        "privilege PROCESS or singleWriter; by time outside of PostgreSQL's tables, timestampDelay is longer than any "
        "transaction"
    )
    options = (
        Options(
            {
                "url": Text(REQUIRED, meaning="JDBC's or SQLAlchemy's; it says which database it is"),
                "dbtable": Text(
                    None, alternatives=("query", "tables"), meaning="name, schema.name, quoted, or (select …) alias"
                ),
                "query": Text(None, meaning="a select statement, in place of dbtable"),
                "user": Text(None, meaning="the login, where the url has none"),
                "password": Text(None, meaning="its password"),
                "driver": Text(None, meaning="accepted from Spark's options, without effect"),
                "partitionColumn": Text(
                    None, needed_by="lowerBound: the column that it is of",
                    meaning="what parallel readers share out: any column with an order; default: a key of one column",
                ),
                "numPartitions": Int(
                    None, at_least=1, needed_by="lowerBound: the number of steps",
                    meaning="parallel readers; default: by maxSplitMemorySize",
                ),
                "lowerBound": Text(
                    None, needed_by="upperBound: it; or leave both out, and they are found",
                    meaning="with upperBound: equal steps, no row left out; default: ranges with as many rows each",
                ),
                "upperBound": Text(
                    None, needed_by="lowerBound: it; or leave both out, and they are found", meaning="see lowerBound"
                ),
                "predicates": Predicates(
                    (),
                    excludes=(
                        "partitionColumn", "numPartitions", "lowerBound", "upperBound",
                        "incremental: it is for batch reads; put the condition into query",
                        "tables: it is for batch reads of one table or query",
                    ),
                    meaning="a JSON list of SQL conditions, one partition each, as Spark's. A row that fulfils two of them is "
                    "read twice, and a row that fulfils none is not read; unknown (NULL) is not fulfilled",
                ),
                "fetchsize": Int(
                    0, at_least=0, meaning="rows of a block; 0 is 4 MB on PostgreSQL and 10,000 rows elsewhere"
                ),
                "maxSplitMemorySize": Size(
                    64 << 20,
                    at_least=_LEAST_SPLIT,
                    meaning="numPartitions follows from it and from the size that the database estimates",
                ),
                "timeZone": Text("UTC", meaning="of times without a zone"),
                "preferTimestampNTZ": Flag(False, meaning="times without a zone become timestamp_ntz"),
                "snapshot": Flag(True, meaning="on PostgreSQL all partitions of an action see the same moment"),
                "sessionInitStatement": Text(None, meaning="runs first in each session that reads"),
                "request.timeout": Duration(30.0, meaning="for connecting and for locks"),
                **{name: Flag(None, meaning="accepted from Spark's options, without effect") for name in _PUSH_DOWN},
            },
            refused=REFUSED,
            alias={"queryTimeout": "request.timeout"},
        )
        | INCREMENTAL
    )

    extensions = OwnDialects()

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        if values["driver"]:
            _log.info("driver is not needed: the url says which database it is")
        if streaming and values["predicates"]:
            text = "is for batch reads; in a stream, put the condition into query."
            raise Misconfigured(NAME, [Problem("predicates", text)])
        if streaming and not self.is_incremental:
            text = "missing; a stream needs incremental (incrementing, timestamp, timestamp+incrementing, bulk) or tables."
            raise Misconfigured(NAME, [Problem("incremental", text)])

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        try:
            kind = DIALECTS[parse(values["url"], values["user"], values["password"]).dialect]
            if not kind.system and (values["incremental"] is not None or is_stream_of_tables(values)):
                text = f"is for {kind.name}, whose dialect extends none that can be read as a stream: {', '.join(_STREAMED)}."
                yield Problem("url", text)
        except ValueError as wrong:
            yield Problem("url", str(wrong))
        yield from check_selection(values)
        if problem := region_problem(values["timeZone"]):
            yield Problem("timeZone", problem)

    @property
    def is_incremental(self) -> bool:
        """Whether a stream can tell new rows."""
        return self.values["incremental"] is not None or is_stream_of_tables(self.values)

    def datasets(self) -> Sequence[Dataset]:
        return datasets_of(self.address(), *filter(None, [self.values["dbtable"]]))

    def address(self) -> DatabaseAddress:
        return parse(self.values["url"], self.values["user"], self.values["password"])

    def dialect(self) -> Dialect:
        dialect = dialect_of(self.address(), self.values["request.timeout"])
        dialect.session_statement = self.values["sessionInitStatement"] or ""
        return dialect

    def shares_moment(self) -> bool:
        """Whether all partitions of a batch are read at one moment."""
        return bool(self.values["snapshot"]) and self.dialect().shares_snapshots

    @cached_property
    def schema(self) -> str:  # type: ignore[override]
        if is_stream_of_tables(self.values):
            return "table string, row string" + (", schema string, key array<string>" if self.values["includeSchema"] else "")
        with contextlib.closing(self.dialect().connect_to_read()) as connection:
            return columns_text(read_selection(self.values, connection), ntz=self.values["preferTimestampNTZ"])

    def enumerator(self) -> SplitEnumerator[Any]:
        return StreamEnumerator(self.values, self.dialect()) if self._is_stream else BatchEnumerator(self)

    def reader(self, schema: pa.Schema) -> SplitReader[Any]:
        return TableReader(self.values, self.dialect(), schema) if self._is_stream else RangeReader(self, schema)

    @property
    def _is_stream(self) -> bool:
        """True for a read as a stream: with ``tables`` also a batch reads so; ``incremental`` is for streams only."""
        return self.streaming or is_stream_of_tables(self.values)
