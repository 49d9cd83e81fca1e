"""Counters of running queries. The processes of a query share no memory, so its counters are small files::

    $CONNECTORS_METRICS/<query>/<kind>.<name>.<id>.<index>.json
    $CONNECTORS_METRICS/<query>/query.json                           facts that the query's session knows

The folder is local, mounted, or in an object store (``s3://…``), with the credentials of the machine.
Each query, component and task index has one file, which the end of each task replaces as a whole. The file holds the numbers
of the newest batch (``now``) apart from the totals of all earlier batches (``before``). So a retried or replayed batch does
not count twice, and the number of files does not grow. A query also runs without metrics: an error here only logs one
warning.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from ..ground import machine
from ..ground.cache_folder import cache
from ..ground.errors import Misconfigured, Transient
from ..ground.retry import RetryObserver, observed_retries
from ..storage.base import Item, Storage
from ..storage.location import is_local, local_path, storage_of, without_user
from .datasets import Dataset

Numbers = dict[str, float]
Counts = dict[str, Numbers]
"""Numbers by partition and name. The partition ``""`` is the component as a whole."""

FOLDER: Final = "CONNECTORS_METRICS"
"""The environment variable with the folder of all queries, or with ``off``."""
RETENTION_SECONDS: Final = 7 * 86400.0
"""A new query removes the metrics of queries that have written none for so long."""
PLANNING: Final = "planning"
"""Stands for the query's id in the processes where Spark plans a source's batches: they do not know their query."""
PARTITIONS: Final = 1000
"""The most partitions that a file lists; older ones are added up as :data:`OTHERS`."""
OTHERS: Final = "(others)"
_LATE_TRY_SECONDS: Final = 60.0
_VERSION: Final = 1
_NOTE: Final = "query.json"
_METRIC_FILE: Final = re.compile(r"(source|sink|async)\..*\.(\d+|commit)\.json|query\.json|\.[0-9a-f]{32}")

_log = logging.getLogger("connectors.metrics")
_active: ContextVar[Meter | None] = ContextVar("active_meter", default=None)
_warned: set[str] = set()


def folder() -> str | None:
    """The folder of the files: ``$CONNECTORS_METRICS``, else this user's private folder among the temporary files.

    If another user owns a folder of that name, or others can read it, the folder is in the machine's cache. ``None`` if the
    variable is ``off`` or no folder can be made. Executors on other machines need a folder that they share with the driver.
    """
    named = os.environ.get(FOLDER)
    if named:
        return None if named.lower() == "off" else named
    user = os.getuid() if hasattr(os, "getuid") else "user"
    with contextlib.suppress(OSError, RuntimeError, Misconfigured):  # no folder for temporary files, or no home
        usual = Path(tempfile.gettempdir(), f"connectors-metrics-{user}")
        if _is_private(usual):
            return str(usual)
        other = cache("metrics") / str(user)
        if _is_private(other):
            if str(usual) not in _warned:
                _warned.add(str(usual))
                _log.warning("metrics go to %s: %s is not a folder of this user alone", other, usual)
            return str(other)
    return None


def _is_private(path: Path) -> bool:
    """True if ``path`` is a folder, made now if need be, that belongs to this user and that nobody else can read."""
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        status = path.lstat()
    except OSError:
        return False
    is_own = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o077)
    return stat.S_ISDIR(status.st_mode) and is_own


@lru_cache(maxsize=8)
def _storage(location: str) -> Storage:
    return storage_of(location)


@dataclass(frozen=True)
class Component:
    """A part of a query with counters: its ``kind`` (source, sink, async), ``name``, and ``id`` among parts of that name.

    ``about`` describes it, without secrets: the ``target`` of a sink, the folder of its dead ``letters``, its ``datasets``.
    """

    kind: str
    name: str
    id: str = ""
    about: Mapping[str, str] = field(default_factory=dict, compare=False)


def about(values: Mapping[str, Any], datasets: Sequence[Dataset], target: str = "") -> dict[str, str]:
    """Facts about a source or sink with these options: ``target``, the folder of its dead ``letters``, ``datasets`` as JSON."""
    places = {"target": target, "letters": values.get("deadLetterPath")}
    facts = {name: without_user(str(place)) for name, place in places.items() if place}
    return {**facts, "datasets": json.dumps(datasets)} if datasets else facts


@dataclass(frozen=True)
class Place:
    """What a meter counts for: a component of a query, a batch, and the task's ``index`` (-1: the commit)."""

    query: str
    component: Component
    batch: int
    index: int = 0
    run: str = ""

    def file(self) -> str:
        """The name of the place's file."""
        component = self.component
        parts = [_plain(part)[:70] for part in (component.kind, component.name, component.id)]
        return f"{_plain(self.query)}/{'.'.join([*parts, 'commit' if self.index < 0 else str(self.index), 'json'])}"


