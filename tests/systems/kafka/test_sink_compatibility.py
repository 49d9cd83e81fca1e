"""Ledgers as the first version has left them in Kafka, byte by byte: offsets, records, and a batch that is half written."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from connectors.core import CommitRefused
from connectors.core.commit import Commit
from connectors.systems.kafka.ledger import LedgerState

from .sink_target import TEXT, Target, rows
from .slot_contexts import of_slot
from .test_slots import Slotted, keyed, records, values

LEDGER = "_connectors_ledger"


class FirstVersion:
    """Writes what the first version wrote under the prefix of ``target``; with ``expired`` offsets, only records are left."""

    def __init__(self, target: Target, *, expired: bool) -> None:
        self.target, self.expired = target, expired
        self.connection: dict[str, Any] = {"bootstrap.servers": target.server.bootstrap}
        admin = AdminClient(self.connection)
        topic = NewTopic(LEDGER, 32, config={"cleanup.policy": "compact"})
        if LEDGER not in admin.list_topics(timeout=30).topics:
            admin.create_topics([topic])[LEDGER].result(30)

    def transaction(self, slot: int, place: int, version: int, text: str, sent: Sequence[dict[str, str]] = ()) -> None:
        assert LedgerState.of(text).text() == text, "an earlier version reads what this one writes, too"
        name = f"{self.target.topic}-{slot}"
        producer: Any = Producer({**self.connection, "transactional.id": name, "partitioner": "murmur2_random"})
        group: Any = Consumer({**self.connection, "group.id": f"{self.target.topic}-0-ledger"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for row in sent:
            producer.produce(self.target.topic, row["value"], row["key"])
        producer.produce(LEDGER, text, f"{name}/{place}", partition=zlib.crc32(name.encode()) % 4)
        if not self.expired:
            token = [TopicPartition(LEDGER, place, version, text)]
            producer.send_offsets_to_transaction(token, group.consumer_group_metadata(), 30)
        producer.commit_transaction(30)
        group.close()


@pytest.fixture(params=[False, True], ids=["offsets and records", "records alone"])
def expired(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_a_ledger_of_the_first_version_goes_on_where_it_is(target: Target, expired: bool) -> None:
    text = '{"n":2,"q":{"query":[1,2,"00ff",1763000001.25]},"v":1}'
    FirstVersion(target, expired=expired).transaction(0, 0, 2, text, rows(1, 2))
    last = Commit(target.sink()).last("query")
    assert last is not None
    assert (last.batch, last.rows, last.checksum) == (1, 2, "00ff")
    target.write(rows(1, 2), TEXT, number=1)
    target.write([], TEXT, number=2)
    target.write(rows(3), TEXT, number=3)
    assert target.values() == ["v1", "v2", "v3"]
    with pytest.raises(CommitRefused, match="older than batch 3"):
        target.write(rows(1), TEXT, number=1)


def test_a_batch_that_the_first_version_left_half_written_in_slots_is_finished(tmp_path: Path, expired: bool) -> None:
    """Of three slots one is written; the run that goes on is set to two."""
    target = Slotted(tmp_path)
    first_version, rest = FirstVersion(target, expired=expired), keyed(*range(20, 40))
    first = '{"l":["query",3,"0a1b2c3d"],"n":2,"q":{"query":[0,20,null,1763000000.5]},"v":1}'
    first_version.transaction(0, 0, 2, first, keyed(*range(20)))
    sent = of_slot(records(*range(20, 40)), 1, 3).to_pylist()
    slot = f'{{"l":["query",3,"0a1b2c3d"],"n":1,"q":{{"query":[1,{len(sent)},null,1763000001.5]}},"v":1}}'
    first_version.transaction(2, 3, 1, slot, sent)
    target.write(rest, TEXT, number=1, slots=2)
    target.write(keyed(*range(40, 60)), TEXT, number=2, slots=2)
    assert target.values() == values(*range(60))
