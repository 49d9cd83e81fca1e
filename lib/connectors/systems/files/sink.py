"""The sink of ``connectors.files``."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from ...core import (
    REQUIRED,
    Batch,
    Choice,
    Committable,
    Duration,
    Flag,
    Json,
    Misconfigured,
    Names,
    Options,
    Problem,
    Size,
    Text,
)
from ...core.datasets import Dataset, of_location
from ...core.folder import SinkFolder
from ...core.ledger import FileLedger, LedgerContent
from ...core.sink import RETENTION, HidingSink, QueryRun
from ...ground import machine
from ...ground.columns import Template
from ...ground.options import Values
from ...storage import check_location, is_local, storage_of
from ...storage.hdfs import HDFS, ClientOf
from ...storage.location import S3, without_user
from .committer import FilesCommitter
from .folders import FORMATS, LONGEST_NAME, Bucket
from .join import JOINED
from .rolling import MAX_PART_SIZE, RollingPolicy, Sealer, seal_due_parts, watch
from .success_files import success_problems
from .writer import CODECS, FilesWriter, target_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_run: ContextVar[QueryRun | None] = ContextVar("run", default=None)
"""The run of the query whose batch this thread writes, since several queries may use one sink."""
LONGEST_PREFIX = LONGEST_NAME - 155
"""The most bytes of partPrefix: the batch's number and digest follow it, and the time and size of a hidden part precede
it."""


class FilesSink(HidingSink):
    """Files under ``path``, in folders by ``partitionBy`` or ``bucket``.

    By default readers see a batch's files when the batch is committed (``rolling=onBatch``), directly in ``path``. A batch is
    Spark's checkpoint, users of ``availableNow`` expect their rows at its end, and folders by time need a column that only
    the user knows. The intervals and sizes below are those of Flink's file sink.

    With ``rolling=policy`` the files of a batch stay hidden after its commit. They become one file, without decoding,
    ``rolling.rolloverInterval`` (15 minutes) after the first of them, ``rolling.inactivityInterval`` (5 minutes)
    after the last one, or when they reach ``rolling.maxPartSize`` (256MB) together; so visible files never change. The sink
    checks this after each commit and at the next start; ``connectors files seal PATH`` seals everything. With
    ``foreach_batch`` on a classic session it also checks while the query is idle, and a moment after it ends. Then it seals
    everything if ``rolling.sealAtEnd`` is true (by default under availableNow only) and the query did not fail.
    :func:`connectors.workbench.wait` returns when that is done, and does it itself with ``format`` and on Connect. Connect
    does not tell the trigger, so the default is true there: set ``rolling.sealAtEnd=false`` for a query that will be stopped.

    ``bucket`` is a date-time pattern, with columns in braces where folders follow from them: ``{region}/'day='yyyy-MM-dd``. The
    columns stay in the files. Characters of a value that have a meaning in a path are escaped by ``%``, so a value is one
    folder and a visible one. A row without the time or one of the values goes to ``bucket=__HIVE_DEFAULT_PARTITION__``.

    With ``bucket.successFile`` the folder of a bucket gets an empty file of that name when the bucket is finished: when the
    newest time of all committed rows is ``bucket.finishedAfter`` later than the bucket's end. The end follows from the finest
    unit of ``bucket``, which must therefore name each unit from the year down to it. The file appears after all rows of the
    bucket that were committed until then; with ``rolling=policy`` their hidden parts are sealed before it. Newer rows finish
    a bucket and the clock does not, so the last one waits. A time ahead of the clock counts as now, without a zone as 14
    hours later. A row that comes behind the file is written all the same, at once, and puts the file again if somebody has
    removed it. Rows without a time are never finished, nor are buckets without a row since the option was given. A sink id
    finishes the buckets of its own rows, so two queries that write into one folder need success files of two names.

    On ``hdfs://`` ``foreach_batch`` of a classic session uses Spark's own client, with its user and settings. Everything else
    runs in processes without such a client, and uses WebHDFS: ``storageOptions`` has ``host`` and ``port`` of the NameNode's
    web address (default: the host of ``path`` and 9870), ``user`` or a delegation ``token``, and ``use_https``.

    Before the sink records a batch, all staged files are durable on the disk, exist with the sizes that their tasks have
    reported, and hold as many rows as the batch. So a folder that executors do not share, or a file of a failed attempt, is an
    error and not a loss. The sink takes row counts from footers, or counts lines, many of them by Spark.

    The ledger entry of a batch that ``foreach_batch`` wrote on a classic session also holds the source's offsets after it:
    see :func:`~connectors.systems.files.rolling.source_offsets`.

    The same rows give the same content in every carrier: that of Spark's own writers, whether they or Python write. Times in
    json and csv have milliseconds, in the session's time zone. A double may have fewer digits from Python than from a Java
    before 19. Lines of csv have no header, and texts in it keep their blanks. Python always writes a csv of one column,
    since Spark drops its nulls. Timestamps in parquet are microseconds in UTC, never INT96.
    Python refuses types that it cannot write like Spark: intervals, variants, ``void`` (except in json and avro), timestamps
    and times in orc, and maps in json with binary or nested keys. ``foreach_batch`` on a classic session writes all that
    Spark writes; to ``s3://`` it needs the jar hadoop-aws for that.
    Guarantee: exactly-once. A listing shows finished files only; the ledger and the stage are hidden beside them, in a
    folder ``.connectors``. A reader that also walks through hidden folders (``pyarrow.dataset.dataset(folder)`` does, before
    it drops hidden files) may find one of these gone; list the folder itself, or by a glob.
    """

    name = "files"
    stages_frames = True
    options = Options(
        {
            "path": Text(REQUIRED, meaning="the folder that readers read: local, a mount, s3:// or hdfs://"),
            "fileFormat": Choice("parquet", among=FORMATS, meaning="the format of the files"),
            "partitionBy": Names((), meaning="columns that become folders, as Spark's partitionBy"),
            "bucket": Template(
                None, excludes="partitionBy", example="{region}/yyyy-MM-dd",
                meaning="folders by time, a date-time pattern such as 'year='yyyy/'month='MM, or by {columns} too",
            ),
            "bucket.timeColumn": Text(None, meaning="the column whose time decides the bucket, if the pattern has a time"),
            "bucket.timeZone": Text("UTC", meaning="a region or an offset; a time without a zone is taken as it is"),
            "bucket.successFile": Text(
                None, only_with="bucket", meaning="an empty file of this name, such as _SUCCESS, in each finished folder"
            ),
            "bucket.finishedAfter": Duration(
                None,
                only_with="bucket.successFile",
                needed_by="bucket.successFile: how late rows may be",
                meaning="a folder is finished when a row is so much later than its end; later rows still come in",
            ),
            "rolling": Choice(
                "onBatch",
                among=("onBatch", "policy"),
                meaning="onBatch: a batch's files appear with its commit; policy: they wait, hidden, and grow",
            ),
            "rolling.rolloverInterval": Duration(
                900.0, meaning="rolling=policy: the files of a bucket appear so long after the first of them"
            ),
            "rolling.inactivityInterval": Duration(300.0, meaning="rolling=policy: … or so long after the last one"),
            "rolling.maxPartSize": Size(
                MAX_PART_SIZE, at_least=1, meaning="rolling=policy: … or when they are so large together"
            ),
            "rolling.sealAtEnd": Flag(
                None,
                meaning="rolling=policy: all appears at the query's end (workbench.wait); "
                "default: under availableNow, on Connect always",
            ),
            "partPrefix": Text("part", meaning="how the names of files begin"),
            "compression": Text(None, meaning="a codec of the format; default: the format's own"),
            "stagingRetention": RETENTION,
            "storageOptions": Json(
                {}, kind=dict, meaning="fsspec's keys for s3:// and WebHDFS; or objects of them by location"
            ),
        },
        refused={"stagingLocation": "is always below path: only there a file gets its final name in one step."},
    )

    conditions = "a local or mounted folder, s3:// or hdfs://; files appear one by one, each complete"
    clock: ClassVar[Callable[[], float]] = machine.time
    _client_of: ClientOf | None = None

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_target(values["path"], values["storageOptions"])
        if (column := re.search(r"\{\w+}.*", values["path"])) is not None:
            yield Problem("path", f"is the folder of all rows. Name columns in bucket, below it: bucket={column[0]}")
        if values["bucket"]:
            yield from _bucket_problems(values)
        if values["bucket.successFile"] and values["bucket"]:
            yield from success_problems(values)
        if values["partPrefix"][:1] in (".", "_", "") or "/" in values["partPrefix"]:
            yield Problem("partPrefix", "must not begin with . or _, since readers pass over such files, nor have a /.")
        if (length := len(values["partPrefix"].encode())) > LONGEST_PREFIX:
            yield Problem("partPrefix", f"must have at most {LONGEST_PREFIX} bytes; it has {length}.")
        if values["rolling"] == "policy" and values["fileFormat"] not in JOINED:
            got = values["fileFormat"]
            text = f"policy joins files without decoding them, which {got} does not allow; take onBatch, or another fileFormat."
            yield Problem("rolling", text)
        codecs = CODECS[values["fileFormat"]]
        if (codec := values["compression"]) not in (None, *codecs):
            known = f"{', '.join(codecs)} for {values['fileFormat']}"
            yield Problem("compression", f'must be one of {known}; got "{codec}".')

    def target(self) -> str:
        return str(self.values["path"])

    def datasets(self) -> Sequence[Dataset]:
        return [of_location(self.values["path"])]

    def use_hadoop(self, client_of: ClientOf) -> None:
        self._client_of = client_of

    def folder(self) -> SinkFolder:
        storage = storage_of(self.values["path"], self.values.get("storageOptions", {}), self._client_of)
        return SinkFolder(storage, self.sink_id())

    def ledger(self) -> FileLedger:
        return self.folder().ledger()

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        if target.endswith(":") or any(check_target(target, {})):
            return None
        values = cls.known_options().parse(f"connectors.{cls.name}", {"path": target, **options})
        storage = storage_of(values["path"], values.get("storageOptions", {}))
        return SinkFolder.contents(storage) or None

    def hides_rows(self) -> bool:
        return bool(self.values.get("rolling") == "policy")

    def show_rows(self, query: str, ends_by_itself: bool) -> None:
        if query in self.ledger().queries():
            at_end = self.values["rolling.sealAtEnd"]
            self.sealer().seal(ending=ends_by_itself if at_end is None else at_end)

    def sealer(self) -> Sealer:
        """The sealer of this sink's parts."""
        policy = RollingPolicy.of(self.values) if self.hides_rows() else RollingPolicy()
        return Sealer(self.folder(), policy, type(self).clock)

    def committer(self) -> FilesCommitter:
        return FilesCommitter(self.folder(), self.values, self.sealer(), rolling=self.hides_rows())

    def watch(self, find: Callable[[], QueryRun | None] | None) -> None:
        run = find() if find else None
        _run.set(run)
        if not self.hides_rows():
            return
        if find is None:
            seal_due_parts(self.sealer())
        elif run:
            watch(self.sealer(), run, self.values["rolling.sealAtEnd"])

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> FilesWriter:
        return FilesWriter(self, batch, schema)

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        try:
            target_folders(self, schema)
        except Misconfigured as wrong:
            yield from wrong.problems

    def stage_frame(self, frame: DataFrame, batch: Batch) -> list[Committable] | None:
        """Stages with Spark's own writers, so that no row passes through Python, unless Spark has no such writer, or client."""
        if self.values["fileFormat"] == "avro" or self._is_single_csv(frame) or not self._is_known_to_spark():
            return None
        from .spark_writer import stage_with_spark

        run = _run.get()
        return stage_with_spark(self, frame, batch, run.offsets(batch.number) if run else None)

    def _is_known_to_spark(self) -> bool:
        """False for S3 without the jars of Spark's client. Of a Spark Connect server they are taken for granted."""
        if self._client_of is None or not self.values["path"].startswith(S3):
            return True
        client = self._client_of("s3a:///")  # of any bucket
        return client is None or client.exists()

    def _is_single_csv(self, frame: DataFrame) -> bool:
        """True for csv of one column, of which Spark's writer drops null rows."""
        return self.values["fileFormat"] == "csv" and len({*frame.columns} - {*self.values["partitionBy"]}) == 1


