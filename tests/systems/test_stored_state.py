"""The names and JSON of what is stored in targets and state folders, against samples in ``tests/stored``.

State outlives a run, so another name or form is another version: a change of a sample needs a new ``version`` in the state.
``RENEW=1`` writes the samples anew.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest

from connectors.core import Batch, Committer, Fatal, Sink
from connectors.core.commit import Commit
from connectors.core.ledger import OWNER, Entry, app_query
from connectors.core.writing import stage
from connectors.systems import own_systems
from connectors.systems.kafka.ledger import LedgerState, SlotLayout
from connectors.testing import SourceContext
from connectors.testing.contexts import open_context
from connectors.testing.servers import DynamoDbServer
from connectors.testing.source_suite import SourceQuery
from tests.servers import optional
from tests.systems.dynamodb.contexts import TransactionsContext
from tests.systems.jdbc.incremental_contexts import SqliteByBoth, TablesContext
from tests.systems.kafka.sink_contexts import consumed
from tests.systems.kafka.sink_target import TEXT, Target, rows
from tests.systems.redis.contexts import HashContext
from tests.systems.reference_contexts import FileStreamContext, QueueContext, SequenceContext, ShardContext

SAMPLES: Final = Path(__file__).parent.parent / "stored"
ROWS: Final = pa.RecordBatch.from_pylist([{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}])
QUERY: Final = "query"
_UUID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}(?![0-9a-f])")
_OF_RUN: Final = re.compile(r"^[0-9a-f]{12}$|(?<=^t_)[0-9a-f]{12}$|^\d+:\d{4,}$")
"""The digest of a run's own id, the name of a test's table, and a file by its device and inode."""
_TIME: Final = re.compile(r"(?<!\d)1[789]\d{8}(\d{3}|\.\d+)?(?!\d)")


def masked(value: Any, words: Mapping[str, str]) -> Any:
    """``value`` with a word for what differs between runs: each of ``words``, ids and times. JSON in texts becomes plain."""
    if isinstance(value, Mapping):
        return {masked(key, words): masked(inner, words) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [masked(inner, words) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "TIME" if _TIME.fullmatch(str(value)) else value
    if not isinstance(value, str | bytes):
        return value
    text = value if isinstance(value, str) else value.decode(errors="replace")
    with contextlib.suppress(ValueError):
        if isinstance(state := json.loads(text), dict | list):
            return masked(state, words)
    for part, word in words.items():
        text = text.replace(part, word)
    return _TIME.sub("TIME", _UUID.sub("UUID", _OF_RUN.sub("RUN", text)))


def check(name: str, state: Any, **words: str) -> None:
    """Fails if ``state`` is not as in the sample ``name``; ``words`` are texts of this run, by the words for them."""
    plain = masked(state, {text: word for word, text in words.items()})
    text = json.dumps(plain, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
    file = SAMPLES / f"{name}.json"
    if os.environ.get("RENEW"):
        file.write_text(text)
    assert not list(difflib.unified_diff(file.read_text().splitlines(), text.splitlines(), n=1, lineterm=""))


def sink_class(name: str) -> type[Sink]:
    """The library's own sink, also where a test has registered another one by its name."""
    sink = own_systems()[name][1]
    assert sink is not None
    return sink


def states(sink: Sink, state: Callable[[], Any], rows: pa.RecordBatch = ROWS) -> Iterator[tuple[str, Any]]:
    """The state of a target after each step of a batch, and after a batch write with an id of its own."""
    for number in range(2):
        batch, commit = Batch(sink.sink_id(), QUERY, number), Commit(sink)
        commit.begin(batch)
        staged = [stage(sink, batch, rows.schema, 0, iter([rows]))]
        yield f"batch {number} staged", state()
        if isinstance(committer := sink.committer(), Committer):
            with patch.object(type(committer), "publish", side_effect=Fatal("a death")), contextlib.suppress(Fatal):
                commit.finish(batch, staged)
            yield f"batch {number} decided", state()
            Commit(sink).begin(batch)
        else:
            commit.finish(batch, staged)
        yield f"batch {number} committed", state()
    batch = Batch(sink.sink_id(), app_query("nightly"), 7)
    Commit(sink).finish(batch, [stage(sink, batch, rows.schema, 0, iter([rows]))])
    yield "batch write", state()


def tree(folder: Path) -> dict[str, Any]:
    """The files in ``folder``: those of state with their content."""
    files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.name.endswith(".crc"))
    return {str(file.relative_to(folder)): _content(file) for file in files}


def _content(file: Path) -> Any:
    return "DATA" if file.suffix in (".parquet", ".arrow") else file.read_bytes()


@pytest.mark.parametrize("name", ["buffered", "files"])
def test_a_sink_of_files(name: str, tmp_path: Path) -> None:
    target = tmp_path / "target"
    options = {"path": str(target), "sinkId": "sample", **({"fileFormat": "json"} if name == "files" else {})}
    sink = sink_class(name).of(options)
    check(name, dict(states(sink, lambda: tree(target))), FOLDER=str(tmp_path))


def test_folders_by_time_with_success_files(tmp_path: Path) -> None:
    target = tmp_path / "target"
    finish = {"bucket.successFile": "_SUCCESS", "bucket.finishedAfter": "1 hour"}
    bucket = {"bucket": "yyyy/MM/dd", "bucket.timeColumn": "at", "bucket.timeZone": "Europe/Berlin", **finish}
    sink = sink_class("files").of({"path": str(target), "sinkId": "sample", "fileFormat": "json", **bucket})
    times = [datetime(2024, 3, day, tzinfo=timezone.utc) for day in (5, 7)]
    rows = pa.RecordBatch.from_pylist([{"at": time} for time in times], pa.schema([("at", pa.timestamp("us", "UTC"))]))
    check("files-success", dict(states(sink, lambda: tree(target), rows)), FOLDER=str(tmp_path))


