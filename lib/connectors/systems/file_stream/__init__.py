"""``connectors.file_stream``: Kafka Connect's pair of file connectors, lines in and lines out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...core import REQUIRED, Batch, Committable, Misconfigured, Options, Problem, Text
from ...core.options import Duration, Values
from ..files import FilesSink
from .source import FileStreamSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from ..files.writer import FilesWriter

__all__ = ["FileStreamSink", "FileStreamSource"]


class FileStreamSink(FilesSink):
    """One line per row of the column ``value``, in a folder of finished files.

    Options: ``path`` (required, alias ``file``), ``stagingRetention`` (7 days), and those of every sink.
    Guarantee: exactly-once.
    """

    name = "file_stream"
    options = Options(path=Text(REQUIRED), stagingRetention=Duration(7 * 86400.0), alias={"file": "path"})

    def __init__(self, values: Values) -> None:
        fixed = {"fileFormat": "text", "partitionBy": (), "bucket": None, "partPrefix": "part", "compression": None}
        super().__init__(Values({**values, **fixed}, frozenset(values), {}))

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if "://" in values["path"] and not values["path"].startswith("file:"):
            yield Problem("path", f'must be a local or mounted folder; got "{values["path"]}".')

    def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable]:
        self._must_have_value([f"{name} {kind}" for name, kind in frame.dtypes])
        return super().stage_frame(frame.select("value"), batch)

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> FilesWriter:
        self._must_have_value([f"{field.name} {field.type}" for field in schema])
        return super().writer(batch, schema, subtask)

    def _must_have_value(self, columns: list[str]) -> None:
        if columns != ["value string"]:
            text = f'takes one column "value" of strings; got {", ".join(columns)}. Select it: df.select("value").'
            raise Misconfigured("connectors.file_stream", [Problem("value", text)])
