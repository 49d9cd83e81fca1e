"""The end of a streaming query: rows that are committed and still hidden are shown before anybody looks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from ..core.sink import HidingSink, Sink
from .execution import execution_behind, format_of_query
from .query_watch import SparkRun

_SINKS: Final[dict[str, HidingSink]] = {}
"""The sinks of this process that hide committed rows for a while, by their ids."""


def remember(sink: Sink) -> None:
    """Lets :func:`show_rows` know a sink of ``foreach_batch``."""
    if isinstance(sink, HidingSink) and sink.hides_rows():
        _SINKS[sink.sink_id()] = sink


def show_rows(query: Any, kinds: Mapping[str, type[Sink]]) -> None:
    """Shows the rows that ``query``, which has ended, has committed and still hides. ``kinds`` are the sinks by format.

    On Spark Connect a job of one task does it, where the files are; a sink by ``format`` is not known there.
    """
    execution = execution_behind(query)
    if execution is None:
        for sink in _SINKS.values():
            _show_on_server(query, sink)
        return
    ends_by_itself = SparkRun(execution).ends_by_itself
    for sink in [*_SINKS.values(), *_sink_of_format(execution, kinds)]:
        sink.show_rows(str(query.id), ends_by_itself)


def _sink_of_format(execution: Any, kinds: Mapping[str, type[Sink]]) -> Iterator[HidingSink]:
    from .formats import sink_with

    format_name, options = format_of_query(execution) or ("", {})
    sink = sink_with(kinds[format_name], options) if format_name in kinds else None
    if isinstance(sink, HidingSink) and sink.hides_rows():
        yield sink


def _show_on_server(query: Any, sink: HidingSink) -> None:
    query_id = str(query.id)

    # Connect tells no trigger. A query that somebody has stopped counts as one that ends by itself: its files appear earlier.
    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink.show_rows(query_id, ends_by_itself=True)
            yield batch

    query._session.range(1).mapInArrow(task, "id long").collect()
