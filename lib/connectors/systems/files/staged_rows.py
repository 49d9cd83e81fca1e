"""What Spark's own writers have left in a stage: which files their tasks committed, and how many rows these hold.

Spark does not tell what it has written. A file of a failed task attempt, or of another program, must not be published, so
the rows of the files are compared with the rows of the batch before anything is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...core.folder import SinkFolder
from ...storage.local import LocalStorage
from .reading import unpacked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_READERS: Final = 8
"""So many footers are read at a time."""
_LOCAL_BYTES: Final = 1 << 30
_REMOTE_BYTES: Final = 32 << 20
"""Up to so many bytes of text are counted by the driver itself: its disk has just seen them, or a job would take longer."""
_MARK: Final = "_committed_"
_LINE_END: Final = ord("\n")


def committed_files(folder: SinkFolder, stage: str) -> dict[str, int]:
    """The files below ``stage`` and their sizes, without those that Databricks' commit protocol does not list.

    That protocol leaves the files of failed attempts where they are; in each folder it says in ``_committed_<transaction>``
    which files count.
    """
    files = dict(folder.files(stage))
    for place in {dirname(name) for name in files}:
        marks = [item.name for item in folder.storage.items(place) if item.name.startswith(_MARK)]
        if marks:
            added = {name for mark in marks for name in json.loads(folder.storage.read(f"{place}/{mark}")).get("added", ())}
            files = {name: size for name, size in files.items() if dirname(name) != place or basename(name) in added}
    return files


def observed_line_ends(frame: DataFrame, kind: str, folders: Sequence[str]) -> tuple[DataFrame, Callable[[], int]]:
    """``frame``, and once it is written the number of line ends inside its values, which are no ends of rows.

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
        text = F.col(f"`{name.replace('`', '``')}`")
        inside = inside + F.coalesce(F.length(text) - F.length(F.replace(text, F.lit("\n"), F.lit(""))), F.lit(0))
    seen = Observation()
    return frame.observe(seen, F.sum(inside).alias("line_ends")), lambda: int(seen.get["line_ends"] or 0)


def rows_of(folder: SinkFolder, files: Mapping[str, int], kind: str, spark: SparkSession) -> int:
    """The rows of ``files``, by their footers, or by their lines."""
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
