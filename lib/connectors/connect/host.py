"""The seam of the runtime: a *host* owns a connector and its tasks, and the runtime sees Arrow and offsets only.

==========================  ===============================  ===========================================================
host                        where it lives                   who calls it
==========================  ===============================  ===========================================================
:class:`SourceHost`         the query's planner process      ``systems/connect/source.py``: polls, records an epoch, commits
:class:`SinkHost`           each worker process, kept there  ``systems/connect/sink.py``: puts the rows of a task, flushes
==========================  ===============================  ===========================================================

:mod:`.python_host` and :mod:`.python_sink_host` run Python classes in threads. Another host may run connectors elsewhere, as
long as it keeps these contracts. :mod:`.hosts` chooses.

A source partition is written as canonical JSON (:func:`connectors.ground.state.dumps`), a source offset as a JSON object.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ..core.source import ReadLimit
from ..ground.errors import Problem, Transient
from ..ground.options import secrets_in

if TYPE_CHECKING:
    from .connector import TopicPartition

HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

SOURCE_COLUMNS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("sourcePartition", pa.string()),
        ("sourceOffset", pa.string()),
    ]
)
"""The columns of a source's records, transformed and converted: those that are recorded and that Spark sees."""

SINK_COLUMNS: Final = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")
"""The columns of a sink's records. ``key`` and ``value`` are binary (for a converter) or of any other type (as they are)."""

Offsets = Mapping[str, Any]
"""Source offset by source partition, the partition as canonical JSON text. ``None`` in place of an offset removes it."""

Groups = Mapping[str, Any]
"""By source partition, what a start needs beside the offset, as JSON; ``None`` for nothing. Only its host reads it."""


@dataclass(frozen=True)
class ConnectorSettings:
    """The settings of a user for one connector.

    ``properties`` are Connect's own, with secrets looked up. ``plugin_path`` or ``plugin_packages`` mean a Java class.
    ``restarts`` bounds how often a failed task starts again, with pauses from ``restart_backoff`` seconds, doubled each time
    up to ``restart_max_backoff``. A sink that is away is waited for, for ``outage_timeout`` seconds; ``awaits_offsets`` is
    false for one that keeps offsets itself, and need not name them. ``log`` names the connector in messages.
    """

    properties: Mapping[str, str] = field(repr=False)
    plugin_path: str | None = None
    plugin_packages: tuple[str, ...] = ()
    restarts: int = 5
    restart_backoff: float = 1.0
    restart_max_backoff: float = 60.0
    outage_timeout: float = 600.0
    log: str = "connectors.connect"
    awaits_offsets: bool = True

    @property
    def class_name(self) -> str:
        return self.properties.get("connector.class", "")

    @property
    def is_java(self) -> bool:
        return bool(self.plugin_path or self.plugin_packages)

    def secrets(self) -> list[str]:
        """The texts that no message, log or dead letter may show."""
        return [text for key, value in self.properties.items() for text in secrets_in(key, value)]


@dataclass(frozen=True)
class DeadLetter:
    """A record that failed for good, as it was before the step (``stage``) that failed: Connect's names of stages and headers.

    ``error_class`` is the full name of the exception's class. Positions are those of the sink's record, where there are any.
    """

    topic: str | None
    partition: int | None
    offset: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp: int | None
    stage: str
    executing_class: str
    error_class: str
    message: str
    stacktrace: str = ""
    task: int = 0


@dataclass(frozen=True)
class TaskRecords:
    """The output of one task of a source for an epoch: ``rows`` of :data:`SOURCE_COLUMNS`, and its newest ``offsets``.

    Offsets may move without rows: transforms drop records. ``groups`` go with the offsets. ``counts`` are for the query's
    table, such as ``errors``, ``retries`` and ``polled``.
    """

    task: int
    rows: pa.Table
    offsets: Offsets
    letters: Sequence[DeadLetter] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)


