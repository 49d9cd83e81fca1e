"""Reads shards by enhanced fan-out: the service pushes records to a registered consumer, 2 MB/s a shard to each.

A subscription lives for five minutes, and stays with the process between epochs. A later one of the same consumer takes over.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...batching import Throttled
from ...core import Fatal, Transient, Values
from ...ground import machine
from .cursor import CONNECTOR, KinesisClient, KinesisCursor, Position, Shard, place

_log = logging.getLogger(CONNECTOR)
_EVENTS: Final = 8
"""Events that wait for the task: the back-pressure of a subscription."""
_WAIT_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = 1.0
"""Another subscription may be five seconds old, and is not replaced before."""
_ACTIVE_SECONDS: Final = 60.0
_RECEIVED: Final = "received"
_IDLE_SECONDS: Final = 5.0
"""A subscription that no task has asked for so long ends: another process may want the shard."""


class Subscription:
    """The events of one shard behind a position, received by a thread of its own."""

    def __init__(self, client: KinesisClient, consumer: str, shard: str, position: Position) -> None:
        answer = client.call("subscribe_to_shard", ConsumerARN=consumer, ShardId=shard, StartingPosition=place(position))
        self._stream = answer["EventStream"]
        self._client, self._name = client, f"the subscription of {shard}"
        self._events: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue(_EVENTS)
        self._is_closed = machine.event()
        self._used_at = machine.monotonic()
        machine.thread(self._receive, "kinesis subscription").start()

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next event. Raises ``queue.Empty`` when none comes in time, ``None`` is the end, and what ended it an error."""
        self._used_at = machine.monotonic()
        event = self._events.get(timeout=seconds)
        if isinstance(event, BaseException):
            raise event
        return event

    def close(self) -> None:
        self._is_closed.set()
        with contextlib.suppress(Exception):
            self._stream.close()

    def _receive(self) -> None:
        try:
            with self._client.errors(self._name):
                for event in self._stream:
                    if not self._put({**event["SubscribeToShardEvent"], _RECEIVED: machine.monotonic()}):
                        self._stream.close()
                        return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, event: dict[str, Any] | BaseException | None) -> bool:
        """Hands an event on; false if nobody wants it."""
        while not self._is_closed.is_set():
            if machine.monotonic() - self._used_at > _IDLE_SECONDS:
                self._is_closed.set()
                return False
            with contextlib.suppress(queue.Full):
                self._events.put(event, timeout=1.0)
                return True
        return False

    @property
    def is_closed(self) -> bool:
        return self._is_closed.is_set()


class FanOutCursor(KinesisCursor):
    """Takes what is pushed. What is left of a closed shard, and what is read again, is polled."""

    def __init__(self, values: Values, columns: Sequence[str]) -> None:
        super().__init__(values, columns)
        self._consumer = ""
        self._opened_at = 0.0

    def open(self) -> None:
        super().open()
        self._opened_at = machine.monotonic()
        self._consumer = consumer_arn(self.client, self._values["consumerName"])

    def fetch(self, partition: str, shard: Shard, rows: int, *, is_replay: bool) -> bool:
        if is_replay or shard.position.get("closed"):
            shard.close()  # or its events would come once more
            return super().fetch(partition, shard, rows, is_replay=is_replay)
        shard.iterator = None  # which would stay behind
        if shard.subscription is not None and shard.subscription.is_closed:
            shard.close()
            shard.lag = None
        if shard.subscription is None and not self._subscribe(partition, shard):
            return False
        try:
            event = shard.subscription.next(_WAIT_SECONDS)
        except queue.Empty:
            return False
        except (Transient, Fatal) as error:
            self._check_in_use(error)
            event = None
        if event is None:  # after five minutes, or because another one took over
            shard.close()
            shard.lag = None
            shard.due = machine.monotonic() + _RETRY_SECONDS
            return False
        records, last = self.unpack(partition, event["Records"])
        shard.lag = event["MillisBehindLatest"] / 1000
        shard.is_closed = event.get("ContinuationSequenceNumber") is None
        shard.add(records, last)
        return bool(event[_RECEIVED] > self._opened_at)  # an older one does not say what there is now

    def _subscribe(self, partition: str, shard: Shard) -> bool:
        """False where the service wants more time between two subscriptions."""
        if machine.monotonic() < shard.due:
            machine.sleep(_WAIT_SECONDS)
            return False
        if self.iterator(partition, shard) is None:  # which also says whether the position is still there
            shard.is_closed, shard.lag = True, 0.0
            return False
        try:
            shard.subscription = Subscription(self.client, self._consumer, partition, shard.position)
        except (Throttled, Fatal) as refused:
            self._check_in_use(refused)
            _log.info("connectors.kinesis: %s; the next try is in %g s", refused, _RETRY_SECONDS)
            shard.due = machine.monotonic() + _RETRY_SECONDS
            return False
        return True

    def _check_in_use(self, error: Transient | Fatal) -> None:
        """Raises ``error`` if it ends the query: no outage, and no subscription that must end first."""
        if "ResourceNotFound" in str(error) and (gone := self.client.consumer) is not None:  # an earlier run had registered it
            self.client.consumer = None
            self._consumer = consumer_arn(self.client, self._values["consumerName"])
            if self._consumer != gone:
                return
        if isinstance(error, Fatal) and "ResourceInUse" not in str(error):
            raise error


def consumer_arn(client: KinesisClient, name: str) -> str:
    """The consumer of that name, looked up once for each client. Raises ``Fatal`` if there is none."""
    if client.consumer is None:
        stream = client.summary()["StreamARN"]
        description = client.call("describe_stream_consumer", StreamARN=stream, ConsumerName=name)["ConsumerDescription"]
        client.consumer = str(description["ConsumerARN"])
    return client.consumer


def register_consumer(client: KinesisClient, name: str) -> bool:
    """Registers the consumer if there is none, and waits until it can subscribe. True if it was registered now."""
    consumer = {"StreamARN": client.summary()["StreamARN"], "ConsumerName": name}
    end, is_new = machine.monotonic() + _ACTIVE_SECONDS, False
    while (status := _status(client, consumer)) != "ACTIVE":
        if status is None:  # never registered, or that of an earlier run has just gone
            try:
                client.call("register_stream_consumer", **consumer)
                is_new = True
            except Fatal as refused:
                if "ResourceInUse" not in str(refused):
                    raise
        if machine.monotonic() > end:
            raise Transient(f"the consumer {name} of {client.name} is {status}, and not active")
        machine.sleep(_WAIT_SECONDS)
    return is_new


def _status(client: KinesisClient, consumer: Mapping[str, str]) -> str | None:
    """The state of a consumer; ``None`` if there is none."""
    try:
        return str(client.call("describe_stream_consumer", **consumer)["ConsumerDescription"]["ConsumerStatus"])
    except Fatal as refused:
        if "ResourceNotFound" not in str(refused):
            raise
        return None


def deregister_consumer(client: KinesisClient, name: str) -> None:
    """Removes the consumer, with its subscriptions."""
    client.call("deregister_stream_consumer", StreamARN=client.summary()["StreamARN"], ConsumerName=name)
