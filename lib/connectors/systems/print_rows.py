"""``connectors.print``: each row as a line of text. The reference for a simple sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..core import Batch, Committable, FrameSink, Guarantee, Options, SinkWriter, Text
from ..formats.text import json_objects

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class PrintSink(FrameSink):
    """Prints ``"<subtask>> "`` and the row: the value of a single column, else a JSON object.

    With ``foreach_batch`` the lines appear in the notebook; with ``format`` they go to the output of Spark's workers.
    Guarantee: at-least-once; a replayed batch is printed again.
    """

    name = "print"
    options = Options(prefix=Text(None, meaning="stands before the subtask, with a colon"))
    promise = Guarantee.AT_LEAST_ONCE
    stages_frames = True
    conditions = "what is printed cannot be taken back, nor asked whether it was printed"

    def target(self) -> str:
        return "the standard output"

    def lines(self, rows: pa.RecordBatch, subtask: int) -> list[str]:
        """The text of ``rows``."""
        mark = f"{self.values['prefix']}:{subtask}> " if self.values["prefix"] else f"{subtask}> "
        if rows.num_columns == 1:
            return [f"{mark}{'null' if value is None else value}" for value in rows.column(0).to_pylist()]
        return [mark + text for text in json_objects(rows, nulls=False).to_pylist()]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> PrintWriter:
        return PrintWriter(self, subtask)

    def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable]:
        """Collects the rows in the driver, whose output people see, and prints them as they come."""

        def label(rows):  # type: ignore[no-untyped-def]
            from pyspark import TaskContext

            subtask = TaskContext.get().partitionId()  # type: ignore[union-attr]
            for records in rows:
                yield pa.RecordBatch.from_pydict({"line": self.lines(records, subtask)}, pa.schema({"line": pa.string()}))

        printed = 0
        for row in frame.mapInArrow(label, "line string").toLocalIterator():
            print(row.line)
            printed += 1
        return [Committable(printed)]


class PrintWriter(SinkWriter):
    def __init__(self, sink: PrintSink, subtask: int) -> None:
        self.sink = sink
        self.subtask = subtask
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        print("\n".join(self.sink.lines(batch, self.subtask)), flush=True)
        self.rows += batch.num_rows

    def prepare(self) -> Committable:
        return Committable(self.rows)
