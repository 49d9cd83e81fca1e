"""The source on a real server: columns, values, queries, and an index that changes while it is read."""

from __future__ import annotations

import datetime
import json
import threading
import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from connectors.core import DataLoss, Fatal, Misconfigured
from connectors.core.planning import Planner
from connectors.core.reading import read_slice
from connectors.core.source import ReadLimit
from connectors.systems.elasticsearch import ElasticsearchSource
from connectors.systems.elasticsearch.client import SearchClient
from connectors.testing.servers import OpenSearchServer
from connectors.testing.servers.fault_proxy import FaultProxy, Reply, Seen
from connectors.testing.source_suite import SourceQuery

from .reading import read, source_of
from .writing import QUICK, write

IDS = pa.schema([("_id", pa.string()), ("n", pa.int64())])


def source(server: OpenSearchServer, index: str, **options: Any) -> ElasticsearchSource:
    return source_of(server.url, index, **options)


def test_columns_are_those_of_the_mapping_and_the_id_comes_when_asked_for(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"id": 1, "name": "a", "at": datetime.datetime(2024, 1, 1)}], idColumn="id")
    assert source(server, index).schema == "`at` timestamp, `id` bigint, `name` string"
    assert source(server, index, idColumn="_id").schema.startswith("`_id` string, `at`")


def test_an_index_that_is_not_there_is_told(server: OpenSearchServer) -> None:
    with pytest.raises(Misconfigured, match=r'index\s+"missing" is not there'):
        _ = source(server, "missing").schema


def test_a_batch_read_with_columns_of_an_index_that_is_not_there_is_told(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"n": 1}], idColumn="n")
    for names in ("missing", f"{index},missing"):
        with pytest.raises(Misconfigured, match=rf'index\s+"{names}" is not there'):
            read(source(server, names), pa.schema([("n", pa.int64())]))


def test_a_page_of_which_the_server_gives_only_a_part_is_read_again(
    server: OpenSearchServer, proxy: FaultProxy, index: str
) -> None:
    """As with ``search.default_search_timeout``: the answer is a good one, with the documents that were found by then."""
    write(server.url, index, [{"n": n} for n in range(10)], idColumn="n")
    is_cut = False

    def cut(request: Seen, forward: Any) -> Reply:
        nonlocal is_cut
        reply: Reply = forward()
        if not request.path.startswith("/_search") or "point_in_time" in request.path or is_cut:
            return reply
        answer, is_cut = json.loads(reply.body), True
        answer["timed_out"], answer["hits"]["hits"] = True, answer["hits"]["hits"][1::2]
        return Reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    proxy.rule = cut
    assert numbers(read(source_of(proxy.url, index), pa.schema([("n", pa.int64())]))) == list(range(10))
    assert is_cut


@pytest.mark.parametrize("view", [{"filter": {"range": {"n": {"lt": 3}}}}, {"routing": "a"}], ids=["filter", "routing"])
def test_an_alias_of_a_part_of_an_index_is_refused(server: OpenSearchServer, index: str, view: dict[str, Any]) -> None:
    write(server.url, index, [{"n": n} for n in range(10)], idColumn="n")
    add = [{"add": {"index": index, "alias": f"{index}-part", **view}}, {"add": {"index": index, "alias": f"{index}-all"}}]
    server.ask("POST", "/_aliases", {"actions": add})
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises(Misconfigured, match=rf'index\s+names the alias "{index}-part" of a part of "{index}"'):
        read(source(server, f"{index}-part"), schema)
    with pytest.raises(Misconfigured, match=rf'index\s+names the alias "{index}-part" of a part of "{index}"'):
        read(source(server, f"{index}-p*"), schema)
    for name in (index, f"{index}-all"):
        assert numbers(read(source(server, name), schema)) == list(range(10))


def test_times_in_seconds_are_no_milliseconds(server: OpenSearchServer, index: str) -> None:
    mapping = {"type": "date", "format": "strict_date_optional_time||epoch_second"}
    server.ask("PUT", f"/{index}", {"mappings": {"properties": {"at": mapping}}})
    server.ask("PUT", f"/{index}/_doc/1?refresh=true", {"at": 1_700_000_000})
    with pytest.raises(Misconfigured, match=r'the field "at" has times in seconds, .*\. Give \.schema'):
        _ = source(server, index).schema
    assert read(source(server, index), pa.schema([("at", pa.int64())])) == [{"at": 1_700_000_000}]


