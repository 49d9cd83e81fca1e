"""The ledger: which batches a target already holds, and what to do with the next one.

:func:`decide` holds all rules and knows no storage. :class:`FileLedger` keeps entries as small files beside the data.
Databases and Kafka write the entry in the transaction of the rows.

Three kinds of writers use a ledger. The name of their ``query`` tells them apart: a streaming query (its id), a batch write
that the user made repeatable by ``txnAppId`` and ``txnVersion`` (:func:`app_query`), and any other batch write
(:func:`once_query`), which is recorded only until it is published.

A sink belongs to one streaming query. The query's first batch makes a *claim*, an entry of :data:`OWNER`. If another query
begins at the same moment, or one of them is late, one of the two finds the number of its claim taken.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final
from urllib.parse import quote, unquote

from ..ground import machine
from ..ground.errors import CommitRefused, StateError
from ..ground.options import Values
from ..ground.state import checked, digest, dumps, loads, versioned
from ..storage.base import Storage

HISTORY: Final = 100
"""The number of a query's newest entries that a file ledger keeps."""

_PENDING: Final = ".pending"

OWNER: Final = "owner"
"""The query name of claims. The batch number of a claim is one more than that of the claim it replaces."""

_APP, _ONCE = "app-", "once-"


def app_query(txn_app_id: str) -> str:
    """The query name of batch writes with ``txnAppId``; their batch number is ``txnVersion``."""
    return f"{_APP}{txn_app_id}"


def txn_app_id(query: str) -> str | None:
    """The ``txnAppId`` in a query name of :func:`app_query`; ``None`` for other names."""
    return query.removeprefix(_APP) if query.startswith(_APP) else None


def once_query() -> str:
    """A new query name for a batch write that writes its rows again when it runs again."""
    return f"{_ONCE}{machine.token()}"


def is_once(query: str) -> bool:
    """True for the name that :func:`once_query` gave."""
    return query.startswith(_ONCE)


def is_stream(query: str) -> bool:
    """True for the id of a streaming query."""
    return query != OWNER and not query.startswith((_APP, _ONCE))


@dataclass(frozen=True)
class Entry:
    """A committed batch: ``rows`` and ``checksum`` (where it was cheap to have) let a replay be compared with it.

    ``committables`` is the staged output to publish. With ``replace`` it replaces everything in the target. ``at`` is the time
    of the decision, in seconds since 1970. ``claim`` is the number of the claim that a query's first batch makes; it is
    recorded with the batch or before it. The entry of a claim has the id of its query as ``owner``. ``recipe`` is a digest of
    the rules that chose the rows of the batch, if other sinks get the rest. A replay must use the same rules.
    """

    query: str
    batch: int
    rows: int | None = None
    checksum: str | None = None
    committables: tuple[dict[str, Any], ...] = ()
    at: float = 0.0
    replace: bool = False
    claim: int | None = None
    owner: str | None = None
    recipe: str = ""

    def state(self) -> dict[str, Any]:
        """The entry as versioned JSON."""
        fields = {key: value for key, value in vars(self).items() if key != "claim" and (value or key != "recipe")}
        return versioned(**{**fields, "committables": list(self.committables), "at": self.at or machine.time()})

    def ownership(self) -> Entry | None:
        """The entry of the claim that this batch makes; ``None`` if it makes none."""
        return None if self.claim is None else Entry(OWNER, self.claim, at=self.at, replace=self.replace, owner=self.query)

    @classmethod
    def of(cls, state: dict[str, Any]) -> Entry:
        """The entry that :meth:`state` gave."""
        fields = {key: value for key, value in checked(state, "a ledger entry").items() if key in cls.__annotations__}
        if missing := {"query", "batch"} - fields.keys():
            raise StateError(f"a ledger entry lacks {', '.join(sorted(missing))}", way_out="restore it from a copy")
        return replace(cls(**fields), committables=tuple(fields.get("committables", ())))


