"""How a person's rows are erased from systems: a function for each sink, by its own options and client."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from string import Formatter
from typing import Any, Final
from urllib.parse import quote

from connectors.core.sink import Sink
from connectors.ground import machine
from connectors.ground.columns import template_columns
from connectors.ground.errors import Misconfigured, Problem, StateError
from connectors.metrics.words import count
from connectors.systems import sink_class

from .cli_systems import json_object
from .erasure import Erasure, Report, count_same, is_number, staged

COMMAND: Final = "connectors erase"
_PAGE: Final = 1000
_DIGITS: Final = 38
"""DynamoDB refuses numbers of more digits."""
_CHANGED: Final = "another writer has changed meanwhile. Call this again"


def sink_of(kind: str, text: str) -> tuple[Sink, Callable[[], Report]]:
    """The sink with the options in ``text``, and what makes its report. Raises :class:`Misconfigured`."""
    sink = sink_class(kind).of(json_object("--in", text))
    if kind == "jdbc" and template_columns(sink.values["dbtable"]):
        raise Misconfigured(COMMAND, [Problem("--in", "names tables by columns in dbtable; call this for each of the tables.")])
    return sink, lambda: Report(f"{kind}:{sink.target()}")


def _jdbc(erasure: Erasure, sink: Any, report: Report) -> Iterator[Report]:
    from connectors.systems.jdbc.connection import pooled_connection
    from connectors.systems.jdbc.routing import target_of

    dialect = sink.dialect()
    table = target_of(sink.values["dbtable"], dialect)
    with pooled_connection(dialect) as connection:
        known = {column.name.lower(): column for column in dialect.columns(connection, table)}
        if missing := [name for name in erasure.key if name.lower() not in known]:
            raise StateError(f"{table} has no column {missing[0]}", way_out=f"it has {', '.join(known) or 'none'}")
        columns = [known[name.lower()] for name in erasure.key]
        names = ", ".join(dialect.quote(column.name) for column in columns)
        equal = (f"{dialect.quote(column.name)} = {dialect.bound(dialect.placeholder, column.sql)}" for column in columns)
        where, values = f"FROM {dialect.table(table)} WHERE {' AND '.join(equal)}", list(erasure.key.values())
        with connection.transaction():
            # Row by row: a collation that takes Anna for anna has one group for both.
            report.found = count_same(erasure, connection.rows(f"SELECT {names}, 1 {where}", values))
            if report.found and not erasure.dry_run:
                erased = connection.execute(f"DELETE {where}", values)
                if erased not in (report.found, -1):  # nobody has compared what came in between; -1: the driver does not say
                    raise StateError(f"another writer has changed rows of {table}", way_out="nothing was erased")
                report.erased = report.found
        if stages := dialect.tables(connection, table.schema, "cst_"):
            text = "of batches that are under way, or were. Let the query run for a batch, and call this again"
            report.left.append(f"{count(len(stages), 'staging table')} {text}")
    yield report
    if dialect.one_writer:
        folder = sink.folder()
        yield from staged(erasure, folder.storage, folder.root)


def _elasticsearch(erasure: Erasure, sink: Any, report: Report) -> Iterator[Report]:
    from connectors.systems.elasticsearch.client import NDJSON, SearchClient

    index = re.sub(r"\{[^}]*\}", "*", sink.values["index"])
    if not index.strip("*"):
        raise Misconfigured(COMMAND, [Problem("--in", f'has the index "{index}", which is each one; name those of the sink.')])
    client = SearchClient("connectors.elasticsearch", sink.values)
    phrases = [
        {"multi_match": {"query": text, "type": "phrase", "fields": [name], "lenient": True, "zero_terms_query": "all"}}
        for name, text in erasure.key.items()
    ]
    query = {"size": _PAGE, "query": {"bool": {"filter": phrases}}, "seq_no_primary_term": True}
    client.ask("POST", f"/{quote(index)}/_refresh")
    page, report.found = client.ask("POST", f"/{quote(index)}/_search?scroll=5m", query), 0
    unknown = 0
    while hits := page["hits"]["hits"]:
        own = [hit for hit in hits if erasure.has(hit.get("_source") or {})]  # phrases find longer texts, too
        unknown += sum(not erasure.key.keys() <= (hit.get("_source") or {}).keys() for hit in hits)
        report.found += len(own)
        if own and not erasure.dry_run:
            actions = [
                {
                    "_index": hit["_index"], "_id": hit["_id"], "if_seq_no": hit["_seq_no"],
                    "if_primary_term": hit["_primary_term"], **({"routing": hit["_routing"]} if "_routing" in hit else {}),
                }
                for hit in own
            ]  # fmt: skip
            body = b"".join(client.json.dumps({"delete": action}) + b"\n" for action in actions)
            items = client.loads(client.request("POST", "/_bulk?refresh=true", body, NDJSON))["items"]
            report.erased += sum(item["delete"]["status"] == 200 for item in items)
        page = client.ask("POST", "/_search/scroll", {"scroll": "5m", "scroll_id": page["_scroll_id"]})
    client.close()
    if not erasure.dry_run and report.erased < report.found:
        report.left.append(f"{count(report.found - report.erased, 'document')} that {_CHANGED}")
    if unknown:
        report.left.append(
            f"{count(unknown, 'document')} that may be of others: the columns are inside of objects, or the index does not "
            "keep them in _source. Look at them, and delete them by their ids"
        )
    yield report


_IF_SAME: Final = """
if ARGV[1] == 'DEL' and #ARGV == 2 then
  return redis.call('GET', KEYS[1]) == ARGV[2] and redis.call('DEL', KEYS[1]) or 0