@pytest.mark.parametrize("form", ["yyyyMMdd", "strict_date_optional_time||basic_date", "yyyy"])
def test_times_in_digits_are_no_milliseconds(server: OpenSearchServer, index: str, form: str) -> None:
    server.ask("PUT", f"/{index}", {"mappings": {"properties": {"at": {"type": "date", "format": form}}}})
    server.ask("PUT", f"/{index}/_doc/1?refresh=true", {"at": 2024 if form == "yyyy" else 20240131})
    with pytest.raises(Misconfigured, match=r'the field "at" has times in the form .*\. Give \.schema'):
        _ = source(server, index).schema


def test_times_inside_objects_and_lists_are_milliseconds_as_outside(server: OpenSearchServer, index: str) -> None:
    at, time_type = 1_700_000_000_123, pa.timestamp("us", "UTC")
    server.ask("PUT", f"/{index}/_doc/1?refresh=true", {"o": {"at": at}, "several": [at, at], "m": {"k": at}})
    kinds = {"o": pa.struct([("at", time_type)]), "several": pa.list_(time_type), "m": pa.map_(pa.string(), time_type)}
    moment = datetime.datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=datetime.timezone.utc)
    rows = read(source(server, index), pa.schema(list(kinds.items())))
    assert rows == [{"o": {"at": moment}, "several": [moment, moment], "m": [("k", moment)]}]


def test_names_with_dots_in_a_list_of_objects_are_objects(server: OpenSearchServer, index: str) -> None:
    server.ask("PUT", f"/{index}", {"mappings": {"properties": {"list": {"type": "nested"}}}})
    server.ask("PUT", f"/{index}/_doc/1?refresh=true", {"list": [{"x.y": 1}, {"x": {"y": 2}}]})
    schema = pa.schema([("list", pa.list_(pa.struct([("x", pa.struct([("y", pa.int64())]))])))])
    assert read(source(server, index), schema) == [{"list": [{"x": {"y": 1}}, {"x": {"y": 2}}]}]


def test_a_batch_read_waits_for_a_shard_that_no_node_holds_just_now(
    server: OpenSearchServer, proxy: FaultProxy, index: str
) -> None:
    """The statistics leave it out, without a word."""
    server.ask("PUT", f"/{index}", {"settings": {"number_of_shards": 2, "number_of_replicas": 0}})
    write(server.url, index, [{"n": n} for n in range(20)], idColumn="n")
    is_away = True

    def away(request: Seen, forward: Any) -> Reply:
        nonlocal is_away
        reply: Reply = forward()
        if "/_stats?" not in request.path or not is_away:
            return reply
        answer, is_away = json.loads(reply.body), False
        del answer["indices"][index]["shards"]["0"]
        return Reply(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    proxy.rule = away
    assert numbers(read(source_of(proxy.url, index), pa.schema([("n", pa.int64())]))) == list(range(20))
    assert not is_away


def test_names_with_dots_are_objects_as_in_the_mapping(server: OpenSearchServer, index: str) -> None:
    """Loggers write them so, and the server keeps a document as it came."""
    document = {"log.level": "info", "log": {"origin.file.name": "a", "origin": {"line": 1}}, "n": 1}
    server.ask("PUT", f"/{index}/_doc/1?refresh=true", document)
    origin = pa.struct([("file", pa.struct([("name", pa.string())])), ("line", pa.int64())])
    schema = pa.schema([("log", pa.struct([("level", pa.string()), ("origin", origin)])), ("n", pa.int64())])
    expected = {"level": "info", "origin": {"file": {"name": "a"}, "line": 1}}
    assert read(source(server, index), schema) == [{"log": expected, "n": 1}]


def test_what_was_written_is_read(server: OpenSearchServer, index: str) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("price", pa.decimal128(20, 4)),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("tags", pa.list_(pa.string())),
            ("in", pa.struct([("x", pa.float64()), ("m", pa.map_(pa.string(), pa.int32()))])),
        ]
    )
    at = datetime.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.timezone.utc)
    row = {"id": 2**60, "price": Decimal("1234567890123456.7891"), "at": at, "day": at.date(), "raw": b"\x00\xff"}
    rows = [{**row, "tags": ["a", "b"], "in": {"x": 0.1, "m": [("k", 7)]}}, dict.fromkeys(schema.names) | {"id": 1}]
    write(server.url, index, rows, schema, idColumn="id")
    assert sorted(read(source(server, index), schema), key=lambda row: -row["id"]) == rows