class Meter(RetryObserver):
    """Counts the work of one task attempt or one commit. As a context manager it writes the file at its end.

    Without a ``place``, as in a batch read, it writes nothing. Several threads may use it.
    """

    def __init__(self, place: Place | None = None) -> None:
        self.place = place
        self.at = ""
        """The partition that the task works on; failures and retries count for it."""
        self.rows: Counts = {}
        self.events: Counts = {}
        self.state: Counts = {}
        self.last_sign = machine.monotonic()
        """The monotonic time when the task last passed on rows, or until when it waits for a system that is down."""
        self._outage: dict[str, Any] | None = None
        self._lock = threading.Lock()

    def count(self, partition: str = "", /, **numbers: float) -> None:
        """Adds counts of the batch's data (rows, bytes, errors, dead_letters), which count once per batch."""
        with self._lock:
            _add(self.rows, {partition: numbers})

    def happened(self, partition: str = "", /, **numbers: float) -> None:
        """Adds counts of events (retries, failures, timeouts), which count in each attempt."""
        with self._lock:
            _add(self.events, {partition: numbers})

    def now(self, partition: str = "", /, **numbers: float) -> None:
        """Sets values that hold until the next batch (in_flight, commit_ms, last_commit)."""
        with self._lock:
            self.state.setdefault(partition, {}).update(numbers)

    def through(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Passes on ``batches`` and counts their bytes; each batch is a sign of life."""
        for batch in batches:
            self.last_sign = machine.monotonic()
            self.count(bytes=batch.nbytes)
            yield batch
            self.last_sign = machine.monotonic()

    def retried(self) -> None:
        self.happened(self.at, retries=1)

    def waits(self, outage: Transient, since: float, next_try: float) -> None:
        self._outage = {"error": str(outage.message)[:500], "since": since, "next_try": next_try, "partition": self.at}
        self.last_sign = machine.monotonic() + max(0.0, next_try - machine.time())
        self._write({}, {}, {})

    def resumed(self) -> None:
        self._outage = None
        self._write({}, {}, {})

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Writes the file. A failed attempt counts as a failure, and its rows do not count: a retry handles them again."""
        if kind is not None and issubclass(kind, Exception):
            self.rows, self.state = {}, {}
            self.happened(self.at, failures=1)
        self.save()

    @contextlib.contextmanager
    def counting(self) -> Iterator[Meter]:
        """As ``with meter``, and also counts the retries of :class:`~connectors.ground.retry.RetrySettings` inside.

        Code inside finds the meter by :func:`active_meter`.
        """
        outer = _active.set(self)
        try:
            with self, observed_retries(self):
                yield self
        finally:
            _active.reset(outer)

    def save(self) -> None:
        """Merges these numbers into the file. Never raises."""
        if self.rows or self.events or self.state:
            self._write(self.rows, self.events, self.state)

    def _write(self, rows: Counts, events: Counts, state: Counts) -> None:
        root = folder() if self.place else None
        if self.place is None or root is None:
            return
        try:
            storage, name = _storage(root), self.place.file()
            old = _read(storage, name)
            if old is None:
                _make_room(root, storage, _plain(self.place.query))
            record = {**joined(old, self.place, rows, events, state), "outage": self._outage}
            storage.replace(name, json.dumps(record, separators=(",", ":")).encode())
        except Exception as refused:
            _warn_once(root, refused)


def active_meter() -> Meter:
    """The meter of the code that runs now; if there is none, a meter that writes nothing."""
    return _active.get() or Meter()


def joined(old: Mapping[str, Any] | None, place: Place, rows: Counts, events: Counts, state: Counts) -> dict[str, Any]:
    """The contents of a file after one more attempt at ``place``.

    A later batch adds ``now`` to ``before``. Of two attempts at the same batch the larger numbers count: a ``limit`` or a kill
    may have ended one attempt early, and no attempt has more rows than the batch.
    """
    file = dict(old or {"batch": -1, "before": {}, "now": {}, "events": {}, "state": {}})
    if place.batch > file["batch"]:
        file["before"] = _few(_add(file["before"], file["now"]))
        file["batch"], file["now"] = place.batch, {}
    if place.batch == file["batch"]:
        _largest(file["now"], rows)
    file["events"] = _few(_add(file["events"], events))
    for partition, numbers in state.items():
        file["state"].setdefault(partition, {}).update(numbers)
    component = place.component
    names = {"kind": component.kind, "name": component.name, "id": component.id, "about": dict(component.about)}
    origin = {"first": file.get("first", place.batch), "begun": file.get("begun", place.run), "run": place.run}
    return {**file, "v": _VERSION, **names, **origin, "index": place.index}


def counted(query: str) -> list[dict[str, Any]]:
    """The files of ``query``, each with its ``totals``; empty if there are none. Leaves out files that cannot be read."""
    root = folder()
    try:
        files = _records(_storage(root), _plain(query)) if root else []
    except Exception as refused:
        _warn_once(str(root), refused)
        return []
    for file in files:
        file["totals"] = _add(_add({}, file["before"]), {} if _is_replaced(file, files) else file["now"])
    return files


def planned(sources: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """The files of processes that plan batches of ``sources`` (names and ids)."""
    known = set(sources)
    return [file for file in counted(PLANNING) if (file["name"], file["id"]) in known]


def counted_queries() -> list[str]:
    """The queries that have files, in no order. Raises the storage's error if it cannot be read."""
    root = folder()
    folders = _storage(root).folders() if root else []
    return [query for query in map(unquote, folders) if query != PLANNING]


def write_note(query: str, note: Mapping[str, Any]) -> None:
    """Replaces the note of ``query``: facts that its session knows. Never raises."""
    root = folder()
    if root is None:
        return
    try:
        storage, own = _storage(root), _plain(query)
        _make_room(root, storage, own)
        storage.replace(f"{own}/{_NOTE}", json.dumps({**note, "v": _VERSION}, separators=(",", ":"), default=str).encode())
    except Exception as refused:
        _warn_once(root, refused)


def note_of(query: str) -> dict[str, Any]:
    """The note of ``query`` from :func:`write_note`; empty if there is none."""
    root = folder()
    return (_read(_storage(root), f"{_plain(query)}/{_NOTE}") if root else None) or {}


def outage_of(file: Mapping[str, Any]) -> dict[str, Any] | None:
    """The outage that a component waits out: ``error``, ``since``, ``next_try``, ``partition``; ``None`` if it does not wait.

    A ``next_try`` that is long over does not count: its process was killed during the wait.
    """
    outage: dict[str, Any] | None = file.get("outage")
    return outage if outage and outage["next_try"] > machine.time() - _LATE_TRY_SECONDS else None


def _records(storage: Storage, own: str) -> list[dict[str, Any]]:
    """The contents of a query's files in the order of their names, without the note."""
    records = (_read(storage, f"{own}/{name}") for name in sorted(storage.names(own)) if name != _NOTE)
    return [record for record in records if record]


def _is_replaced(file: Mapping[str, Any], files: Sequence[Mapping[str, Any]]) -> bool:
    """True if a later run, with other options of the same source, replayed the file's newest batch under another id."""
    return any(
        (other["kind"], other["name"], other["first"]) == (file["kind"], file["name"], file["batch"])
        and other["id"] != file["id"]
        and other["begun"] not in (file["begun"], file["run"])
        and file["kind"] != "sink"
        for other in files
    )


def _plain(text: str) -> str:
    """``text`` as a file name."""
    return quote(text, safe="").replace(".", "%2E")


def _read(storage: Storage, name: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        record = json.loads(storage.read(name))
        if isinstance(record, dict) and record.get("v") == _VERSION:
            return record
    return None


def _add(into: Counts, more: Mapping[str, Mapping[str, float]]) -> Counts:
    for partition, numbers in more.items():
        totals = into.setdefault(partition, {})
        for name, number in numbers.items():
            totals[name] = totals.get(name, 0) + number
    return into


def _largest(into: Counts, other: Counts) -> None:
    for partition, numbers in other.items():
        largest = into.setdefault(partition, {})
        for name, number in numbers.items():
            largest[name] = max(largest.get(name, number), number)


def _few(counts: Counts) -> Counts:
    """``counts``; if it has too many partitions, the oldest are added up."""
    names = [name for name in counts if name != OTHERS]
    for name in names[: max(0, len(names) - PARTITIONS)]:
        _add(counts, {OTHERS: counts.pop(name)})
    return counts


def _make_room(root: str, storage: Storage, own: str) -> None:
    """Makes the folder of a query. Before a new one it removes the folders of queries that are long over."""
    if storage.item(own) is not None:
        return
    if is_local(root):
        local_path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    storage.make_folder(own)
    for query in [item.name for item in storage.items() if item.is_folder and _is_old(storage, item)]:
        _remove(storage, query)
    for item in storage.items(PLANNING):  # never old as a whole: every planned source writes there
        if _METRIC_FILE.fullmatch(item.name) and 0 < item.changed < _oldest():
            storage.delete(f"{PLANNING}/{item.name}")


def _is_old(storage: Storage, query: Item) -> bool:
    """True if a query's folder is old. In an object store the newest file tells its age."""
    changed = query.changed or max((item.changed for item in storage.items(query.name)), default=0)
    return 0 < changed < _oldest()


def _oldest() -> float:
    """The time in nanoseconds since 1970 before which a change is old."""
    return (machine.time() - RETENTION_SECONDS) * 1e9


def _remove(storage: Storage, query: str) -> None:
    """Removes a query's folder unless it holds other files: the user may have named a folder with other contents."""
    items = storage.items(query)
    if all(_METRIC_FILE.fullmatch(item.name) for item in items):
        for item in items:
            storage.delete(f"{query}/{item.name}")
        storage.prune(query, "")


def _warn_once(root: str, refused: Exception) -> None:
    if root not in _warned:
        _warned.add(root)
        text = "no metrics: %s cannot be read or written (%s). Name another folder by %s"
        _log.warning(text, without_user(root), refused, FOLDER)
