"""Staging with Spark's own writers, for the carriers that are handed a DataFrame."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ...core import Batch, Committable
from .folders import NO_TIME, NULL, check_names, checked_bucket
from .staged_rows import committed_files, observed_line_ends, rows_of
from .staging import begin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from . import FilesSink

_BUCKET = "__bucket"
_NO_TIME = f"{_BUCKET}={NULL}"
_TIMES = "spark.sql.parquet.outputTimestampType"
_CSV = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Quotes as in RFC 4180; and without these Spark's writer drops the blanks around a text."""


def stage_with_spark(sink: FilesSink, frame: DataFrame, batch: Batch, offsets: list[Any] | None) -> list[Committable]:
    """Writes ``frame`` into a staging folder of its own; the committable lists the files and the folder each goes to.

    ``offsets`` go with them into the ledger.
    """
    bucketed, columns = _bucketed(sink, frame)
    bucketed, line_ends = observed_line_ends(bucketed, sink.values["fileFormat"], columns)
    attempt, folder = batch.attempt(), sink.folder()
    stage = begin(f"connectors.{sink.name}", folder, batch, attempt)
    writer = bucketed.write.format(sink.values["fileFormat"]).partitionBy(*columns).options(**_options(sink))
    with _times_of_arrow(frame.sparkSession) if sink.values["fileFormat"] == "parquet" else contextlib.nullcontext():
        writer.options(**folder.storage.spark_options()).mode("append").save(folder.storage.spark_url(stage))
    sizes = committed_files(folder, stage)
    folder.sync(sizes)
    files = sorted(map(PurePosixPath, sizes))
    listed = [[str(file), _bucket(sink, file.relative_to(stage).parent), sizes[str(file)]] for file in files]
    rows = rows_of(folder, sizes, sink.values["fileFormat"], frame.sparkSession) - line_ends()
    return [Committable(rows, {"attempt": attempt, "files": listed, **({"offsets": offsets} if offsets else {})})]


@contextlib.contextmanager
def _times_of_arrow(spark: SparkSession) -> Iterator[None]:
    """Lets Spark write times into Parquet as Arrow does, and not as INT96; no option of the writer says so.

    A server that does not let its settings be changed has its own way.
    """
    from pyspark.errors import PySparkException

    before = spark.conf.get(_TIMES)
    try:
        spark.conf.set(_TIMES, "TIMESTAMP_MICROS")
    except PySparkException:
        yield
        return
    try:
        yield
    finally:
        spark.conf.set(_TIMES, str(before))


def _bucketed(sink: FilesSink, frame: DataFrame) -> tuple[DataFrame, list[str]]:
    from pyspark.sql import functions as F

    values = sink.values
    wanted = [*values["partitionBy"], *([values["bucket.timeColumn"]] if values["bucket"] else [])]
    option = "bucket.timeColumn" if values["bucket"] else "partitionBy"
    check_names(f"connectors.{sink.name}", option, wanted, frame.columns)
    if not values["bucket"]:
        return frame, wanted
    time = F.col(f"`{wanted[-1].replace('`', '``')}`")
    naive = dict(frame.dtypes)[wanted[-1]] in ("timestamp_ntz", "date")
    time = time.cast("timestamp_ntz" if naive else "timestamp")
    # date_format knows the session's time zone only, in which an hour may be missing or come twice.
    form = {"timestampNTZFormat" if naive else "timestampFormat": values["bucket"], "timeZone": values["bucket.timeZone"]}
    wall = F.to_csv(F.struct(time), {**form, "sep": "\x01", "quote": "\x02"})
    return frame.withColumn(_BUCKET, F.when(time.isNotNull(), wall)), [_BUCKET]


def _options(sink: FilesSink) -> dict[str, str]:
    """Spark's options for what the carriers without a DataFrame write too."""
    kind, codec = sink.values["fileFormat"], sink.values["compression"]
    options = {**_CSV} if kind == "csv" else {}
    if codec:
        options["compression"] = "lz4_raw" if (kind, codec) == ("parquet", "lz4") else codec
    return options


def _bucket(sink: FilesSink, folder: PurePosixPath) -> str:
    """The target folder of a staged one; Spark escapes the slashes of a bucket's name."""
    name = folder.as_posix()
    if not name.startswith(f"{_BUCKET}="):
        return "" if name == "." else name
    if name == _NO_TIME:
        return NO_TIME
    return checked_bucket(f"connectors.{sink.name}", unquote(name.removeprefix(f"{_BUCKET}=")))