def test_a_query_picks_documents(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"n": n} for n in range(100)], idColumn="n")
    rows = read(source(server, index, query='{"range": {"n": {"gte": 90}}}', idColumn="_id", slices="5"), IDS)
    assert sorted(row["n"] for row in rows) == list(range(90, 100))


def test_a_batch_read_sees_the_index_as_it_was_at_its_start(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"n": n, "state": "old"} for n in range(50)], idColumn="n")
    index_source = source(server, index, pageSize="7", slices="3")
    schema = pa.schema([("n", pa.int64()), ("state", pa.string())])
    parts = Planner(index_source).whole()
    write(server.url, index, [{"n": n, "state": "new"} for n in range(60)], idColumn="n")
    rows = [row for part in parts for batch in read_slice(index_source, part, schema) for row in batch.to_pylist()]
    assert sorted(row["n"] for row in rows) == list(range(50))
    assert {row["state"] for row in rows} == {"old"}


def test_a_document_that_changes_while_a_batch_read_begins_is_read(
    server: OpenSearchServer, proxy: FaultProxy, index: str
) -> None:
    write(server.url, index, [{"n": n} for n in range(10)], idColumn="n")

    def change(request: Seen, forward: Any) -> Reply:
        if request.method == "POST" and "point_in_time" in request.path:
            server.ask("PUT", f"/{index}/_doc/3?refresh=true", {"n": 3})
        reply: Reply = forward()
        return reply

    proxy.rule = change
    rows = read(source_of(proxy.url, index, slices="3"), pa.schema([("n", pa.int64())]))
    assert numbers(rows) == list(range(10))


def test_a_stream_reads_a_document_that_changed_once_more(server: OpenSearchServer, index: str) -> None:
    index_source = ElasticsearchSource.of({"hosts": server.url, "index": index, "idColumn": "_id", **QUICK}, streaming=True)
    planner, schema = Planner(index_source), pa.schema([("_id", pa.string()), ("n", pa.int64())])
    offset: Any = {"v": 1, "phase": "initial"}
    values = []
    for version in range(2):
        write(server.url, index, [{"id": n, "n": version} for n in range(3)], idColumn="id")
        end = planner.latest(offset)
        parts = planner.slices(offset, end)
        values.append(
            sorted(r["n"] for part in parts for batch in read_slice(index_source, part, schema) for r in batch.to_pylist())
        )
        offset = end
    assert values == [[0, 0, 0], [1, 1, 1]]


def stream(server: OpenSearchServer, index: str, **options: str) -> SourceQuery:
    """A query with the number ``n`` of each document."""
    return SourceQuery(NumbersContext(server.url, index), **options)


class NumbersContext:
    """What a :class:`SourceQuery` needs of a system."""

    source, schema = ElasticsearchSource, pa.schema([("n", pa.int64())])

    def __init__(self, hosts: str, index: str) -> None:
        self._options = {"hosts": hosts, "index": index, **QUICK}

    def options(self) -> dict[str, str]:
        return self._options


def numbers(rows: list[dict[str, Any]] | None) -> list[int]:
    return sorted(row["n"] for row in rows or [])


