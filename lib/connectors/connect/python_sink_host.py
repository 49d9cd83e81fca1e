"""The host of Python sink connectors, in a worker: converters, then ``put`` of the task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final, TypeVar

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Problem, Transient
from ..ground.options import masker
from .common_settings import check_task_count
from .connector import (
    ConnectorContext,
    ErrantRecordReporter,
    SinkConnector,
    SinkTask,
    SinkTaskContext,
    TopicPartition,
)
from .errors import ConnectException, RetriableException, masked_error, masking
from .host import (
    ConnectorSettings,
    DeadLetter,
    LetterBox,
    SinkHost,
    SinkHostTask,
    rewind_error,
    unacknowledged_error,
)
from .plugins import connector_class
from .records import SinkRecord
from .sink_pipeline import SinkPipeline, letter_of
from .tolerance import error_text
from .validation import property_problems

Output = TypeVar("Output")
_POLL_RECORDS: Final = 500
"""Records of one ``put``, as Kafka's consumer has it; ``consumer.override.max.poll.records`` sets another number."""
_ACKNOWLEDGED_PAUSE: Final = 0.05


class PythonSinkHost(SinkHost):
    """Runs a :class:`SinkConnector`; its tasks live as long as the write of one batch by one Spark task."""

    def __init__(self, settings: ConnectorSettings) -> None:
        self.settings = settings
        self._mask = masker(settings.secrets())
        self._connector: SinkConnector | None = None
        self._configs: list[Mapping[str, str]] = []
        self._raised: Exception | None = None
        self._is_outdated = False

    def validate(self) -> list[Problem]:
        return property_problems(self.settings, sink=True)

    def task(
        self, number: int, topics: Sequence[str], *, uses_offsets: bool = False, letters: LetterBox | None = None
    ) -> PythonSinkTask:
        with masking(self._mask):
            connector = self._started()
        if self._raised is not None:
            raise ConnectException(f"the connector has failed: {self._raised}") from self._raised
        if not self._configs:
            raise ConnectException("the connector gave no task configuration, so nothing can be written")
        config = {**self.settings.properties, **self._configs[number % len(self._configs)]}
        return PythonSinkTask(connector.task_class(), config, self.settings, number, uses_offsets, letters)

    def _started(self) -> SinkConnector:
        """The connector, with its task configurations up to date."""
        if self._connector is None:
            connector = connector_class(self.settings.class_name, SinkConnector)()
            connector.initialize(_Context(self))
            connector.start(self.settings.properties)
            self._connector, self._is_outdated = connector, True
        if self._is_outdated:
            most = int(self.settings.properties.get("tasks.max", 1))
            self._configs, self._is_outdated = [dict(config) for config in self._connector.task_configs(most)], False
            check_task_count(len(self._configs), self.settings.properties, self.settings.log)
        return self._connector

    def outdate(self) -> None:
        """The task configurations are asked for again, before the next task."""
        self._is_outdated = True

    def fail(self, error: Exception) -> None:
        """The connector has failed outside a call."""
        self._raised = masked_error(error, self._mask)

    def close(self) -> None:
        if self._connector is not None:
            self._connector.stop()
            self._connector = None


class _Context(ConnectorContext):
    def __init__(self, host: PythonSinkHost) -> None:
        self._host = host

    def request_task_reconfiguration(self) -> None:
        self._host.outdate()

    def raise_error(self, error: Exception) -> None:
        self._host.fail(error)