end
for place = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[place]) ~= ARGV[place + 1] then return 0 end
end
return ARGV[1] == 'DEL' and redis.call('DEL', KEYS[1]) or redis.call('HDEL', KEYS[1], ARGV[2])
"""
"""A script of Redis that deletes a key, or a field of a hash, if no other writer has changed it meanwhile."""
_KINDS: Final = {"hset": "hash", "set": "string", "zadd": "zset", "lpush": "list", "rpush": "list", "xadd": "stream"}


def _redis(erasure: Erasure, sink: Any, report: Report) -> Iterator[Report]:
    from connectors.systems.redis.connection import RedisClient
    from connectors.systems.redis.script import SinkKeys

    command, client = sink.values["command"], RedisClient("connectors.redis", sink.values)
    pattern, report.found = "", 0
    for literal, name, _, _ in Formatter().parse(sink.values["key"]):
        text = literal if name is None else literal + erasure.key.get(name, "\0")
        pattern += re.sub(r"([][*?\\])", r"\\\1", text).replace("\0", "*")
    with client.errors():
        keys = client.client.scan_iter(pattern, _PAGE, _KINDS[command]) if command in _KINDS else ()
        for key in keys:
            for content, delete in list(_redis_rows(client, sink.values, key)):
                is_own = erasure.has(content) if isinstance(content, dict) else erasure.judge(content)
                if not is_own or not _is_key_of(sink.values["key"], key, content):
                    continue
                report.found += 1
                if not delete:
                    same = [part for name in erasure.key for part in (name, content[name])]
                    delete = ("EVAL", _IF_SAME, 1, key, "DEL", *same)
                if not erasure.dry_run:
                    report.erased += int(client.command(*delete))
        stages = sum(1 for _ in client.client.scan_iter(SinkKeys("*").stage("*"), _PAGE))
    client.close()
    if stages:
        report.left.append(f"{count(stages, 'staged attempt')}, which the next batch or stagingRetention ends. Call this again")
    yield report


def _is_key_of(template: str, key: bytes, content: Mapping[str, Any] | bytes) -> bool:
    """False for a key that the sink has not given to the row: the pattern also finds keys of other applications."""
    if isinstance(content, bytes):
        try:
            row = json.loads(content)
        except ValueError:
            return False
    else:
        row = content
    pattern = b""
    for literal, name, _, _ in Formatter().parse(template):
        pattern += re.escape(literal.encode())
        if name is None:
            continue
        if not isinstance(row, Mapping) or name not in row:
            return False
        value = row[name]
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            value = str(value).encode()
        pattern += re.escape(value) if isinstance(value, bytes) else b".*"  # JSON writes others otherwise than the key has them
    return re.fullmatch(pattern, key, re.DOTALL) is not None


def _redis_rows(client: Any, values: Mapping[str, Any], key: bytes) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """What the sink's command has written to a key, and the command that deletes it; none for a whole hash."""
    redis, command = client.client, values["command"]
    if command == "hset" and not values["field"]:
        yield _decoded(redis.hgetall(key).items()), ()
    elif command == "hset":
        yield from ((text, ("EVAL", _IF_SAME, 1, key, "HDEL", name, text)) for name, text in redis.hscan_iter(key))
    elif command == "set" and (text := redis.get(key)) is not None:
        yield text, ("EVAL", _IF_SAME, 1, key, "DEL", text)
    elif command == "zadd":
        yield from ((text, ("ZREM", key, text)) for text, _ in redis.zscan_iter(key))
    elif command == "xadd":
        after = b"-"
        while page := client.command("XRANGE", key, after, "+", "COUNT", _PAGE):
            for entry, fields in page:
                yield _decoded(zip(fields[::2], fields[1::2], strict=True)), ("XDEL", key, entry)
            after = b"(" + page[-1][0]
    elif command in ("lpush", "rpush"):
        pages = [redis.lrange(key, first, first + _PAGE - 1) for first in range(0, redis.llen(key), _PAGE)]
        yield from ((text, ("LREM", key, 0, text)) for text in chain.from_iterable(pages))


