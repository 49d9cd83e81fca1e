"""The parts of a sink, in the terms of Flink's FLIP-143 and FLIP-191, without Spark.

=========================  ==========  =========================================================================
part                       lives on    what it does
=========================  ==========  =========================================================================
:class:`Sink`              everywhere  the description: options and guarantee; makes the other parts
:class:`SinkWriter`        executor    stages the rows of one task attempt, invisible to readers
:class:`Committable`       travels     a writer's staged output: ids, paths, counts; never rows
:class:`Committer`         driver      publishes a decided batch, file by file
:class:`GlobalCommitter`   driver      commits a whole batch at once, together with its ledger entry, in the target
:class:`FrameSink`         driver      a sink that stages or repartitions whole DataFrames
:class:`HidingSink`        driver      a frame sink that shows its rows later than it commits them
=========================  ==========  =========================================================================

A micro-batch takes the role of Flink's checkpoint. A batch is first *staged*, then *decided* (one durable record in the
ledger), then *published*. A decided batch is always published, if need be by the next run.
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
from .datasets import Dataset
from .dead_letters import ERROR_OPTIONS, Rejects, SinkLetters
from .folder import SinkFolder
from .ledger import Entry, Ledger, LedgerContent


class Guarantee(str, Enum):
    """The guarantees that a reader of the target may rely on, strongest first."""

    EXACTLY_ONCE = "exactly-once"
    IDEMPOTENT = "idempotent"
    AT_LEAST_ONCE = "at-least-once"


class SinkWriter(ABC):
    """Writes the rows of one task attempt where no reader sees them. Lives in a task.

    A writer that meets rows that can never be written sets ``rejects`` to ``sink.rejects(batch)`` and adds them there.
    """

    rejects: Rejects | None = None

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Takes more rows. May buffer them, but must not keep the whole partition in memory."""

    @abstractmethod
    def prepare(self) -> Committable:
        """Makes everything durable and returns the staged output. Called once, after the last row."""

    def abort(self) -> None:  # noqa: B027 - a hook, not a duty
        """Removes the staged output of this failed attempt, as far as the target can be reached."""

    def close(self) -> None:  # noqa: B027
        """Frees clients and buffers. Called once, after :meth:`prepare` or :meth:`abort`."""


class Committer(ABC):
    """Publishes staged output after the ledger has recorded the batch."""

    @abstractmethod
    def publish(self, batch: Batch, committables: Sequence[Committable]) -> None:
        """Makes ``batch`` visible, each part as a whole. After a crash it is called again and continues.

        It must not publish a part again that was published before, even if somebody has since moved or deleted it. The usual
        way is to *rename* the staged file: if that is gone, it was published. The committables come in the same order each
        time; an empty batch has none, or some without rows.
        """

    @abstractmethod
    def discard(self, committable: Committable) -> None:
        """Removes staged output. Never called for a committable of a recorded batch."""

    def check(self, committables: Sequence[Committable], rows: int) -> None:  # noqa: B027
        """Checks before the batch is recorded that the staged output exists, is durable, and holds ``rows`` with rejected ones.

        Raise :class:`~connectors.ground.errors.Fatal` if not; then nothing is recorded. Only after this check may
        :meth:`publish` take a missing file for a published one.
        """

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:  # noqa: B027
        """Removes the stage of earlier runs for ``batch``; with ``failed`` also that of this run, whose tasks failed.

        So a batch that fails at each start leaves only a few stages. Called before the batch's first task; if no driver code
        runs before tasks, the first task calls it.
        """

    def sweep(self, live: frozenset[str]) -> None:  # noqa: B027
        """Removes staging that no run can still need: it is old (a week, say), and no prefix of ``live`` begins its name.

        ``live`` holds the :meth:`Batch.prefix` of the batch in progress. Called when a run starts, and then hourly.
        """


class GlobalCommitter(ABC):
    """Commits a batch and its ledger entry in one step of the target: a database or Kafka transaction.

    ``rejects`` is set before each :meth:`commit` of a sink that ``rejects_rows``. A committer that itself meets bad rows adds
    them there, and calls ``rejects.decide()`` before the target commits.
    """

    rejects: Rejects | None = None
    records_claims: ClassVar[bool] = False
    """True if the target refuses one of two queries that begin at the same moment; otherwise both may write."""

    @abstractmethod
    def last(self, query: str) -> Entry | None:
        """The highest batch of ``query`` that the target has recorded."""

    @abstractmethod
    def queries(self) -> frozenset[str]:
        """The queries that have written by this sink id. Called if nobody has claimed it, or for ``onNewQuery=replace``."""

    @abstractmethod
    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        """Makes the whole batch visible and records ``entry``, both or neither. If it cannot, raises the error.

        The entry of a query's first batch has a ``claim``. A committer that ``records_claims`` also records its
        :meth:`~connectors.core.ledger.Entry.ownership` in that step, after :func:`~connectors.core.ledger.check_claim`
        with the :meth:`last` of :data:`~connectors.core.ledger.OWNER`.

        After a :class:`~connectors.ground.errors.Transient` it is called again, unless :meth:`last` has the batch by then.

        Without committables it only records: the user knows that the batch is written (``onLostLedger=written``).
        """

    @abstractmethod
    def discard(self, committable: Committable) -> None:
        """Removes staged output."""

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
    maxFailures=Int(
        0, at_least=0, carrier="foreach_batch",
        meaning="so many failed tries within failureWindow do not end the query: the batch is written again",
    ),
    failureWindow=Duration(600.0, carrier="foreach_batch", only_with="maxFailures", meaning="the time for maxFailures"),
    refused=REFUSED,
)