@dataclass(frozen=True)
class LedgerContent:
    """The content of one sink's ledger: the newest ``entries`` of each query, newest first.

    ``pending`` has the query and batch of the entries whose publication is, as far as the ledger knows, not complete.
    """

    sink_id: str
    entries: tuple[Entry, ...]
    pending: frozenset[tuple[str, int]] = frozenset()


class Verdict(Enum):
    """The decision on a batch: write and record it, skip it, or record it without its rows."""

    WRITE = "write"
    SKIP = "skip"
    RECORD_ONLY = "record"


@dataclass(frozen=True)
class ReplayPolicy:
    """The user's decisions for batches that contradict the ledger, from the options of the same names."""

    on_new_query: str = "stop"
    on_replay_mismatch: str = "stop"
    on_lost_ledger: str = "stop"
    on_missing_batches: str = "stop"

    @classmethod
    def of(cls, values: Values) -> ReplayPolicy:
        return cls(values["onNewQuery"], values["onReplayMismatch"], values["onLostLedger"], values["onMissingBatches"])


def decide(sink_id: str, query: str, batch: int, last: Entry | None, queries: frozenset[str], policy: ReplayPolicy) -> Verdict:
    """The verdict on ``batch`` of ``query``, if ``last`` is the query's highest batch in the target.

    Raises :class:`CommitRefused`, which names the option that decides, if both answers could lose or double rows.
    """
    if not is_stream(query):
        return Verdict.SKIP if last is not None and batch <= last.batch else Verdict.WRITE
    if last is not None:
        return _verdict_on_known_query(last, sink_id, batch, policy)
    if others := queries - {query}:
        if policy.on_new_query == "continue" or (policy.on_new_query == "replace" and batch == 0):
            return Verdict.WRITE
        raise belongs_to(sink_id, others, query)
    if batch == 0:
        return Verdict.WRITE
    if policy.on_lost_ledger == "stop":
        raise CommitRefused(
            f"the ledger of the sink {sink_id!r} holds nothing, but this is batch {batch}: it cannot tell whether "
            "the batch is already written (the ledger is lost, or the sink is new to a query that has run before)",
            way_out="set onLostLedger=written if the target has this batch, else onLostLedger=notWritten",
        )
    return Verdict.RECORD_ONLY if policy.on_lost_ledger == "written" else Verdict.WRITE


def _verdict_on_known_query(last: Entry, sink_id: str, batch: int, policy: ReplayPolicy) -> Verdict:
    if batch == last.batch + 1 or (batch > last.batch and policy.on_missing_batches == "continue"):
        return Verdict.WRITE
    if batch == last.batch:
        return Verdict.SKIP
    if batch > last.batch:
        missing = f"batch {batch - 1}" if batch == last.batch + 2 else f"batches {last.batch + 1} to {batch - 1}"
        raise CommitRefused(
            f"this is batch {batch}, and the last one that the sink {sink_id!r} has is {last.batch}: {missing} never came, "
            "or the target has lost what it had (an older copy was restored, or a server without its last writes took over)",
            way_out="restore a target that has them; or, to go on without their rows (a function that calls this sink for some "
            "batches only), set onMissingBatches=continue",
        )
    raise CommitRefused(
        f"batch {batch} is older than batch {last.batch}, which the sink {sink_id!r} has already committed: "
        "an older checkpoint was restored, and its batches need not hold the same rows as the committed ones",
        way_out="restore the newest checkpoint; or, to write all of it again, give the query a new checkpoint, "
        "a sinkId of its own and an empty target",
    )


def belongs_to(sink_id: str, others: Iterable[str], query: str) -> CommitRefused:
    """The error for a sink that belongs to ``others``, not to ``query``."""
    return CommitRefused(
        f"the sink {sink_id!r} already belongs to query {', '.join(sorted(others))}; this is query {query}, "
        "so its checkpoint is new and its first batches may hold rows that are already written, or all that it wrote has been "
        "replaced by onNewQuery=replace",
        way_out="go on with the old checkpoint; or give this query a sinkId of its own; or, if its rows are new, "
        "start it with onNewQuery=continue",
    )


