"""The sink of ``connectors.connect``: the rows of a Spark task go to a sink task beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...connect.connector import SinkConnector
from ...connect.dead_letters import letter_fields
from ...connect.host import HEADERS, SINK_COLUMNS, ConnectorSettings, DeadLetter, LetterBox, SinkHost, SinkHostTask
from ...connect.hosts import sink_host
from ...connect.plugins import OwnClasses, connector_class
from ...core import Batch, Committable, FrameSink, Guarantee, Options, Problem, Sink, SinkWriter
from ...core.datasets import Dataset
from ...core.dead_letters import Rejects, SinkLetters
from ...ground.clients import ClientPool
from ...ground.errors import Fatal
from ...ground.options import Choice, Json, Values
from ...ground.state import digest, dumps
from ...storage.base import Storage
from ...storage.location import Location, storage_of
from .dead_letter_topic import DeadLetterTopic
from .placed_letters import PlacedLetters
from .settings import CONNECT_OPTIONS, config_problems, dataset_of, letter_problems, settings_of, topic_problems

_OFFSETS_PER_BATCH: Final = 1 << 32
"""Offsets of rows that have none: the number of the batch times this, and the number of the row in its task."""

_IDLE_SECONDS: Final = 45.0
"""Spark ends a worker that was idle for a minute; before that, connectors are stopped."""

_HOSTS: Final[ClientPool[SinkHost]] = ClientPool(lambda host: host.close(), _IDLE_SECONDS)


class ConnectSink(FrameSink):
    """A sink connector of Connect's model, a Python class or a Java one.

    Columns: ``topic`` (else the first of ``topics``), ``key``, ``value``, ``headers``, ``timestamp``, ``partition``,
    ``offset``, of which any may be missing; without ``value`` all other columns are its fields. Binary and text go through the
    converters; other types are Connect's own at once. Rows of topics that are not read (``topics``, ``topics.regex``) are
    left out.

    Guarantee: at-least-once; idempotent where the connector says so (``is_idempotent``). Exactly-once where it keeps offsets in
    the target (``keeps_offsets``): by ``foreach_batch``, which gives each partition to one task in the order of its offsets,
    and for rows with ``partition`` and ``offset``, as those of Kafka. Its dead letters are in ``deadLetterPath``, or in their
    topic, before the target moves past their rows; a row that is a letter in ``deadLetterPath`` is not put again.

    A batch is committed when ``preCommit`` names the end of each partition. A connector that keeps offsets itself may name none
    for ever: ``offsets=sink`` waits only for partitions that an answer names. Spark does not bring rows again that such a
    connector has taken and not written when its process dies: at-least-once is then the connector's own promise.
    """

    name = "connect"
    options = CONNECT_OPTIONS | Options(
        deadLetterPath=Location(None, meaning="the folder of records that fail, Parquet; needs errors.tolerance=all"),
        storageOptions=Json({}, kind=dict, meaning="fsspec's keys for deadLetterPath; or objects of them by location"),
        offsets=Choice(
            "spark",
            among=("spark", "sink"),
            meaning="sink: the connector keeps offsets itself and names none; its batch is done when it has taken the rows",
        ),
    )
    promise = Guarantee.EXACTLY_ONCE
    conditions = (
        "the connector keeps offsets in its target; else at-least-once; offsets=sink: for rows that the connector has taken, "
        "what it promises itself"
    )
    writers_retry = True
    extensions = OwnClasses()

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        wrong = list(config_problems(values))
        yield from wrong
        if wrong:
            return
        settings = settings_of(values)
        yield from sink_host(settings).validate()
        yield from letter_problems(values)
        yield from topic_problems(values)
        if "topics" in settings.properties and "topics.regex" in settings.properties:
            yield Problem("topics.regex", "is given beside topics; give one of the two.")
        yield from _topic_problems(settings)

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        settings = settings_of(values)
        if not settings.awaits_offsets:
            return Guarantee.AT_LEAST_ONCE, "offsets=sink: a batch is committed before the connector says that it is written"
        if settings.is_java:
            return Guarantee.AT_LEAST_ONCE, "nothing tells whether a Java connector keeps offsets in its target"
        try:
            kind: Any = connector_class(settings.class_name, SinkConnector)
        except ValueError:  # the checks say it
            return Guarantee.AT_LEAST_ONCE, "there is no such connector"
        if kind.keeps_offsets:
            return Guarantee.EXACTLY_ONCE, ""
        if kind.is_idempotent:
            return Guarantee.IDEMPOTENT, "the connector does not keep offsets in its target (keeps_offsets)"
        return Guarantee.AT_LEAST_ONCE, "the connector says neither keeps_offsets nor is_idempotent"

    def settings(self) -> ConnectorSettings:
        """The settings of the connector's host."""
        return settings_of(self.values)

    def target(self) -> str:
        properties = self.settings().properties
        return f"{properties.get('name', '')} {properties['connector.class']}"

    def datasets(self) -> Sequence[Dataset]:
        return [dataset_of(self.settings().properties)]

    def letters(self) -> SinkLetters | None:
        if self.guarantee() is Guarantee.EXACTLY_ONCE or not self.values["deadLetterPath"]:
            return None
        return SinkLetters(self._letter_storage(), self.name, self.sink_id(), repeats=True)

    def placed_letters(self, batch: Batch) -> PlacedLetters | None:
        """The box for the dead letters of an exactly-once batch; ``None`` unless the user asked for them."""
        if not self.values["deadLetterPath"]:
            return None
        return PlacedLetters(self._letter_storage(), batch, self.settings().properties.get("name", ""))

    def _letter_storage(self) -> Storage:
        return storage_of(self.values["deadLetterPath"], self.values["storageOptions"])

    def rejects(self, batch: Batch, staged: Sequence[str] = ()) -> Rejects:
        return Rejects(f"connectors.{self.name}", "deadLetter", self.letters(), batch, staged)

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        settings = self.settings()
        if "topic" not in schema.names and not _topics(settings):
            yield Problem("topics", "missing in config, and the rows have no column topic.")
        if self.guarantee() is not Guarantee.EXACTLY_ONCE:
            return
        if not {"partition", "offset"} <= set(schema.names):
            text = "exactly-once needs rows with partition and offset, the same ones in each replay, as Kafka's; set "
            text += (
                "guarantee=at-least-once to write these: what the connector asks for by context.offset is ignored then."
            )
            yield Problem("guarantee", text)
        if not placed:
            text = "exactly-once needs foreach_batch, which gives each partition to one task, in order; set "
            yield Problem("guarantee", text + "guarantee=at-least-once to write by format.")

    def placed(self, frame: Any, schema: pa.Schema, batch: Batch) -> tuple[Sink, Any]:
        if self.guarantee() is not Guarantee.EXACTLY_ONCE:
            return self, frame
        place = [name for name in ("topic", "partition") if name in schema.names]
        return self, frame.repartition(*place).sortWithinPartitions(*place, "offset")

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> ConnectWriter:
        return ConnectWriter(self, batch, schema, subtask)


