"""The parts of a source, in the terms of Flink's FLIP-27, without Spark.

==========================  ======================  ============================================================
part                        where it lives          what it does
==========================  ======================  ============================================================
:class:`Source`             everywhere              the description: options, schema, boundedness; makes the other parts
:class:`SplitEnumerator`    driver                  finds where data begins and ends, and cuts a range into splits
:class:`Split`              travels                 an immutable, self-contained range of one partition
:class:`SplitReader`        executor                reads a split as Arrow record batches
:class:`RecordEmitter`      executor                turns raw records into rows
==========================  ======================  ============================================================

A *position* is small canonical JSON that says how far a source has been read. Positions hold everything that must survive
a restart; enumerators and readers may be discarded and made again at any time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from ..ground.identities import REFUSED
from ..ground.options import Int, Options, Size, Values
from ..ground.retry import RETRY_OPTIONS
from .datasets import Dataset
from .progress import PartitionProgress

Position = Mapping[str, Any]
"""The position up to which a source has been read: an object of strings, whole numbers, booleans, lists and objects."""


@dataclass(frozen=True)
class Split:
    """A range of one partition of the external system: immutable and self-contained (start *and* end).

    Subclass it as a frozen dataclass. Errors and dead letters name it by its text, which comes from the fields.
    """


SplitT = TypeVar("SplitT", bound=Split)


@dataclass(frozen=True)
class ReadLimit:
    """The most that one micro-batch may read; ``None`` is no limit. A source declares the units that it respects."""

    rows: int | None = None
    bytes: int | None = None
    files: int | None = None


UNLIMITED = ReadLimit()


@dataclass(frozen=True)
class Predicate:
    """A condition on a column: ``operator`` is =, >, >=, < or <= with one value, or ``in`` with any number of values."""

    column: str
    operator: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Slice:
    """One task's share of the range ``start`` to ``end``: every ``of``-th split, beginning with number ``index``.

    A slice is a piece of enumerator state, not a list of splits. The task makes its splits from it one by one, so a
    range of a million splits costs no more memory than one of ten. ``parallelism`` is what the source asked for when
    the range was planned. ``detail`` is for enumerators that override :meth:`SplitEnumerator.slices`. Spark may run a batch
    read several times from one plan: each run has its own ``run``, the same for all its tasks. ``retried`` is true in a
    task that was tried before.
    """

    start: Position
    end: Position
    index: int = 0
    of: int = 1
    parallelism: int = 1
    detail: Any = None
    run: str = ""
    retried: bool = False


class SplitEnumerator(ABC, Generic[SplitT]):
    """Finds the data to read and cuts it into splits. Lives on the driver, except for :meth:`splits`.

    Keep no important state in it: a restarted query gets a new enumerator and only the positions that it returned before.
    """

    @abstractmethod
    def start(self) -> Position:
        """The position where a new query begins.

        Called once for a query. The result goes into the checkpoint with the first batch, so it may depend on the present
        state of the system (its latest position, a group's committed offsets).
        """

    @abstractmethod
    def head(self) -> Any:
        """A description of the data that can be read now. Any value; only :meth:`advance` looks at it.

        Called before each micro-batch, and once for a batch read, which must not wait or hold anything back.
        """

    def freeze(self) -> Any:
        """The same for a query that ends when it has read this data; by default :meth:`head`.

        Raise :class:`~connectors.ground.errors.Misconfigured` for a source without an end: the query would never stop.
        """
        return self.head()

    @abstractmethod
    def advance(self, at: Position, head: Any, limit: ReadLimit) -> Position:
        """The position where the next batch ends: from ``at`` towards ``head``, within ``limit``.

        Returns ``at`` itself if there is nothing to read, else advances by at least one record. If there are several
        partitions, share the limit fairly (:func:`~connectors.core.planning.fair_shares`). Raise
        :class:`~connectors.ground.errors.DataLoss` if the system holds less than the query has already read.
        """

    @abstractmethod
    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[SplitT]:
        """The splits between two positions, lazily: the same splits in the same order at each call.

        Runs in tasks. The splits must depend on the arguments and options alone, never on the state of the system, the
        number of cores or the time. Otherwise a replay after a failure would read something else. ``parallelism`` is
        what the source asked for when the range was planned. It is only a hint: tasks share any further splits.
        """

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        """The shares of the tasks. Override it only if the driver must look something up to cut the range."""
        tasks = sum(1 for _ in islice(self.splits(start, end, parallelism), parallelism))
        return [Slice(start, end, index, tasks, parallelism) for index in range(tasks)]

    def splits_of(self, part: Slice) -> Iterator[SplitT]:
        """The splits of one task. Belongs to :meth:`slices`; override both or none."""
        return islice(self.splits(part.start, part.end, part.parallelism), part.index, None, part.of)

    def progress(self, at: Position, head: Any) -> Sequence[PartitionProgress]:
        """The progress of each partition at ``at``, and its lag behind ``head``; by default nothing is known.

        For people and alerts only. Called on the driver after :meth:`advance`: keep it cheap, if possible without the system.
        """
        return ()

    def partition_of(self, split: SplitT) -> str:
        """The partition of a split, named as in :meth:`progress`; metrics count rows by it. By default there is one."""
        return ""

    def committed(self, at: Position) -> None:
        """Called when all data up to ``at`` is in the sink: late, sometimes twice, and never for a run's last batch."""

    def stop(self) -> None:
        """Called on the driver at the end of a run, before :meth:`close`, but not if the driver is killed."""

    def close(self) -> None:
        """Frees the enumerator's resources, on the driver and in tasks. Not called if the process is killed."""


class SplitReader(ABC, Generic[SplitT]):
    """Reads splits as Arrow record batches. Lives in a task; one reader reads one split at a time.

    A subclass with an ``__init__`` of its own calls this one, which makes ``awake``.
    ``atomic`` marks a system whose splits cannot be resumed: the task reads such a split into memory as a whole before it
    passes on any row. ``fetchers`` is the number of splits that a task reads at the same time, each with its own reader.
    """

    atomic: ClassVar[bool] = False
    fetchers: ClassVar[int] = 1

    def __init__(self) -> None:
        self.awake = machine.event()

    def open(self) -> None:
        """Makes clients and connections. Called once, in the task, before the first split."""

    @abstractmethod
    def read(self, split: SplitT) -> Iterator[pa.RecordBatch]:
        """The records of ``split``, in the same order at each call. An empty split yields nothing.

        Raise :class:`~connectors.ground.errors.Transient` for an outage: after a pause the task continues by
        :meth:`resume`. Any other error ends the task.
        """

    def resume(self, split: SplitT, records: int) -> Iterator[pa.RecordBatch]:
        """The records of ``split`` after the first ``records``, which were passed on before an outage.

        By default it reads from the beginning and drops those; override it if the system can seek.
        """
        for batch in self.read(split):
            if records < batch.num_rows:
                yield batch.slice(records)
            records = max(0, records - batch.num_rows)

    def counts(self) -> Mapping[str, int]:
        """Counts of the split that was read last, for the query's table; by default none."""
        return {}

    def wake_up(self) -> None:
        """Makes a blocked :meth:`read` return soon. Called from another thread. A read that waits must watch ``awake``."""
        self.awake.set()

    def close(self) -> None:
        """Frees what :meth:`open` made. Called once, also after a failure, and also if :meth:`open` itself failed."""


class SeekingReader(SplitReader[SplitT]):
    """A reader that can start at positions inside a split: after an outage it continues from the newest one."""

    def __init__(self) -> None:
        super().__init__()
        self._split: SplitT | None = None
        self._mark: tuple[int, Any] = (0, None)
        """The number of records up to the newest known position inside the split, and this position."""

    @abstractmethod
    def read_after(self, split: SplitT, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """The records after ``position``, or all of them (``None``), each batch with the position after it.

        That position is ``None`` if no read can start there; a resumed read then starts at the last position before it.
        """

    def read(self, split: SplitT) -> Iterator[pa.RecordBatch]:
        return self.resume(split, 0)

    def resume(self, split: SplitT, records: int) -> Iterator[pa.RecordBatch]:
        if self._split != split or records < max(1, self._mark[0]):
            self._split, self._mark = split, (0, None)
        count, position = self._mark
        for batch, position_after in self.read_after(split, position):
            skip, count = max(0, records - count), count + batch.num_rows
            if position_after is not None:
                self._mark = count, position_after
            if skip < batch.num_rows:
                yield batch.slice(skip)


class RecordEmitter(ABC):
    """Turns raw records into rows. It must be idempotent: after a failure it may see the same records again.

    It counts in ``bad`` the records that it leaves out, and in ``dead_letters`` those of them that it writes as dead letters.
    """

    bad: int = 0
    dead_letters: int = 0

    @abstractmethod
    def emit(self, records: pa.RecordBatch, split: Split) -> pa.RecordBatch:
        """The rows of ``records`` in the schema that the source declares."""

    def finish(self, split: Split) -> None:  # noqa: B027
        """Called after the last record of ``split``, but not if the split failed."""


LIMIT_OPTIONS: Mapping[str, Options] = {
    "rows": Options(
        maxRowsPerTrigger=Int(None, at_least=1, meaning="rows of a micro-batch; default: unlimited"),
        alias={"maxOffsetsPerTrigger": "maxRowsPerTrigger"},
    ),
    "bytes": Options(maxBytesPerTrigger=Size(None, at_least=1, meaning="bytes of a micro-batch; default: unlimited")),
    "files": Options(maxFilesPerTrigger=Int(None, at_least=1, meaning="files of a micro-batch; default: unlimited")),
}
"""The option of each unit of :class:`ReadLimit`."""
SOURCE_OPTIONS = (
    Options(numPartitions=Int(None, at_least=1, meaning="parallel readers; default: 2"), refused=REFUSED) | RETRY_OPTIONS
)


class Source(ABC):
    """The description of a source: what a user may set, and the glue between the parts.

    A connector sets the class attributes and makes its two parts::

        class Ticks(Source):
            name, schema = "ticks", "value long"
            options = Options(end=Int(REQUIRED))

            def enumerator(self): return TickEnumerator(self.values["end"])
            def reader(self, schema): return TickReader()

    ``max_parallelism`` is the number of connections that the system allows; a higher ``numPartitions`` is an error.
    """

    name: ClassVar[str]
    """The format is ``connectors.<name>``."""
    schema: str = ""
    """The columns as SQL text; if they depend on the options, a property or an attribute set in ``__init__``."""
    options: ClassVar[Options] = Options()
    limits: ClassVar[tuple[str, ...]] = ("rows",)
    """The units of :class:`ReadLimit` that :meth:`SplitEnumerator.advance` respects."""
    max_parallelism: ClassVar[int | None] = None
    position_unit: ClassVar[str] = ""
    """The unit of positions, such as ``bytes``, if a :class:`PartitionProgress` has no ``lag_records``."""
    conditions: ClassVar[str] = ""
    """The system's conditions for exactly-once, in one line for the table of guarantees; no code compares them."""
    extensions: ClassVar[Any] = None
    """The user's own parts that the source finds by name; the pickle of a format or source contains them."""
    batch_only: ClassVar[str] = ""
    """Why the source cannot be a stream, such as "a scan does not say what is new"; empty if it can."""
    bounded: bool = True
    """True if the source ends and can therefore be read as a batch."""

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        self.values = values
        self.streaming = streaming
        self._extensions = self.extensions  # an attribute of the class alone is not pickled

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, streaming: bool = False) -> Source:
        """The source with the options ``typed``. Raises :class:`~connectors.ground.errors.Misconfigured` with all problems."""
        values = cls.known_options().parse(f"connectors.{cls.name}", typed, cls.check, "source")
        if streaming and cls.batch_only:
            problem = Problem("format", f"is read as a batch only: {cls.batch_only}.")
            raise Misconfigured(f"connectors.{cls.name}", [problem])
        return cls(values, streaming=streaming)

    @classmethod
    def known_options(cls) -> Options:
        """The options that a user may set: those of every source and the connector's own."""
        known = SOURCE_OPTIONS
        for unit in cls.limits:
            known |= LIMIT_OPTIONS[unit]
        return known | cls.options

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        """Problems between options that are each valid alone; by default none. Does not contact the system."""
        return iter(())

    @classmethod
    def start_options(cls, time: int | None) -> Mapping[str, str]:
        """The options of a stream that starts with the records of ``time``, in milliseconds since 1970, or with the first one.

        By default that is what a source does without options, and no other start is known: raises
        :class:`~connectors.ground.errors.Misconfigured`.
        """
        if time is not None:
            text = f"cannot be a time for connectors.{cls.name}, which has no option for its start. Leave it out."
            raise Misconfigured("connectors", [Problem("startFrom", text)])
        return {}

    @property
    def pushes_filters(self) -> bool:
        """True if a batch read can leave out rows by the conditions of :meth:`push_filters`."""
        return False

    def push_filters(self, predicates: Sequence[Predicate]) -> Sequence[Predicate]:
        """Takes conditions that all requested rows meet. Returns those that the source applies itself.

        Called once, before the read is planned, in a session where Spark's ``pushFilters`` is on. Store what you need in
        attributes, which travel to the tasks.
        """
        return ()

    def limit(self) -> ReadLimit:
        """The read limit that the user set."""
        option = {"rows": "maxRowsPerTrigger", "bytes": "maxBytesPerTrigger", "files": "maxFilesPerTrigger"}
        return ReadLimit(**{unit: self.values[option[unit]] for unit in self.limits})

    @abstractmethod
    def enumerator(self) -> SplitEnumerator[Any]:
        """A new enumerator. Made on the driver, and in each task for its :meth:`SplitEnumerator.splits`."""

    @abstractmethod
    def reader(self, schema: pa.Schema) -> SplitReader[Any]:
        """A new reader of rows of ``schema`` (of raw records if the source has an emitter)."""

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        """The emitter that turns raw records into rows of ``schema``; ``None`` when the reader yields rows."""
        return None

    def datasets(self) -> Sequence[Dataset]:
        """The datasets that are read, for lineage, as far as the options tell; by default none."""
        return ()

    def parallelism(self) -> int:
        """The number of tasks that read a batch: ``numPartitions``, else 2, within ``max_parallelism``.

        The offset records it, so that a replay cuts the range as the first try did, even if the option has changed.
        """
        readers = int(self.values.get("numPartitions") or 2)
        return min(readers, self.max_parallelism or readers)