RETENTION = Duration(7 * 86400.0, meaning="staged rows that no run needs are deleted after it")
"""The option ``stagingRetention`` of a sink that stages rows."""


class Sink(ABC):
    """The description of a sink. A connector sets ``name`` and ``options`` and makes a writer and a committer.

    An author always writes :meth:`target` and :meth:`writer`. A sink with a ledger also has a :meth:`committer`, and a
    :meth:`ledger` unless the target keeps the ledger in the same step. A sink without a ledger is done after ``prepare()``:
    the rows are sent, and a replay sends them again. Everything else has a default: :meth:`check` and
    :meth:`strongest` look at options, :meth:`check_frame` and :meth:`check_target` at the rows and their target.
    """

    name: ClassVar[str]
    options: ClassVar[Options] = Options()
    promise: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    """The strongest guarantee that any configuration reaches."""
    conditions: ClassVar[str] = ""
    """The conditions of that guarantee, or what a stronger one would need: one line for the table of guarantees."""
    rejects_rows: ClassVar[bool] = False
    """True if single rows can be bad: the sink then has the options ``errors`` and ``deadLetterPath``."""
    writers_retry: ClassVar[bool] = False
    """True if the writers bridge outages themselves; else the batch is staged again after a pause."""
    extensions: ClassVar[Any] = None
    """The user's own parts that the sink finds by name; the pickle of a format or sink contains them."""
    replaces: ClassVar[bool] = False
    """True if a batch can replace everything in the target in one step (``mode("overwrite")``)."""

    checkpoint: str | None = None
    """The query's checkpoint, if the carrier knows it: a folder that all processes of the query share."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._extensions = self.extensions  # an attribute of the class alone is not pickled

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, placed: bool = False) -> Sink:
        """The sink with the options that a user typed; ``placed`` for :func:`~connectors.foreach_batch`.

        Raises :class:`~connectors.ground.errors.Misconfigured` with every problem.
        """
        return cls(cls.known_options().parse(f"connectors.{cls.name}", typed, cls._all_checks, "sink", placed=placed))

    @classmethod
    def known_options(cls) -> Options:
        """The options that a user may set: those of every sink and the connector's own."""
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
        """Problems between options that are each valid alone; by default none. Does not contact the target."""
        return iter(())

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        """The strongest guarantee of this configuration, and what a stronger one would need."""
        return cls.promise, cls.conditions

    def guarantee(self) -> Guarantee:
        """The guarantee of this configuration: the one that the user asked for, else the strongest it allows."""
        guarantee = self.values["guarantee"]
        return Guarantee(guarantee) if guarantee else self.strongest(self.values)[0]

    @abstractmethod
    def target(self) -> str:
        """The target as text without secrets; the sink id is derived from it."""

    def datasets(self) -> Sequence[Dataset]:
        """The datasets that are written, for lineage, as far as the options tell; by default none."""
        return ()

    def sink_id(self) -> str:
        """The name of this sink's ledger and staging: ``sinkId``, else derived from the target."""
        return self.values["sinkId"] or f"{self.name}-{digest(self.target())}"

    def staging_location(self) -> str | None:
        """``stagingLocation``, else a folder in the checkpoint; ``None`` if neither is known. For sinks with that option."""
        inside = f"{self.checkpoint.rstrip('/')}/staging" if self.checkpoint else None
        location: str | None = self.values["stagingLocation"] or inside
        return location

    def folder(self) -> SinkFolder:
        """The folder in which the sink stages rows; by default that of :meth:`staging_location`."""
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
        """A new collector of the bad rows of ``batch``; ``staged`` names the dead letters that its tasks have staged."""
        policy = self.values["errors"] if self.rejects_rows else "fail"
        return Rejects(f"connectors.{self.name}", policy, self.letters(), batch, staged)

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        """The problems of a frame with the columns ``schema``, by default none. Columns named by options are checked elsewhere.

        Called before the frame's first task, without the target, and also if a column named by an option is missing.

        ``placed``: the carrier can place rows and lets a committer send a whole frame, as ``foreach_batch`` does. Otherwise
        each task stages the rows it has.
        """
        return iter(())

    def refuse_frame(self, schema: pa.Schema, *, placed: bool) -> None:
        """Raises :class:`~connectors.ground.errors.Misconfigured` with the problems of columns and of :meth:`check_frame`."""
        named = column_problems(self.known_options().declared, self.values, schema)
        if problems := [*named, *self.check_frame(schema, placed=placed)]:
            raise Misconfigured(f"connectors.{self.name}", problems)

    def check_target(self, schema: pa.Schema) -> None:  # noqa: B027 - a hook, not a duty
        """Raises :class:`~connectors.ground.errors.Misconfigured` if the target cannot take rows with the columns ``schema``.

        Called on the driver before the first task of a batch. It may query the target, but must change nothing there.
        """

    @abstractmethod
    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        """A new writer for one task attempt. Called in the task; ``subtask`` is the task's index in the batch."""

    def ledger(self) -> Ledger | None:
        """The ledger of committed batches, for sinks with a :class:`Committer`; by default none.

        If the target is a folder, use :class:`~connectors.core.folder.SinkFolder`: it has the ledger, the staging folders and
        a publication that never overwrites. Elsewhere use ``FileLedger(storage_of(folder))`` with a folder per sink id.
        """
        return None

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        """The ledgers of this system's sinks in ``target``, a path or URL as people type it; ``None`` for another system's.

        ``options`` are those that the sink needs to reach the target (``user``, ``storageOptions``). For
        ``python -m connectors ledger show TARGET``.
        """
        return None

    def committer(self) -> Committer | GlobalCommitter | None:
        """A new committer. Called on the driver."""
        return None


