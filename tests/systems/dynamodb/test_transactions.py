"""Exactly-once into DynamoDB: what a transaction writes, and what becomes of batches that are interrupted in the middle."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from connectors.core import Batch, Committable, Entry, Fatal, Misconfigured, Poison, Transient
from connectors.core.commit import Commit
from connectors.core.writing import stage
from connectors.ground.state import dumps
from connectors.systems.dynamodb import DynamoDbSink
from connectors.systems.dynamodb.writes import Write
from connectors.testing.contexts import open_context
from connectors.testing.servers.fault_proxy import Reply, Seen

from .contexts import ACCOUNT, TransactionsContext, plain

pytestmark = pytest.mark.server
Rule = Callable[[Seen, Callable[..., Reply]], "Reply | None"]


class Target(TransactionsContext):
    """The proxy refuses what ``fault`` refuses: a function of the number of a transaction."""

    extra: ClassVar = {"guarantee": "exactly-once", "retry.maxRetries": "2", "outageTimeout": "0s"}
    fault: Callable[[int, Callable[[], Reply]], Reply | None] | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.transactions: list[int] = []
        """The rows of each transaction that has come."""

    def _answer(self, request: Seen, forward: Callable[..., Reply]) -> Any:
        answer = super()._answer
        if not request.headers["X-Amz-Target"].endswith("TransactWriteItems"):
            return answer(request, forward)
        self.transactions.append(len(json.loads(request.body)["TransactItems"]) - 1)
        if self.fault is None:
            return answer(request, forward)
        return self.fault(len(self.transactions), lambda: answer(request, forward))

    def sink(self, **options: str) -> Any:  # type: ignore[override]
        return DynamoDbSink.of({**self.options(), **options})

    def write(self, rows: pa.Table, number: int = 0, **options: str) -> None:
        """Writes a batch as two tasks stage it, or as many as it has pieces."""
        sink = self.sink(**options)
        batch = Batch(sink.sink_id(), "q", number)
        commit = Commit(sink)
        commit.begin(batch)
        half = (rows.num_rows + 1) // 2
        parts = [rows.slice(0, half), rows.slice(half)]
        staged = [
            stage(sink, batch, rows.schema, task, iter(part.to_batches(max_chunksize=70))) for task, part in enumerate(parts)
        ]
        commit.finish(batch, staged)

    def content(self) -> dict[Any, Any]:
        items = [{name: plain(value) for name, value in item.items()} for item in self.items()]
        return {item["id"]: item for item in items}


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    with open_context(Target, tmp_path / "target") as target:
        yield target


def numbered(count: int) -> pa.Table:
    return pa.table({"id": list(range(count)), "name": [f"n{number}" for number in range(count)]})


def check(target: Target, count: int) -> None:
    """Each row is written by one transaction."""
    assert sorted(row["id"] for row in target.written) == list(range(count))
    assert target.content().keys() == set(range(count))


def refusal(*reasons: str) -> Reply:
    body = {
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": f"Transaction cancelled [{', '.join(reasons)}]",
        "CancellationReasons": [{"Code": reason} for reason in reasons],
    }
    return Reply(400, json.dumps(body).encode(), {"Content-Type": "application/x-amz-json-1.0"})


def test_a_batch_is_written_by_transactions_of_99_rows(target: Target) -> None:
    target.write(numbered(500))
    check(target, 500)
    assert max(target.transactions) == 70, "a piece of a task's rows has 70"
    rows = numbered(300)
    sink = target.sink()
    batch = Batch(sink.sink_id(), "q", 1)
    target.transactions.clear()
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter(rows.to_batches()))])
    assert target.transactions == [99, 99, 99, 3]
    assert target.leftovers() == []


@pytest.mark.parametrize("is_written", [True, False], ids=["answer lost", "not written"])
def test_a_batch_that_is_interrupted_goes_on_behind_the_last_row_that_is_written(target: Target, is_written: bool) -> None:
    def fail(number: int, forward: Callable[[], Reply]) -> Reply | None:
        if number < 4:
            return forward()
        if number == 4 and is_written:
            forward()
        return None

    target.fault = fail
    with pytest.raises(Transient, match="AWS does not answer"):
        target.write(numbered(500))
    written = len(target.written)
    assert 0 < written < 500
    target.fault = None
    target.write(numbered(500))  # the next start: it publishes what is decided, and finds this batch committed
    check(target, 500)


def test_an_answer_that_is_lost_is_no_second_write(target: Target) -> None:
    def lose(number: int, forward: Callable[[], Reply]) -> Reply | None:
        reply = forward()
        return None if number % 3 == 1 else reply

    target.fault = lose
    target.write(numbered(400))
    check(target, 400)


@pytest.mark.parametrize("reason", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_busy_table_is_asked_again(target: Target, reason: str) -> None:
    target.fault = lambda number, forward: refusal("None", reason, "None") if number in (1, 3) else forward()
    target.write(numbered(5))
    check(target, 5)
    assert len(target.transactions) == 4


def test_a_replay_leaves_what_others_have_changed_since(target: Target) -> None:
    target.write(numbered(10))
    changed = {"id": {"N": "3"}, "name": {"S": "changed"}}
    target.client.put_item(TableName=target.table, Item=changed)
    target.client.delete_item(TableName=target.table, Key={"id": {"N": "4"}})
    target.write(numbered(10))
    assert target.content()[3]["name"] == "changed"
    assert 4 not in target.content()


def test_two_drivers_that_publish_a_batch_write_each_row_once(target: Target) -> None:
    rows, sink = numbered(600), target.sink()
    batch = Batch(sink.sink_id(), "q", 0)
    staged = [stage(sink, batch, rows.schema, 0, iter(rows.to_batches()))]
    both = threading.Barrier(2, timeout=20)

    def meet(number: int, forward: Callable[[], Reply]) -> Reply | None:
        if number <= 2:
            both.wait()
        return forward()

    commit = Commit(sink)
    target.fault = lambda number, forward: None
    with pytest.raises(Transient):
        commit.finish(batch, staged)
    assert target.written == []
    target.transactions.clear()
    target.fault = meet
    threads = [threading.Thread(target=Commit(target.sink()).recover, args=(batch,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    check(target, 600)


def test_a_driver_that_comes_late_to_a_batch_that_is_published_writes_nothing(target: Target) -> None:
    rows, sink = numbered(20), target.sink()
    batch = Batch(sink.sink_id(), "q", 0)
    staged = [stage(sink, batch, rows.schema, 0, iter(rows.to_batches()))]
    file = next(iter(target.stage.rglob("rows.arrow")))
    content = file.read_bytes()
    Commit(sink).finish(batch, staged)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)  # as if it had read the stage before
    committer = sink.committer()
    committer.publish(batch, staged)
    check(target, 20)


def test_progress_that_is_lost_stops_the_batch(target: Target) -> None:
    target.fault = lambda number, forward: None
    with pytest.raises(Transient):
        target.write(numbered(5))
    target.fault = None
    for name in target._progress():
        key = {"sink": {"S": target.sink().sink_id()}, "entry": {"S": f"rows#{name}"}}
        target.client.delete_item(TableName=target.ledger_table, Key=key)
    with pytest.raises(Fatal, match=r"does not say how much of batch 0 of query q is written"):
        target.write(numbered(5))
    assert target.written == []


def test_the_ledger_records_a_batch_once_and_none_before_it(target: Target) -> None:
    ledger = target.sink().item_ledger()
    assert [ledger.record(Entry("q", number)) for number in (5, 5, 3, 6)] == [True, False, False, True]
    assert ledger.last("q").batch == 6
    assert [entry.batch for entry in ledger.unpublished()] == [6]
    ledger.mark_published(Entry("q", 5))  # a driver that comes late
    assert [entry.batch for entry in ledger.unpublished()] == [6]
    assert ledger.record(Entry("another", 0))
    assert ledger.queries() == {"q", "another"}


def lose(target: Target, operation: str, first: int) -> None:
    """Loses the requests of ``operation``, from that of the number ``first`` on."""
    requests = itertools.count()

    def rule(request: Seen, forward: Callable[..., Reply]) -> Reply | None:
        is_lost = request.headers["X-Amz-Target"].endswith(f".{operation}") and next(requests) >= first
        return None if is_lost else forward()

    target.proxy.rule = rule


def test_a_driver_that_dies_before_a_batch_is_recorded_or_after_it_is_published_leaves_nothing_to_do(target: Target) -> None:
    ledger, entry = target.sink().item_ledger(), Entry("q", 0)
    ledger.check()  # makes the table
    lose(target, "PutItem", 1)
    with pytest.raises(Transient):
        ledger.record(entry)
    assert ledger.last("q") is None, "the mark comes before the entry"
    assert ledger.unpublished() == []
    target.proxy.rule = target._answer
    assert ledger.record(entry)
    assert [pending.batch for pending in ledger.unpublished()] == [0]
    lose(target, "DeleteItem", 0)
    with pytest.raises(Transient):
        ledger.mark_published(entry)
    assert ledger.unpublished() == []


def test_the_mark_of_a_batch_that_comes_and_goes_late_leaves_that_of_the_next_batch(target: Target) -> None:
    """Both requests were given up, and their second tries were answered."""
    late: dict[bytes, Callable[..., Reply]] = {}

    def give_up(request: Seen, forward: Callable[..., Reply]) -> Reply | None:
        if b'"pending#q"' not in request.body or request.body in late:
            return forward()
        late[request.body] = forward
        return None

    target.proxy.rule = give_up
    target.write(numbered(2))
    target.proxy.rule = target._answer
    ledger = target.sink().item_ledger()
    assert ledger.record(Entry("q", 1))
    assert len([request() for request in late.values()]) == 2
    assert [entry.batch for entry in ledger.unpublished()] == [1]


def test_a_batch_costs_the_same_beside_a_thousand_other_queries(target: Target) -> None:
    ledger, entry = target.sink().item_ledger(), Entry("q", 0)
    ledger.check()  # makes the table
    keys = [{"sink": {"S": target.sink().sink_id()}, "entry": {"S": f"query#{number}"}} for number in range(1000)]
    published = {"batchNumber": {"N": "0"}, "isPublished": {"BOOL": True}, "content": {"S": dumps(entry.state())}}
    for first in range(0, 1000, 25):
        puts = [{"PutRequest": {"Item": {**key, **published}}} for key in keys[first : first + 25]]
        target.client.batch_write_item(RequestItems={target.ledger_table: puts})
    requests, scanned = list[str](), 0

    def count(request: Seen, forward: Callable[..., Reply]) -> Reply:
        nonlocal scanned
        reply = forward()
        requests.append(request.headers["X-Amz-Target"].partition(".")[2])
        scanned += json.loads(reply.body).get("ScannedCount", 0)
        return reply

    target.proxy.rule = count
    assert ledger.record(entry)
    assert [pending.query for pending in ledger.unpublished()] == ["q"]
    ledger.mark_published(entry)
    assert requests == ["PutItem", "PutItem", "Query", "GetItem", "UpdateItem", "DeleteItem"]
    assert scanned == 1, "the mark of the batch"


def test_a_note_of_the_beginning_that_comes_late_takes_no_progress_back(target: Target) -> None:
    ledger = target.sink().item_ledger()
    ledger.begin(["a-1-x"])
    target.client.transact_write_items(TransactItems=[ledger.step("a-1-x", 0, 7)])
    ledger.begin(["a-1-x"])
    assert ledger.written("a-1-x") == 7
    assert list(ledger.attempts("a-")) == ["a-1-x"]
    ledger.forget(["a-1-x"])
    assert ledger.written("a-1-x") is None


def test_requests_that_were_given_up_change_nothing_behind_the_next_batch(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notes of the beginning and a transaction outlive their batch, and come together. They are forgotten in time."""
    late: list[Callable[..., Reply]] = []

    def give_up(request: Seen, forward: Callable[..., Reply]) -> Reply | None:
        operation, attempt = request.headers["X-Amz-Target"].partition(".")[2], re.search(rb"rows#[\w-]+", request.body)
        key = (operation, attempt and attempt.group())
        if attempt is None or not operation.startswith(("PutItem", "TransactWriteItems")) or key in seen:
            return forward()
        seen.add(key)
        late.append(forward)
        return None

    seen: set[Any] = set()
    target.proxy.rule = give_up
    target.write(numbered(6))
    assert len(late) == 4
    target.proxy.rule = target._answer
    rows = numbered(6)
    target.write(rows.set_column(1, "name", pa.array(["newer"] * 6)), 1)
    statuses = [request().status for request in late]
    assert {row["name"] for row in target.content().values()} == {"newer"}
    assert statuses == [400] * 4
    assert len(target._progress()) == 4
    monkeypatch.setattr("time.time", lambda: time.time_ns() / 1e9 + 3700)
    target.write(numbered(1), 2)
    assert len(target._progress()) == 1