def check_claim(sink_id: str, entry: Entry, owner: Entry | None) -> None:
    """Raises :class:`CommitRefused` if the claim of ``entry`` comes too late; ``owner`` is the sink's newest claim."""
    if entry.claim is not None and owner is not None and owner.batch >= entry.claim and owner.owner != entry.query:
        raise belongs_to(sink_id, [str(owner.owner)], entry.query)


def already_committed(entry: Entry) -> CommitRefused:
    """The error for a batch that another run has committed first."""
    return CommitRefused(
        f"batch {entry.batch} of query {entry.query} has been committed by another run in the meantime",
        way_out="let one run at a time write with a checkpoint",
    )


def check_recipe(entry: Entry, recipe: str, policy: ReplayPolicy) -> None:
    """Raises :class:`CommitRefused` if the rows of the committed ``entry`` were chosen by another recipe."""
    if entry.recipe and recipe and entry.recipe != recipe and policy.on_replay_mismatch != "skip":
        raise CommitRefused(
            f"batch {entry.batch} is written again, and was split by other rules, or in another time zone of the session: "
            "rows could be lost, and others doubled",
            way_out="run once with the rules and the zone that it was split by, and then with the new ones; or, if it cannot "
            "be written by those, set onReplayMismatch=skip: rows of it that only the new rules refuse are lost",
        )


def compare_replay(last: Entry, rows: int | None, checksum: str | None, policy: ReplayPolicy) -> None:
    """Raises :class:`CommitRefused` if a replayed batch does not hold the committed rows."""
    same_rows = last.rows is None or rows is None or rows == last.rows
    same_sum = last.checksum is None or checksum is None or checksum == last.checksum
    if (same_rows and same_sum) or policy.on_replay_mismatch == "skip":
        return
    committed = f"{last.rows} rows" if not same_rows else "the same number of rows with other contents"
    raise CommitRefused(
        f"batch {last.batch} is committed with {committed}, its replay has {rows} rows: the query is not deterministic, "
        "or another checkpoint was restored",
        way_out="make the query deterministic; onReplayMismatch=skip keeps what is committed; "
        "a sinkId of its own writes the batch again",
    )


class Ledger(ABC):
    """The recorded batches of one sink id."""

    @abstractmethod
    def last(self, query: str) -> Entry | None:
        """The highest recorded batch of ``query``."""

    @abstractmethod
    def queries(self) -> frozenset[str]:
        """The streaming queries that have recorded batches. Called if nobody has claimed the sink, or for ``replace``."""

    @abstractmethod
    def record(self, entry: Entry) -> bool:
        """Records ``entry`` durably, unless its batch is already recorded. True if this call recorded it.

        A claim has a call of its own, and is never :meth:`unpublished`.
        """

    @abstractmethod
    def unpublished(self) -> list[Entry]:
        """Recorded batches whose publication is not known to be complete, oldest first."""

    @abstractmethod
    def mark_published(self, entry: Entry) -> None:
        """Notes that the publication of ``entry`` is complete."""

    def check(self) -> None:  # noqa: B027
        """Raises :class:`~connectors.ground.errors.Misconfigured` if the storage cannot record an entry exactly once."""


