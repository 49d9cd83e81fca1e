"""``connectors erase`` on servers: rows that the sinks of the library have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.sink import Sink
from connectors.systems.redis import RedisSink
from connectors.systems.redis.connection import RedisClient
from connectors.testing import SinkContext
from connectors.testing.contexts import open_context
from tests.systems.batches import write
from tests.systems.cassandra.contexts import PartitionsContext, TableContext
from tests.systems.dynamodb.contexts import ItemsContext
from tests.systems.elasticsearch.contexts import IndexContext
from tests.systems.jdbc.contexts import MariaDbContext, PostgresContext, SqliteContext
from tests.systems.redis.contexts import RedisTarget

from .test_erase import MARKER, counts, erase

pytestmark = pytest.mark.server
SYSTEMS = {
    "postgresql": PostgresContext, "mariadb": MariaDbContext, "sqlite": SqliteContext, "elasticsearch": IndexContext,
    "dynamodb": ItemsContext, "cassandra": TableContext,
}  # fmt: skip
PERSON = f"Dr {MARKER} sen"


@pytest.fixture(params=SYSTEMS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SinkContext]:
    with open_context(SYSTEMS[request.param], tmp_path / "target") as context:
        yield context


def place(target: SinkContext, **options: str) -> str:
    return f"{target.sink.name}:{json.dumps({**target.options(), **options})}"


def fill(target: SinkContext) -> None:
    names = {1: PERSON, 2: "Anna", 3: f"{PERSON} and Anna", 4: PERSON, 5: None, 42: "42", 0: "Zero"}
    rows = [{"id": number, "name": name} for number, name in names.items()]
    write(target.sink.of(target.options()), pa.RecordBatch.from_pylist(rows, target.schema))


def ids(target: SinkContext) -> list[int]:
    return sorted(int(row["id"]) for row in target.rows())


def test_rows_of_the_person_go_and_all_others_stay(target: SinkContext) -> None:
    fill(target)
    own = place(target)
    assert counts(erase(own, key=f"name={PERSON}", more=("--dry-run",))) == [(2, 0)]
    assert ids(target) == [0, 1, 2, 3, 4, 5, 42]
    (report,) = erase(own, key=f"name={PERSON}")
    assert (report["found"], report["erased"], report["left"]) == (2, 2, [])
    assert ids(target) == [0, 2, 3, 5, 42]
    assert counts(erase(own, key="id=42")) == [(1, 1)]
    assert counts(erase(own, key="id=42")) == [(0, 0)]
    assert ids(target) == [0, 2, 3, 5]


def test_a_value_that_no_row_has_takes_no_other_row(target: SinkContext) -> None:
    fill(target)
    for key in ("id=7", "name=anna", "name=A", "id=abc", "name=%"):
        (report,) = erase(place(target), key=key, code=1) if _is_refused(target, key) else erase(place(target), key=key)
        assert report["erased"] == 0
    assert ids(target) == [0, 1, 2, 3, 4, 5, 42]


def _is_refused(target: SinkContext, key: str) -> bool:
    """True where the system does not compare such a value with the column, or takes another one for equal."""
    refusing = {"id=abc": (PostgresContext, TableContext, MariaDbContext), "name=anna": (MariaDbContext,)}
    return type(target) in refusing.get(key, ())


def test_a_server_that_is_away_is_left(tmp_path: Path) -> None:
    away = {"url": "redis://127.0.0.1:1/0", "key": "{id}"}
    (report,) = erase(f"redis:{json.dumps(away)}", code=1)
    assert "does not answer" in report["left"][0]


@pytest.mark.parametrize(("command", "options"), [
    ("hset", {}), ("hset", {"key": "{prefix}:all", "field": "{id}"}), ("set", {}),
    ("zadd", {"key": "{prefix}:all", "scoreColumn": "id"}), ("rpush", {"key": "{prefix}:all"}),
    ("xadd", {"key": "{prefix}:all"}),
])  # fmt: skip
def test_what_a_command_of_redis_has_written_goes(tmp_path: Path, command: str, options: dict[str, str]) -> None:
    with open_context(_Target, tmp_path / "target") as target:
        typed = {"key": "{prefix}:{{id}}", "command": command, **options}
        typed = {
            **target.options(),
            **typed,
            "key": typed["key"].replace("{prefix}", target.prefix).replace("{{id}}", "{id}"),
        }
        rows = [{"id": number, "user": user} for number, user in enumerate([MARKER, "Anna", MARKER, f"{MARKER}!"])]
        write(RedisSink.of(typed), pa.RecordBatch.from_pylist(rows))
        assert MARKER in _content(target)
        assert counts(erase(f"redis:{json.dumps(typed)}")) == [(2, 2)]
        assert f"{MARKER}!" in (left := _content(target))
        assert "Anna" in left
        assert MARKER not in left.replace(f"{MARKER}!", "")
        assert counts(erase(f"redis:{json.dumps(typed)}", key="id=1")) == [(1, 1)]
        assert "Anna" not in _content(target)


@pytest.mark.parametrize("command", ["hset", "set"])
def test_keys_of_other_applications_stay(tmp_path: Path, command: str) -> None:
    with open_context(_Target, tmp_path / "target") as target:
        typed = {**target.options(), "key": f"{target.prefix}:{{id}}", "command": command}
        write(RedisSink.of(typed), pa.RecordBatch.from_pylist([{"id": 1, "user": MARKER, "big": 2.5}]))
        for name, row in (("1:cart", {"user": MARKER}), ("7", {"user": MARKER}), ("1:x", {"user": MARKER, "id": 1})):
            key = f"{target.prefix}:{name}"
            target.client.hset(key, mapping=row) if command == "hset" else target.client.set(key, json.dumps(row))
        assert counts(erase(f"redis:{json.dumps(typed)}", key=f"user={MARKER}")) == [(1, 1)]
        left = {key.decode().removeprefix(f"{target.prefix}:") for key in target.client.scan_iter(f"{target.prefix}:*")}
        assert left == {"1:cart", "7", "1:x"}


class _Target(RedisTarget):
    def rows(self) -> list[dict[str, Any]]:
        return []


def _content(target: RedisTarget) -> str:
    """All that is in the keys of the test."""
    dumps = []
    for key in target.client.scan_iter(f"{target.prefix}:*"):
        kind = target.client.type(key).decode()
        read = {
            "hash": target.client.hgetall, "string": target.client.get, "stream": target.client.xrange,
            "list": lambda key: target.client.lrange(key, 0, -1), "zset": lambda key: target.client.zrange(key, 0, -1),
        }[kind]  # fmt: skip
        dumps.append(f"{key} {read(key)}")
    return "\n".join(dumps)


def test_a_key_that_is_another_persons_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_context(_Target, tmp_path / "target") as target:
        typed = {**target.options(), "key": f"{target.prefix}:{{id}}", "command": "set"}
        write(RedisSink.of(typed), pa.RecordBatch.from_pylist([{"id": 1, "user": MARKER}]))
        command = RedisClient.command

        def late(client: RedisClient, *parts: Any) -> Any:
            target.client.set(f"{target.prefix}:1", '{"id": 1, "user": "Anna"}')
            return command(client, *parts)

        monkeypatch.setattr(RedisClient, "command", late)
        assert counts(erase(f"redis:{json.dumps(typed)}")) == [(1, 0)]
        assert "Anna" in _content(target)


def test_a_row_of_cassandra_goes_as_of_its_own_time(tmp_path: Path) -> None:
    """Its times of writing may be ahead of the clock, or far behind: a row that is written later stays."""
    with open_context(PartitionsContext, tmp_path / "target") as target:
        ahead = 4_000_000_000_000_000
        rows = [{"part": 1, "id": n, "name": MARKER if n < 2 else "Anna", "written": ahead * n + 1} for n in range(3)]
        sink: Sink = target.sink.of(target.options())
        write(sink, pa.RecordBatch.from_pylist(rows, target.schema))
        assert counts(erase(place(target), key=f"name={MARKER}")) == [(2, 2)]
        assert ids(target) == [2]
        newer = [{"part": 1, "id": 0, "name": "Bo", "written": 5}]
        write(sink, pa.RecordBatch.from_pylist(newer, target.schema), number=1)
        assert ids(target) == [0, 2]