class PythonSinkTask(SinkHostTask):
    """One sink task from ``start`` to ``stop``."""

    def __init__(
        self,
        kind: type[SinkTask],
        config: Mapping[str, str],
        settings: ConnectorSettings,
        number: int,
        uses_offsets: bool,
        letters: LetterBox | None,
    ) -> None:
        self.number = number
        self.uses_offsets = uses_offsets
        self._box = letters
        self._set_aside: dict[TopicPartition, Set[int]] = {}
        """The rows that are in the box since an earlier attempt."""
        self._settings = settings
        self._mask = masker(settings.secrets())
        self._pipeline = SinkPipeline(config, self._wait, number)
        self._context = _TaskContext(self, config)
        self._most = int(config.get("consumer.override.max.poll.records", _POLL_RECORDS))
        self._partitions: set[TopicPartition] = set()
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        """The offset of the first row of each partition, and the one behind its last row."""
        self._record_ends: dict[TopicPartition, int] = {}
        """The offset behind the last record that was put, by partition; the rows behind may be dead letters."""
        self._acknowledged: dict[TopicPartition, int] = {}
        self._letters: list[DeadLetter] = []
        self._task = kind()
        self._task.initialize(self._context)
        self._retried(lambda: self._task.start(config))

    @property
    def tolerates(self) -> bool:
        return self._pipeline.tolerance.tolerates

    def put(self, rows: pa.Table) -> list[DeadLetter]:
        starts, ends = _bounds(rows)
        self._open(set(ends))
        self._context.requested.clear()
        self._starts.update({place: min(start, self._starts.get(place, start)) for place, start in starts.items()})
        undecided = self._undecided(rows)
        records = self._retried(lambda: self._pipeline.run(undecided))
        self._keep(self._pipeline.letters())
        for first in range(0, len(records), self._most):
            self._put([record for record in records[first : first + self._most] if self._is_new(record)])
        _advance(self._ends, ends.items())
        return self._taken()

    def flush(self) -> list[DeadLetter]:
        end = machine.monotonic() + self._settings.outage_timeout
        while True:
            answer = self._pre_commit()
            behind = [
                place
                for place, last in self._record_ends.items()
                if self._acknowledged.get(place, 0) < last and (self._settings.awaits_offsets or place in answer)
            ]
            if not behind:
                return self._taken()
            if machine.monotonic() > end:
                raise unacknowledged_error(*behind[0], self._settings)
            machine.sleep(_ACKNOWLEDGED_PAUSE)
            self._put([])

    def close(self, failed: bool = False) -> list[DeadLetter]:
        with masking(self._mask):
            try:
                if self._partitions and not failed:
                    self._task.close(sorted(self._partitions))
            finally:
                self._task.stop()
        return self._taken()

    def report(self, record: SinkRecord, error: Exception) -> None:
        """Sets a record aside that the task has refused."""
        error = masked_error(error, self._mask)
        if not self.tolerates:
            raise ConnectException(f"Error encountered in TASK_PUT: {error}") from error
        if record.origin is None:  # it was reported before the same call was tried again
            return
        (rows, place), record.origin = record.origin, None
        kind, message, stack = error_text(error)
        name = _full_name(type(self._task))
        self._keep([letter_of(rows, place, "TASK_PUT", name, kind, message, stack, self.number)])

    def _keep(self, letters: Sequence[DeadLetter]) -> None:
        """Keeps letters for the caller. They are in the box before the task goes on: it may commit offsets in any call."""
        if self._box is not None and letters:
            self._box.put(letters)
        self._letters += letters

    def _open(self, partitions: set[TopicPartition]) -> None:
        if new := sorted(partitions - self._partitions):
            self._partitions |= set(new)
            self._context.partitions = set(self._partitions)
            self._retried(lambda: self._task.open(new))
            if self._box is not None:
                self._set_aside.update({place: self._box.offsets(place) for place in new})

    def _undecided(self, rows: pa.Table) -> pa.Table:
        """The rows that are neither in the target, as the task has said, nor dead letters."""
        ends, letters = self._context.offsets, self._set_aside
        if not ends and not any(letters.values()):
            return rows
        cells = zip(*(rows[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        places = ((TopicPartition(topic, partition), offset) for topic, partition, offset in cells)
        is_open = [ends.get(place, offset) <= offset and offset not in letters.get(place, ()) for place, offset in places]
        return rows.filter(pa.array(is_open, pa.bool_()))

    def _is_new(self, record: SinkRecord) -> bool:
        """False for a record that the target has already, as the task has said by ``context.offset``."""
        return record.offset >= self._context.offsets.get(_place(record), record.offset)

    def _put(self, records: Sequence[SinkRecord]) -> None:
        ends: dict[TopicPartition, int] = {}
        _advance(ends, ((_place(record), record.offset + 1) for record in records))
        self._retried(lambda: self._task.put(list(records)))  # a task may empty its list, and is given all of it again
        _advance(self._record_ends, ends.items())
        for place in ends:
            self._acknowledged.pop(place, None)
        self._refuse_rewind()
        if self._context.wants_commit:
            self._context.wants_commit = False
            _advance(self._ends, self._record_ends.items())
            self._pre_commit()

    def _pre_commit(self) -> Mapping[TopicPartition, int]:
        """Asks the task what the target has, and keeps the answer: it may name each offset in one answer only."""
        # A target that is ahead of the rows, as with a new checkpoint, must not hear that it has less.
        ends = {place: max(end, self._context.offsets.get(place, 0)) for place, end in self._ends.items()}
        answer = self._retried(lambda: self._task.pre_commit(ends))
        self._refuse_rewind()
        self._acknowledged.update(answer)
        return answer

    def _refuse_rewind(self) -> None:
        """Raises :class:`Transient` where the task wants rows again that it has had."""
        while self._context.requested:
            place, offset = self._context.requested.popitem()
            if self._starts.get(place, offset + 1) <= offset < self._record_ends.get(place, 0):
                raise rewind_error(*place, offset, self._settings)

    def _retried(self, work: Callable[[], Output]) -> Output:
        """``work``, tried again with the same records as long as it raises RetriableException, within ``outageTimeout``."""
        end, pause = machine.monotonic() + self._settings.outage_timeout, self._settings.restart_backoff
        while True:
            try:
                with masking(self._mask):
                    return work()
            except RetriableException as outage:
                asked, self._context.pause = self._context.pause, None
                seconds = asked if asked is not None else pause
                if machine.monotonic() + seconds > end:
                    raise Transient(f"the sink task could not write: {outage}", is_waited_for=True) from outage
                self._wait(seconds)
                pause = min(2 * pause, self._settings.restart_max_backoff)

    def _wait(self, seconds: float) -> bool:
        machine.sleep(seconds)
        return False

    def _taken(self) -> list[DeadLetter]:
        letters, self._letters = self._letters, []
        return letters


class _TaskContext(SinkTaskContext):
    def __init__(self, task: PythonSinkTask, config: Mapping[str, str]) -> None:
        self._task = task
        self._config = config
        self.partitions: set[TopicPartition] = set()
        self.offsets: dict[TopicPartition, int] = {}
        self.requested: dict[TopicPartition, int] = {}
        self.wants_commit = False
        self.pause: float | None = None

    def configs(self) -> Mapping[str, str]:
        return self._config

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.requested.update(offsets)
        if self._task.uses_offsets:
            self.offsets.update(offsets)

    def assignment(self) -> set[TopicPartition]:
        return set(self.partitions)

    def request_commit(self) -> None:
        self.wants_commit = True

    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        return _Reporter(self._task) if self._task.tolerates else None

    def timeout(self, milliseconds: int) -> None:
        self.pause = milliseconds / 1000


class _Reporter(ErrantRecordReporter):
    def __init__(self, task: PythonSinkTask) -> None:
        self._task = task

    def report(self, record: SinkRecord, error: Exception) -> None:
        self._task.report(record, error)


def _bounds(rows: pa.Table) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """The offset of the first row of each topic and partition, and the one behind the last."""
    places = rows.select(["topic", "partition", "offset"]).group_by(["topic", "partition"])
    bounds = places.aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    starts = {TopicPartition(row["topic"], row["partition"]): row["offset_min"] for row in bounds}
    return starts, {TopicPartition(row["topic"], row["partition"]): row["offset_max"] + 1 for row in bounds}


def _advance(ends: dict[TopicPartition, int], others: Iterable[tuple[TopicPartition, int]]) -> None:
    """Moves ``ends`` to ``others`` where these are later."""
    for place, end in others:
        ends[place] = max(end, ends.get(place, 0))


def _place(record: SinkRecord) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _full_name(kind: type[Any]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