def test_of_rows_with_one_key_the_last_one_is_written(target: Target) -> None:
    rows = pa.table({"id": [1, 2, 1, 1], "name": ["a", "b", "c", "d"], "gone": [False, False, False, True]})
    sink = target.sink(deleteColumn="gone")
    batch = Batch(sink.sink_id(), "q", 0)
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter(rows.to_batches()))])
    assert target.content() == {2: {"id": 2, "name": "b"}}


def test_an_older_row_never_replaces_a_newer_one(target: Target) -> None:
    def rows(name: str, *versions: int) -> pa.Table:
        return pa.table({"id": list(range(len(versions))), "name": [name] * len(versions), "version": list(versions)})

    target.write(rows("first", 5, 5, 5, 5), 0, orderColumn="version")
    target.write(rows("second", 4, 5, 6, 7), 1, orderColumn="version")
    assert [row["name"] for row in target.content().values()].count("second") == 2
    assert {id: row["version"] for id, row in target.content().items()} == {0: 5, 1: 5, 2: 6, 3: 7}
    many = pa.table({"id": [1] * 30, "name": ["x"] * 30, "version": [number * 7 % 30 for number in range(30)]})
    target.write(many, 2, orderColumn="version")
    assert target.content()[1]["version"] == 29


def test_a_version_that_cannot_be_compared_stops_the_batch_until_the_item_is_mended(target: Target) -> None:
    target.client.put_item(TableName=target.table, Item={"id": {"N": "1"}, "version": {"S": "5"}})
    rows = pa.table({"id": [0, 1], "version": [7, 7]})
    text = r'id 1 has a version \(orderColumn "version"\) of the type N, .* of the type S.*\n.*mend the table'
    with pytest.raises(Fatal, match=text):
        target.write(rows, orderColumn="version")
    target.client.delete_item(TableName=target.table, Key={"id": {"N": "1"}})
    target.write(rows, orderColumn="version")
    assert {id: row["version"] for id, row in target.content().items()} == {0: 7, 1: 7}


