"""Sink connectors for tests: a target in this process that counts what reaches it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from connectors.connect import (
    RetriableException,
    Schema,
    SchemaBuilder,
    SinkConnector,
    SinkRecord,
    SinkTask,
    TopicPartition,
    require_schema,
)

PERSON = (
    SchemaBuilder.struct()
    .field("name", Schema.OPTIONAL_STRING_SCHEMA)
    .field("age", Schema.OPTIONAL_INT32_SCHEMA)
    .build()
)


class Target:
    """What sink tasks have written, by topic, and the offsets that they keep there."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.tables: dict[str, list[Any]] = {}
        self.created: list[str] = []
        self.offsets: dict[TopicPartition, int] = {}
        self.events: list[str] = []
        self.outages = 0
        self.refuses: set[Any] = set()
        self.deaths: list[str] = []
        """The moments at which a task dies, each once."""

    def reach(self, moment: str) -> None:
        if moment in self.deaths:
            self.deaths.remove(moment)
            raise RuntimeError(f"dead where {moment}")

    def create(self, table: str) -> None:
        """Creates a table. Raises ``FileExistsError`` where another task was faster."""
        with self.lock:
            if table in self.tables:
                raise FileExistsError(table)
            self.tables[table] = []
            self.created.append(table)


TARGETS: dict[str, Target] = {}


class BufferingTask(SinkTask):
    """Keeps records in a buffer until ``flush``, which writes them and then waits for the target."""

    def start(self, props: Mapping[str, str]) -> None:
        self.target = TARGETS[props["target"]]
        self.buffer: list[SinkRecord] = []
        self.target.events.append("start")

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        self.target.events.append("open " + ",".join(f"{topic}-{number}" for topic, number in partitions))

    def put(self, records: Sequence[SinkRecord]) -> None:
        if self.target.outages:
            self.target.outages -= 1
            raise RetriableException("the target is away")
        self.buffer += records

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        time.sleep(0.01)
        for record in self.buffer:
            table = record.topic or ""
            if table not in self.target.tables:
                try:
                    self.target.create(table)
                except FileExistsError:
                    self.target.events.append(f"{table} was there")
            if record.value in self.target.refuses:
                reporter = self.context.errant_record_reporter()
                assert reporter is not None
                reporter.report(record, ValueError(f"the target refuses {record.value}"))
                continue
            with self.target.lock:
                self.target.tables[table].append(record.value)
        self.buffer = []
        self.target.events.append("flushed")

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        self.target.events.append("close")

    def stop(self) -> None:
        self.target.events.append("stop")


class BufferingConnector(SinkConnector):
    def start(self, props: Mapping[str, str]) -> None:
        self.props = dict(props)

    def task_class(self) -> type[SinkTask]:
        return BufferingTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props] * max_tasks

    def stop(self) -> None:
        """There is nothing to end."""


class PoppingTask(BufferingTask):
    """Takes its records off the list one by one, and the one that it cannot write, too."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        assert isinstance(records, list)
        while records:
            super().put([records.pop(0)])


class PoppingConnector(BufferingConnector):
    def task_class(self) -> type[SinkTask]:
        return PoppingTask


class ReportingTask(BufferingTask):
    """Reports what the target refuses before it takes the others."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        reporter = self.context.errant_record_reporter()
        assert reporter is not None
        for record in records:
            if record.value in self.target.refuses:
                reporter.report(record, ValueError(f"the target refuses {record.value}"))
        super().put([record for record in records if record.value not in self.target.refuses])


class ReportingConnector(BufferingConnector):
    def task_class(self) -> type[SinkTask]:
        return ReportingTask


class OffsetTask(BufferingTask):
    """Keeps the offset of each partition in the target, in one step with the records, and asks to begin there.

    It writes nothing where the target's offset is another one by then.
    """

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        super().open(partitions)
        with self.target.lock:
            self.known = {place: self.target.offsets[place] for place in partitions if place in self.target.offsets}
        self.context.offset(self.known)

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        with self.target.lock:
            if any(self.target.offsets.get(place) != self.known.get(place) for place in offsets):
                raise RuntimeError("another task has gone on from here")
            self.known = {**self.known, **offsets}
            for record in self.buffer:
                self.target.tables.setdefault(record.topic or "", []).append(record.value)
            self.target.offsets.update(offsets)
        self.buffer = []