class FileLedger(Ledger):
    """Entries as files ``<query>/<batch>.json`` in a folder of a :class:`~connectors.storage.base.Storage`.

    Before its entry, a batch gets a mark in the folder ``.pending``; its publication removes the mark. So one listing finds
    all unpublished batches, however many queries there are. The ledger keeps only the newest :data:`HISTORY` batches of a
    query, so that a look-up costs the same after a million batches.
    """

    _file = re.compile(r"(?P<batch>\d{20})\.json")

    def __init__(self, storage: Storage, folder: str = "") -> None:
        self.storage = storage
        self.folder = folder

    def last(self, query: str) -> Entry | None:
        recorded = self._batches(query)
        return self._entry(query, max(recorded)) if recorded else None

    def queries(self) -> frozenset[str]:
        return frozenset(query for query in self._all_queries() if is_stream(query))

    def newest(self, query: str, condition: Callable[[Entry], object]) -> Entry | None:
        """The highest batch of ``query`` in the ledger for which ``condition`` is true."""
        entries = (self._entry(query, batch) for batch in sorted(self._batches(query), reverse=True))
        return next((entry for entry in entries if condition(entry)), None)

    def content(self, sink_id: str, newest: int = HISTORY) -> LedgerContent:
        """The ``newest`` entries of each query; the ledger is that of ``sink_id``."""
        entries, pending = [], set[tuple[str, int]]()
        for query in self._all_queries():
            if query != OWNER:
                recorded = self._batches(query)
                entries += [self._entry(query, batch) for batch in sorted(recorded, reverse=True)[:newest]]
                pending |= {(query, batch) for batch in recorded}
        return LedgerContent(sink_id, tuple(entries), frozenset(pending.intersection(self._marks())))

    def record(self, entry: Entry) -> bool:
        if entry.query != OWNER:
            self.storage.put_if_absent(self._mark(entry.query, entry.batch), entry.query.encode())
        return self.storage.put_if_absent(self._name(entry.query, entry.batch), dumps(entry.state()).encode())

    def unpublished(self) -> list[Entry]:
        marks = self._marks()
        self.storage.sync(folders=sorted({self._of_query(query) for query, _ in marks}))  # a writer may have died before
        pending = []
        for query, batch in marks:
            with contextlib.suppress(FileNotFoundError):  # a driver has put the mark and not yet the entry, or died
                pending.append(self._entry(query, batch))
        return sorted(pending, key=lambda entry: (entry.at, entry.batch))

    def check(self) -> None:
        self.storage.check()

    def mark_published(self, entry: Entry) -> None:
        # Not durable: if a power failure brings a mark back, the next publication finds everything done and removes it.
        self.storage.delete(self._mark(entry.query, entry.batch))
        limit = 0 if is_once(entry.query) else HISTORY
        for batch in sorted(self._batches(entry.query), reverse=True)[limit:]:
            if self.storage.size(self._mark(entry.query, batch)) is None:
                self.storage.delete(self._name(entry.query, batch))
        if not limit:
            self.storage.prune(self._of_query(entry.query), self.folder)

    def _all_queries(self) -> list[str]:
        return [unquote(folder) for folder in self.storage.folders(self.folder)]

    def _batches(self, query: str) -> set[int]:
        matches = map(self._file.fullmatch, self.storage.names(self._of_query(query)))
        return {int(match["batch"]) for match in matches if match}

    def _marks(self) -> list[tuple[str, int]]:
        """The queries and batches in the folder ``.pending``."""
        marks = []
        pending = self._path(_PENDING)
        for name in self.storage.names(pending):
            if (batch := name.rpartition("@")[2]).isdigit():
                with contextlib.suppress(FileNotFoundError):  # it was published just now
                    marks.append((self.storage.read(f"{pending}/{name}").decode(), int(batch)))
        return marks

    def _entry(self, query: str, batch: int) -> Entry:
        name = self._name(query, batch)
        return Entry.of(loads(self.storage.read(name), f"the ledger entry {name}"))

    def _path(self, *names: str) -> str:
        return posixpath.join(self.folder, *names)

    def _of_query(self, query: str) -> str:
        return self._path(quote(query, safe=""))

    def _name(self, query: str, batch: int) -> str:
        return f"{self._of_query(query)}/{batch:020d}.json"

    def _mark(self, query: str, batch: int) -> str:
        """The mark's file. It holds the name of ``query``, which may be too long for a part of a file name."""
        return self._path(_PENDING, f"{digest(query, length=32)}@{batch:020d}")