def test_zero_and_minus_zero_are_one_key(target: Target) -> None:
    sink, rows = target.sink(), pa.table({"id": [0.0, -0.0], "name": ["a", "b"]})
    batch = Batch(sink.sink_id(), "q", 0)
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter(rows.to_batches()))])
    assert target.content() == {0: {"id": 0, "name": "b"}}


class Indexed(Target):
    """A table with an index, whose key has a type too."""

    @property
    def table(self) -> str:  # type: ignore[override]
        name = f"indexed-{self.folder.parent.name}"[:60]
        if name not in self.client.list_tables()["TableNames"]:
            keys = [{"AttributeName": "id", "KeyType": "HASH"}]
            types = [{"AttributeName": "id", "AttributeType": "N"}, {"AttributeName": "city", "AttributeType": "S"}]
            index = {"IndexName": "by_city", "KeySchema": [{"AttributeName": "city", "KeyType": "HASH"}]}
            self.client.create_table(
                TableName=name,
                KeySchema=keys,
                AttributeDefinitions=types,
                GlobalSecondaryIndexes=[{**index, "Projection": {"ProjectionType": "ALL"}}],
                BillingMode="PAY_PER_REQUEST",
            )
        return name


def test_rows_that_the_table_would_refuse_are_bad_before_the_batch_is_decided(tmp_path: Path) -> None:
    with open_context(Indexed, tmp_path / "target") as target:
        rows = pa.table({"id": [1, 2, 3, 4, 5], "city": ["Bern", "", None, "x" * (401 << 10), "Thun"]})
        with pytest.raises(Poison, match=r'the column "city" is empty, and part of a key'):
            target.write(rows)
        target.write(rows, errors="skip")
        assert {id: row.get("city") for id, row in target.content().items()} == {1: "Bern", 3: None, 5: "Thun"}
        with pytest.raises(Poison, match=r'"city" is part of the key of the table or of an index, .* 2048 bytes at most'):
            target.write(pa.table({"id": [6], "city": ["x" * 2049]}), 1)
        number = pa.table({"id": [6, 7], "city": [1, 2]})
        with pytest.raises(Poison, match='the column "city" is of the type N, and the key of the table or of an index has S'):
            target.write(number, 1)
        text = pa.table({"id": ["8"], "city": ["x"]})
        with pytest.raises(Poison, match=r'the column "id" is of the type S, .* has N'):
            target.write(text, 1)


