"""Worlds of histories: a source and a sink, over models of systems, or over the system of a context.

The methods by which the library reaches a connector of a context (``receive``, ``prepare``, ``commit`` …) are requests: each
may be lost, or its answer, and the process may die before it and after it. Inside of one nothing happens, except at the
functions that the context names in ``requests``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import getattr_static
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast
from unittest.mock import patch

import pyarrow as pa

from ...batching.sink import BatchingWriter
from ...core.batch import Batch
from ...core.cursor_source import CursorSource
from ...core.epoch_source import EpochLogSource, EpochSource
from ...core.epochs import EpochLog, Messages
from ...core.sink import Sink
from ...core.source import SeekingReader, Source
from ...systems.files.sink import FilesSink
from ..compare import key_of
from ..contexts import FolderContext, SinkContext, SourceContext, open_context
from .adversary import Adversary
from .disk import RemoteStorage
from .models import SCHEMA, Database, DatabaseSink, Queue, QueueSource, Shards, ShardSource

T = TypeVar("T")
World = str | type[SourceContext] | type[SinkContext]
"""The name of a world of :data:`WORLDS`, or the context of a connector, which stands between models."""
Row = Mapping[str, Any]

_LIBRARY: Final = Path(__file__).parents[3]
_TIMES: Final = {"maxEpochTime": "2s", "drainTimeout": "3s", "pollInterval": "5s"}


@dataclass
class Origin:
    """The system that rows come from. ``publish`` adds as many rows and returns them."""

    kind: type[Source]
    options: Callable[[], Mapping[str, str]]
    publish: Callable[[int], Sequence[Row]]
    schema: pa.Schema = SCHEMA

    def source(self, readers: int) -> Source:
        """The source, in a process."""
        parallelism = {"numPartitions": str(readers)} if self.kind.known_options().knows("numPartitions") else {}
        return self.kind.of({**self.options(), **parallelism}, streaming=True)


@dataclass
class Target:
    """The system that rows go to. ``row`` makes its row of one that was published."""

    sink: Callable[[], Sink]
    rows: Callable[[], Iterable[str]]
    row: Callable[[Row], Row] | None = None
    schema: pa.Schema = SCHEMA
    repeats: Callable[[], bool] = lambda: False
    carriers: Sequence[str] = ("foreach_batch", "format")

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the sink from those of the source."""
        return batch if self.row is None else pa.RecordBatch.from_pylist(list(map(self.row, batch.to_pylist())), self.schema)


@dataclass
class Pipeline:
    """A source and a sink in a history."""

    origin: Origin
    target: Target

    def publish(self, count: int) -> list[str]:
        """Adds as many rows to the source's system, and returns them as the target's are known."""
        row = self.target.row or (lambda row: row)
        return [key_of(row(published)) for published in self.origin.publish(count)]

    @property
    def keeps_epochs(self) -> bool:
        """Whether a log of the source's own tells that a checkpoint is an older one; else Spark's offsets are needed."""
        return issubclass(self.origin.kind, EpochLogSource)


def name_of(world: World) -> str:
    """The name by which :func:`world_of` knows a world."""
    return world if isinstance(world, str) else f"{world.__module__}:{world.__qualname__}"


def world_of(name: str) -> World:
    """The world of a name: one of :data:`WORLDS`, or ``module:Context``."""
    module, _, kind = name.partition(":")
    return attrgetter(kind)(import_module(module)) if kind else name


def command_of(world: World, seed: int) -> str:
    """The command that repeats a history; the call, where the context is of a notebook or inside of a function."""
    command = f"python -m connectors.testing.simulation {name_of(world)} {seed}"
    if isinstance(world, str):
        return command
    file = getattr(sys.modules[world.__module__], "__file__", None)
    if file is None or world.__module__ == "__main__" or "<locals>" in world.__qualname__:
        return f"connectors.testing.simulation.history.run({world.__qualname__}, {seed})"
    path = Path(file)
    folder = (path.parent if path.stem == "__init__" else path).parents[world.__module__.count(".")]
    return f"PYTHONPATH={shlex.quote(f'{folder}{os.pathsep}{_LIBRARY}')} {command}"