def _decoded(fields: Iterable[tuple[bytes, bytes]]) -> dict[str, bytes]:
    return {name.decode(errors="replace"): value for name, value in fields}


def _dynamodb(erasure: Erasure, sink: Any, report: Report) -> Iterator[Report]:
    table, names, values, conditions = sink.values["table"], {}, {}, []
    for number, (name, text) in enumerate(erasure.key.items()):
        kinds = {"S": text, **({"N": text} if is_number(text) and len(text) <= _DIGITS else {})}
        if text in ("true", "false"):
            kinds["BOOL"] = text == "true"  # type: ignore[assignment]
        names[f"#c{number}"] = name
        values.update({f":{kind}{number}": {kind: value} for kind, value in kinds.items()})
        conditions.append(f"#c{number} IN ({', '.join(f':{kind}{number}' for kind in kinds)})")
    same = {"ExpressionAttributeNames": names, "ExpressionAttributeValues": values}
    condition, report.found = " AND ".join(conditions), 0
    with sink.client() as aws, aws.errors(f"the table {table}"):
        key = [part["AttributeName"] for part in aws.client.describe_table(TableName=table)["Table"]["KeySchema"]]
        scan = aws.client.get_paginator("scan")
        pages = scan.paginate(TableName=table, FilterExpression=condition, ConsistentRead=True, **same)
        for item in (item for page in pages for item in page["Items"]):
            report.found += 1
            if erasure.dry_run:
                continue
            place = {name: item[name] for name in key}
            try:
                aws.client.delete_item(TableName=table, Key=place, ConditionExpression=condition, **same)
                report.erased += 1
            except aws.client.exceptions.ConditionalCheckFailedException:  # it is another person's now
                report.found -= 1
    yield report
    if sink.values["stagingLocation"]:
        from connectors.storage.location import storage_of

        location = sink.values["stagingLocation"]
        yield from staged(erasure, storage_of(location, sink.values["storageOptions"]), location)


def _cassandra(erasure: Erasure, sink: Any, report: Report) -> Iterator[Report]:
    """The rows that have the values, as of their newest time of writing: what is written to their keys later stays."""
    from connectors.systems.cassandra.connection import shared_client
    from connectors.systems.cassandra.tables import Table, quoted

    with shared_client(sink.values) as client:
        table = Table.of(client, sink.values["keyspace"], sink.values["table"])
        if missing := [name for name in erasure.key if name not in table.names()]:
            raise StateError(f"{table.full_name} has no column {missing[0]}", way_out=f"it has {', '.join(table.names())}")
        # A collection that is not frozen has a time of writing for each of its elements.
        simple = (c.name for c in table.columns if c.kind == "regular" and not c.type.startswith(("list", "set", "map")))
        times = [] if table.has_counters else list(simple)
        columns = [*table.key, *(name for name in erasure.key if name not in table.key)]
        expressions = [*map(quoted, columns), *(f"writetime({quoted(name)}) AS t{number}" for number, name in enumerate(times))]
        where = " AND ".join(f"{quoted(name)} = fromJson(?)" for name in erasure.key)
        texts = [json.dumps(text) for text in erasure.key.values()]
        select = f"SELECT {', '.join(expressions)} FROM {table.full_name} WHERE {where} ALLOW FILTERING"
        rows = client.rows(select, *texts)
        report.found = len(rows)
        using = "" if table.has_counters else " USING TIMESTAMP ?"
        keys = " AND ".join(f"{quoted(name)} = ?" for name in table.key)
        for row in () if erasure.dry_run else rows:
            writetimes = [time for number in range(len(times)) if (time := row[f"t{number}"]) is not None]
            time = max(writetimes, default=int(machine.time() * 1e6))
            values = [*([time] if using else ()), *(row[name] for name in table.key)]
            client.rows(f"DELETE FROM {table.full_name}{using} WHERE {keys}", *values)
        if not erasure.dry_run:
            again = len(client.rows(select, *texts))
            report.erased = report.found - again
            if again:
                report.left.append(f"{count(again, 'row')} that {_CHANGED}")
        if rows and table.names("static"):
            report.left.append(f"static columns of the rows' partitions: delete {', '.join(table.names('static'))} there")
    yield report


SYSTEMS: Final[Mapping[str, Callable[[Erasure, Any, Report], Iterator[Report]]]] = {
    "cassandra": _cassandra, "dynamodb": _dynamodb, "elasticsearch": _elasticsearch, "jdbc": _jdbc, "redis": _redis,
}  # fmt: skip