def merged(parts: Iterable[TaskRecords]) -> list[TaskRecords]:
    """``parts``, in their order, as one for each task."""
    by_task: dict[int, list[TaskRecords]] = {}
    for part in parts:
        by_task.setdefault(part.task, []).append(part)
    return [_merged(task, of_task) for task, of_task in by_task.items()]


def _merged(task: int, parts: Sequence[TaskRecords]) -> TaskRecords:
    offsets: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    for part in parts:
        offsets.update(part.offsets)
        groups.update(part.groups)
        counts.update(part.counts)
    letters = [letter for part in parts for letter in part.letters]
    return TaskRecords(task, pa.concat_tables([part.rows for part in parts]), offsets, letters, dict(counts), groups)


@dataclass(frozen=True)
class TaskStatus:
    """The state of a task in Connect's words: ``RUNNING``, ``RESTARTING``, ``FAILED``, ``STOPPED``.

    ``trace`` is the stack of its last failure. ``restarts`` counts how often it was started again; ``final`` is true where
    it will not be.
    """

    task: int
    state: str
    trace: str = ""
    restarts: int = 0
    final: bool = False


class SourceHost(ABC):
    """A source connector with its tasks, in the process that plans the query. Every method is called from one thread, except
    :meth:`close`, which may come from another one at any time and ends a :meth:`poll` that waits.

    ::

        validate()
        check_first_start()           if nothing of the query has run before with this slot()
        start(offsets, groups)
          ┌ poll(epoch, …)        until there is something; then the runtime records it
          │ committed(epoch)      Spark has committed all epochs up to this one
          └ reconfiguration_requested() → quiesce(), poll(…) until nothing is left, committed(…), reconfigure(offsets, groups)
        close()

    A host whose process dies loses what it has polled and not yet handed over; the runtime starts a new one from the recorded
    offsets. What :meth:`poll` has handed over once it must not hand over again.
    """

    @abstractmethod
    def validate(self) -> list[Problem]:
        """All problems of the properties: what the connector's own ConfigDef says, converters, transforms.

        Without contact to the system, unless the connector's own validation makes it. Secrets are hidden.
        """

    def slot(self) -> str:
        """The replication slot that a start may make anew, by its database and name. Empty for none."""
        return ""

    def check_first_start(self) -> None:  # noqa: B027
        """Raises :class:`~connectors.ground.errors.Fatal` where :meth:`slot` belongs to another reader."""

    @abstractmethod
    def start(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        """Starts the connector, asks it for task configurations, and starts the tasks from ``offsets`` and their ``groups``."""

    @abstractmethod
    def poll(self, epoch: int, limit: ReadLimit, seconds: float) -> list[TaskRecords]:
        """The output of the tasks since the last call, for ``epoch``; empty when nothing comes within ``seconds``.

        Returns when there is something, and nothing more comes for a moment. Only whole transactions
        (``transaction.boundary``), at least one, and then as many as fit into ``limit``; the rest stays for the next call.

        Raises :class:`~connectors.ground.errors.Fatal` when all tasks have failed for good, with the trace of one of them.
        """

    @abstractmethod
    def idle_seconds(self) -> float:
        """For how long all tasks have polled, and given nothing; 0 while a task starts, works or waits for a new start.

        A query that ends by itself (``availableNow``) ends when this has reached ``drainTimeout``.
        """

    def has_caught_up(self, seconds: float) -> bool:
        """True if all is handed over that was there at the start: a query that ends by itself need not wait for more.

        A log tells by its position, or by the time of its changes. Else each task has, for ``seconds``, given nothing, or a few
        records at a time that it had to wait for.
        """
        return False

    @abstractmethod
    def committed(self, epoch: int) -> None:
        """Spark has committed all epochs up to ``epoch``: ``commitRecord`` for their records, then ``commit`` of the tasks.

        May be called again. Epochs of an earlier run are not known here; offsets say what was committed of them.
        """

    @abstractmethod
    def reconfiguration_requested(self) -> bool:
        """True after the connector has asked for new task configurations, or the limit of tasks has changed."""

    @abstractmethod
    def quiesce(self) -> None:
        """The tasks poll no more; what they have polled is still handed over by :meth:`poll`, which does not wait then."""

    @abstractmethod
    def reconfigure(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        """Stops the tasks, which have nothing left to commit, and starts those of new configurations from ``offsets``."""

    @abstractmethod
    def statuses(self) -> list[TaskStatus]:
        """The states of the tasks."""

    def generation(self) -> int:
        """The number of times that tasks were dealt out: 1 after :meth:`start`, one more after each :meth:`reconfigure`."""
        return 1

    @abstractmethod
    def close(self) -> None:
        """Stops tasks and connector. May be called twice, and from another thread."""


class LetterBox(ABC):
    """Takes the dead letters of a task whose target keeps offsets, before these move past the letters' rows.

    ``count`` of its rows are dead letters, also of those that an earlier attempt has set aside.
    """

    count: int = 0

    @abstractmethod
    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Returns when the letters are durable: whatever dies afterwards, they are there."""

    def offsets(self, place: TopicPartition) -> Set[int]:
        """The rows of a partition that are dead letters already, by an earlier attempt at the same batch."""
        return frozenset()


class SinkHostTask(ABC):
    """A started sink task in a worker. Used by one thread."""

    @abstractmethod
    def put(self, rows: pa.Table) -> list[DeadLetter]:
        """Hands records of :data:`SINK_COLUMNS` to the task, after converters and transforms; it may buffer them.

        Returns those that failed for good, perhaps of earlier calls, where ``errors.tolerance`` allows it; else raises. Raises
        :class:`~connectors.ground.errors.Transient` for an outage (a RetriableException that lasted).
        """

    @abstractmethod
    def flush(self) -> list[DeadLetter]:
        """Blocks until everything that was put is acknowledged (``preCommit``, ``flush``). Returns further dead letters."""

    @abstractmethod
    def close(self, failed: bool = False) -> list[DeadLetter]:
        """Stops the task, or gives it back to its host for another batch; after a failure it is always stopped.

        Returns the dead letters of what it has still written meanwhile.
        """


class SinkHost(ABC):
    """A sink connector in one worker process, kept there from batch to batch by the digest of its settings."""

    @abstractmethod
    def validate(self) -> list[Problem]:
        """As :meth:`SourceHost.validate`. Called on the driver before the first task."""

    @abstractmethod
    def task(
        self, number: int, topics: Sequence[str], *, uses_offsets: bool = False, letters: LetterBox | None = None
    ) -> SinkHostTask:
        """The task with this number, started and with the partitions (topic, number) of ``topics`` opened.

        ``uses_offsets`` says that all rows of a partition come to this task, in the order of offsets that stay the same in a
        replay. Only then are rows left out that the target has already, as the task says by ``context.offset``. Then dead
        letters go to ``letters`` at once, and their rows are left out of a replay, too.

        Task configurations are dealt out by ``number`` modulo their count.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops everything. Called when a worker ends or the host was idle for long."""


def unacknowledged_error(topic: str, partition: int, settings: ConnectorSettings) -> Transient:
    """The error of a sink task whose ``preCommit`` does not answer with the end of a partition."""
    return Transient(
        f"the task has not acknowledged {topic}-{partition} for outageTimeout={settings.outage_timeout:g}s: preCommit does not "
        "answer that its target has all records",
        is_waited_for=True,
        connector=settings.log,
        way_out="a connector that writes by a rotation of its own (flush.size, rotate.interval.ms …) needs one that is shorter "
        "than a batch; for one that keeps offsets itself and never names them, set offsets=sink",
    )


def rewind_error(topic: str, partition: int, offset: int, settings: ConnectorSettings) -> Transient:
    """The error of a sink task that asks by ``context.offset`` for rows that it has taken: Spark repeats whole batches."""
    return Transient(
        f"the task asks for {topic}-{partition} from offset {offset} on again: it has taken these rows, and not written them",
        connector=settings.log,
        way_out="start the query again when the target is back: its last batch comes again",
    )
