"""What the sink publishes, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from connectors.core import Batch, Fatal, Guarantee, Misconfigured, Poison
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.systems.pubsub import PubSubSink

from .contexts import TopicContext

pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:The return_immediately flag:DeprecationWarning")]


@pytest.fixture
def target(tmp_path: Path) -> Iterator[TopicContext]:
    target = TopicContext(tmp_path)
    yield target
    target.close()


def write(target: TopicContext, rows: pa.RecordBatch, **options: str) -> None:
    sink = PubSubSink.of({**target.options(), **options})
    batch = Batch(sink.sink_id(), "q", 0)
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter([rows]))])


def test_rows_become_messages_with_attributes(target: TopicContext) -> None:
    kind = pa.map_(pa.string(), pa.string())
    schema = pa.schema([("body", pa.binary()), ("labels", kind)])
    rows = [{"body": b"\xff", "labels": [("a", "1"), ("b", None)]}, {"body": b"2", "labels": None}]
    write(target, pa.RecordBatch.from_pylist(rows, schema), dataColumn="body", attributesColumn="labels")
    messages = sorted((message.data, dict(message.attributes)) for message in target.topic.pull())
    assert messages == [(b"2", {}), (b"\xff", {"a": "1"})]


def test_many_rows_are_several_requests(target: TopicContext) -> None:
    write(target, pa.RecordBatch.from_pydict({"data": [f"{number}" for number in range(2500)]}))
    assert sorted(int(message.data) for message in target.topic.pull()) == list(range(2500))


def test_messages_of_a_key_arrive_in_their_order(target: TopicContext) -> None:
    target.topic.subscriber.delete_subscription(subscription=target.topic.subscription)
    request = {"name": target.topic.subscription, "topic": target.topic.topic, "enable_message_ordering": True}
    target.topic.subscriber.create_subscription(request=request)
    rows = {"data": [f"{number}" for number in range(60)], "key": [f"key-{number % 3}" for number in range(60)]}
    write(target, pa.RecordBatch.from_pydict(rows), orderingKeyColumn="key", **{"batch.maxRecords": "7"})
    messages = target.topic.pull()
    for key in range(3):
        assert [int(message.data) for message in messages if message.ordering_key == f"key-{key}"] == list(range(key, 60, 3))


def test_a_row_without_data_is_a_bad_row(target: TopicContext) -> None:
    with pytest.raises(Poison, match="needs data or an attribute"):
        write(target, pa.RecordBatch.from_pydict({"data": pa.array([None], pa.string())}))


def test_a_row_that_is_too_large_is_a_bad_row(target: TopicContext) -> None:
    with pytest.raises(Poison, match="more than the"):
        write(target, pa.RecordBatch.from_pydict({"data": ["x" * 11_000_000]}))


def test_a_topic_that_does_not_exist_is_named(target: TopicContext) -> None:
    with pytest.raises(Fatal, match="projects/connectors/topics/nobody does not exist"):
        write(target, pa.RecordBatch.from_pydict({"data": ["x"]}), topicId="nobody")


def test_it_is_at_least_once(target: TopicContext) -> None:
    assert PubSubSink.of(target.options()).guarantee() is Guarantee.AT_LEAST_ONCE
    with pytest.raises(Misconfigured, match="guarantee"):
        PubSubSink.of({**target.options(), "guarantee": "exactly-once"})


def test_wrong_columns_and_options_are_named(target: TopicContext) -> None:
    with pytest.raises(Misconfigured, match=r'dataColumn +names the column "body", which the rows do not have: data'):
        write(target, pa.RecordBatch.from_pydict({"data": ["x"]}), dataColumn="body")
    with pytest.raises(Misconfigured, match=r"batch\.maxRecords +must be 1000 or less"):
        PubSubSink.of({**target.options(), "batch.maxRecords": "2000"})
