"""The base classes for authors of connectors: connectors, which describe work, and tasks, which copy records.

=========================  =====================================================  ==========================================
class                      lives in                                               makes
=========================  =====================================================  ==========================================
:class:`SourceConnector`   the process that plans the query                       configurations of tasks
:class:`SourceTask`        a thread beside it                                     records, by ``poll``
:class:`SinkConnector`     each worker process                                    configurations of tasks
:class:`SinkTask`          a task of the micro-batch                              effects in a system, by ``put`` and ``flush``
=========================  =====================================================  ==========================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from .config import ConfigDef, ConfigValue
from .offsets import OffsetStorageReader
from .records import RecordMetadata, SinkRecord, SourceBatch, SourceRecord

Element = TypeVar("Element")


def group_partitions(elements: Sequence[Element], groups: int) -> list[list[Element]]:
    """``elements`` in ``groups`` groups whose sizes differ by at most one: ten in four are 3, 3, 2, 2.

    Groups are contiguous, as in Connect's ``ConnectorUtils.groupPartitions``; if there are fewer elements, some are empty.
    Raises ``ValueError`` for less than one group.
    """
    if groups < 1:
        raise ValueError(f"elements are divided into at least one group, not {groups}")
    size, more = divmod(len(elements), groups)
    grouped, first = [], 0
    for group in range(groups):
        end = first + size + (1 if group < more else 0)
        grouped.append(list(elements[first:end]))
        first = end
    return grouped


class TopicPartition(NamedTuple):
    """A partition of a topic, as sinks know it."""

    topic: str
    partition: int


class ExactlyOnceSupport(str, Enum):
    """A source connector's answer whether its offsets say exactly where to continue."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class ConnectorTransactionBoundaries(str, Enum):
    """A source connector's answer whether its tasks can say where transactions end."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class ConnectorContext(ABC):
    """The part of the runtime that a connector may call, from any thread."""

    @abstractmethod
    def request_task_reconfiguration(self) -> None:
        """Tells that the inputs have changed. The runtime calls ``task_configs`` again once the tasks have committed."""

    @abstractmethod
    def raise_error(self, error: Exception) -> None:
        """Fails the query with an error that the connector has met outside a call."""

    def offset_storage_reader(self) -> OffsetStorageReader:
        """The reader of recorded offsets; only for sources."""
        raise NotImplementedError


class Connector(ABC):
    """Describes work and divides it among tasks. Subclass :class:`SourceConnector` or :class:`SinkConnector`."""

    context: ConnectorContext

    def initialize(self, context: ConnectorContext) -> None:
        """Called once, before :meth:`start`."""
        self.context = context

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Begins to watch the inputs, in its own threads if need be. ``props`` are the properties that the user has set."""

    @abstractmethod
    def task_class(self) -> type:
        """The class of the tasks."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """The configuration of each task: at most ``max_tasks``, fewer if there is less to do, or none."""

    @abstractmethod
    def stop(self) -> None:
        """Ends everything that :meth:`start` began, and returns when it has ended. May be called from another thread."""

    def config(self) -> ConfigDef:
        """The settings that the connector knows."""
        return ConfigDef()

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        """Each setting of ``props`` with its problems. Override it for problems between several settings."""
        return self.config().validate(props)

    def version(self) -> str:
        return "unknown"


class SourceConnector(Connector):
    """Describes where records come from."""

    def exactly_once_support(self, props: Mapping[str, str]) -> ExactlyOnceSupport | None:
        """Whether the tasks' offsets say exactly where to continue; ``None`` if the author has not decided that."""
        return None

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[Mapping[str, Any], Mapping[str, Any] | None]]
    ) -> bool:
        """Called before ``connectors offsets`` moves a query that does not run, perhaps twice, and without :meth:`start`.

        ``offsets`` has source partitions, each with its new source offset; ``None`` begins the partition anew. Returns whether
        the connector has looked at them. Raises an error, such as :class:`ConnectException`, for those that it cannot read
        from. What the system keeps of them, such as a cursor, is moved here.
        """
        return False

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> ConnectorTransactionBoundaries:
        """Whether the tasks use ``context.transaction_context()``."""
        return ConnectorTransactionBoundaries.UNSUPPORTED


class SinkConnector(Connector):
    """Describes where records go."""

    keeps_offsets: bool = False
    """True if the tasks store offsets in the target together with the records, but only if the target still has the offsets
    with which they began. That makes the sink exactly-once: a task that paused while another one took over must write
    nothing. Tasks report records that the target refuses before they store offsets past them."""
    is_idempotent: bool = False
    """True if a record that is put again has no further effect, as with an upsert by key."""


