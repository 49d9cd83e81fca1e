"""A table or query read once, in ranges: the enumerator and the reader of a batch."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...core.errors import Fatal
from ...core.source import Position, ReadLimit, Slice, SplitEnumerator, SplitReader
from .arrow_read import Rows, rows_for
from .bounds import planned
from .fitting import Fitting
from .ranges import Range
from .selecting import Selected, select, selected
from .snapshot import begin_at, shared

if TYPE_CHECKING:
    from .source import JdbcSource


@dataclass(frozen=True)
class Part(Range):
    """A range, and the ``moment`` that it is read at (``""``: its own). ``begin`` allows to begin that moment."""

    moment: str = ""
    begin: bool = True

    def __str__(self) -> str:
        low = "" if self.low is None else f"{self.low!r} <= "
        high = "" if self.high is None else f" < {self.high!r}"
        return f"{low}{self.column}{high}" if low or high else "everything"


class BatchEnumerator(SplitEnumerator[Part]):
    """The position is ``{"read": 0}`` before and ``{"read": 1}`` after; the ranges are in the slices."""

    def __init__(self, source: JdbcSource) -> None:
        self.source = source

    def start(self) -> Position:
        return {"read": 0}

    def head(self) -> int:
        return 1

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        return {"read": head}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Part]:
        return iter([Part()] if start != end else [])

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        with contextlib.closing(self.source.dialect().connect_to_read()) as connection:
            ranges = planned(connection, self.source.values, selected(self.source.values, connection))
        moment = uuid.uuid4().hex if len(ranges) > 1 and self.source.shares_moment() else ""
        return [
            Slice(start, end, index, len(ranges), parallelism, {**asdict(one), "moment": moment})
            for index, one in enumerate(ranges)
        ]

    def splits_of(self, part: Slice) -> Iterator[Part]:
        moment = f"{part.detail['moment']}/{part.run}" if part.detail["moment"] else ""
        yield Part(**{**part.detail, "moment": moment, "begin": not part.retried})


class RangeReader(SplitReader[Part]):
    """Reads a range by one SELECT."""

    def __init__(self, source: JdbcSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema
        self.dialect = source.dialect()
        self._rows: Rows | None = None

    def open(self) -> None:
        with self._connected().control() as connection:
            self.selected: Selected = selected(self.source.values, connection)
        self.fitting = Fitting(self.dialect, self.selected, self.schema, self.source.values["timeZone"])

    def read(self, split: Part) -> Iterator[pa.RecordBatch]:
        return self._read_at(split, begin=split.begin) if split.moment else self._read(split)

    def resume(self, split: Part, records: int) -> Iterator[pa.RecordBatch]:
        """Only at the same moment are the same rows there once more, in the same order."""
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

    def _read_at(self, split: Part, *, begin: bool) -> Iterator[pa.RecordBatch]:
        dialect: Any = self.dialect
        with shared(dialect, split.moment, begin=begin) as snapshot:
            rows, over = self._connected(), False
            try:
                for sql in begin_at(snapshot):
                    rows.execute(sql)
                yield from self._read(split)
                rows.execute("COMMIT")
                over = True
            finally:
                if not over:
                    self._disconnect(spoilt=True)

    def _read(self, split: Part) -> Iterator[pa.RecordBatch]:
        """A connection whose rows were not all read is not used again."""
        column = self.dialect.quote(split.column)
        statement = select(self.selected.source, self.fitting.expressions, split.where(column))
        whole = False
        try:
            for batch in self._connected().batches(statement, self.fitting.kinds):
                yield self.fitting.fit(batch)
            whole = True
        finally:
            if not whole:
                self._disconnect(spoilt=True)

    def _connected(self) -> Rows:
        if self._rows is None:
            self._rows = rows_for(self.dialect, self.source.values["fetchsize"])
            if self.source.values["sessionInitStatement"]:
                self._rows.spoilt = True
                self._rows.execute(self.source.values["sessionInitStatement"])
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