@contextlib.contextmanager
def pipeline(world: World, adversary: Adversary, folder: Path) -> Iterator[Pipeline]:
    """The pipeline of ``world`` on the disk of a history."""
    with contextlib.ExitStack() as ends:
        if isinstance(world, str):
            origin, target = WORLDS[world]
            yield Pipeline(origin(adversary, folder), target(adversary, folder))
            return
        is_folder = issubclass(world, FolderContext)  # any other system has a disk of its own, whose power does not fail
        context = ends.enter_context(open_context(cast(Any, world), (folder if is_folder else folder.parent) / "system"))
        context.options()  # a server that it starts belongs to this thread, which outlives all of the history
        system = _System(adversary, getattr(context, "set_time", lambda now: None))
        for kind, name in context.requests:
            ends.enter_context(patch.object(kind, name, system.function_as_request(kind, name)))
        if isinstance(context, SinkContext):
            numbers = _ORIGINS["queue" if adversary.chance() < 0.5 else "shards"]
            yield Pipeline(numbers(adversary, folder), _target_of(context, system))
        else:
            database = replace(_database(adversary, folder), repeats=lambda: not system.has_ids)
            yield Pipeline(_origin_of(context, system, folder), database)


class _Number(Protocol):
    def publish(self, bodies: Sequence[int]) -> None: ...


def _numbers(system: _Number) -> Callable[[int], Sequence[Row]]:
    """The numbers from 1 on, published in ``system``."""
    last = 0

    def publish(count: int) -> Sequence[Row]:
        nonlocal last
        bodies = range(last + 1, last + count + 1)
        last += count
        system.publish(bodies)
        return [{"value": body} for body in bodies]

    return publish


def _with_log(kind: type[EpochLogSource], adversary: Adversary, **members: Any) -> Any:
    """A subclass with ``members``, whose epoch log is on the disk, or behind a network."""

    def log(self: EpochLogSource) -> EpochLog:
        return EpochLog(RemoteStorage(self.values["stateLocation"], adversary), self.name)

    return type(f"{kind.__name__}Model", (kind,), members | ({"log": log} if adversary.chance() < 0.5 else {}))


def _queue(adversary: Adversary, folder: Path) -> Origin:
    queue = Queue(adversary)
    options = {"stateLocation": str(folder / "log"), **_TIMES, "maxRowsPerTrigger": "4", "deduplicationWindow": "600s"}
    return Origin(_with_log(QueueSource, adversary, queue=queue), lambda: options, _numbers(queue))


def _shards(adversary: Adversary, folder: Path) -> Origin:
    shards = Shards(adversary)
    options = {"stateLocation": str(folder / "log"), **_TIMES, "maxRowsPerTrigger": "4"}
    return Origin(_with_log(ShardSource, adversary, shards=shards), lambda: options, _numbers(shards))


def _database(adversary: Adversary, folder: Path) -> Target:
    database = Database(adversary)
    kind: Any = type("DatabaseModel", (DatabaseSink,), {"database": database})
    return Target(lambda: kind.of({}), lambda: database.rows)


def _files(adversary: Adversary, folder: Path) -> Target:
    import pyarrow.parquet as pq

    path = folder / "files"

    def rows() -> Iterable[str]:
        return [key_of(row) for file in sorted(path.glob("*.parquet")) for row in pq.read_table(file).to_pylist()]

    return Target(lambda: FilesSink.of({"path": str(path), "fileFormat": "parquet", "sinkId": "files"}), rows)


def _origin_of(context: SourceContext, system: _System, folder: Path) -> Origin:
    kind, options = system.source_kind(context.source), dict(context.limit)
    if issubclass(kind, EpochLogSource):
        kind, options = _with_log(kind, system.adversary), {**options, **_TIMES, "stateLocation": str(folder / "log")}
    publish = partial(system.in_time, context.write)
    return Origin(kind, lambda: {**context.options(), **options}, publish, context.schema)


def _target_of(context: SinkContext, system: _System) -> Target:
    return Target(
        lambda: system.sink_kind(context.sink).of(context.options()),
        lambda: map(key_of, context.rows()),
        lambda row: context.row(row["value"]),
        context.schema,
        context.repeats,
        context.carriers,
    )


