"""The parts of a sink, in the terms of Flink's FLIP-143 and FLIP-191, without Spark.

=========================  ==========  =========================================================================
part                       lives on    what it does
=========================  ==========  =========================================================================
:class:`Sink`              everywhere  the description: options and guarantee; makes the rest
:class:`SinkWriter`        executor    stages the rows of one task attempt, invisible to readers
:class:`Committable`       travels     what a writer staged: ids, paths, counts; never rows
:class:`Committer`         driver      publishes a batch that was decided, file by file
:class:`GlobalCommitter`   driver      commits a whole batch at once, together with its ledger entry, in the target
:class:`FrameSink`         driver      a sink that stages, or deals out, whole DataFrames
:class:`HidingSink`        driver      one of those that shows its rows later than it commits them
=========================  ==========  =========================================================================

A micro-batch is the checkpoint. A batch is first *staged*, then *decided* (one durable record in the ledger), then
*published*. What is decided is carried through, also by the next run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from ..ground.columns import column_problems
from ..ground.errors import Misconfigured, Problem
from ..ground.identities import REFUSED
from ..ground.options import Choice, Duration, Int, Options, Text, Values
from ..ground.retry import RETRY_OPTIONS
from ..ground.state import digest
from ..storage.location import storage_of
from .batch import Batch, Committable
from .dead_letters import ERROR_OPTIONS, Rejects, SinkLetters
from .folder import SinkFolder
from .ledger import Entry, Ledger, LedgerContent


class Guarantee(str, Enum):
    """The guarantees on which a reader of the target may rely, strongest first."""

    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at-least-once"


class SinkWriter(ABC):
    """Writes the rows of one task attempt where no reader sees them. Lives in a task.

    A writer that meets rows which can never be written sets ``rejects`` to ``sink.rejects(batch)`` and hands them to it.
    """

    rejects: Rejects | None = None

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Takes more rows. May buffer; must not keep the whole partition in memory."""

    @abstractmethod
    def prepare(self) -> Committable:
        """Called once, after the last row: makes everything durable and says what was staged."""

    def abort(self) -> None:  # noqa: B027 - a hook, not a duty
        """This attempt failed: remove what it staged, as far as it can be reached."""

    def close(self) -> None:  # noqa: B027
        """Frees clients and buffers. Called once, after :meth:`prepare` or :meth:`abort`."""


class Committer(ABC):
    """Publishes staged work after the ledger has recorded the batch."""

    @abstractmethod
    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        """Makes ``batch`` visible, each part of it whole. After a crash it is called again and goes on where it was.

        What was published before must not be published again, even if somebody has moved or deleted it since. The usual
        way is to *rename* what was staged: where the staged file is gone, it was published. The committables come in
        the same order each time; an empty batch has none, or some without rows.
        """

    @abstractmethod
    def discard(self, committable: Committable) -> None:
        """Removes what was staged. Never called for a committable of a recorded batch."""

    def check(self, committables: Sequence[Committable], rows: int) -> None:  # noqa: B027
        """Called before the batch is recorded: what was staged must be there, durable, and hold ``rows`` with those rejected.

        Raise :class:`~connectors.ground.errors.Fatal` where it is not: nothing is recorded then. Only after this may
        :meth:`publish` take what is gone for published.
        """

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:  # noqa: B027
        """Removes what earlier runs have staged for ``batch``, and with ``failed`` what this run has, whose tasks failed.

        So a batch that fails at each start leaves no more than a few of them. Called before its first task, and where no
        driver code runs before tasks by the first of them.
        """

    def sweep(self, live: frozenset[str]) -> None:  # noqa: B027
        """Removes staging that no run can still need: old (a week, say), and its name does not begin with one of ``live``.

        ``live`` holds the :meth:`Batch.prefix` of the batch that is being written. Called when a run starts.
        """