def check_target(path: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of a folder in which to publish files: an object store needs a publication in one step."""
    if is_local(path) or path.startswith((*S3, HDFS)):
        yield from check_location("path", path, options, sole=True)
    else:
        text = f"must be a local or mounted folder, s3://… or hdfs://…; got {without_user(path)!r}. Mount it."
        yield Problem("path", text)


def _bucket_problems(values: Values) -> Iterator[Problem]:
    bucket, zone = values["bucket"], values["bucket.timeZone"]
    if bucket.count("'") % 2:
        yield Problem("bucket", f"has a ' that is not closed: {bucket}")
    has_time = Bucket("connectors.files", bucket).has_time
    if has_time and not values["bucket.timeColumn"]:
        text = "missing; bucket needs it: the column whose time decides. Letters that are no pattern belong in ' quotes."
        yield Problem("bucket.timeColumn", text)
    if not has_time and values["bucket.timeColumn"]:
        yield Problem("bucket.timeColumn", f"has no use with bucket={bucket}, which has no pattern of a time.")
    if not _is_zone(zone):
        yield Problem("bucket.timeZone", f'must be a region or an offset such as +02:00; got "{zone}".')


def _is_zone(name: str) -> bool:
    """True for a region or an offset. If this machine has no time zone database, Spark's decides."""
    regions = zoneinfo.available_timezones()
    return not regions or name in regions or re.fullmatch(r"Z|[+-](0\d|1[0-8]):[0-5]\d", name) is not None
