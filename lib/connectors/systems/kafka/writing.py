"""What tasks do: stage records in an Arrow file, or send them at least once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ...core.arrow_stage import ArrowStage
from ...core.errors import Transient
from ...core.rejects import Rejects
from ...core.sink import Batch, Committable, SinkWriter
from ...core.state import digest, dumps
from .client import producer_config
from .client_errors import explained
from .failures import client
from .producing import Feeder
from .records import Serializer
from .resting import Resting
from .topics import Topics

if TYPE_CHECKING:
    from .sink import KafkaSink

_STEP: Final = 5.0


class StagingWriter(SinkWriter):
    """Serializes rows and puts the records into a file, for the driver to send in one transaction."""

    def __init__(self, sink: KafkaSink, batch: Batch, schema: pa.Schema) -> None:
        self.serializer = Serializer(sink.values, schema)
        self.rejects: Rejects = sink.rejects(batch)
        self.staged = ArrowStage(sink.folder(), batch.attempt())

    def write(self, batch: pa.RecordBatch) -> None:
        records = self.serializer.records(batch, self.rejects)
        if records.num_rows:
            self.staged.write(records)

    def prepare(self) -> Committable:
        self.staged.close()
        return Committable(self.staged.rows, {"file": self.staged.attempt} if self.staged.rows else {})

    def abort(self) -> None:
        self.staged.remove()

    def close(self) -> None:
        self.staged.close()


class SendingWriter(SinkWriter):
    """Sends rows while they come; they are safe when the task ends, and a task that is tried again sends them again."""

    def __init__(self, sink: KafkaSink, batch: Batch, schema: pa.Schema) -> None:
        self.serializer = Serializer(sink.values, schema)
        self.rejects: Rejects = sink.rejects(batch)
        self.sender = sender(sink)
        self.rows = 0
        self._arrived = False

    def write(self, batch: pa.RecordBatch) -> None:
        with self.sender.guarded():
            self.rows += self.sender.feeder.feed(self.serializer.records(batch, self.rejects), self.rejects)

    def prepare(self) -> Committable:
        with self.sender.guarded():
            self.sender.flush()
        self._arrived = True
        return Committable(self.rows)

    def abort(self) -> None:
        self._arrived = False
        self.sender.give_up()

    def close(self) -> None:
        if self._arrived:
            self.sender.rest()


def sender(sink: KafkaSink) -> Sender:
    """One that this process has from an earlier task, or a new one; its taker's alone."""
    key = digest(dumps([sink.config(), sink.values["topic"]]))
    return RESTING.take(key) or Sender(sink, key)


class Sender:
    """An idempotent producer without transactions."""

    def __init__(self, sink: KafkaSink, key: str) -> None:
        self._key = key
        self._told: list[tuple[str, str]] = []
        self._patience = sink.patience()
        config = sink.config()
        made = producer_config(config, sink.smallest(), self._heard, self._delivered)
        made.setdefault("message.timeout.ms", round(self._patience * 1000))
        try:
            self.producer: Any = client().Producer(made)
        except client().KafkaException as error:
            raise explained(error, "the client refuses the options") from None
        self.feeder: Any = Feeder(self.producer, made, Topics(config), sink.values["topic"], self._patience)
        self._failed = ""

    def flush(self) -> None:
        """Returns when everything has arrived. Raises what happened otherwise."""
        if self.producer.flush(self._patience + _STEP):
            raise Transient("the brokers did not take all records in time")
        if self._failed:
            raise Transient(f"records did not arrive: {self._failed}")

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """An error inside is raised as one of ours, and nothing is sent any more."""
        try:
            yield
        except client().KafkaException as error:
            self.give_up()
            raise explained(error, "records cannot be sent", self._told) from None
        except BaseException:
            self.give_up()
            raise

    def rest(self) -> None:
        """Waits for the next task; everything must have arrived."""
        RESTING.give_back(self._key, self)

    def give_up(self) -> None:
        if self.producer is not None:
            with contextlib.suppress(Exception):
                self.producer.purge()
            self.close()

    def close(self) -> None:
        self.producer = self.feeder = None  # it calls back into this sender: a circle, which would live on

    def _heard(self, error: Any) -> None:
        self._told = [*self._told[-20:], (error.name(), error.str())]

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._failed = error.str()
            self._heard(error)


RESTING: Final = Resting(Sender.close)
