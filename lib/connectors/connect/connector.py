"""The classes that an author of connectors subclasses: connectors, which describe work, and tasks, which copy.

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
from typing import NamedTuple, TypeVar

from .config import ConfigDef, ConfigValue
from .offsets import OffsetStorageReader
from .records import RecordMetadata, SinkRecord, SourceBatch, SourceRecord

Element = TypeVar("Element")


def group_partitions(elements: Sequence[Element], groups: int) -> list[list[Element]]:
    """``elements`` in ``groups`` groups of sizes that differ by one at most: ten in four are 3, 3, 2, 2.

    Groups are contiguous, as in Connect's ``ConnectorUtils.groupPartitions``; where there are fewer elements, some are empty.
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
    """The answer of a source connector that is asked whether its offsets say exactly where to go on."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class ConnectorTransactionBoundaries(str, Enum):
    """Whether a source connector's tasks can say where transactions end."""

    SUPPORTED = "SUPPORTED"
    UNSUPPORTED = "UNSUPPORTED"


class ConnectorContext(ABC):
    """The part of the runtime that a connector may ask, from any thread."""

    @abstractmethod
    def request_task_reconfiguration(self) -> None:
        """The inputs have changed: ``task_configs`` is asked again, after the tasks have committed what they have read."""

    @abstractmethod
    def raise_error(self, error: Exception) -> None:
        """A failure that the connector has met outside a call: the query fails with it."""

    def offset_storage_reader(self) -> OffsetStorageReader:
        """The recorded offsets; only for sources."""
        raise NotImplementedError


class Connector(ABC):
    """Describes work and deals it out. Subclass :class:`SourceConnector` or :class:`SinkConnector`."""

    context: ConnectorContext

    def initialize(self, context: ConnectorContext) -> None:
        """Called once, before :meth:`start`."""
        self.context = context

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Begins to watch the inputs, in threads of its own if need be. ``props`` are the properties that the user has set."""

    @abstractmethod
    def task_class(self) -> type:
        """The class of the tasks."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        """The configuration of each task: at most ``max_tasks``, and fewer where there is less to do, also none."""

    @abstractmethod
    def stop(self) -> None:
        """Ends everything that :meth:`start` began, and returns when it has ended. May come from another thread."""

    def config(self) -> ConfigDef:
        """The settings that the connector knows."""
        return ConfigDef()

    def validate(self, props: Mapping[str, str]) -> list[ConfigValue]:
        """Each setting of ``props`` with its problems. Override it for what only several settings together show."""
        return self.config().validate(props)

    def version(self) -> str:
        return "unknown"


class SourceConnector(Connector):
    """Describes where records come from."""

    def exactly_once_support(self, props: Mapping[str, str]) -> ExactlyOnceSupport | None:
        """Whether the offsets of the tasks say exactly where to go on; ``None`` where nobody has thought of it."""
        return None

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> ConnectorTransactionBoundaries:
        """Whether the tasks use ``context.transaction_context()``."""
        return ConnectorTransactionBoundaries.UNSUPPORTED


class SinkConnector(Connector):
    """Describes where records go."""

    keeps_offsets: bool = False
    """True if the tasks store offsets in the target together with the records, and only where those that they began with are
    still there: that makes the sink exactly-once. A task that stood still, and that another one has overtaken, must write
    nothing. They report what the target refuses before they store offsets behind it."""
    is_idempotent: bool = False
    """True if a record that is put again has no further effect: an upsert by key."""


class TransactionContext(ABC):
    """Ends transactions, for a task of ``transaction.boundary=connector``."""

    @abstractmethod
    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """The transaction ends with ``record``, or with the batch that ``poll`` returns next."""

    @abstractmethod
    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """As :meth:`commit_transaction`, but its records are dropped; their offsets count as read."""


class SourceTaskContext(ABC):
    """The part of the runtime that a source task may ask."""

    @abstractmethod
    def offset_storage_reader(self) -> OffsetStorageReader:
        """The offsets of records that were recorded: where to go on."""

    @abstractmethod
    def transaction_context(self) -> TransactionContext | None:
        """``None`` unless ``transaction.boundary=connector``."""

    @abstractmethod
    def configs(self) -> Mapping[str, str]:
        """The configuration of the task."""


class SourceTask(ABC):
    """Copies from a system. ``poll`` runs in a thread of the task's own; ``stop`` comes from another one."""

    context: SourceTaskContext

    def initialize(self, context: SourceTaskContext) -> None:
        self.context = context

    @abstractmethod
    def start(self, props: Mapping[str, str]) -> None:
        """Opens the system and seeks to the recorded offsets."""

    @abstractmethod
    def poll(self) -> Sequence[SourceRecord] | SourceBatch | Sequence[SourceBatch] | None:
        """The next records; may block. ``None`` or an empty list means that there are none now.

        Raise :class:`~connectors.connect.errors.RetriableException` for an outage: it is called again after a pause. What else
        it raises fails the task, unless it was stopped: a stream may be closed under it.
        """

    @abstractmethod
    def stop(self) -> None:
        """Ends a ``poll`` that blocks, and frees what ``start`` made. Comes from another thread, and may come twice."""

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:  # noqa: B027
        """Spark has committed ``record``; ``metadata`` is ``None`` for one that a converter has refused.

        Called for the records of lists, in their order and before :meth:`commit`; not for those of a :class:`SourceBatch`.
        """

    def commit(self) -> None:  # noqa: B027
        """Everything that was returned from ``poll`` up to some epoch is committed: the system may forget it."""

    def version(self) -> str:
        return "unknown"


class ErrantRecordReporter(ABC):
    """Takes records that the target refuses for themselves."""

    @abstractmethod
    def report(self, record: SinkRecord, error: Exception) -> None:
        """Sets ``record`` aside. Raises :class:`ConnectException` where ``errors.tolerance`` does not allow it.

        The dead letter of an exactly-once sink is durable on return: the target's offsets may move past the record then.
        """


class SinkTaskContext(ABC):
    """The part of the runtime that a sink task may ask."""

    @abstractmethod
    def configs(self) -> Mapping[str, str]:
        """The configuration of the task."""

    @abstractmethod
    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The task wants to go on at these offsets.

        In ``open``: the target has everything below, and such records are not put again where the sink is exactly-once. Later,
        for records that it has had: it could not write them. The batch fails then, and comes again.
        """

    @abstractmethod
    def assignment(self) -> set[TopicPartition]:
        """The partitions that the task has."""

    @abstractmethod
    def request_commit(self) -> None:
        """Asks for a flush after this ``put``."""

    @abstractmethod
    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        """The reporter that takes bad records; ``None`` unless ``errors.tolerance=all``."""

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
        """Takes records, and may keep them in a buffer. Expect topics that were not there before, and that another task creates
        the same table at the same time."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:  # noqa: B027
        """Sends what is buffered, and returns when the system has acknowledged all of it, up to ``offsets``."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The offsets up to which everything is in the target; by default all, after :meth:`flush`.

        A partition that is missing is not acknowledged, until a later answer names it: the batch waits for that, unless the
        user has set ``offsets=sink``.
        """
        self.flush(offsets)
        return offsets

    def open(self, partitions: Sequence[TopicPartition]) -> None:  # noqa: B027
        """The task gets records of these partitions from now on."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:  # noqa: B027
        """The task gets no more records of these partitions."""

    @abstractmethod
    def stop(self) -> None:
        """Frees what ``start`` made."""

    def version(self) -> str:
        return "unknown"
