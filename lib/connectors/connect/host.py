"""The interface of hosts: a *host* owns a connector and its tasks; the runtime sees only Arrow and offsets.

==========================  ===============================  ===========================================================
host                        where it lives                   who calls it
==========================  ===============================  ===========================================================
:class:`SourceHost`         the query's planner process      ``systems/connect/source.py``: polls, records an epoch, commits
:class:`SinkHost`           each worker process, for long    ``systems/connect/sink.py``: puts the rows of a task, flushes
==========================  ===============================  ===========================================================

:mod:`.python_host` and :mod:`.python_sink_host` run Python classes in threads. Another host may run connectors elsewhere if it
keeps these contracts. :mod:`.hosts` chooses the host.

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
from ..ground.errors import Fatal, Problem, Transient
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
"""The columns of a source's records after transforms and converters, as recorded and as Spark sees them."""

SINK_COLUMNS: Final = ("topic", "partition", "offset", "key", "value", "headers", "timestamp")
"""The columns of a sink's records. ``key`` and ``value`` are binary (for a converter) or of any other type (unconverted)."""

Offsets = Mapping[str, Any]
"""Source offset by source partition; the partition is canonical JSON text. ``None`` instead of an offset removes it."""

Groups = Mapping[str, Any]
"""By source partition, JSON that a start needs in addition to the offset; ``None`` for nothing. Only its host reads it."""


@dataclass(frozen=True)
class ConnectorSettings:
    """A user's settings for one connector.

    ``properties`` are Connect's own, with secrets filled in. ``plugin_path`` or ``plugin_packages`` mean a Java class.
    ``restarts`` limits how often a failed task starts again, after pauses from ``restart_backoff`` seconds, doubled each time
    up to ``restart_max_backoff``. During an outage a sink waits ``outage_timeout`` seconds. ``awaits_offsets`` is false for
    a sink that keeps offsets itself and need not name them. ``log`` names the connector in messages.
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
        """The secrets that no message, log or dead letter may show."""
        return [text for key, value in self.properties.items() for text in secrets_in(key, value)]


@dataclass(frozen=True)
class DeadLetter:
    """A record that failed for good, as it was before the failed step (``stage``). Stages and headers have Connect's names.

    ``error_class`` is the full name of the exception's class. Positions are those of the sink's record, if there are any.
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

    Offsets may advance without rows, since transforms drop records. ``groups`` belong to the offsets. ``counts`` are for the
    query's table, such as ``errors``, ``retries`` and ``polled``.
    """

    task: int
    rows: pa.Table
    offsets: Offsets
    letters: Sequence[DeadLetter] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    groups: Groups = field(default_factory=dict)


def merged(parts: Iterable[TaskRecords]) -> list[TaskRecords]:
    """``parts``, merged in their order to one for each task."""
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

    ``trace`` is the stack of its last failure. ``restarts`` counts how often it was restarted; ``final`` is true if it will
    not be restarted again.
    """

    task: int
    state: str
    trace: str = ""
    restarts: int = 0
    final: bool = False