class GlobalCommitter(ABC):
    """Commits a batch and its ledger entry in one step of the target: a database or Kafka transaction.

    ``rejects`` is set before each :meth:`commit` of a sink that ``rejects_rows``: a committer that meets bad rows itself adds
    them there and calls its ``decide()`` before the target commits.
    """

    rejects: Rejects | None = None
    records_claims: ClassVar[bool] = False
    """True if of two queries that begin at the same moment one is refused; otherwise both may write."""

    @abstractmethod
    def last(self, query: str) -> Entry | None:
        """The highest batch of ``query`` that the target has recorded."""

    @abstractmethod
    def queries(self) -> frozenset[str]:
        """The queries that have written through this sink id. Asked only where nobody has claimed it."""

    @abstractmethod
    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        """Makes the whole batch visible and records ``entry``, both or neither. Raises what happened otherwise.

        The entry of a query's first batch has a ``claim``. A committer that ``records_claims`` records also its
        :meth:`~connectors.core.ledger.Entry.ownership` in that step, after :func:`~connectors.core.ledger.check_claim`
        with the :meth:`last` of :data:`~connectors.core.ledger.OWNER`.

        After a :class:`~connectors.ground.errors.Transient` it is called again, unless :meth:`last` has the batch by then.

        Without committables it records only: a batch that the user knows to be written (``onLostLedger=written``).
        """

    @abstractmethod
    def discard(self, committable: Committable) -> None:
        """Removes what was staged."""

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:  # noqa: B027
        """As :meth:`Committer.drop_attempts`."""

    def sweep(self, live: frozenset[str]) -> None:  # noqa: B027
        """Removes staging that is old and whose prefix is not in ``live``."""


SINK_OPTIONS = Options(
    guarantee=Choice(
        None, among=tuple(g.value for g in Guarantee), meaning="what a reader may rely on; default: the strongest possible"
    ),
    sinkId=Text(None, meaning="the name of the ledger and the staging; default: from the target"),
    queryName=Text(
        None, meaning="names the query where Spark does not tell it: a query of Spark Connect that has no name"
    ),
    txnAppId=Text(
        None, carrier="df.write", needed_by="txnVersion", meaning="with txnVersion: a repeated batch write has no effect"
    ),
    txnVersion=Int(
        None, at_least=0, carrier="df.write", needed_by="txnAppId", meaning="grows with each batch write of txnAppId"
    ),
    taskTimeout=Duration(None, meaning="a task that gives no sign for so long is ended and tried again; default: off"),
    onNewQuery=Choice(
        "stop",
        among=("stop", "continue", "replace"),
        meaning="the target was written by another query, or by another checkpoint; replace empties it first (a full refresh)",
    ),
    onReplayMismatch=Choice("stop", among=("stop", "skip"), meaning="a committed batch comes again with other rows"),
    onLostLedger=Choice(
        "stop", among=("stop", "written", "notWritten"), meaning="the ledger is gone: was the pending batch written?"
    ),
    onMissingBatches=Choice(
        "stop", among=("stop", "continue"), meaning="the target lacks batches before this one: set back, or they never came"
    ),
    refused=REFUSED,
)


RETENTION = Duration(7 * 86400.0, meaning="staged rows that no run needs are deleted after it")
"""The option ``stagingRetention`` of a sink that stages rows."""


