"""The sink, and the ledger in the table's history, which other sinks of Delta tables share."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from ...core import (
    Batch,
    CommitRefused,
    Committable,
    Flag,
    FrameCommitter,
    Misconfigured,
    Options,
    Problem,
    Sink,
    SinkWriter,
    Text,
)
from ...core.datasets import Dataset, of_location
from ...core.ledger import OWNER, Entry, LedgerContent, ReplayPolicy, check_claim, check_recipe, is_stream
from ...formats.base import quoted
from ...ground.options import Json
from ...storage.location import check_location, storage_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_MARK = "connectors"
_RECENT = 20
_LOG: Final = "_delta_log"
_COMMIT: Final = re.compile(r"\d{20}\.json")
_COMMITS: Final = 200
"""So many of the newest commits of a table's log are read to show its ledger."""


_MISSING: Final = (
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_TABLE_NOT_FOUND",
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
)
"""The conditions of Spark's errors that say: there is no such table."""

TABLE: Final = Options(
    path=Text(None, alternatives=("table",), meaning="the folder of the table; the first batch creates it"),
    table=Text(None, meaning="the name of the table"),
)
"""The table of a sink, by one of two options."""


class TablePlace(NamedTuple):
    """The place of a Delta table: the ``location`` is a folder, or a name as SQL writes it."""

    location: str
    is_path: bool

    @property
    def sql(self) -> str:
        """The table, as SQL names it."""
        return f"delta.{quoted(self.location)}" if self.is_path else self.location


class TableSink(Sink):
    """The base of sinks that write Delta tables by ``foreach_batch`` alone."""

    name_option: ClassVar[str] = "table"
    """The option that names the target in a catalog, where ``path`` does not say where it is."""

    def target(self) -> str:
        return str(self.values["path"] or self.values[self.name_option])

    def datasets(self) -> Sequence[Dataset]:
        return [of_location(self.values["path"]) if self.values["path"] else Dataset("delta", self.target())]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        raise Misconfigured(f"connectors.{self.name}", [Problem("format", "takes foreach_batch only.")])


class AppendSink(TableSink):
    """Appends each micro-batch to one Delta table in one transaction."""

    name = "delta"
    options = TABLE | Options(mergeSchema=Flag(False, meaning="new columns of the rows become columns of the table"))
    conditions = "foreach_batch only; the table's history reaches back to the sink's last batch"

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        raise Misconfigured(
            "connectors.delta", [Problem("format", 'takes foreach_batch only; or use Spark\'s own format "delta".')]
        )

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        """Reads the table's log without Spark, as far as it still has its commits."""
        keys = Options(storageOptions=Json({}, kind=dict)).parse("connectors.delta", options)["storageOptions"]
        if any(check_location("path", target, keys)):
            return None
        storage = storage_of(target, keys)
        commits = sorted(name for name in storage.names(_LOG) if _COMMIT.fullmatch(name))
        entries: dict[str, list[Entry]] = {}
        for name in reversed(commits[-_COMMITS:]):
            for sink_id, entry in _marked(storage.read(f"{_LOG}/{name}")):
                entries.setdefault(sink_id, []).append(entry)
        return [LedgerContent(sink_id, tuple(sink_entries)) for sink_id, sink_entries in entries.items()] if commits else None

    def committer(self) -> FrameCommitter:
        return DeltaCommitter(self)


class TransactionMark(NamedTuple):
    """The content of a transaction beside a batch's rows: ``app`` and ``version``, and the ledger entry as its metadata."""

    app: str
    version: int
    metadata: str