def test_the_bytes_of_an_item_are_those_of_the_service(target: Target) -> None:
    """Neither is a row bad that the service takes, nor is a batch decided that it refuses."""
    target.write(pa.table({"id": [1], "values": [[0.12345678901234567] * 30_000]}))
    digits = pa.table({"id": [2], "values": [[7] * 150_000]})
    with pytest.raises(Poison, match="the item has 450013 bytes, more than the 409600 that it may have"):
        target.write(digits, 1)
    assert target.content().keys() == {1}


def test_a_transaction_is_no_request_of_16_mb(target: Target) -> None:
    item = {"id": {"N": "1"}, "values": {"L": [{"BOOL": False}] * 200_000}}
    writes = [Write((f"N{number}",), {}, item, False) for number in range(20)]
    _, chosen = target.sink().committer()._chosen(writes)
    assert len(chosen) * len(json.dumps(item)) < 16 << 20


def test_a_batch_of_thousands_of_tasks_is_an_item_of_the_ledger(target: Target) -> None:
    ledger = target.sink().ledger()
    stages = [Committable(1, {"attempt": f"d755d2a9db45-e3b0c442-{uuid.uuid4().hex}", "size": at}) for at in range(10_000)]
    entry = Entry("q", 0, 10_000, committables=tuple(map(asdict, stages)), at=1.0)
    assert ledger.record(entry)
    assert ledger.last("q") == entry
    assert ledger.unpublished() == [entry]


