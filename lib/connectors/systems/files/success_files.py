"""Success files: an empty file in the folder of a bucket says that the bucket is finished.

A bucket is finished when a committed row is ``bucket.finishedAfter`` later than the bucket's end. Each committable has the
newest time of its rows, so the decision depends on recorded batches alone. Until then a bucket has a mark in the sink's hidden
folder, ``open/<end>_<newest time>_<bucket>``, with times in microseconds since 1970. The bucket of the newest row is never
finished. So the marks also say how far time has come: to every process, after any number of batches.

When the files of a batch are published, it marks those of its buckets that are not finished, seals the hidden parts of the
finished ones, puts their success files, and removes their marks. Whoever repeats its publication repeats all of this. A bucket
with rows of another batch that is decided and not yet published, such as a batch write beside the query, waits with a mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

import pyarrow as pa

from ...core import Batch, Committable, Misconfigured, Problem
from ...core.folder import SinkFolder
from ...ground.columns import template_columns
from ...ground.options import Values
from ...ground.time_zones import UTC, zone_problem
from ...storage import is_hidden
from .folders import LONGEST_NAME, NO_BUCKET, DatePattern

_EXAMPLES: Final = (datetime(2001, 2, 3, 4, 5, 6, 7), datetime(2011, 12, 13, 14, 15, 16, 171819))
_LONGEST_BUCKET: Final = 200
"""The most bytes of a bucket in the name of its mark."""
_NEVER: Final = 1 << 62
"""The end of a bucket that is never finished, such as the last day of the year 9999."""
_FURTHEST_ZONE: Final = 14 * 3600.0
"""The most seconds by which the time of a place is ahead of UTC."""


def success_problems(values: Values) -> Iterator[Problem]:
    """The problems of the options of a success file."""
    name, bucket = values["bucket.successFile"], values["bucket"]
    if not is_hidden(name) or "/" in name or len(name.encode()) > LONGEST_NAME:
        text = f"must begin with _, so that readers pass over it, and have no =, no /, and at most {LONGEST_NAME} bytes"
        yield Problem("bucket.successFile", f'{text}; got "{name}".')
    if columns := template_columns(bucket):
        yield Problem("bucket", f"must have no columns for bucket.successFile; got {bucket!r} with {', '.join(columns)}.")
    elif not _tells_end(bucket) or len(quote(bucket, safe="")) > _LONGEST_BUCKET:
        text = "must tell when a folder ends, for bucket.successFile: yyyy, and each of MM, dd, HH, mm, ss down to the finest"
        yield Problem("bucket", f'{text}; got "{bucket}".')
    if problem := zone_problem(values["bucket.timeZone"]):
        yield Problem("bucket.timeZone", problem)


def _tells_end(bucket: str) -> bool:
    try:
        pattern = DatePattern("", bucket)
    except Misconfigured:
        return False
    folders = [(time, pattern.shown(time)) for time in _EXAMPLES]
    spans = [(time, pattern.span(folder)) for time, folder in folders if PurePosixPath(folder).as_posix() == folder]
    return [span is not None and span[0] <= time < span[1] for time, span in spans] == [True, True]


def time_state(values: Values, newest: int | None, *, has_zone: bool) -> dict[str, Any]:
    """The part of a committable about the times of its rows; times without a zone are in microseconds as if in UTC."""
    return {} if newest is None else {"newest": newest, "zone": values["bucket.timeZone"] if has_zone else None}


def later_state(values: Values, rows: pa.RecordBatch, state: dict[str, Any]) -> dict[str, Any]:
    """The :func:`time_state` of more ``rows``, and of those that have ``state``."""
    import pyarrow.compute as pc

    times = rows.column(values["bucket.timeColumn"])
    zone = getattr(times.type, "tz", None)
    newest: int | None = pc.max(times.cast(pa.timestamp("us", zone)).cast(pa.int64())).as_py()
    if newest is None or newest <= state.get("newest", newest - 1):
        return state
    return time_state(values, newest, has_zone=zone is not None)


class _Mark(NamedTuple):
    """The mark of a bucket that is not finished; ``newest`` is the newest time of all rows when it was put."""

    end: int
    newest: int
    bucket: str

    def path(self, folder: str) -> str:
        return f"{folder}/{self.end}_{self.newest}_{quote(self.bucket, safe='')}"


class SuccessFiles:
    """The success files of one sink, whose options ask for them."""

    def __init__(self, folder: SinkFolder, values: Values) -> None:
        self.folder, self.name, self._after = folder, values["bucket.successFile"], values["bucket.finishedAfter"]
        self._pattern = DatePattern("", values["bucket"])
        self._open = folder.hidden("open")

    def finished(self, committables: Sequence[Committable]) -> dict[str, _Mark]:
        """The buckets that are finished now that ``committables`` are published. Marks their other buckets."""
        states = [staged.data for staged in committables if "newest" in staged.data]
        marks = self._marks()
        newest = max([*map(_progress, states), *(mark.newest for mark in marks)], default=0)
        ends = {bucket: self._end(bucket, state["zone"]) for state in states for bucket in _buckets(state) - {NO_BUCKET}}
        of_batch = [_Mark(end, newest, bucket) for bucket, end in ends.items()]
        finished = {mark.bucket: mark for mark in (*marks, *of_batch) if mark.end + self._after * 1e6 <= newest}
        for mark in of_batch:
            if mark.bucket not in finished:
                self.folder.storage.put_if_absent(mark.path(self._open), b"")
        waiting = ends.keys() - finished
        self.folder.delete(mark.path(self._open) for mark in marks if mark.bucket in waiting and mark.newest < newest)
        return finished

    def put(self, batch: Batch, finished: Mapping[str, _Mark]) -> None:
        """Puts the success files of :meth:`finished` buckets, all parts of which are sealed. Marks those that must wait."""
        waiting = self._unpublished(batch) if finished else set()
        for bucket, mark in finished.items():
            name = mark.path(self._open) if bucket in waiting else f"{bucket}/{self.name}"
            self.folder.storage.put_if_absent(name, b"")
        if over := finished.keys() - waiting:
            self.folder.delete(mark.path(self._open) for mark in self._marks() if mark.bucket in over)

    def _marks(self) -> list[_Mark]:
        names = (re.fullmatch(r"(-?\d+)_(-?\d+)_(.+)", name) for name in self.folder.storage.names(self._open))
        return [_Mark(int(name[1]), int(name[2]), unquote(name[3])) for name in names if name]

    def _end(self, bucket: str, zone: str | None) -> int:
        """The end of a bucket; where clocks are set back and it comes twice, that of the second time."""
        import pyarrow.compute as pc

        if (span := self._pattern.span(bucket)) is None:
            return _NEVER
        region = "UTC" if zone is None or zone in UTC else zone
        time = pa.scalar(span[1], pa.timestamp("us"))
        return int(pc.assume_timezone(time, region, ambiguous="latest", nonexistent="latest").value)

    def _unpublished(self, batch: Batch) -> set[str]:
        """The buckets of other batches that are decided and not yet published."""
        entries = [e for e in self.folder.ledger().unpublished() if (e.query, e.batch) != (batch.query, batch.number)]
        return {bucket for entry in entries for staged in entry.committables for bucket in _buckets(staged["data"])}


def _buckets(state: Mapping[str, Any]) -> set[str]:
    return {bucket for _, bucket, _ in state["files"]}


def _progress(state: Mapping[str, Any]) -> int:
    """How far the rows of a committable bring time: a time ahead of the clock is wrong, and would finish every bucket."""
    clock = float(state["at"]) + (_FURTHEST_ZONE if state["zone"] is None else 0)
    return min(int(state["newest"]), round(clock * 1e6))
