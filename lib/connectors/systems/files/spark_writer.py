"""Staging with Spark's own writers, for carriers that have a DataFrame.

Spark does not tell which files it has written. A file of a failed task attempt, or of another program, must not be published.
So before anything is recorded, the rows of the files are compared with the rows of the batch.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePosixPath
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np

from ...core import Batch, Committable
from ...core.folder import SinkFolder
from ...core.sink import Offsets
from ...formats.base import quoted
from ...ground.columns import PLAIN_TYPES
from ...storage.local import LocalStorage
from .committer import begin
from .folders import NULL, Bucket, check_bucket_columns, check_names
from .reader import unpacked
from .success_files import time_state

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from . import FilesSink


_READERS: Final = 8
"""The number of footers to read at the same time."""
_LOCAL_BYTES: Final = 1 << 30
_REMOTE_BYTES: Final = 32 << 20
"""The driver itself counts lines of up to so many bytes: its disk has just written them, or a job would take longer."""
_MARK: Final = "_committed_"
_LINE_END: Final = ord("\n")


def committed_files(folder: SinkFolder, stage: str) -> dict[str, int]:
    """The files below ``stage`` and their sizes, without those that Databricks' commit protocol does not list.

    That protocol leaves the files of failed attempts in place; in each folder ``_committed_<transaction>`` lists the files
    that count.
    """
    files = dict(folder.files(stage))
    for parent in {dirname(name) for name in files}:
        marks = [item.name for item in folder.storage.items(parent) if item.name.startswith(_MARK)]
        if marks:
            lists = (json.loads(folder.storage.read(f"{parent}/{mark}")) for mark in marks)
            added = {name for listed in lists for name in listed.get("added", ())}
            files = {name: size for name, size in files.items() if dirname(name) != parent or basename(name) in added}
    return files


def observed_line_ends(frame: DataFrame, kind: str, folders: Sequence[str]) -> tuple[DataFrame, Callable[[], int]]:
    """``frame``, and a function for the number of line ends inside its values (not of rows), once it is written.

    The columns ``folders`` do not go into the files.
    """
    texts = [name for name, type_name in frame.dtypes if type_name == "string" and name not in folders]
    columns = texts if kind in ("csv", "text") else []
    if not columns:
        return frame, lambda: 0
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    inside = F.lit(0)
    for name in columns:
        text = F.col(quoted(name))
        inside = inside + F.coalesce(F.length(text) - F.length(F.replace(text, F.lit("\n"), F.lit(""))), F.lit(0))
    observation = Observation()
    observed = frame.observe(observation, F.sum(inside).alias("line_ends"))
    return observed, lambda: int(observation.get["line_ends"] or 0)


def rows_of(folder: SinkFolder, files: Mapping[str, int], kind: str, spark: SparkSession) -> int:
    """The number of rows of ``files``, from their footers or their lines."""
    most = _LOCAL_BYTES if isinstance(folder.storage, LocalStorage) else _REMOTE_BYTES
    if kind not in ("parquet", "orc") and sum(files.values()) > most:
        urls = [folder.storage.spark_url(name) for name in files]
        reader = spark.read.options(**folder.storage.spark_options()).option("lineSep", "\n")
        return reader.text(urls).count()
    with ThreadPoolExecutor(_READERS) as threads:
        return sum(threads.map(lambda name: _rows(folder, name, kind), files))


def _rows(folder: SinkFolder, name: str, kind: str) -> int:
    with folder.open(name) as file:
        if kind == "parquet":
            import pyarrow.parquet as pq

            return int(pq.read_metadata(file).num_rows)
        if kind == "orc":
            import pyarrow.orc as orc

            return int(orc.ORCFile(file).nrows)
        return _lines(unpacked(file, name))


def _lines(stream: Any) -> int:
    count = 0
    while block := stream.read(1 << 20):
        count += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _LINE_END))
    return count


_BUCKET = "__bucket"
_TIMES = "spark.sql.parquet.outputTimestampType"
_TEXT_TIMES = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_JSON = {"ignoreNullFields": "true"}
"""The same as without a DataFrame, whatever the session's settings are."""
_CSV = {"escape": '"', "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
"""Quotes as in RFC 4180. Without the other two, Spark's writer drops the blanks around a text."""


def stage_with_spark(sink: FilesSink, frame: DataFrame, batch: Batch, offsets: Offsets | None) -> list[Committable]:
    """Writes ``frame`` into a new staging folder; the committable lists the files and the target folder of each.

    ``offsets`` go into the ledger with them.
    """
    bucketed, columns = _bucketed(sink, frame)
    bucketed, line_ends = observed_line_ends(bucketed, sink.values["fileFormat"], columns)
    bucketed, times = _observed_times(sink, bucketed)
    attempt, folder = batch.attempt(), sink.folder()
    stage = begin(f"connectors.{sink.name}", folder, batch, attempt)
    writer = bucketed.write.format(sink.values["fileFormat"]).partitionBy(*columns).options(**_options(sink))
    with _times_of_arrow(frame.sparkSession) if sink.values["fileFormat"] == "parquet" else contextlib.nullcontext():
        writer.options(**folder.storage.spark_options()).mode("append").save(folder.storage.spark_url(stage))
    sizes = committed_files(folder, stage)
    folder.sync(sizes)
    files = sorted(map(PurePosixPath, sizes))
    target = _target_folder(sink)
    listed = [[str(file), target(file.relative_to(stage).parent), sizes[str(file)]] for file in files]
    rows = rows_of(folder, sizes, sink.values["fileFormat"], frame.sparkSession) - line_ends()
    data = {"attempt": attempt, "files": listed, "at": type(sink).clock(), **times()}
    return [Committable(rows, data | ({"offsets": offsets} if offsets else {}))]


@contextlib.contextmanager
def _times_of_arrow(spark: SparkSession) -> Iterator[None]:
    """Makes Spark write times into Parquet as Arrow does instead of INT96, for which the writer has no option.

    A server that refuses changes of its settings writes in its own way.
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
    if not values["bucket"]:
        check_names(f"connectors.{sink.name}", "partitionBy", values["partitionBy"], frame.columns)
        return frame, list(values["partitionBy"])
    bucket = Bucket(f"connectors.{sink.name}", values["bucket"])
    kinds = {name: kind in PLAIN_TYPES for name, kind in frame.dtypes}
    check_bucket_columns(f"connectors.{sink.name}", values["bucket.timeColumn"], bucket, kinds)
    folders = [F.col(quoted(name)) for name in bucket.columns]
    if bucket.has_time:
        time, has_zone = _time(frame, values["bucket.timeColumn"])
        # date_format knows only the session's time zone, in which an hour may be missing or come twice.
        pattern = {"timestampFormat" if has_zone else "timestampNTZFormat": bucket.pattern}
        form = {**pattern, "timeZone": values["bucket.timeZone"], "sep": "\x01", "quote": "\x02"}
        folders.insert(0, F.when(time.isNotNull(), F.to_csv(F.struct(time), form)))
    names = [f"{_BUCKET}_{number}" for number in range(len(folders))]
    return frame.withColumns(dict(zip(names, folders, strict=True))), names


def _time(frame: DataFrame, name: str) -> tuple[Column, bool]:
    """The times in the column ``name``, and whether they have a zone."""
    from pyspark.sql import functions as F

    has_zone = dict(frame.dtypes)[name] not in ("timestamp_ntz", "date")
    return F.col(quoted(name)).cast("timestamp" if has_zone else "timestamp_ntz"), has_zone


def _observed_times(sink: FilesSink, frame: DataFrame) -> tuple[DataFrame, Callable[[], dict[str, Any]]]:
    """``frame``, and a function for what the committable tells of its times, once it is written."""
    if not sink.values["bucket.successFile"]:
        return frame, dict
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    time, has_zone = _time(frame, sink.values["bucket.timeColumn"])
    newest = F.max(time) if has_zone else F.concat(F.max(time).cast("string"), F.lit("Z")).try_cast("timestamp")
    observation = Observation()
    observed = frame.observe(observation, F.unix_micros(newest).alias("newest"))
    return observed, lambda: time_state(sink.values, observation.get.get("newest"), has_zone=has_zone)


def _options(sink: FilesSink) -> dict[str, str]:
    """Spark's options for the same output as in carriers without a DataFrame."""
    kind, codec = sink.values["fileFormat"], sink.values["compression"]
    options = {"json": {**_TEXT_TIMES, **_JSON}, "csv": {**_TEXT_TIMES, **_CSV}}.get(kind, {})
    if codec:
        options["compression"] = "lz4_raw" if (kind, codec) == ("parquet", "lz4") else codec
    return options


def _target_folder(sink: FilesSink) -> Callable[[PurePosixPath], str]:
    """A function for the target folder of a staged folder, of which each part of a bucket is a folder."""
    if not sink.values["bucket"]:
        return lambda folder: "" if folder == PurePosixPath() else folder.as_posix()
    bucket = Bucket(f"connectors.{sink.name}", sink.values["bucket"])

    def of_bucket(folder: PurePosixPath) -> str:
        names = [None if name == NULL else name for _, _, name in (part.partition("=") for part in folder.parts)]
        if bucket.has_time and names[0]:
            names[0] = unquote(names[0])  # whose slashes Spark has escaped
        return bucket.folder(names)

    return of_bucket
