"""Rows as messages of a topic."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, BatchingWriter, Failure, Throttled, batching_options
from ...core import REQUIRED, Batch, Options, Poison, Text, Transient
from ...core.datasets import Dataset
from ...ground import machine
from ...ground.columns import TEXT, TEXT_OR_BINARY, Column, ColumnType
from .connection import CONNECTION, PubSubClient, check_connection

_MESSAGES: Final = 1_000
_OVERHEAD: Final = 64
"""Bytes of a message beside its data and attributes, at most."""
_TEXT_MAP: Final = ColumnType(
    "a map of strings", lambda kind: types.is_map(kind) and kind.key_type in TEXT and kind.item_type in TEXT
)


class PubSubSink(BatchingSink):
    """Publishes each row as a message: ``data``, with attributes and an ordering key if columns for them are named.

    Messages of an ordering key arrive in the order in which a task has them, also when a request is sent again. The service
    takes one ordering key in a call, so a request with many of them is many calls.

    Guarantee: at-least-once: a replay publishes again.
    """

    name = "pubsub"
    options = (
        CONNECTION
        | batching_options(max_records=_MESSAGES, max_bytes="9MB", max_time="100ms", most_records=_MESSAGES)
        | Options(
            topicId=Text(REQUIRED, meaning="the topic"),
            dataColumn=Column("data", TEXT_OR_BINARY, meaning="the data of a message, binary or string"),
            attributesColumn=Column(None, _TEXT_MAP, meaning="its attributes, a map of strings"),
            orderingKeyColumn=Column(None, TEXT, meaning="its ordering key, a string; null: none"),
        )
    )
    conditions = "a topic cannot be asked what was published by a batch"

    check = staticmethod(check_connection)

    def target(self) -> str:
        return f"{self.values['endpoint'] or ''}/{self.values['projectId']}/{self.values['topicId']}"

    def datasets(self) -> Sequence[Dataset]:
        return [Dataset("pubsub", f"topic:{self.values['projectId']}:{self.values['topicId']}")]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> PublishWriter:
        return PublishWriter(self, batch)


class PublishWriter(BatchingWriter):
    """Publishes the rows of one task. An entry is a message of the protocol."""

    def __init__(self, sink: PubSubSink, batch: Batch) -> None:
        values = self._values = sink.values
        self._topic = f"projects/{values['projectId']}/topics/{values['topicId']}"
        self.client = PubSubClient("connectors.pubsub", values, "publisher")
        types_of = self.client.types
        self._message, self._request = types_of.PubsubMessage.pb(), types_of.PublishRequest.pb()
        super().__init__(sink, batch)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Any]:
        values, empty = self._values, [None] * rows.num_rows
        datas = rows.column(values["dataColumn"]).cast(pa.binary()).to_pylist()
        attributes = rows.column(values["attributesColumn"]).to_pylist() if values["attributesColumn"] else empty
        keys = rows.column(values["orderingKeyColumn"]).to_pylist() if values["orderingKeyColumn"] else empty
        return [self._entry(*cells) for cells in zip(datas, attributes, keys, strict=True)]

    def _entry(self, data: bytes | None, attributes: Any, key: str | None) -> Any:
        pairs = {name: value for name, value in attributes or () if value is not None}
        if not data and not pairs:
            return Poison("a message needs data or an attribute, and the row has neither")
        return self._message(data=data or b"", attributes=pairs, ordering_key=key or "")

    def sizes(self, entries: Sequence[Any]) -> list[int]:
        return [entry.ByteSize() + _OVERHEAD for entry in entries]

    def keys(self, entries: Sequence[Any]) -> Sequence[Hashable] | None:
        return [entry.ordering_key or object() for entry in entries] if self._values["orderingKeyColumn"] else None

    def send(self, entries: list[Any]) -> Iterator[Failure]:
        """Publishes the messages of each ordering key by a call of its own: the service takes one key in a call."""
        end = machine.monotonic() + self.limits.timeout
        places: dict[str, list[int]] = {}
        for place, entry in enumerate(entries):
            places.setdefault(entry.ordering_key, []).append(place)
        for of_key in places.values():
            yield from self._send_in_order(entries, of_key, end)

    def _send_in_order(self, entries: list[Any], places: list[int], end: float) -> Iterator[Failure]:
        """Publishes the messages at ``places``: in halves where the service refuses one, and none after an outage."""
        parts = [places]
        while parts:
            part = parts.pop(0)
            try:
                self._publish([entries[place] for place in part], end)
            except Poison as error:
                middle = len(part) // 2
                if middle:
                    parts = [part[:middle], part[middle:], *parts]
                else:
                    yield part[0], error
            except Transient as error:
                yield from ((place, error) for rest in (part, *parts) for place in rest)
                return

    def _publish(self, messages: list[Any], end: float) -> None:
        seconds = end - machine.monotonic()
        if seconds < self.limits.timeout / 2:
            raise Throttled("the request takes too long")
        request = self.client.types.PublishRequest(self._request(topic=self._topic, messages=messages))
        with self.client.errors(self._topic):
            self.client.client.publish(request=request, timeout=seconds, retry=None)