class DeltaCommitter(FrameCommitter):
    """Reads the ledger entries out of the table's history."""

    records_claims = True

    def __init__(self, sink: AppendSink, spark: SparkSession | None = None) -> None:
        """``spark`` is for a thread of the library's own, where no session is active."""
        self.sink = sink
        path = sink.values["path"]
        self._place = TablePlace(str(path or sink.values["table"]), is_path=bool(path))
        self._spark = spark
        self._newest: dict[str, Entry] = {}  # what this run has committed; Delta itself refuses to repeat a version
        self._history: tuple[list[Entry], list[Entry]] | None = None
        """All of the table's history, as the newest question about a query without recent batches has found it."""
        self._claims: dict[str, int] = {}
        """The number of a query's claim, which each of its batches names: the table's history is not kept for ever."""

    def last(self, query: str) -> Entry | None:
        if query in self._newest:
            return self._newest[query]
        if query == OWNER:
            return _owner(self._history or self._entries(None))
        found = self._entries(_RECENT)
        if not any(entry.query == query for entry in found[0]):
            found = self._history = self._entries(None)
        last, lost = (
            max((entry for entry in entries if entry.query == query), key=lambda entry: entry.batch, default=None)
            for entries in found
        )
        if lost is not None and (last is None or lost.batch > last.batch):
            raise CommitRefused(
                f"a RESTORE of {self.sink.target()} has taken away batch {lost.batch} of this query, and Delta skips a batch "
                "whose number it has seen",
                way_out="RESTORE the version that has it; or give the query a sinkId of its own, and onLostLedger says what "
                "is written",
            )
        if last is not None and last.claim is not None:
            self._claims[query] = last.claim
        return last

    def queries(self) -> frozenset[str]:
        history = self._history or self._entries(None)
        return frozenset(entry.query for entries in history for entry in entries if is_stream(entry.query))

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        """Records only: rows come through :meth:`commit_frame`."""
        if not self._exists():
            raise CommitRefused(
                f"there is no table {self.sink.target()}: it does not have batch {entry.batch}, as onLostLedger=written says",
                way_out="restore the table, or set onLostLedger=notWritten",
            )
        nothing = self._session().sql(f"SELECT * FROM {self._place.sql} LIMIT 0")
        self.commit_frame(nothing, Batch(self.sink.sink_id(), entry.query, entry.batch, claim=entry.claim))

    def commit_frame(self, frame: DataFrame, batch: Batch) -> None:
        """Appends ``frame`` as ``batch``, in the one transaction that also records it."""
        values, transaction = self.sink.values, self.transaction(batch)
        if values["table"] and batch.query not in self._newest and not self._exists():
            nothing = frame.sparkSession.createDataFrame([], frame.schema)
            nothing.write.format("delta").mode("ignore").saveAsTable(values["table"])  # such a transaction takes no metadata
        writer = frame.write.format("delta").mode("append").option("mergeSchema", str(values["mergeSchema"]).lower())
        writer = writer.option("txnAppId", transaction.app).option("txnVersion", str(transaction.version))
        writer = writer.option("userMetadata", transaction.metadata)
        try:
            writer.save(values["path"]) if values["path"] else writer.saveAsTable(values["table"])
        except Exception:
            if batch.claim is not None:
                self._check_claim(batch)
            raise
        self.note(batch)

    def transaction(self, batch: Batch) -> TransactionMark:
        """The mark that Delta writes beside the rows of ``batch``.

        The first batches of all queries are versions of one application: of two that are written at once, Delta refuses or
        skips one.
        """
        claim = self._claims.get(batch.query) if batch.claim is None else batch.claim
        mark: dict[str, Any] = {"sink": batch.sink_id, "query": batch.query, "batch": batch.number}
        if batch.recipe:
            mark["recipe"] = batch.recipe
        text = json.dumps({_MARK: mark if claim is None else {**mark, "claim": claim}})
        if batch.claim is None:
            return TransactionMark(f"{batch.sink_id}:{batch.query}", batch.number, text)
        return TransactionMark(f"{batch.sink_id}:{OWNER}", batch.claim, text)

    def note(self, batch: Batch) -> None:
        """This run has committed ``batch``, with its :meth:`transaction`.

        Delta answers for a batch that it skips as for one that it writes. Raises :class:`CommitRefused` for a first batch that
        was skipped, since another query has the number of its claim.
        """
        if batch.claim is not None:
            if not self._check_claim(batch):
                raise CommitRefused(
                    f"Delta has skipped {batch}: another query of the sink {batch.sink_id!r} has written to "
                    f"{self.sink.target()} before, and the table's history no longer tells which one",
                    way_out="give this query a sinkId of its own, if its rows are new",
                )
            self._claims[batch.query] = batch.claim
        if batch.recipe:  # another driver of this query may have written the batch
            entries = (self._entry_of(batch, newest) for newest in (_RECENT, None))
            if entry := next(filter(None, entries), None):
                check_recipe(entry, batch.recipe, ReplayPolicy.of(self.sink.values))
        self._newest[batch.query] = Entry(batch.query, batch.number, recipe=batch.recipe)

    def _check_claim(self, batch: Batch) -> bool:
        """True if the table has ``batch``. Raises :class:`CommitRefused` if another query was faster with its claim."""
        first = Entry(batch.query, batch.number, claim=batch.claim)
        for newest in (_RECENT, None):
            history = self._entries(newest)
            check_claim(batch.sink_id, first, _owner(history))
            if any((entry.query, entry.batch) == (batch.query, batch.number) for entry in history[0]):
                return True
        return False

    def _entry_of(self, batch: Batch, newest: int | None) -> Entry | None:
        entries = (entry for entry in self._entries(newest)[0] if (entry.query, entry.batch) == (batch.query, batch.number))
        return next(entries, None)

    def _entries(self, newest: int | None) -> tuple[list[Entry], list[Entry]]:
        """The entries in the table's ``newest`` versions, and those of versions that a RESTORE has undone."""
        from pyspark.errors import AnalysisException

        entries: list[Entry] = []
        undone: list[Entry] = []
        # SQL, unlike Delta's own Python classes, needs no part of Delta beside the Connect server's jars.
        limit = "" if newest is None else f" LIMIT {newest}"
        try:
            history = self._session().sql(f"DESCRIBE HISTORY {self._place.sql}{limit}")
            marked = history.where(f"operation = 'RESTORE' OR userMetadata LIKE '{{\"{_MARK}\"%'").selectExpr(
                "version", "timestamp", "operation = 'RESTORE' AS restores", "userMetadata", "operationMetrics",
                "CAST(try_element_at(operationParameters, 'version') AS BIGINT) AS to_version",
                "CAST(try_element_at(operationParameters, 'timestamp') AS TIMESTAMP) AS to_time",
            ).collect()  # fmt: skip
        except AnalysisException:  # has many conditions where there is no table
            if self._exists():
                raise
            return entries, undone
        version = time = None
        for row in sorted(marked, key=lambda row: -row.version):
            is_undone = (version is not None and row.version > version) or (time is not None and row.timestamp > time)
            if row.restores:
                version, time = (version, time) if is_undone else (row.to_version, row.to_time)
                continue
            mark = json.loads(row.userMetadata)[_MARK]
            if mark["sink"] == self.sink.sink_id():
                (undone if is_undone else entries).append(_entry(mark, row.operationMetrics))
        return entries, undone

    def _session(self) -> SparkSession:
        from pyspark.sql import SparkSession

        return self._spark or SparkSession.active()

    def _exists(self) -> bool:
        """False as long as nothing was written."""
        from pyspark.errors import AnalysisException

        if not self._place.is_path:
            return bool(self._session().catalog.tableExists(self._place.location))
        try:
            self._session().sql(f"DESCRIBE DETAIL {self._place.sql}").collect()
        except AnalysisException as error:
            if error.getCondition() in _MISSING:
                return False
            raise
        return True


