"""Transactions: what is committed is read, once; what is open is waited for, without holding up a batch."""

from __future__ import annotations

import contextlib

import pytest

from connectors.systems.kafka import reader
from connectors.systems.kafka.positions import OffsetRange

from .reading import Query
from .source_contexts import SCHEMA, Topic


def test_a_batch_ends_before_a_transaction_that_is_open() -> None:
    topic = Topic(1)
    topic.send([b"a"])
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"b"], producer=writer)
    topic.send([b"c"])
    query = Query(topic.options())
    assert query.values() == [b"a"]
    assert query.at(topic.name) == {"0": 1}
    writer.commit_transaction(30)
    while not (values := query.values()):  # the broker ends a transaction a moment after it has said so
        pass
    assert values == [b"b", b"c"]


def test_an_aborted_transaction_is_not_read_and_not_waited_for() -> None:
    topic = Topic(1)
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"a"], producer=writer)
    writer.abort_transaction(30)
    while topic.end() < 2:
        pass
    query = Query(topic.options())
    assert query.values() == []
    assert query.at(topic.name) == {"0": 2}, "the record and the marker of its abort"


def test_what_was_aborted_is_read_only_by_who_asks_for_it() -> None:
    topic = Topic(1)
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"a"], producer=writer)
    writer.abort_transaction(30)
    assert Query(topic.options(**{"kafka.isolation.level": "read_uncommitted"})).values() == [b"a"]


@pytest.mark.parametrize("followed", [False, True])
def test_a_range_that_ends_inside_an_aborted_run_ends(followed: bool) -> None:
    topic = Topic(1)
    topic.send([b"a"])
    writer = topic.transactional()
    writer.begin_transaction()
    topic.send([b"x"] * 20, producer=writer)
    writer.abort_transaction(30)
    if followed:
        topic.send([b"b"])
    reader = Query(topic.options()).source.reader(SCHEMA)
    with contextlib.closing(reader):
        reader.open()
        for first, end, expected in ((0, 10, [b"a"]), (5, 10, []), (10, 21, [])):
            batches = reader.read(OffsetRange(topic.name, 0, first, end))
            assert [value for batch in batches for value in batch.column("value").to_pylist()] == expected


def test_a_consumer_is_kept_for_the_next_task() -> None:
    topic = Topic(1)
    topic.send([b"a"])
    reader.CONSUMERS.close_all()
    query = Query(topic.options())
    query.values()
    (consumer,) = reader.CONSUMERS.clients()
    topic.send([b"b"])
    assert query.values() == [b"b"]
    assert reader.CONSUMERS.clients() == [consumer]