@pytest.mark.parametrize("count", [1, 30, 45], ids=["fewer", "as many", "more"])
def test_an_index_that_was_made_anew_is_told_and_read_from_its_beginning_when_the_user_says_so(
    server: OpenSearchServer, index: str, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    log: list[Any] = []
    write(server.url, index, [{"n": n} for n in range(30)], idColumn="n")
    assert numbers(stream(server, index).rest(log)) == list(range(30))
    server.ask("DELETE", f"/{index}")
    write(server.url, index, [{"n": 100 + n} for n in range(count)], idColumn="n")
    with pytest.raises(DataLoss, match=rf"deleted or made anew: {index}(.|\n)*failOnDataLoss=false"):
        stream(server, index).rest(log)
    query = stream(server, index, failOnDataLoss="false")
    assert numbers(query.rest(log)) == [100 + n for n in range(count)]
    assert "made anew" in caplog.text
    caplog.clear()
    assert stream(server, index).rest(log) == []  # what is known to be lost is told once


def test_an_index_that_goes_after_its_batch_was_planned_is_told_and_left_out_when_the_user_says_so(
    server: OpenSearchServer, index: str
) -> None:
    for part in ("a", "b"):
        write(server.url, f"{index}-{part}", [{"n": n} for n in range(10)], idColumn="n")
    log: list[Any] = []
    assert stream(server, f"{index}-*").plan(log) == 0
    server.ask("DELETE", f"/{index}-a")
    for _ in range(2):  # also when it is made anew
        with pytest.raises(DataLoss, match=rf'the index "{index}-a" was deleted or made anew(.|\n)*failOnDataLoss=false'):
            stream(server, f"{index}-*").batch(log, 0)
        assert numbers(stream(server, f"{index}-*", failOnDataLoss="false").batch(log, 0)) == list(range(10))
        write(server.url, f"{index}-a", [{"n": 100 + n} for n in range(20)], idColumn="n")


def test_an_index_that_goes_before_all_of_it_was_planned_is_told(server: OpenSearchServer, index: str) -> None:
    for part in ("a", "b"):
        write(server.url, f"{index}-{part}", [{"n": n} for n in range(10)], idColumn="n")
    log: list[Any] = []
    assert len(stream(server, f"{index}-*").next(log, ReadLimit(rows=1)) or []) == 1  # it is of one of them
    planned = [shard for shard, number in log[0]["at"]["next"].items() if number]
    assert len(planned) == 1
    unread = f"{index}-a" if planned[0].startswith(f"{index}-b") else f"{index}-b"
    server.ask("DELETE", f"/{unread}")
    with pytest.raises(DataLoss, match=f"deleted or made anew: {unread};"):
        stream(server, f"{index}-*").rest(log)
    assert len(stream(server, f"{index}-*", failOnDataLoss="false").rest(log)) == 9


def test_a_shard_that_has_fewer_changes_than_were_read_is_told(server: OpenSearchServer, index: str) -> None:
    """An older copy of a shard can be told to take over when all others are gone."""
    write(server.url, index, [{"n": n} for n in range(3)], idColumn="n")
    log: list[Any] = []
    stream(server, index).rest(log)
    (shard,) = log[-1]["at"]["next"]
    log[-1]["at"]["next"][shard] += 5
    write(server.url, index, [{"n": n} for n in range(3, 5)], idColumn="n")
    with pytest.raises(DataLoss, match=rf"the shard {index}/0 ends at change 5, but 8 were read(.|\n)*failOnDataLoss=false"):
        stream(server, index).rest(log)
    assert stream(server, index, failOnDataLoss="false").rest(log) == []
    write(server.url, index, [{"n": n} for n in range(5, 7)], idColumn="n")
    assert numbers(stream(server, index).rest(log)) == [5, 6]


def test_of_a_list_of_indices_the_others_are_read_when_one_is_gone(server: OpenSearchServer, index: str) -> None:
    for part in ("a", "b"):
        write(server.url, f"{index}-{part}", [{"n": n} for n in range(3)], idColumn="n")
    names, log = f"{index}-a,{index}-b", list[Any]()
    stream(server, names).rest(log)
    server.ask("DELETE", f"/{index}-b")
    write(server.url, f"{index}-a", [{"n": 3}], idColumn="n")
    with pytest.raises(DataLoss, match=f"made anew: {index}-b;"):
        stream(server, names).rest(log)
    assert numbers(stream(server, names, failOnDataLoss="false").rest(log)) == [3]
    assert stream(server, f"{index}-z").rest([]) == []  # not there yet


def test_an_index_that_is_closed_for_a_while_is_not_lost(server: OpenSearchServer, index: str) -> None:
    write(server.url, f"{index}-a", [{"n": n} for n in range(3)], idColumn="n")
    log: list[Any] = []
    assert numbers(stream(server, f"{index}-*").rest(log)) == [0, 1, 2]
    server.ask("POST", f"/{index}-a/_close")
    assert stream(server, f"{index}-*").rest(log) == []
    server.ask("POST", f"/{index}-a/_open?wait_for_active_shards=1")
    write(server.url, f"{index}-a", [{"n": 3}], idColumn="n")
    assert numbers(stream(server, f"{index}-*").rest(log)) == [3]


def test_an_index_that_is_made_anew_while_a_batch_read_begins_is_told(proxy: FaultProxy, index: str) -> None:
    write(proxy.url, index, [{"n": n} for n in range(10)], idColumn="n")

    def made_anew(call: Seen, passed_on: Any) -> Reply:
        if "/_search/point_in_time?" in call.path:
            proxy.rule = None
            SearchClient("connectors.elasticsearch", source_of(proxy.url, index).values).ask("DELETE", f"/{index}")
            write(proxy.url, index, [{"n": n} for n in range(20)], idColumn="n")
        return passed_on()  # type: ignore[no-any-return]

    proxy.rule = made_anew
    with pytest.raises(DataLoss, match=rf"made anew while the read began: {index}"):
        read(source_of(proxy.url, index), IDS)


def test_a_document_that_does_not_fit_names_field_and_value(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"n": "many"}])
    with pytest.raises(Fatal, match=r"field n: must be a whole number \(int64\); got 'many'"):
        read(source(server, index, idColumn="_id"), IDS)


