"""What happens in a task that writes: its rows go to a writer, which stages them, or removes what it staged if it fails."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pyarrow as pa

from .errors import ConnectorError
from .sink import Batch, Committable, Sink, SinkWriter


def stage(sink: Sink, batch: Batch, schema: pa.Schema, subtask: int, rows: Iterator[pa.RecordBatch]) -> Committable:
    """Stages the rows of one task attempt. Raises what the writer raised, told where it happened."""
    writer = sink.writer(batch, schema, subtask)
    try:
        for records in rows:
            if records.num_rows:
                writer.write(records)
        return _with_rejects(writer, writer.prepare())
    except BaseException as error:
        with contextlib.suppress(Exception):  # the first error is the one that counts
            writer.abort()
        if isinstance(error, ConnectorError):
            raise error.located(f"connectors.{sink.name}", f"{batch}, task {subtask}") from None
        raise
    finally:
        writer.close()


def _with_rejects(writer: SinkWriter, staged: Committable) -> Committable:
    if writer.rejects is None:
        return staged
    return dataclasses.replace(staged, rejected=writer.rejects.count, letters=writer.rejects.stage())