@pytest.mark.server
def test_redis(tmp_path: Path) -> None:
    with open_context(HashContext, tmp_path / "target") as target:
        target.prefix = "sample"
        sink = sink_class("redis").of({**target.options(), "sinkId": "sample", "guarantee": "exactly-once"})
        client = target.client
        readers: dict[bytes, Callable[[bytes], Any]] = {
            b"hash": client.hgetall, b"zset": lambda key: client.zrange(key, 0, -1),
        }  # fmt: skip

        def keys() -> list[bytes]:
            return sorted(client.scan_iter("connectors:sample:*"))

        try:
            check("redis", dict(states(sink, lambda: {key: readers[client.type(key)](key) for key in keys()})))
        finally:
            client.delete(*keys())


def test_a_database(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    options = {"url": f"jdbc:sqlite:{file}", "dbtable": "items", "createTable": "true", "sinkId": "sample"}

    def state() -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(file)) as database:
            tables = database.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
            sql = "SELECT * FROM connectors_ledger ORDER BY 1, 2" if "connectors_ledger" in dict(tables) else "SELECT 1 WHERE 0"
            return {"tables": dict(tables), "ledger": database.execute(sql).fetchall()}

    check("jdbc", dict(states(sink_class("jdbc").of(options), state)))


@pytest.mark.server
def test_dynamodb(tmp_path: Path) -> None:
    optional(DynamoDbServer)
    with open_context(TransactionsContext, tmp_path / "target") as target:
        sink = sink_class("dynamodb").of({**target.options(), "sinkId": "sample"})

        def state() -> dict[str, Any]:
            items = target.client.scan(TableName=target.ledger_table)["Items"]
            entries = sorted(items, key=lambda item: str(item["entry"]["S"]))
            key = target.client.describe_table(TableName=target.ledger_table)["Table"]["KeySchema"]
            return {"entries": entries, "key": key, "staging": tree(target.stage)}

        check("dynamodb", dict(states(sink, state)), TABLE=target.table, FOLDER=str(tmp_path))


@pytest.mark.server
def test_kafka(tmp_path: Path) -> None:
    target = Target(tmp_path)
    ledger_topic = f"ledger-{target.topic}"
    for number in range(3):
        target.write(rows(1) if number < 2 else [], TEXT, number, QUERY, ledgerTopic=ledger_topic)
    settings = target.sink(ledgerTopic=ledger_topic).transaction_settings()
    named = [settings, settings.of_query(app_query("nightly")), replace(settings, slot=2), replace(settings, is_note=True)]
    names = [[each.transactional_id, each.group, each.offset_partition, each.record_key(0)] for each in named]
    records = sorted((m.key(), m.value()) for m in consumed(target.server.bootstrap, ledger_topic, 4, "read_committed"))
    layout = LedgerState().with_layout(SlotLayout(QUERY, 4, "run"), Entry(OWNER, 0, owner=QUERY)).text()
    check("kafka", {"names": names, "records": records, "layout": layout}, SINK=target.topic)


@pytest.mark.parametrize("context", [QueueContext, ShardContext], ids=["queue", "shards"])
def test_an_epoch_log(context: type[SourceContext], tmp_path: Path) -> None:
    with open_context(context, tmp_path / "system") as system:
        log, query, steps = [], SourceQuery(system, maxRowsPerTrigger="4"), []
        for _ in range(2):
            system.write(4)
            query.next(log)
            steps.append(tree(Path(system.options()["stateLocation"])))
        for planner in system.planners:
            planner.close()
        offsets = [{name: field for name, field in offset.items() if name != "progress"} for offset in log]  # it has delays
        check(f"epochs-{system.source.name}", {"offsets": offsets, "files": steps}, FOLDER=str(tmp_path))


@pytest.mark.parametrize("context", [SequenceContext, FileStreamContext, SqliteByBoth, TablesContext])
def test_offsets(context: type[SourceContext], tmp_path: Path) -> None:
    with open_context(context, tmp_path / "system") as system:
        log, query = [], SourceQuery(system)
        for _ in range(2):
            system.write(4)
            query.next(log)
        check(f"offsets-{context.__name__}", log, FOLDER=str(tmp_path))


OPTIONS: Final = {
    "buffered": {"path": "/data/out"},
    "files": {"path": "s3://bucket/out", "fileFormat": "json"},
    "file_stream": {"path": "/data/out.txt"},
    "delta": {"path": "/data/table"},
    "kafka": {"kafka.bootstrap.servers": "host:9092", "topic": "t"},
    "jdbc": {"url": "jdbc:postgresql://host/db", "dbtable": "items", "user": "u", "password": "p"},
    "redis": {"url": "redis://host:6379/1", "key": "{id}", "field": "{id}"},
    "dynamodb": {"region": "us-east-1", "table": "t", "keyColumns": "id"},
    "elasticsearch": {"hosts": "http://host:9200", "index": "i"},
    "http": {"url": "http://host/items"},
    "pubsub": {"projectId": "p", "topicId": "t"},
    "kinesis": {"region": "us-east-1", "streamName": "s", "partitionKeyColumn": "id"},
    "cassandra": {"contactPoints": "host", "keyspace": "k", "table": "t"},
}


def test_the_ids_of_sinks_by_their_targets() -> None:
    check("sink-ids", {name: sink_class(name).of(options).sink_id() for name, options in OPTIONS.items()})
