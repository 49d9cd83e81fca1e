"""The task's side of the hybrid source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...core import ConnectorError, RecordEmitter, Source, SplitReader
from .overlap import Overlap, Recent
from .parts import NAME, Part, PartSplit

if TYPE_CHECKING:
    from .source import HybridSource


class HybridReader(SplitReader[PartSplit]):
    """Reads the splits of a part by the part's own reader, and decodes them by its emitter."""

    def __init__(self, source: HybridSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema
        self._members: dict[str, tuple[Source, SplitReader[Any]]] = {}
        self._overlaps: dict[str, Overlap | None] = {}
        self._emitter: RecordEmitter | None = None
        self._recent: Recent | None = None
        self._mark: tuple[PartSplit | None, int, int] = None, 0, 0
        """A split, and the number of its rows that were passed on, and of the part's records that they come from."""

    def read(self, split: PartSplit) -> Iterator[pa.RecordBatch]:
        yield from _located(split, self._read(split))

    def _read(self, split: PartSplit) -> Iterator[pa.RecordBatch]:
        part, source, reader = self._part(split)
        overlap = self._overlap(split)
        self._emitter = source.emitter(part.schema(self.schema))
        self._recent = None if overlap is None or part == self.source.parts[-1] else overlap.recent()
        self._mark = split, 0, 0
        records = reader.read(split.split)
        yield from self._rows(split, iter(list(records)) if reader.atomic else records)

    def resume(self, split: PartSplit, records: int) -> Iterator[pa.RecordBatch]:
        _, _, reader = self._part(split)
        if self._mark[:2] != (split, records) or reader.atomic:
            yield from super().resume(split, records)
        else:
            yield from _located(split, self._rows(split, reader.resume(split.split, self._mark[2])))

    def _rows(self, split: PartSplit, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part, overlap = self.source.part(split.part), self._overlap(split)
        for records in batches:
            values = self._emitter.emit(records, split.split) if self._emitter else records
            rows = part.rows(values, self.schema)
            if overlap and split.last is not None:
                rows = overlap.without_read(rows, split.part, split.last)
            if overlap and self._recent is not None:
                overlap.add(self._recent, rows)
            self._mark = split, self._mark[1] + rows.num_rows, self._mark[2] + records.num_rows
            yield rows
        if self._emitter:
            self._emitter.finish(split)
        if overlap and self._recent is not None:
            overlap.record(str(split), self._recent)

    def _part(self, split: PartSplit) -> tuple[Part, Source, SplitReader[Any]]:
        """The part of ``split``, its source, and its reader, which is open."""
        part = self.source.part(split.part)
        if part.name not in self._members:
            source = self.source.member(part, split.last)
            reader = source.reader(part.schema(self.schema))
            try:
                reader.open()
            except BaseException:
                reader.close()
                raise
            self._members[part.name] = source, reader
        return part, *self._members[part.name]

    def _overlap(self, split: PartSplit) -> Overlap | None:
        if split.query not in self._overlaps:
            self._overlaps[split.query] = self.source.overlap(split.query)
        return self._overlaps[split.query]

    def counts(self) -> Mapping[str, int]:
        split = self._mark[0]
        own = {} if split is None else self._members[split.part][1].counts()
        bad = {"errors": self._emitter.bad, "dead_letters": self._emitter.dead_letters} if self._emitter else {}
        return {**own, **{name: count for name, count in bad.items() if count}}

    def wake_up(self) -> None:
        super().wake_up()
        for _, reader in list(self._members.values()):
            reader.wake_up()

    def close(self) -> None:
        for _, reader in self._members.values():
            reader.close()


def _located(split: PartSplit, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``rows``, whose errors name the part."""
    try:
        yield from rows
    except ConnectorError as error:
        raise error.located(f"{NAME}, part {split.part}") from None
