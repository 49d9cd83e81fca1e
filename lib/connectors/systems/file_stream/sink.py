"""The sink: a line for each row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from ...core import REQUIRED, Batch, Committable, Misconfigured, Options, Problem, Text
from ...core.dead_letters import Rejects
from ...core.sink import RETENTION
from ...ground.options import Values
from ...storage.location import is_local, without_user
from ..files import FilesSink
from ..files.writer import FilesWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LINE_END = r"[\r\n]"
_WHY = "the value has a line end in it, so it would be read as several lines"


class LineWriter(FilesWriter):
    """Writes one line per value, and sets those aside that are more than one."""

    def __init__(self, sink: FileStreamSink, batch: Batch, schema: pa.Schema) -> None:
        super().__init__(sink, batch, schema)
        self.rejects: Rejects = sink.rejects(batch)

    def write(self, batch: pa.RecordBatch) -> None:
        broken = pc.fill_null(pc.match_substring_regex(batch.column("value"), _LINE_END), False)
        for row in batch.filter(broken).to_pylist():
            self.rejects.add(row, _WHY)
        if (whole := batch.filter(pc.invert(broken))).num_rows:
            super().write(whole)


class FileStreamSink(FilesSink):
    """One line per row of the column ``value``, in a folder of finished files.

    A value with a line end in it would come back as several lines, so it is a bad row (``errors``); null is an empty line.
    Guarantee: exactly-once.
    """

    name = "file_stream"
    rejects_rows = True
    conditions = "a local or mounted folder; files appear one by one, each complete"
    options = Options(
        path=Text(REQUIRED, meaning="the folder of the finished files"),
        stagingRetention=RETENTION,
        alias={"file": "path"},
    )

    def __init__(self, values: Values) -> None:
        unset = dict.fromkeys(("bucket", "bucket.successFile", "compression"))
        fixed = {"fileFormat": "text", "partitionBy": (), "partPrefix": "part", **unset}
        super().__init__(Values({**values, **fixed}, frozenset(values), {}))

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if not is_local(values["path"]):
            shown = without_user(values["path"])
            yield Problem("path", f'must be a local or mounted folder; got "{shown}". Elsewhere, take connectors.files.')

    def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable] | None:
        if problems := list(_wrong_columns([f"{name} {kind}" for name, kind in frame.dtypes])):
            raise Misconfigured("connectors.file_stream", problems)
        if self.values["errors"] != "fail":
            return None
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        broken = F.max(F.when(F.col("value").rlike(_LINE_END), F.col("value")))
        observation = Observation()
        staged = super().stage_frame(frame.select("value").observe(observation, broken.alias("broken")), batch)
        if (value := observation.get.get("broken")) is not None:
            self.rejects(batch).add({"value": value}, _WHY)
        return staged

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> LineWriter:
        return LineWriter(self, batch, schema)

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        yield from _wrong_columns([f"{field.name} {field.type}" for field in schema])


def _wrong_columns(columns: list[str]) -> Iterator[Problem]:
    if columns != ["value string"]:
        text = f'takes one column "value" of strings; got {", ".join(columns)}. Select it: df.select("value").'
        yield Problem("value", text)
