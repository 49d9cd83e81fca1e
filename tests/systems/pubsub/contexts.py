"""Pub/Sub on this machine, as the suites see it."""

from __future__ import annotations

import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pyarrow as pa
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from connectors.core import Guarantee
from connectors.systems.pubsub import PubSubSink, PubSubSource
from connectors.systems.pubsub.source import SCHEMA
from connectors.testing import SinkContext, SourceContext
from connectors.testing.servers import PubSubServer
from tests.servers import required

PROJECT = "connectors"


class Topic:
    """A topic with a subscription, both new."""

    def __init__(self, server: PubSubServer, **subscription: Any) -> None:
        self.server = server
        self.channel = grpc.insecure_channel(server.endpoint)
        self.publisher: Any = PublisherClient(transport=PublisherGrpcTransport(channel=self.channel))
        self.subscriber: Any = SubscriberClient(transport=SubscriberGrpcTransport(channel=self.channel))
        self.id = f"t-{uuid.uuid4().hex[:12]}"
        self.topic, self.subscription = f"projects/{PROJECT}/topics/{self.id}", f"projects/{PROJECT}/subscriptions/{self.id}"
        self.publisher.create_topic(name=self.topic)
        request = {"name": self.subscription, "topic": self.topic, "ack_deadline_seconds": 10, **subscription}
        self.subscriber.create_subscription(request=request)

    def options(self) -> dict[str, str]:
        return {"projectId": PROJECT, "endpoint": self.server.endpoint}

    def publish(self, messages: list[dict[str, Any]]) -> list[str]:
        """The ids of the messages that were published."""
        ids: list[str] = []
        for start in range(0, len(messages), 1000):
            ids += self.publisher.publish(topic=self.topic, messages=messages[start : start + 1000]).message_ids
        return ids

    def pull(self, seconds: float = 1.0) -> list[Any]:
        """All messages that can be had, acknowledged."""
        messages: list[Any] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            request = {"subscription": self.subscription, "max_messages": 1000, "return_immediately": True}
            if received := self.subscriber.pull(request=request).received_messages:
                ids = [message.ack_id for message in received]
                self.subscriber.acknowledge(subscription=self.subscription, ack_ids=ids)
                messages += [message.message for message in received]
                end = time.monotonic() + seconds
        return messages

    def close(self) -> None:
        self.channel.close()


class SubscriptionContext(SourceContext):
    """A subscription of its own on the shared server."""

    source = PubSubSource
    short_lease: ClassVar = {"ackDeadline": "10s"}
    schema = SCHEMA.remove(SCHEMA.get_field_index("publishTime"))  # the service sets it
    unordered = "messages without a key have no order"
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.topic = Topic(required(PubSubServer), **self.settings)
        self.count = 0

    def options(self) -> dict[str, str]:
        return {
            **self.topic.options(),
            "subscriptionId": self.topic.id,
            "stateLocation": str(self.folder / "log"),
            "pollInterval": "100ms",
            "drainTimeout": "200ms",
        }

    def message(self, number: int) -> dict[str, Any]:
        return {"data": b"%d" % number, "attributes": {"kind": "even" if number % 2 == 0 else "odd"}}

    def write(self, count: int) -> list[dict[str, Any]]:
        numbers = range(self.count, self.count + count)
        self.count += count
        messages = [self.message(number) for number in numbers]
        ids = self.topic.publish(messages)
        return [self.row(id, message) for id, message in zip(ids, messages, strict=True)]

    def row(self, id: str, message: dict[str, Any]) -> dict[str, Any]:
        attributes, key = list(message["attributes"].items()), message.get("ordering_key")
        return {"data": message["data"], "attributes": attributes, "messageId": id, "orderingKey": key}

    def settle(self) -> None:
        time.sleep(11)  # the shortest deadline

    def close(self) -> None:
        self.topic.close()


class TopicContext(SinkContext):
    """A topic whose messages are pulled and kept."""

    sink = PubSubSink
    guarantee = Guarantee.AT_LEAST_ONCE
    schema = pa.schema([("data", pa.string())])
    select = ("concat('row ', value) AS data",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(PubSubServer)
        self.messages: list[str] = []

    @cached_property
    def topic(self) -> Topic:
        return Topic(self.server)

    def options(self) -> dict[str, str]:
        return {**self.topic.options(), "topicId": self.topic.id, "retry.initialBackoff": "10ms"}

    def row(self, number: int) -> dict[str, Any]:
        return {"data": f"row {number}"}

    def rows(self) -> list[dict[str, Any]]:
        self.messages += [message.data.decode() for message in self.topic.pull(0.3)]
        return [{"data": data} for data in self.messages]

    def close(self) -> None:
        self.topic.close()
