"""Staging with Spark's own writers, for the carriers that are handed a DataFrame."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ...core import Batch, Committable, Misconfigured, Problem
from ...core.folder import HIDDEN
from .staging import begin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from . import FilesSink

_BUCKET = "__bucket"
_NO_TIME = f"{_BUCKET}=__HIVE_DEFAULT_PARTITION__"


def stage_with_spark(sink: FilesSink, frame: DataFrame, batch: Batch) -> list[Committable]:
    """Writes ``frame`` into a staging folder of its own; the committable lists the files and the folder each goes to."""
    bucketed, columns = _bucketed(sink, frame)
    attempt, folder = batch.attempt(), sink.folder()
    stage = begin(f"connectors.{sink.name}", folder, batch, attempt)
    writer = bucketed.write.format(sink.values["fileFormat"]).partitionBy(*columns).options(**_options(sink))
    writer.options(**folder.spark_options()).mode("append").save(folder.spark_url(stage))
    files = sorted(PurePosixPath(name) for name, _ in folder.files(stage))
    listed = [[str(file), _bucket(sink, file.relative_to(stage).parent)] for file in files]
    return [Committable(0, {"attempt": attempt, "files": listed})]


def _bucketed(sink: FilesSink, frame: DataFrame) -> tuple[DataFrame, list[str]]:
    from pyspark.sql import functions as F

    values = sink.values
    wanted = [*values["partitionBy"], *([values["bucket.timeColumn"]] if values["bucket"] else [])]
    if missing := [column for column in wanted if column not in frame.columns]:
        raise Misconfigured(
            f"connectors.{sink.name}",
            [Problem("partitionBy" if not values["bucket"] else "bucket.timeColumn",
                     f'names "{column}", but the columns are {", ".join(frame.columns)}.') for column in missing],
        )
    if not values["bucket"]:
        return frame, wanted
    time = F.col(f"`{wanted[-1].replace('`', '``')}`").cast("timestamp")
    # date_format knows the session's time zone only, in which an hour may be missing or come twice.
    form = {"timestampFormat": values["bucket"], "timeZone": values["bucket.timeZone"]}
    wall = F.to_csv(F.struct(time), {**form, "sep": "\x01", "quote": "\x02"})
    return frame.withColumn(_BUCKET, F.when(time.isNotNull(), wall)), [_BUCKET]


def _options(sink: FilesSink) -> dict[str, str]:
    """Spark's options for what the carriers without a DataFrame write too."""
    kind, codec = sink.values["fileFormat"], sink.values["compression"]
    options = {"escape": '"'} if kind == "csv" else {}
    if codec:
        options["compression"] = "lz4_raw" if (kind, codec) == ("parquet", "lz4") else codec
    return options


def _bucket(sink: FilesSink, folder: PurePosixPath) -> str:
    """The target folder of a staged one; Spark escapes the slashes of a bucket's name."""
    name = folder.as_posix()
    if not name.startswith(f"{_BUCKET}="):
        return "" if name == "." else name
    if name == _NO_TIME:
        return "bucket=__HIVE_DEFAULT_PARTITION__"
    bucket = unquote(name.removeprefix(f"{_BUCKET}="))
    if bucket.startswith("/") or any(part.startswith(HIDDEN) for part in bucket.split("/")):
        text = f'makes the folder "{bucket}": a folder must lie below path, and readers pass over those with . or _ first.'
        raise Misconfigured(f"connectors.{sink.name}", [Problem("bucket", text)])
    return bucket
