"""The calls of source and sink to a service that answers as the real one does, and the emulator does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from google.api_core import exceptions

from connectors.core import Batch, Misconfigured, Poison, Transient
from connectors.systems.pubsub import PubSubSink, PubSubSource
from connectors.systems.pubsub.sink import PublishWriter

OPTIONS = {"projectId": "p", "endpoint": "127.0.0.1:1"}


class Topic:
    """Takes calls of one ordering key; ``refusal`` of its messages is an error, or ``None``."""

    def __init__(self, refusal: Callable[[list[str]], Exception | None] = lambda messages: None) -> None:
        self.refusal = refusal
        self.calls: list[list[str]] = []

    def publish(self, request: Any, timeout: float, retry: Any) -> None:
        if len({message.ordering_key for message in request.messages}) > 1:
            raise exceptions.InvalidArgument(
                "In a single publish request, all messages must have the same ordering key"
            )
        messages = [message.data.decode() for message in request.messages]
        if error := self.refusal(messages):
            raise error
        self.calls.append(messages)


def writer(topic: Topic) -> PublishWriter:
    sink = PubSubSink.of({**OPTIONS, "topicId": "t", "orderingKeyColumn": "key"})
    writer = sink.writer(Batch(sink.sink_id(), "q", 0), pa.schema([("data", pa.string()), ("key", pa.string())]), 0)
    writer.client.client = topic
    return writer


def send(topic: Topic, data: str, keys: list[str | None]) -> list[tuple[int, BaseException]]:
    writes = writer(topic)
    try:
        return list(writes.send(list(writes.entries(pa.RecordBatch.from_pydict({"data": list(data), "key": keys})))))
    finally:
        writes.close()


def test_a_call_has_messages_of_one_ordering_key() -> None:
    topic = Topic()
    assert send(topic, "abcdef", ["x", "y", None, "x", None, "z"]) == []
    assert topic.calls == [["a", "d"], ["b"], ["c", "e"], ["f"]]


def test_only_the_messages_of_a_key_whose_call_failed_are_sent_again() -> None:
    topic = Topic(lambda messages: exceptions.ServiceUnavailable("away") if "b" in messages else None)
    failures = send(topic, "abcd", ["x", "y", "x", "y"])
    assert [place for place, _ in failures] == [1, 3]
    assert all(isinstance(error, Transient) for _, error in failures)
    assert topic.calls == [["a", "c"]]


def test_a_message_that_the_service_refuses_is_bad_and_the_others_of_its_key_arrive_in_their_order() -> None:
    topic = Topic(lambda messages: exceptions.InvalidArgument("too large") if "c" in messages else None)
    ((place, error),) = send(topic, "abcde", ["x"] * 5)
    assert (place, type(error)) == (2, Poison)
    assert [message for call in topic.calls for message in call] == list("abde")


def test_no_message_overtakes_one_of_its_key_that_meets_an_outage() -> None:
    def refusal(messages: list[str]) -> Exception | None:
        if len(messages) > 2:
            return exceptions.InvalidArgument("too large")
        return exceptions.ServiceUnavailable("away") if "b" in messages else None

    topic = Topic(refusal)
    assert [place for place, _ in send(topic, "abcd", ["x"] * 4)] == [0, 1, 2, 3]
    assert topic.calls == []


def test_a_map_of_numbers_is_no_column_of_attributes() -> None:
    sink = PubSubSink.of({**OPTIONS, "topicId": "t", "attributesColumn": "a"})
    schema = pa.schema([("data", pa.string()), ("a", pa.map_(pa.string(), pa.int32()))])
    with pytest.raises(Misconfigured, match="attributesColumn"):
        sink.refuse_frame(schema, placed=False)


class Subscription:
    """Answers nothing to a call that waits, and ``answer`` to one that does not."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def pull(self, request: dict[str, Any], timeout: float, retry: Any) -> Any:
        if request["return_immediately"]:
            return self.answer()
        raise exceptions.DeadlineExceeded("deadline")


def receive(answer: Callable[[Any], Any], seconds: float) -> Any:
    receiver = PubSubSource.of({**OPTIONS, "subscriptionId": "s", "stateLocation": "/unused"}).receiver(None)
    receiver.open()
    receiver._client.client = Subscription(lambda: answer(receiver._client.types))
    try:
        return receiver.receive(10, seconds)
    finally:
        receiver.close()


@pytest.mark.parametrize("seconds", [0.0, 0.9])
def test_a_subscription_is_empty_when_the_service_says_so(seconds: float) -> None:
    assert receive(lambda types: types.PullResponse(), seconds) is None


@pytest.mark.parametrize("seconds", [0.0, 0.9])
def test_a_service_that_does_not_answer_is_an_outage(seconds: float) -> None:
    def hang(types: Any) -> Any:
        raise exceptions.DeadlineExceeded("deadline")

    with pytest.raises(Transient, match="does not answer"):
        receive(hang, seconds)