def test_a_column_that_is_nested_deeper_than_the_service_takes_is_named_before_anything_is_sent(target: Target) -> None:
    def nested(depth: int) -> pa.Table:
        columns = {"list": ("x", pa.string()), "struct": ("x", pa.string()), "map": ("x", pa.string())}
        for _ in range(depth):
            (list_, list_kind), (struct, struct_kind), (map_, map_kind) = columns.values()
            columns = {
                "list": ([list_], pa.list_(list_kind)),
                "struct": ({"a": struct}, pa.struct([("a", struct_kind)])),
                "map": ([("a", map_)], pa.map_(pa.string(), map_kind)),
            }
        return pa.table({"id": [1], **{name: pa.array([value], kind) for name, (value, kind) in columns.items()}})

    target.write(nested(31))
    assert len(target.written) == 1
    target.proxy.rule = lambda request, forward: None
    with pytest.raises(Misconfigured) as refused:
        target.sink().refuse_frame(nested(32).schema, placed=False)
    for name in ("list", "struct", "map"):
        assert f'takes 31 levels of lists and maps, and the column "{name}" has 32' in str(refused.value)


def test_rows_that_the_table_refuses_stop_the_batch_until_the_table_is_mended(target: Target) -> None:
    target.fault = lambda number, forward: refusal("None", "None", "ValidationError", "None") if number == 1 else forward()
    rows = numbered(6)
    with pytest.raises(Fatal, match=r"refuses rows \(ValidationError\): id [14]\n.*mend the table, and start the query again"):
        target.write(rows)
    target.fault = None
    target.write(rows)
    check(target, 6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"ledgerTable": "mine"}, r"ledgerTable +has no use without guarantee=exactly-once"),
        ({"stagingLocation": "/tmp/x"}, r"stagingLocation +has no use without guarantee=exactly-once"),
        ({"guarantee": "exactly-once", "batch.maxRecords": "9"}, r"batch.maxRecords +has no use with guarantee=exactly-once"),
    ],
)
def test_wrong_options_are_named(options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        DynamoDbSink.of({**ACCOUNT, "table": "t", **options})


def test_exactly_once_needs_a_folder(target: Target) -> None:
    options = {name: value for name, value in target.options().items() if name != "stagingLocation"}
    sink, rows = DynamoDbSink.of(options), numbered(1)
    with pytest.raises(Misconfigured, match=r"stagingLocation +missing; give a folder that driver and tasks share"):
        stage(sink, Batch("s", "q", 0), rows.schema, 0, iter(rows.to_batches()))


def test_the_ledgers_of_a_region_are_found_by_its_name(target: Target) -> None:
    target.write(numbered(3))
    options = {name: str(value) for name, value in target.options().items() if name in (*ACCOUNT, "endpoint", "ledgerTable")}
    address = f"dynamodb://{options.pop('region')}"
    contents = {content.sink_id: content for content in DynamoDbSink.ledgers_in(address, options) or ()}
    content = contents[target.sink().sink_id()]
    assert [(entry.query, entry.batch, entry.rows) for entry in content.entries] == [("q", 0, 3)]
    assert content.pending == frozenset()
    assert DynamoDbSink.ledgers_in(address, {**options, "ledgerTable": "another"}) == []