def open_points(server: OpenSearchServer) -> int:
    stats = server.ask("GET", "/_nodes/stats/indices/search")
    return sum(node["indices"]["search"]["point_in_time_current"] for node in stats["nodes"].values())


def test_points_in_time_are_kept_for_tasks_that_start_late_and_renewed_by_each_page(proxy: FaultProxy, index: str) -> None:
    write(proxy.url, index, [{"n": n} for n in range(10)], idColumn="n")
    proxy.seen.clear()
    assert len(read(source_of(proxy.url, index, pageSize="4", keepAlive="2h"), IDS)) == 10
    opened = [request.path for request in proxy.seen if "point_in_time" in request.path]
    pages = [json.loads(request.body)["pit"]["keep_alive"] for request in proxy.seen if request.path == "/_search"]
    assert len(opened) == 1
    assert "keep_alive=7200000ms" in opened[0]
    assert len(pages) >= 3
    assert set(pages) == {"7200000ms"}


@pytest.mark.parametrize(("keep_alive", "times"), [("1h", 1), ("600ms", 3)])
def test_a_task_that_runs_keeps_the_points_in_time_of_all_shards(
    server: OpenSearchServer, proxy: FaultProxy, index: str, keep_alive: str, times: int
) -> None:
    """At its begin, and while nobody takes its rows; of those, too, whose tasks wait for their turn. It ends with the task."""
    for part in ("a", "b"):
        write(server.url, f"{index}-{part}", [{"n": n} for n in range(4)], idColumn="n")
    index_source = source_of(proxy.url, f"{index}-*", keepAlive=keep_alive, numPartitions="2")
    first, second = Planner(index_source).whole()
    rows = read_slice(index_source, first, IDS)
    next(iter(rows))

    def extensions(moment: str) -> int:
        bodies = [json.loads(request.body) for request in proxy.seen if request.path == "/_search"]
        return len([body for body in bodies if body["size"] == 0 and body["pit"]["id"] == moment])

    until = time.monotonic() + 10
    while min(map(extensions, second.detail.values())) < times and time.monotonic() < until:
        time.sleep(0.02)
    assert len(second.detail) == 2
    assert min(map(extensions, second.detail.values())) >= times
    rows.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "connectors.moments"]


def test_a_point_in_time_that_is_over_is_told_with_its_option(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"n": n} for n in range(10)], idColumn="n")
    index_source = source(server, index)
    parts = Planner(index_source).whole()
    server.ask("DELETE", "/_search/point_in_time/_all")
    with pytest.raises(Fatal, match=r"the point in time of the read is over(.|\n)*raise keepAlive"):
        _ = [row for part in parts for row in read_slice(index_source, part, IDS)]


def test_a_time_to_live_above_the_servers_is_told(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"n": 1}], idColumn="n")
    with pytest.raises(Misconfigured, match=r'keepAlive\s+"360000s" is longer than the server allows: .*max_keep_alive'):
        Planner(source(server, index, keepAlive="100h")).whole()


def test_points_in_time_of_a_plan_that_fails_are_closed(server: OpenSearchServer, proxy: FaultProxy, index: str) -> None:
    for part in ("a", "b"):
        write(server.url, f"{index}-{part}", [{"n": n} for n in range(4)], idColumn="n")
    before = open_points(server)

    def second_refused(call: Seen, passed_on: Any) -> Reply:
        refused = len([other for other in proxy.seen if "/_search/point_in_time?" in other.path]) == 2 and call.method == "POST"
        return Reply(403, b"no", {"Content-Type": "text/plain"}) if refused else passed_on()  # type: ignore[no-any-return]

    proxy.rule = second_refused
    with pytest.raises(Fatal, match="403"):
        Planner(source_of(proxy.url, f"{index}-*")).whole()
    assert open_points(server) == before
