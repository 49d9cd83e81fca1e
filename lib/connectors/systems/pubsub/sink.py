"""Rows as messages of a topic."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, BatchingWriter, Failure, batching_options
from ...core import REQUIRED, Batch, Options, Poison, Problem, Text, Values
from .connection import CONNECTION, PubSubClient, check_connection

_MESSAGES: Final = 1_000
_OVERHEAD: Final = 64
"""Bytes of a message beside its data and attributes, at most."""


class PubSubSink(BatchingSink):
    """Publishes each row as a message: ``data``, with attributes and an ordering key if columns for them are named.

    Messages of an ordering key arrive in the order in which a task has them, also when a request is sent again.

    Guarantee: at-least-once: a replay publishes again.
    """

    name = "pubsub"
    options = (
        CONNECTION
        | batching_options(max_records=_MESSAGES, max_bytes="9MB", max_time="100ms")
        | Options(
            topicId=Text(REQUIRED, meaning="the topic"),
            dataColumn=Text("data", meaning="the data of a message, binary or string"),
            attributesColumn=Text(None, meaning="its attributes, a map of strings"),
            orderingKeyColumn=Text(None, meaning="its ordering key, a string; null: none"),
        )
    )
    conditions = "a topic cannot be asked what was published by a batch"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        yield from check_connection(values)
        if (count := values["batch.maxRecords"]) > _MESSAGES:
            yield Problem("batch.maxRecords", f"must be {_MESSAGES} or less, as the service has it; got {count}.")

    def target(self) -> str:
        return f"{self.values['endpoint'] or ''}/{self.values['projectId']}/{self.values['topicId']}"

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        for option, kinds in _COLUMNS.items():
            column = self.values[option]
            if column is None:
                continue
            if column not in schema.names:
                yield Problem(option, f'names the column "{column}", which the rows do not have: {", ".join(schema.names)}.')
            elif not any(is_kind(schema.field(column).type) for is_kind in kinds):
                yield Problem(option, f'names the column "{column}", which is {schema.field(column).type}.')

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> PublishWriter:
        self.refuse_frame(schema, placed=False)
        return PublishWriter(self, batch)


_TEXT: Final = (types.is_string, types.is_large_string)
_COLUMNS: Final = {
    "dataColumn": (*_TEXT, types.is_binary, types.is_large_binary),
    "attributesColumn": (types.is_map,),
    "orderingKeyColumn": _TEXT,
}


class PublishWriter(BatchingWriter):
    """Publishes the rows of one task. An entry is a message of the protocol."""

    def __init__(self, sink: PubSubSink, batch: Batch) -> None:
        values = self._values = sink.values
        self._topic = f"projects/{values['projectId']}/topics/{values['topicId']}"
        self._client = PubSubClient("connectors.pubsub", values, "publisher")
        types_of = self._client.types
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
        request = self._client.types.PublishRequest(self._request(topic=self._topic, messages=entries))
        with self._client.errors(self._topic):
            self._client.client.publish(request=request, timeout=self._values["request.timeout"], retry=None)
        yield from ()

    def close(self) -> None:
        super().close()
        self._client.close()