class SourceHost(ABC):
    """A source connector with its tasks, in the process that plans the query. One thread calls every method, except
    :meth:`close`: another thread may call it at any time, and it ends a waiting :meth:`poll`.

    ::

        validate()
        check_first_start()           if the query has never run before with this slot()
        start(offsets, groups)
          ┌ poll(epoch, …)        until there is something; then the runtime records it
          │ committed(epoch)      Spark has committed all epochs up to this one
          └ reconfiguration_requested() → quiesce(), poll(…) until nothing is left, committed(…), reconfigure(offsets, groups)
        close()

    If its process dies, a host loses the records that it has polled and not yet returned; the runtime starts a new host from
    the recorded offsets. :meth:`poll` must not return a record twice.
    """

    @abstractmethod
    def validate(self) -> list[Problem]:
        """All problems of the properties: those that the connector's ConfigDef finds, of converters, of transforms.

        Does not contact the system, unless the connector's own validation does. Hides secrets.
        """

    def slot(self) -> str:
        """The replication slot that a start may drop and make again, by database and name. Empty for none."""
        return ""

    def check_first_start(self) -> None:  # noqa: B027
        """Raises :class:`~connectors.ground.errors.Fatal` if :meth:`slot` belongs to another reader."""

    @abstractmethod
    def alter_offsets(self, offsets: Offsets) -> bool:
        """Asks the connector, which is not started, whether it could read from these ``offsets``; ``None`` begins one anew.

        Returns whether it has looked at them. Raises :class:`~connectors.ground.errors.Fatal` where it refuses.
        """

    @abstractmethod
    def start(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        """Starts the connector, gets its task configurations, and starts the tasks from ``offsets`` and their ``groups``."""

    @abstractmethod
    def poll(self, epoch: int, limit: ReadLimit, seconds: float) -> list[TaskRecords]:
        """The output of the tasks since the last call, for ``epoch``; empty if nothing comes within ``seconds``.

        Returns when there are records and no more come for a moment. Returns only whole transactions
        (``transaction.boundary``), at least one, then as many as fit into ``limit``; the rest stays for the next call.

        Raises :class:`~connectors.ground.errors.Fatal` with the trace of a task if all tasks have failed for good.
        """

    @abstractmethod
    def idle_seconds(self) -> float:
        """For how many seconds all tasks have polled without records; 0 while a task starts, works or waits for a restart.

        A query that ends by itself (``availableNow``) ends when this has reached ``drainTimeout``.
        """

    def has_caught_up(self, seconds: float) -> bool:
        """True if :meth:`poll` has returned all data present at the start: a query that ends by itself need not wait for more.

        A log tells by its position, or by the time of its changes. Otherwise each task has, for ``seconds``, returned nothing,
        or only a few records at a time for which it had to wait.
        """
        return False

    @abstractmethod
    def committed(self, epoch: int) -> None:
        """Called when Spark has committed epochs up to ``epoch``: calls ``commitRecord`` for their records, then ``commit``.

        May be called again. The host does not know epochs of an earlier run; offsets tell what was committed of them.
        """

    @abstractmethod
    def reconfiguration_requested(self) -> bool:
        """True after the connector has asked for new task configurations, or if the limit of tasks has changed."""

    @abstractmethod
    def quiesce(self) -> None:
        """Stops the tasks' polling. :meth:`poll` still returns the records that they have polled, and no longer waits."""

    @abstractmethod
    def reconfigure(self, offsets: Offsets, groups: Groups = MappingProxyType({})) -> None:
        """Stops the tasks, which have nothing left to commit, and starts tasks of new configurations from ``offsets``."""

    @abstractmethod
    def statuses(self) -> list[TaskStatus]:
        """The states of the tasks."""

    def facts(self) -> Mapping[str, Any]:
        """What else is known for the query's table, by column, such as ``slot_lag_bytes``. Does not wait for the system."""
        return {}

    def generation(self) -> int:
        """The number of times that tasks were configured: 1 after :meth:`start`, one more after each :meth:`reconfigure`."""
        return 1

    @abstractmethod
    def close(self) -> None:
        """Stops tasks and connector. May be called twice, and from another thread."""


class LetterBox(ABC):
    """Takes the dead letters of a task whose target keeps offsets, before the offsets move past the letters' rows.

    ``count`` is the number of its rows that are dead letters, including those of an earlier attempt.
    """

    count: int = 0

    @abstractmethod
    def put(self, letters: Sequence[DeadLetter]) -> None:
        """Writes the letters durably before it returns, so that they survive any later death."""

    def offsets(self, place: TopicPartition) -> Set[int]:
        """The offsets of a partition's rows that an earlier attempt at the same batch has made dead letters."""
        return frozenset()


class SinkHostTask(ABC):
    """A started sink task in a worker. Used by one thread."""

    @abstractmethod
    def put(self, rows: pa.Table) -> list[DeadLetter]:
        """Passes records of :data:`SINK_COLUMNS` to the task, after converters and transforms; the task may buffer them.

        Returns the records that failed for good, perhaps of earlier calls, if ``errors.tolerance`` allows it; else raises.
        Raises :class:`~connectors.ground.errors.Transient` for an outage (a RetriableException that lasted).
        """

    @abstractmethod
    def flush(self) -> list[DeadLetter]:
        """Blocks until all put records are acknowledged (``preCommit``, ``flush``). Returns further dead letters."""

    @abstractmethod
    def close(self, failed: bool = False) -> list[DeadLetter]:
        """Stops the task, or returns it to its host for another batch; always stops it after a failure.

        Returns the dead letters of records that the task still wrote meanwhile.
        """


class SinkHost(ABC):
    """A sink connector in a worker process, which keeps it from batch to batch by the digest of its settings."""

    @abstractmethod
    def validate(self) -> list[Problem]:
        """As :meth:`SourceHost.validate`. Called on the driver before the first task."""

    @abstractmethod
    def task(
        self, number: int, topics: Sequence[str], *, uses_offsets: bool = False, letters: LetterBox | None = None
    ) -> SinkHostTask:
        """The task ``number``, started, with the partitions (topic, ``number``) of ``topics`` opened.

        ``uses_offsets``: this task gets all rows of a partition, in the order of offsets, which stay the same in a replay. Only
        then does the host leave out rows that the target already has, as the task says by ``context.offset``. Dead letters
        then go to ``letters`` at once, and a replay leaves out their rows too.

        A task gets the configuration with the index ``number`` modulo their count.
        """

    @abstractmethod
    def close(self) -> None:
        """Stops everything. Called when a worker ends or the host has been idle for long."""


def refused_offsets(text: str, log: str) -> Fatal:
    """The error of a source connector that cannot begin at the offsets it was asked about."""
    return Fatal(f"the connector refuses these offsets (alterOffsets): {text}", connector=log, way_out="give it other offsets")


def unacknowledged_error(topic: str, partition: int, settings: ConnectorSettings) -> Transient:
    """The error of a sink task whose ``preCommit`` does not return the end of a partition."""
    return Transient(
        f"the task has not acknowledged {topic}-{partition} for outageTimeout={settings.outage_timeout:g}s: preCommit does not "
        "answer that its target has all records",
        is_waited_for=True,
        connector=settings.log,
        way_out="a connector that writes by a rotation of its own (flush.size, rotate.interval.ms …) needs one that is shorter "
        "than a batch; for one that keeps offsets itself and never names them, set offsets=sink",
    )


def rewind_error(topic: str, partition: int, offset: int, settings: ConnectorSettings) -> Transient:
    """The error of a sink task that asks by ``context.offset`` for rows it has taken: Spark can only repeat whole batches."""
    return Transient(
        f"the task asks for {topic}-{partition} from offset {offset} on again: it has taken these rows, and not written them",
        connector=settings.log,
        way_out="start the query again when the target is back: its last batch comes again",
    )