class ConnectWriter(SinkWriter):
    """Hands the rows of one task attempt to a sink task, and flushes it at the end."""

    def __init__(self, sink: ConnectSink, batch: Batch, schema: pa.Schema, subtask: int) -> None:
        self._settings = sink.settings()
        self._key = digest(
            dumps(dict(self._settings.properties)), self._settings.plugin_path, self._settings.plugin_packages
        )
        self._subtask = subtask
        self._first_offset = max(batch.number, 0) * _OFFSETS_PER_BATCH
        # Offsets that a target keeps say something of rows whose places stay the same, and of which one task has all in order.
        self._uses_offsets = sink.guarantee() is Guarantee.EXACTLY_ONCE and {"partition", "offset"} <= set(schema.names)
        self._subscription = _Subscription(self._settings)
        self._host: SinkHost | None = None
        self._task: SinkHostTask | None = None
        self._topic = DeadLetterTopic.of(self._settings.properties)
        self._box: LetterBox | None = (self._topic or sink.placed_letters(batch)) if self._uses_offsets else None
        self.rejects = sink.rejects(batch)
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if self._uses_offsets and (batch["partition"].null_count or batch["offset"].null_count):
            raise Fatal(
                "a row has a null in partition or offset, and exactly-once needs both",
                way_out="fill them, leave such rows out, or set guarantee=at-least-once",
            )
        rows = self._subscription.subscribed(
            sink_rows(batch, self._subscription.default, self._subtask, self._first_offset)
        )
        self._first_offset += batch.num_rows
        self._rows += rows.num_rows
        if rows.num_rows:
            self._set_aside(self._opened(rows).put(rows))

    def prepare(self) -> Committable:
        if self._task is not None:
            self._set_aside(self._task.flush())
            task, self._task = self._task, None
            self._set_aside(task.close())
        if self._topic is not None:
            self._topic.flush()
        assert self.rejects is not None
        if self._box is not None:
            self.rejects.count = self._box.count
        is_set_aside = self._box is not None or self._topic is not None
        return Committable(self._rows - self.rejects.count, is_set_aside=is_set_aside)

    def abort(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            task.close(failed=True)
        if self._host is not None:  # a connector that has failed must not come to the next batch
            host, self._host = self._host, None
            host.close()

    def close(self) -> None:
        if self._host is not None:
            _HOSTS.give_back(self._key, self._host)
            self._host = None
        if self._topic is not None:
            self._topic.close()

    def _opened(self, rows: pa.Table) -> SinkHostTask:
        if self._task is None:
            self._host = _HOSTS.take(self._key) or sink_host(self._settings)
            topics = pc.unique(rows["topic"]).to_pylist()
            self._task = self._host.task(self._subtask, topics, uses_offsets=self._uses_offsets, letters=self._box)
        return self._task

    def _set_aside(self, letters: Sequence[DeadLetter]) -> None:
        assert self.rejects is not None
        for letter in letters:
            if self._box is not None:  # it has them
                break
            if self._topic is not None:
                self._topic.send(letter)
                self.rejects.count += 1
            else:
                self.rejects.set_aside(letter_fields(letter, self._settings.properties.get("name", "")))


class _Subscription:
    """The topics that the connector reads: ``topics``, or ``topics.regex``; all topics without both options."""

    def __init__(self, settings: ConnectorSettings) -> None:
        self._names = frozenset(_topics(settings))
        pattern = settings.properties.get("topics.regex")
        self._pattern = re.compile(pattern) if pattern else None
        self._matches: dict[str, bool] = {}
        self.default = next(iter(_topics(settings)), None)

    def subscribed(self, rows: pa.Table) -> pa.Table:
        """``rows`` of the topics that are read, whichever have come and gone since the last batch."""
        topics = [topic for topic in pc.unique(rows["topic"]).to_pylist() if self._is_read(topic)]
        return rows.filter(pc.is_in(rows["topic"], value_set=pa.array(topics, pa.string())))

    def _is_read(self, topic: str | None) -> bool:
        if topic is None:
            return False
        if topic not in self._matches:
            if self._pattern is not None:
                self._matches[topic] = self._pattern.fullmatch(topic) is not None
            else:
                self._matches[topic] = not self._names or topic in self._names
        return self._matches[topic]


def sink_rows(batch: pa.RecordBatch, topic: str | None, subtask: int, first_offset: int) -> pa.Table:
    """A batch of Spark as rows of :data:`~connectors.connect.host.SINK_COLUMNS`."""
    count, names = batch.num_rows, set(batch.schema.names)
    if "value" in names:
        value: Any = batch["value"]
    else:
        fields = [name for name in batch.schema.names if name not in SINK_COLUMNS]
        value = pa.StructArray.from_arrays([batch[name] for name in fields], fields) if fields else pa.nulls(count)
    missing = {
        "topic": pa.repeat(topic, count) if topic is not None else pa.nulls(count, pa.string()),
        "partition": pa.repeat(pa.scalar(subtask, pa.int32()), count),
        "offset": pa.array(range(first_offset, first_offset + count), pa.int64()),
        "key": pa.nulls(count),
        "headers": pa.nulls(count, HEADERS),
        "timestamp": pa.nulls(count, pa.timestamp("us", tz="UTC")),
    }
    types = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "headers": HEADERS}
    columns = {name: batch[name] if name in names else missing[name] for name in missing}
    columns = {name: column.cast(types[name]) if name in types else column for name, column in columns.items()}
    columns |= {name: pc.coalesce(columns[name], missing[name]) for name in ("partition", "offset")}
    return pa.table({**columns, "value": value}).select(list(SINK_COLUMNS))


def _topics(settings: ConnectorSettings) -> list[str]:
    return [topic.strip() for topic in settings.properties.get("topics", "").split(",") if topic.strip()]


def _topic_problems(settings: ConnectorSettings) -> Iterator[Problem]:
    pattern = settings.properties.get("topics.regex")
    if pattern:
        try:
            re.compile(pattern)
        except re.error as wrong:
            yield Problem("topics.regex", f'must be a regular expression; got "{pattern}" ({wrong}).')
