"""The tasks of a Java source: each polls in a thread of the JVM and puts what it gets into one queue (``PolledQueue.java``)."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError

from ..host import Offsets
from .failures import JavaFailure, failure_of
from .jvm import Jvm

_NEWEST_SUFFICES: Final = "io.debezium."
"""Debezium acknowledges a position, so the newest record of each list stands for the others."""


class SourceThread:
    """One task: its Java object, and the loop that polls it in a thread (``PollLoop.java``)."""

    def __init__(self, jvm: Jvm, number: int, task: Any, reader: Any, queue: Any) -> None:
        self.jvm, self.number, self.task = jvm, number, task
        self.loop = jvm.compiled("PollLoop", number, task, reader, queue)
        self.future: Any = None
        self.taken = 0
        """The number of the newest list that is handed over."""
        self.class_name = str(task.getClass().getName())
        self._commits_records = self._overrides("commitRecord")
        self._newest_suffices = self.class_name.startswith(_NEWEST_SUFFICES)

    def has_rested(self, seconds: float) -> bool:
        """True if the task has given little or nothing for ``seconds``, and all before that is handed over."""
        return int(self.loop.rest()) >= seconds * 1000 and self.taken >= int(self.loop.listsBeforeRest())

    @property
    def retains_records(self) -> bool:
        """True if all records stay in the JVM until Spark has committed them."""
        return self._commits_records and not self._newest_suffices

    def retained(self, polled: Any) -> Any:
        """The ``polled`` list with those records whose ``commitRecord`` is to be called, if there are any.

        A record that became a row gets ``RecordMetadata`` without an offset, as it lies in no topic of Kafka. So MirrorMaker's
        source writes no offset syncs: they would tell consumers of the target where to go on.
        """
        return polled.retained(self._newest_suffices) if self._commits_records else None

    def start(self, executor: Any) -> None:
        self.future = executor.submit(self.loop)

    def is_done(self) -> bool:
        return self.future is not None and bool(self.future.isDone())

    def result(self) -> JavaFailure | None:
        """Why the loop has ended; ``None`` if it was told to."""
        try:
            self.future.get()
        except Py4JJavaError as error:
            return failure_of(error, self.jvm.masked)
        return None

    def stop_polling(self) -> None:
        """Ends the loop after the poll that is under way."""
        self.loop.stop()

    def stop(self) -> None:
        """Ends the loop and the task; the caller waits for the loop."""
        self.stop_polling()
        with contextlib.suppress(Py4JJavaError):
            self.task.stop()

    def _overrides(self, name: str) -> bool:
        methods = self.task.getClass().getMethods()
        owners = {str(method.getDeclaringClass().getName()) for method in methods if method.getName() == name}
        return owners != {"org.apache.kafka.connect.source.SourceTask"}


class Committer:
    """The records of epochs that Spark has not committed yet."""

    def __init__(self) -> None:
        self._epochs: deque[tuple[int, int, Any, Offsets]] = deque()

    def add(self, epoch: int, task: int, records: Any, offsets: Offsets) -> None:
        self._epochs.append((epoch, task, records, offsets))

    def offsets(self, epoch: int) -> dict[str, Any]:
        """The newest offsets of the epochs up to ``epoch``."""
        newest: dict[str, Any] = {}
        for number, _, _, offsets in self._epochs:
            if number <= epoch:
                newest.update(offsets)
        return newest

    def commit(self, epoch: int, threads: Mapping[int, SourceThread]) -> None:
        """``commitRecord`` for the records of the epochs up to ``epoch``, then ``commit`` of the tasks."""
        while self._epochs and self._epochs[0][0] <= epoch:
            _, number, records, _ = self._epochs.popleft()
            if records is not None and (thread := threads.get(number)):
                thread.loop.commitRecords(records)
                thread.jvm.release(records)
        for thread in list(threads.values()):  # the collector may start one meanwhile
            thread.task.commit()

    def clear(self) -> None:
        self._epochs.clear()