class Sink(ABC):
    """The description of a sink. A connector sets ``name`` and ``options`` and makes a writer and a committer.

    An author always writes :meth:`target` and :meth:`writer`. A sink with a ledger writes :meth:`committer`, and
    :meth:`ledger` where the target does not keep it in the same step. Without a ledger there is no more to do after
    ``prepare()``: the rows are out, and a replay sends them again. Everything else has a default: :meth:`check` and
    :meth:`strongest` look at options, :meth:`check_frame` and :meth:`check_target` at the rows and their target.
    """

    name: ClassVar[str]
    options: ClassVar[Options] = Options()
    promise: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    """The strongest guarantee that any configuration has."""
    conditions: ClassVar[str] = ""
    """The conditions of that guarantee, or what a stronger one lacks, in one line for the table of guarantees."""
    rejects_rows: ClassVar[bool] = False
    """True if single rows can be bad: the sink then has the options ``errors`` and ``deadLetterPath``."""
    writers_retry: ClassVar[bool] = False
    """True if the writers bridge outages themselves; else a batch that met one is staged again after a pause."""
    extensions: ClassVar[Any] = None
    """Parts of the user's own that the sink finds by name: the pickle of a format or of a sink brings them along."""
    replaces: ClassVar[bool] = False
    """True if a batch can take the place of everything in the target, in one step (``mode("overwrite")``)."""

    checkpoint: str | None = None
    """The query's checkpoint, where the carrier knows it: a folder that all processes of the query share."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._extensions = self.extensions  # an attribute of the class alone is not pickled

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, placed: bool = False) -> Sink:
        """The sink of what a user typed, ``placed`` for :func:`~connectors.foreach_batch`.

        Raises :class:`~connectors.ground.errors.Misconfigured` with every problem.
        """
        return cls(cls.known_options().parse(f"connectors.{cls.name}", typed, cls._all_checks, "sink", placed=placed))

    @classmethod
    def known_options(cls) -> Options:
        """The options that a user may set: those of every sink, and the connector's own."""
        return SINK_OPTIONS | RETRY_OPTIONS | (ERROR_OPTIONS if cls.rejects_rows else Options()) | cls.options

    @classmethod
    def _all_checks(cls, values: Values) -> Iterator[Problem]:
        yield from cls.check(values)
        yield from check_guarantee(cls, values)
        is_exact = (values["guarantee"] or cls.strongest(values)[0].value) == Guarantee.EXACTLY_ONCE.value
        if values["onNewQuery"] == "replace" and not (cls.replaces and is_exact):
            text = '"replace" needs a target that a batch can replace in one step, exactly-once; take "continue" and empty the '
            yield Problem("onNewQuery", f"{text}target yourself, or write the rows by their keys.")

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        """The problems of options that are each right by themselves, by default none. No contact with the target."""
        return iter(())

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        """The strongest guarantee of this configuration, and what is missing for a stronger one."""
        return cls.promise, cls.conditions

    def guarantee(self) -> Guarantee:
        """The guarantee of this configuration: the one that the user asked for, else the strongest it allows."""
        guarantee = self.values["guarantee"]
        return Guarantee(guarantee) if guarantee else self.strongest(self.values)[0]

    @abstractmethod
    def target(self) -> str:
        """The target, as text without secrets: the sink id is derived from it."""

    def sink_id(self) -> str:
        """The name of this sink's ledger and staging: ``sinkId``, else derived from the target."""
        return self.values["sinkId"] or f"{self.name}-{digest(self.target())}"

    def staging_location(self) -> str | None:
        """``stagingLocation`` for sinks that have it, else a folder in the checkpoint; ``None`` where neither is known."""
        inside = f"{self.checkpoint.rstrip('/')}/staging" if self.checkpoint else None
        location: str | None = self.values["stagingLocation"] or inside
        return location

    def folder(self) -> SinkFolder:
        """The folder in which rows are staged; by default that of :meth:`staging_location`."""
        if (location := self.staging_location()) is None:
            missing = Problem("stagingLocation", "missing; give a folder that driver and tasks share.")
            raise Misconfigured(f"connectors.{self.name}", [missing])
        return SinkFolder(storage_of(location, self.values["storageOptions"]), self.sink_id())

    def letters(self) -> SinkLetters | None:
        """The store of this sink's dead letters; ``None`` unless the user asked for them."""
        if not self.rejects_rows or self.values["errors"] != "deadLetter":
            return None
        storage = storage_of(self.values["deadLetterPath"], self.values["storageOptions"])
        return SinkLetters(storage, self.name, self.sink_id(), repeats=self.committer() is None)

    def rejects(self, batch: Batch, staged: Sequence[str] = ()) -> Rejects:
        """A new collector of the bad rows of ``batch``; ``staged`` names those that its tasks have set aside already."""
        policy = self.values["errors"] if self.rejects_rows else "fail"
        return Rejects(f"connectors.{self.name}", policy, self.letters(), batch, staged)

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        """The problems of a frame of the columns ``schema`` beside those of its options' columns, by default none.

        Called before the frame's first task, without the target, and also where a column of an option is missing.

        ``placed`` says that the carrier can place rows and lets a committer send a whole frame, as ``foreach_batch`` does;
        otherwise each task stages what it has.
        """
        return iter(())

    def refuse_frame(self, schema: pa.Schema, *, placed: bool) -> None:
        """Raises :class:`~connectors.ground.errors.Misconfigured` with the problems of columns and of :meth:`check_frame`."""
        named = column_problems(self.known_options().declared, self.values, schema)
        if problems := [*named, *self.check_frame(schema, placed=placed)]:
            raise Misconfigured(f"connectors.{self.name}", problems)

    def check_target(self, schema: pa.Schema) -> None:  # noqa: B027 - a hook, not a duty
        """Raises :class:`~connectors.ground.errors.Misconfigured` where the target cannot take rows of the columns ``schema``.

        Called on the driver, before the first task of a batch. It may ask the target, and changes nothing there.
        """

    @abstractmethod
    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        """A new writer for one task attempt. Called in the task; ``subtask`` is its index in the batch."""

    def ledger(self) -> Ledger | None:
        """The ledger of committed batches, for sinks with a :class:`Committer`; by default there is none.

        For a target that is a folder, :class:`~connectors.core.folder.SinkFolder` has the ledger, the staging folders and
        a publication that never overwrites; elsewhere ``FileLedger(storage_of(folder))`` with a folder per sink id.
        """
        return None

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        """The ledgers of this system's sinks in ``target``, a path or URL as people type it; ``None`` for another system's.

        ``options`` are other options of the sink that reaching the target takes (``user``, ``storageOptions``). Shown by
        ``python -m connectors ledger show TARGET``.
        """
        return None

    def committer(self) -> Committer | GlobalCommitter | None:
        """A new committer. Called on the driver."""
        return None