Frame = Any
"""A ``pyspark.sql.DataFrame``; the core imports no Spark."""

Offsets = list[Any] | dict[str, Any]
"""The offset of each source as JSON: in the order of the sources, or by name if the sources have names."""


class QueryRun(Protocol):
    """One run of a streaming query, from its start to its end."""

    id: str
    ends_by_itself: bool
    """True for ``availableNow`` and ``once``: the run ends when it has read the data present at its start."""

    def offsets(self, batch: int) -> Offsets | None:
        """The offset of each source after ``batch``; ``None`` if Spark does not tell."""

    def wait(self, seconds: float) -> str:
        """Waits at most ``seconds`` for the end; returns ``"running"``, ``"ended"`` or ``"failed"``."""


class FrameSink(Sink):
    """A sink that can do more with a whole DataFrame than with the rows of a task.

    Only ``foreach_batch`` has whole DataFrames. It calls these methods on the driver; each has a default.
    """

    stages_frames: ClassVar[bool] = False
    """True if :meth:`stage_frame` takes frames. Their columns then need no Arrow type, and a batch has no checksum."""

    def use_hadoop(self, client_of: Callable[[str], Any]) -> None:
        """Offers Spark's own client of file systems such as HDFS. Called before all other methods.

        ``client_of(url)`` is ``None`` on Spark Connect, where the driver has no JVM.
        """

    def watch(self, find: Callable[[], QueryRun | None] | None) -> None:
        """Offers the run of the query, for work that does not end with its last batch.

        Called when the function of ``foreachBatch`` is made (``None``), then for each batch. ``find()`` is ``None`` on Spark
        Connect.
        """

    def places_rows(self) -> bool:
        """True if :meth:`placed` or a committer distributes rows to numbered tasks, which not every Spark can do."""
        return False

    def check_replay(self, is_deterministic: Callable[[], bool]) -> None:
        """Refuses a batch whose plan would give other rows in a replay. Called before the batch is written."""

    def placed(self, frame: Frame, schema: pa.Schema, batch: Batch) -> tuple[Sink, Frame]:
        """The sink that writes the tasks' rows, and ``frame`` with its rows distributed to tasks as that sink needs."""
        return self, frame

    def stage_frame(self, frame: Frame, batch: Batch) -> list[Committable] | None:
        """Stages the rows with Spark's own writers; ``None`` if this frame must go through :meth:`Sink.writer`."""
        return None


class HidingSink(FrameSink):
    """A sink that may hide committed rows from readers for a while, for example while small files grow."""

    @abstractmethod
    def hides_rows(self) -> bool:
        """True if this configuration hides rows."""

    @abstractmethod
    def show_rows(self, query: str, ends_by_itself: bool) -> None:
        """Shows the committed rows of ``query`` that are still hidden, if the options ask for that at the end of a query.

        Called after the end of any query of the session, perhaps more than once. ``ends_by_itself`` is that of
        :class:`QueryRun`.
        """


class FrameCommitter(GlobalCommitter):
    """A committer whose target takes a whole DataFrame in one transaction, ledger entry included. Nothing is staged."""

    counts_rows: ClassVar[bool] = False
    """True if :meth:`commit_frame` itself counts the rows in the meter; else an ``Observation`` of the frame does.

    Only if it is true does ``is_observed`` of a batch say that its frame has observations of the user.
    """

    @abstractmethod
    def commit_frame(self, frame: Frame, batch: Batch) -> None:
        """Writes and records ``batch``, both or neither."""

    def discard(self, committable: Committable) -> None:
        """Nothing is staged."""


def check_guarantee(kind: type[Sink], values: Values) -> Iterator[Problem]:
    """The problem of a requested guarantee that this configuration cannot give."""
    strongest, missing = kind.strongest(values)
    order = list(Guarantee)
    guarantee = values["guarantee"]
    if guarantee and order.index(Guarantee(guarantee)) < order.index(strongest):
        yield Problem("guarantee", f'"{guarantee}" is not possible, only "{strongest.value}": {missing}')
