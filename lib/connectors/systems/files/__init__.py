"""``connectors.files``: files in a folder that any engine can read, each complete, none twice.

Spark's own file sink is exactly-once only for readers of its log. This one needs no log: files are written hidden, the
ledger records the batch, and each file is then moved to its final name.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from ...core import REQUIRED, Batch, Choice, Committable, Duration, Names, Options, Problem, Sink, Text
from ...core.folder import TargetFolder
from ...core.ledger import FileLedger
from ...core.options import Values
from .committer import FilesCommitter
from .writer import CODECS, FilesWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMATS = ("parquet", "json", "csv", "text", "orc")


class FilesSink(Sink):
    """Files under ``path``, in folders by ``partitionBy`` or by a date-time ``bucket``.

    Options: ``path`` (required), ``fileFormat`` parquet|json|csv|text|orc (parquet), ``partitionBy`` (columns),
    ``bucket`` (a date-time pattern such as ``'year='yyyy/'month='MM``), ``bucket.timeColumn``, ``bucket.timeZone``
    (UTC), ``partPrefix`` (part), ``compression`` (the format's own default), ``stagingRetention`` (7 days), and those
    of every sink. Lines of csv have no header. By ``df.write`` orc is Arrow's, which Spark reads wrongly before 1582
    (dates) and not at all before 1970 (fractions of seconds).
    Guarantee: exactly-once. A listing shows finished files only; the ledger lies hidden beside them.
    """

    name = "files"
    options = Options(
        {
            "path": Text(REQUIRED),
            "fileFormat": Choice("parquet", among=FORMATS),
            "partitionBy": Names(()),
            "bucket": Text(None),
            "bucket.timeColumn": Text(None),
            "bucket.timeZone": Text("UTC"),
            "rolling": Choice("onBatch", among=("onBatch",)),
            "partPrefix": Text("part"),
            "compression": Text(None),
            "stagingRetention": Duration(7 * 86400.0),
        }
    )

    conditions = "a local or mounted folder; files appear one by one, each complete"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        if "://" in values["path"] and not values["path"].startswith("file:"):
            yield Problem("path", f'must be a local or mounted folder; got "{values["path"]}".')
        if values["bucket"] and values["partitionBy"]:
            yield Problem("bucket", "cannot go with partitionBy; give one of them.")
        if values["bucket"] and not values["bucket.timeColumn"]:
            yield Problem("bucket.timeColumn", "missing; bucket needs the column whose time decides.")
        if values["bucket"] and values["bucket"].count("'") % 2:
            yield Problem("bucket", f"""has a ' that is not closed: {values["bucket"]}""")
        if values["bucket"] and not _is_zone(values["bucket.timeZone"]):
            got = values["bucket.timeZone"]
            yield Problem("bucket.timeZone", f'must be a region or an offset such as +02:00; got "{got}".')
        if values["partPrefix"][:1] in (".", "_", "") or "/" in values["partPrefix"]:
            yield Problem("partPrefix", "must not begin with . or _, since readers pass over such files, nor have a /.")
        codecs = CODECS[values["fileFormat"]]
        if (codec := values["compression"]) not in (None, *codecs):
            known = f"{', '.join(codecs)} for {values['fileFormat']}"
            yield Problem("compression", f'must be one of {known}; got "{codec}".')

    def target(self) -> str:
        return str(self.values["path"])

    def folder(self) -> TargetFolder:
        return TargetFolder(self.values["path"], self.sink_id())

    def ledger(self) -> FileLedger:
        return self.folder().ledger()

    def committer(self) -> FilesCommitter:
        return FilesCommitter(self.folder(), self.values["partPrefix"], self.values["stagingRetention"])

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> FilesWriter:
        return FilesWriter(self, batch, schema)

    def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable] | None:
        """Spark's own writers make the files: no row passes through Python."""
        from .native import stage_with_spark

        return stage_with_spark(self, frame, batch)


def _is_zone(name: str) -> bool:
    """True for a region or an offset. Without a time zone database here, Spark's own decides."""
    regions = zoneinfo.available_timezones()
    return not regions or name in regions or re.fullmatch(r"Z|[+-](0\d|1[0-8]):[0-5]\d", name) is not None