class RecordingCommitter(FrameCommitter):
    """The base of committers that write other tables, and record a batch in the log of the table ``ledger``."""

    records_claims = True
    ledger: DeltaCommitter

    def last(self, query: str) -> Entry | None:
        """Without a number of rows: what is written is not what the batch holds, row by row."""
        entry = self.ledger.last(query)
        return replace(entry, rows=None) if entry else None

    def queries(self) -> frozenset[str]:
        return self.ledger.queries()

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        self.ledger.commit(entry, committables)


PROPERTIES: Final = {"delta.enableTypeWidening": "true", "delta.enableDeletionVectors": "true"}
"""The properties of tables that this library makes and merges into: a MERGE then writes changed rows alone, not their files."""
MAPPING: Final = {"delta.columnMapping.mode": "name"}
"""The property of tables whose columns have names of their own in the files."""
_MAPPED: Final = frozenset(" ,;{}()\n\t=")
"""What names of columns have only in tables with ``MAPPING``."""


def properties_of(columns: Iterable[str]) -> dict[str, str]:
    """The properties of a new table with ``columns``, by their names."""
    return {**PROPERTIES, **MAPPING} if any(_MAPPED.intersection(name) for name in columns) else PROPERTIES


def admit_columns(spark: SparkSession, table: str, columns: Iterable[str]) -> None:
    """Lets ``table``, a name in SQL, have ``columns`` with such names."""
    if any(_MAPPED.intersection(name) for name in columns):
        texts = ", ".join(f"'{name}' = '{value}'" for name, value in MAPPING.items())
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ({texts})")


def same_key(keys: Sequence[str]) -> str:
    """The condition of a MERGE that the rows ``old`` and ``new`` have one key."""
    return " AND ".join(f"old.{quoted(key)} <=> new.{quoted(key)}" for key in keys)


def known_columns(spark: SparkSession, place: TablePlace) -> StructType | None:
    """The columns of the table at ``place``; ``None`` if there is no table yet."""
    from pyspark.errors import AnalysisException

    try:
        return (spark.read.format("delta").load(place.location) if place.is_path else spark.table(place.location)).schema
    except AnalysisException as error:
        if error.getCondition() in _MISSING:
            return None
        raise


def log_at(place: TablePlace, sink_id: str, spark: SparkSession | None = None) -> DeltaCommitter:
    """The ledger of the sink ``sink_id`` in the history of the table at ``place``."""
    sink: Any = AppendSink.of({"path" if place.is_path else "table": place.location, "sinkId": sink_id})
    return DeltaCommitter(sink, spark)


def _marked(commit: bytes) -> Iterator[tuple[str, Entry]]:
    """The sink id and entry in a commit of Delta's log, if a sink of this library made it."""
    for line in commit.splitlines():
        info = json.loads(line).get("commitInfo") if b'"commitInfo"' in line[:20] else None
        if info and str(info.get("userMetadata", "")).startswith(f'{{"{_MARK}"'):
            mark = json.loads(info["userMetadata"])[_MARK]
            yield mark["sink"], replace(_entry(mark, info.get("operationMetrics")), at=info["timestamp"] / 1000)


def _owner(history: Sequence[Sequence[Entry]]) -> Entry | None:
    """The newest claim. One that a RESTORE has undone counts: Delta has seen its number."""
    claims = (entry.ownership() for entries in history for entry in entries)
    return max(filter(None, claims), key=lambda claim: claim.batch, default=None)


def _entry(mark: Mapping[str, Any], metrics: Mapping[str, str] | None) -> Entry:
    rows = (metrics or {}).get("numOutputRows")
    number = None if rows is None else int(rows)
    return Entry(mark["query"], mark["batch"], number, claim=mark.get("claim"), recipe=mark.get("recipe", ""))