class OffsetConnector(BufferingConnector):
    keeps_offsets = True

    def task_class(self) -> type[SinkTask]:
        return OffsetTask


class RoutingTask(OffsetTask):
    """Gives its records another topic and place."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        for record in records:
            record.topic, record.partition, record.offset = "all", 9, 1 << 40
        super().put(records)


class RoutingConnector(OffsetConnector):
    def task_class(self) -> type[SinkTask]:
        return RoutingTask


class RefusingTask(OffsetTask):
    """Reports what the target refuses, and then commits the rest with the offsets."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        reporter = self.context.errant_record_reporter()
        assert reporter is not None
        for record in self.buffer:
            if record.value in self.target.refuses:
                reporter.report(record, ValueError(f"the target refuses {record.value}"))
        self.buffer = [record for record in self.buffer if record.value not in self.target.refuses]
        self.target.reach("refused")
        super().flush(offsets)
        self.target.reach("committed")


class RefusingConnector(OffsetConnector):
    def task_class(self) -> type[SinkTask]:
        return RefusingTask


class StrictTask(BufferingTask):
    """Takes people only."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        for record in records:
            require_schema(PERSON, record.value_schema, f"a record of topic {record.topic}")
        super().put(records)


class StrictConnector(BufferingConnector):
    def task_class(self) -> type[SinkTask]:
        return StrictTask


class RotatingTask(BufferingTask):
    """Writes a file for each ``size`` records, and names the offset behind it in one answer only."""

    def start(self, props: Mapping[str, str]) -> None:
        super().start(props)
        self.size = int(props["size"])
        self.news: dict[TopicPartition, int] = {}

    def put(self, records: Sequence[SinkRecord]) -> None:
        super().put(records)
        while len(self.buffer) >= self.size:
            file, rest = self.buffer[: self.size], self.buffer[self.size :]
            last, self.buffer = file[-1], file
            self.flush({})
            self.buffer = rest
            self.news[TopicPartition(last.topic, last.partition)] = last.offset + 1
            self.context.request_commit()

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        news, self.news = self.news, {}
        return news


class RotatingConnector(BufferingConnector):
    def task_class(self) -> type[SinkTask]:
        return RotatingTask


class ClosingTask(RotatingTask):
    """Writes what is left when it is closed."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        self.flush({})
        super().close(partitions)


class ClosingConnector(RotatingConnector):
    def task_class(self) -> type[SinkTask]:
        return ClosingTask


class RewindingTask(RotatingTask):
    """In an outage it drops what it holds, and asks for that again."""

    def put(self, records: Sequence[SinkRecord]) -> None:
        if not self.target.outages:
            return super().put(records)
        self.target.outages -= 1
        first, self.buffer = [*self.buffer, *records][0], []
        self.context.offset({TopicPartition(first.topic, first.partition): first.offset})


class RewindingConnector(RotatingConnector):
    def task_class(self) -> type[SinkTask]:
        return RewindingTask


class RevokedConnector(BufferingConnector):
    """Fails outside a call, where it was not started twice."""

    def start(self, props: Mapping[str, str]) -> None:
        super().start(props)
        target = TARGETS[props["target"]]
        target.events.append("connector started")
        if target.events.count("connector started") == 1:
            self.context.raise_error(RuntimeError("the token has expired"))


class SlowTask(BufferingTask):
    """Acknowledges in the background: ``pre_commit`` tells of it bit by bit."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        position = getattr(self, "position", 0)
        self.position = position + 2
        if all(offset <= position for offset in offsets.values()):
            self.flush(offsets)
            return offsets
        return dict.fromkeys(offsets, position)


class SlowConnector(BufferingConnector):
    def task_class(self) -> type[SinkTask]:
        return SlowTask