class TransactionContext(ABC):
    """Ends transactions, for a task with ``transaction.boundary=connector``."""

    @abstractmethod
    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Ends the transaction with ``record``, or with the batch that ``poll`` returns next."""

    @abstractmethod
    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """As :meth:`commit_transaction`, but drops its records; their offsets count as read."""


class SourceTaskContext(ABC):
    """The part of the runtime that a source task may call."""

    @abstractmethod
    def offset_storage_reader(self) -> OffsetStorageReader:
        """The reader of the recorded offsets, from which the task continues."""

    @abstractmethod
    def transaction_context(self) -> TransactionContext | None:
        """The task's transactions; ``None`` unless ``transaction.boundary=connector``."""

    @abstractmethod
    def configs(self) -> Mapping[str, str]:
        """The configuration of the task."""


class SourceTask(ABC):
    """Copies from a system. ``poll`` runs in the task's own thread; another thread calls ``stop``."""

    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Opens the system and seeks to the recorded offsets."""

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord] | SourceBatch | Sequence[SourceBatch] | None:
        """The next records; may block. ``None`` or an empty list means that there are none for now.

        Raise :class:`~connectors.connect.errors.RetriableException` for an outage: the runtime calls it again after a pause.
        Any other error fails the task, unless the task was stopped: ``stop`` may close a stream during a ``poll``.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends a blocking ``poll``, and frees what ``start`` made. Called from another thread, perhaps twice."""

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:  # noqa: B027
        """Called when Spark has committed ``record``; ``metadata`` is ``None`` if a converter has refused the record.

        Called for the records of lists, in their order and before :meth:`commit`; not for those of a :class:`SourceBatch`.
        """

    def commit(self) -> None:  # noqa: B027
        """Called when all records that ``poll`` returned up to some epoch are committed: the system may forget them."""

    def version(self) -> str:
        return "unknown"


class ErrantRecordReporter(ABC):
    """Takes single records that the target refuses."""

    @abstractmethod
    def report(self, record: SinkRecord, error: Exception) -> None:
        """Writes a dead letter of ``record``. Raises :class:`ConnectException` if ``errors.tolerance`` does not allow it.

        The dead letter of an exactly-once sink is durable on return, so the target's offsets may then move past the record.
        """


class SinkTaskContext(ABC):
    """The part of the runtime that a sink task may call."""

    @abstractmethod
    def configs(self) -> Mapping[str, str]:
        """The configuration of the task."""

    @abstractmethod
    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Tells that the task wants to continue at these offsets.

        In ``open`` it means that the target has everything below; an exactly-once sink does not get such records again. Later,
        for records that the task has had, it means that it could not write them. Then the batch fails and is repeated.
        """

    @abstractmethod
    def assignment(self) -> set[TopicPartition]:
        """The task's partitions."""

    @abstractmethod
    def request_commit(self) -> None:
        """Asks for a flush after this ``put``."""

    @abstractmethod
    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        """The reporter for bad records; ``None`` unless ``errors.tolerance=all``."""

    @abstractmethod
    def timeout(self, milliseconds: int) -> None:
        """Sets the pause before the next try after a :class:`~connectors.connect.errors.RetriableException`."""


class SinkTask(ABC):
    """Copies into a system."""

    context: SinkTaskContext

    def initialize(self, context: SinkTaskContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Opens the system."""

    @abstractmethod
    def put(self, records: Sequence[SinkRecord]) -> None:
        """Takes records; may buffer them. Expect topics that did not exist before, and another task that creates the same
        table at the same time."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:  # noqa: B027
        """Sends buffered records, and returns when the system has acknowledged all records up to ``offsets``."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The offsets up to which all records are in the target; by default all, after :meth:`flush`.

        A missing partition is not acknowledged until a later answer names it. The batch waits for that, unless the user has
        set ``offsets=sink``.
        """
        self.flush(offsets)
        return offsets

    def open(self, partitions: Sequence[TopicPartition]) -> None:  # noqa: B027
        """Called before the task gets records of these partitions."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:  # noqa: B027
        """Called when the task gets no more records of these partitions."""

    @abstractmethod
    def stop(self) -> None:
        """Frees what ``start`` made."""

    def version(self) -> str:
        return "unknown"
