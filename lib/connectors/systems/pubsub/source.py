"""The messages of a subscription, by pull and the epoch log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from ...core import REQUIRED, Duration, Options, Problem, RecordEmitter, Text, Values
from ...core.datasets import Dataset
from ...core.epoch_reader import EpochReader
from ...core.epoch_source import STOP_OPTIONS, EpochSource
from ...core.epochs import Messages, Receiver
from ...formats import check_format, format_options, value_type
from ...formats.emitter import FormatEmitter
from ...ground import machine
from ...ground.errors import Fatal
from .connection import CONNECTION, PubSubClient, check_connection

_PULL: Final = 1_000
"""Messages of an answer: the service gives no more."""
_IDS: Final = 1_000
"""Ids of a request, which may have 512 KiB."""
_SECONDS: Final = 30.0
_LONG_SECONDS: Final = 0.8
"""Waits that are worth a call that waits."""
_POLL_SECONDS: Final = 0.05
_POSITION: Final = ("messageId",)
SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary()),
        pa.field("attributes", pa.map_(pa.string(), pa.string())),
        pa.field("messageId", pa.string()),
        pa.field("publishTime", pa.timestamp("us", "UTC")),
        pa.field("orderingKey", pa.string()),
    ]
)


class PubSubSource(EpochSource):
    """The messages of a subscription.

    Columns: ``data`` (binary, or what ``value.format`` gives), ``attributes, messageId, publishTime, orderingKey``.

    A message is acknowledged when Spark has committed its batch. Messages of an ordering key come in their order where the
    subscription has ordering on; a filter is the subscription's. ``orderingKey`` is null where a message has none.

    A message that is too late for an ``availableNow`` query is delivered to it once, and given back at its end: a dead-letter
    policy counts that as one attempt. After the death of a task or driver the query goes on for ``ackDeadline`` at least.

    Guarantee: exactly-once by message id: what the service delivers again within ``deduplicationWindow`` is left out.
    """

    name = "pubsub"
    conditions = "by message id; the service delivers no message again later than deduplicationWindow after its acknowledgement"
    options = (
        CONNECTION
        | STOP_OPTIONS
        | format_options("bytes")
        | Options(
            subscriptionId=Text(REQUIRED, meaning="the subscription, of this query alone"),
            ackDeadline=Duration(
                60.0, at_least="10s", at_most="10 minutes", meaning="how long a message is the query's own; 10s to 10 minutes"
            ),
        )
    )

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        self.schema = (
            f"data {value_type(values)}, attributes map<string, string>, messageId string, publishTime timestamp, "
            "orderingKey string"
        )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_connection(values)
        yield from check_format(values)

    def datasets(self) -> Sequence[Dataset]:
        return [Dataset("pubsub", f"subscription:{self.values['projectId']}:{self.values['subscriptionId']}")]

    def begin(self) -> None:
        receiver = self.receiver(None)
        receiver.open()
        with contextlib.closing(receiver):
            receiver.check_subscription()

    def receiver(self, schema: pa.Schema | None) -> PubSubReceiver:
        return PubSubReceiver(self.values)

    def reader(self, schema: pa.Schema) -> EpochReader:
        if self.values["value.format"] == "bytes":
            return super().reader(schema)
        return EpochReader(self, pa.schema([field for field in SCHEMA if field.name in {*schema.names, "data", *_POSITION}]))

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        if self.values["value.format"] == "bytes":
            return None
        return FormatEmitter("connectors.pubsub", self.values, schema, _POSITION, value="data")


class PubSubReceiver(Receiver):
    """Pulls messages. The lease of a message is its acknowledgement id."""

    lease_option = "ackDeadline"

    def __init__(self, values: Values) -> None:
        self.lease_seconds = values["ackDeadline"]
        self._values = values
        self._name = f"projects/{values['projectId']}/subscriptions/{values['subscriptionId']}"

    def open(self) -> None:
        self._client = PubSubClient("connectors.pubsub", self._values, "subscriber")

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()

    def check_subscription(self) -> None:
        """Raises ``Fatal`` where the subscription does not exist. Who may only receive may not look, and receives."""
        try:
            with self._client.errors(self._name):
                self._call("get_subscription", subscription=self._name)
        except Fatal as refused:
            if "does not exist" in str(refused):
                raise

    def receive(self, rows: int, seconds: float) -> Messages | None:
        end = machine.monotonic() + seconds
        while not (answer := self._pull(min(rows, _PULL), left := end - machine.monotonic())):
            if left <= 0:  # that call did not wait, so the service has answered it
                return None
            machine.sleep(min(_POLL_SECONDS, max(0.0, end - machine.monotonic())))
        leases = [received.ack_id for received in answer]
        self.extend(leases)
        return _messages([received.message for received in answer], leases)

    def acknowledge(self, leases: Sequence[str]) -> None:
        self._settle("acknowledge", leases)

    def release(self, leases: Sequence[str]) -> None:
        self._settle("modify_ack_deadline", leases, ack_deadline_seconds=0)

    def extend(self, leases: Sequence[str]) -> None:
        self._settle("modify_ack_deadline", leases, ack_deadline_seconds=int(self.lease_seconds or 0))

    def _settle(self, method: str, leases: Sequence[str], **request: Any) -> None:
        """Calls ``method`` with the ids of ``leases``.

        A subscription with exactly-once delivery refuses ids of leases that have ended. It delivers those messages again.
        """
        for ids in _chunks(leases):
            with self._client.errors(self._name):
                try:
                    self._call(method, subscription=self._name, ack_ids=ids, **request)
                except Exception as error:
                    if not self._client.is_expired(error):
                        raise

    def _pull(self, rows: int, seconds: float) -> Sequence[Any]:
        """Messages, if there are some within ``seconds``.

        What the service sends as the call ends is lost until its lease ends, so a short wait is several calls that do not wait.
        """
        client, is_short = self._client, seconds < _LONG_SECONDS
        request = {"subscription": self._name, "max_messages": rows, "return_immediately": is_short}
        with client.errors(self._name):
            try:
                answer = client.client.pull(request=request, timeout=_SECONDS if is_short else seconds, retry=None)
            except Exception as error:
                if client.has_ended(error) and not is_short:
                    return ()
                raise
        return type(answer).pb(answer).received_messages  # type: ignore[no-any-return]

    def _call(self, method: str, **request: Any) -> Any:
        return getattr(self._client.client, method)(request=request, timeout=_SECONDS, retry=None)


def _messages(messages: Sequence[Any], leases: Sequence[str]) -> Messages:
    """Messages of the protocol as rows."""
    offsets, keys, values = [0], [], []
    for message in messages:
        for key, value in message.attributes.items():
            keys.append(key)
            values.append(value)
        offsets.append(len(keys))
    ids = pa.array([message.message_id for message in messages], pa.string())
    seconds = [(message.publish_time.seconds, message.publish_time.nanos) for message in messages]
    columns = [
        pa.array([message.data for message in messages], pa.binary()),
        pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())),
        ids,
        pa.array([whole * 1_000_000 + nanos // 1000 for whole, nanos in seconds], pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.array([message.ordering_key or None for message in messages], pa.string()),
    ]
    published = pa.array([whole + nanos / 1e9 for whole, nanos in seconds], pa.float64())
    text = pa.large_string()
    return Messages(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), pa.array(leases, text), ids.cast(text), published)


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _IDS):
        yield ids[start : start + _IDS]