@dataclass
class _System:
    """The system of a context, in the time of the history: what drivers and tasks ask of it is a request."""

    adversary: Adversary
    set_time: Callable[[float], None]
    has_ids: bool = True
    """Whether its messages have ids; a queue without them may deliver a message twice."""
    _sets_time: bool = False

    def in_time(self, effect: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """What ``effect`` gives, when the system's clock has been set."""
        self._sets_time = True
        try:
            self.set_time(self.adversary.scheduler.now)
        finally:
            self._sets_time = False
        return effect(*arguments, **named)

    def ask(self, name: str, effect: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return self.adversary.request(name, lambda: self.in_time(effect, *arguments, **named))

    def as_requests(self, part: T, names: Iterable[str]) -> T:
        """``part``, whose methods of ``names``, if it has them, are requests."""
        for name in names:
            method = getattr(part, name, None)
            if method is not None and not isinstance(method, partial):  # another look at a part that stays
                object.__setattr__(part, name, partial(self.ask, name, method))  # also of a frozen dataclass
        return part

    def function_as_request(self, owner: Any, name: str) -> Any:
        """A function of a client, which is a request of drivers and tasks.

        Whoever publishes and looks on is left alone, and so are threads of clients.
        """
        function = getattr(owner, name)

        def ask(*arguments: Any, **named: Any) -> Any:
            thread = self.adversary.scheduler.current()
            if thread is None or not thread.process.mortal or self._sets_time:
                return function(*arguments, **named)
            return self.ask(name, function, *arguments, **named)

        is_bound = isinstance(getattr_static(owner, name), (staticmethod, classmethod))
        return staticmethod(ask) if is_bound else ask

    def receive(self, method: Callable[..., Messages | None], rows: int, seconds: float) -> Messages | None:
        """``method`` of a receiver, which waits in the history's time instead of its own."""
        received = self.adversary.scheduler.poll(lambda: self.ask("receive", method, rows, 0.0), seconds)
        self.has_ids &= received is None or received.ids is not None
        return received

    def read(self, name: str, method: Callable[..., Iterator[Any]], *arguments: Any) -> Iterator[Any]:
        """``method`` of a reader, which asks for each of its batches."""
        self.ask(name, lambda: None)
        for rows in method(*arguments):
            yield rows
            self.ask(f"more of {name}", lambda: None)

    def sink_kind(self, kind: type[Sink]) -> type[Sink]:
        """A subclass of ``kind``, of which the methods that reach its system are requests."""
        as_requests = self.as_requests

        class SimulatedSink(kind):  # type: ignore[valid-type, misc]
            def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> Any:
                writer = as_requests(super().writer(batch, schema, subtask), ("write", "prepare", "abort"))
                if isinstance(writer, BatchingWriter):
                    as_requests(writer._sending, ("_call",))
                return writer

            def ledger(self) -> Any:
                return as_requests(super().ledger(), ("last", "queries", "record", "unpublished", "mark_published"))

            def committer(self) -> Any:
                names = ("last", "queries", "publish", "commit", "discard", "drop_attempts", "sweep")
                return as_requests(super().committer(), names)

        return SimulatedSink

    def source_kind(self, kind: Any) -> Any:
        """A subclass of ``kind``, of which the methods that reach its system are requests."""
        system = self

        class SimulatedSource(kind):  # type: ignore[misc]
            def enumerator(self) -> Any:
                names = () if isinstance(self, EpochLogSource) else ("start", "head", "freeze", "advance", "committed")
                return system.as_requests(super().enumerator(), names)

            def reader(self, schema: pa.Schema) -> Any:
                reader = super().reader(schema)
                if isinstance(self, EpochLogSource):
                    return reader
                for name in ("read_after",) if isinstance(reader, SeekingReader) else ("read", "resume"):
                    object.__setattr__(reader, name, partial(system.read, name, getattr(reader, name)))
                return reader

        class SimulatedCursorSource(SimulatedSource):
            def partitions(self, positions: Mapping[str, Any], finished: Any) -> Any:
                return system.ask("list partitions", super().partitions, positions, finished)

            def cursor(self, schema: pa.Schema) -> Any:
                return system.as_requests(super().cursor(schema), ("open", "read"))

        class SimulatedEpochSource(SimulatedSource):
            def receiver(self, schema: pa.Schema | None) -> Any:
                receiver = super().receiver(schema)
                receive = partial(system.receive, receiver.receive)
                system.as_requests(receiver, ("open", "acknowledge", "release", "extend", "pending"))
                object.__setattr__(receiver, "receive", receive)
                return receiver

        if issubclass(kind, CursorSource):
            return SimulatedCursorSource
        return SimulatedEpochSource if issubclass(kind, EpochSource) else SimulatedSource


_ORIGINS: Final = {"queue": _queue, "shards": _shards}
_TARGETS: Final = {"database": _database, "files": _files}
WORLDS: Final = {f"{a}-{b}": (origin, target) for a, origin in _ORIGINS.items() for b, target in _TARGETS.items()}
"""The worlds of models, by name."""