Frame = Any
"""A ``pyspark.sql.DataFrame``; the core imports no Spark."""

Offsets = list[Any] | dict[str, Any]
"""The offset of each source as its JSON: in the order of the sources, or by their names where they have some."""


class QueryRun(Protocol):
    """One run of a streaming query, from its start to its end."""

    id: str
    ends_by_itself: bool
    """True for ``availableNow`` and ``once``: the run ends when it has read what there was at its start."""

    def offsets(self, batch: int) -> Offsets | None:
        """The offset of each source after ``batch``; ``None`` where Spark does not tell."""

    def wait(self, seconds: float) -> str:
        """Waits for the end, at most so long: ``"running"``, ``"ended"`` or ``"failed"``."""


class FrameSink(Sink):
    """A sink that does more with a whole DataFrame than with the rows of a task.

    Only ``foreach_batch`` has whole DataFrames. It calls these methods on the driver; each has a default.
    """

    stages_frames: ClassVar[bool] = False
    """True if :meth:`stage_frame` takes frames: their columns need no type in Arrow, and a batch has no checksum."""

    def use_hadoop(self, client_of: Callable[[str], Any]) -> None:
        """Offers Spark's own client of file systems such as HDFS. Called first of all.

        ``client_of(url)`` is ``None`` on Spark Connect, where the driver has no JVM.
        """

    def watch(self, find: Callable[[], QueryRun | None] | None) -> None:
        """Offers the run of the query, for work that does not end with its last batch.

        Called when the function of ``foreachBatch`` is made (``None``), then for each batch. ``find()`` is ``None`` on Spark
        Connect.
        """

    def places_rows(self) -> bool:
        """True if :meth:`placed` or a committer deals rows out to numbered tasks, which not every Spark can do."""
        return False

    def check_replay(self, is_deterministic: Callable[[], bool]) -> None:
        """Refuses a batch whose plan is known to give other rows in a replay. Called before the batch is written."""

    def placed(self, frame: Frame, schema: pa.Schema, batch: Batch) -> tuple[Sink, Frame]:
        """The sink that writes the tasks' rows, and ``frame`` with its rows dealt out to tasks as that sink needs them."""
        return self, frame

    def stage_frame(self, frame: Frame, batch: Batch) -> list[Committable] | None:
        """Stages the rows with Spark's own writers; ``None`` if this frame must go through :meth:`Sink.writer`."""
        return None


class HidingSink(FrameSink):
    """A sink whose committed rows may stay hidden from readers for a while, such as files that are still to grow."""

    @abstractmethod
    def hides_rows(self) -> bool:
        """True if this configuration hides rows."""

    @abstractmethod
    def show_rows(self, query: str, ends_by_itself: bool) -> None:
        """Shows what ``query`` has committed and still hides, as far as the options want that at the end of a query.

        Called after the end of any query of the session, and perhaps more than once. ``ends_by_itself`` is that of
        :class:`QueryRun`.
        """


class FrameCommitter(GlobalCommitter):
    """A committer whose target takes a whole DataFrame in one transaction, ledger entry included. Nothing is staged."""

    counts_rows: ClassVar[bool] = False
    """True if :meth:`commit_frame` counts the rows in the meter itself; else an ``Observation`` of the frame does.

    Only then ``is_observed`` of a batch is true where its frame has observations of the user.
    """

    @abstractmethod
    def commit_frame(self, frame: Frame, batch: Batch) -> None:
        """Writes and records ``batch``, both or neither."""

    def discard(self, committable: Committable) -> None:
        """Nothing is staged."""


def check_guarantee(kind: type[Sink], values: Values) -> Iterator[Problem]:
    """The problem of a guarantee that was asked for and cannot be had."""
    strongest, missing = kind.strongest(values)
    order = list(Guarantee)
    guarantee = values["guarantee"]
    if guarantee and order.index(Guarantee(guarantee)) < order.index(strongest):
        yield Problem("guarantee", f'"{guarantee}" is not possible, only "{strongest.value}": {missing}')
