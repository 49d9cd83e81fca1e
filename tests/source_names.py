"""Streams whose source has a name: their offset log is a map by names in place of a sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMED = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.offsetLog.formatVersion": "2",
}


@contextmanager
def stream_reader(spark: Any, source_name: str | None) -> Iterator[Any]:
    """A reader of a stream that is started inside; without a name it is Spark's usual one."""
    settings = _NAMED if source_name else {}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        yield spark.readStream.name(source_name) if source_name else spark.readStream
    finally:
        for key in settings:
            spark.conf.unset(key)
