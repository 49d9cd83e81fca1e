"""What each operation does to the documents of a real server, and which answers are no errors."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Fatal, Misconfigured, Poison
from connectors.testing.servers import OpenSearchServer

from .writing import write

UTC = datetime.timezone.utc
ROWS = [{"id": n, "name": f"row {n}"} for n in range(20)]


def test_the_same_batch_twice_is_the_same_documents(server: OpenSearchServer, index: str) -> None:
    for _ in range(2):
        assert write(server.url, index, ROWS, idColumn="id").rows == 20
    assert server.documents(index) == {str(row["id"]): row for row in ROWS}


def test_without_ids_each_write_adds_documents(server: OpenSearchServer, index: str) -> None:
    for _ in range(2):
        write(server.url, index, ROWS)
    assert len(server.documents(index)) == 40


def test_create_keeps_what_is_there(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"id": 1, "name": "old"}], idColumn="id", operation="create")
    assert write(server.url, index, ROWS[1:3], idColumn="id", operation="create").rows == 2
    assert server.documents(index) == {"1": {"id": 1, "name": "old"}, "2": ROWS[2]}


def test_update_changes_fields_and_leaves_others_and_null_empties_one(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"id": 1, "name": "old", "city": "Bern", "age": 7}], idColumn="id")
    write(server.url, index, [{"id": 1, "name": "new", "age": None}], idColumn="id", operation="update")
    assert server.documents(index) == {"1": {"id": 1, "name": "new", "city": "Bern", "age": None}}


def test_update_of_a_document_that_is_not_there_is_a_bad_row(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, ROWS[:1], idColumn="id")
    with pytest.raises(Poison, match="document_missing_exception"):
        write(server.url, index, ROWS[:2], idColumn="id", operation="update")
    assert write(server.url, index, ROWS[:2], idColumn="id", operation="update", errors="skip").rejected == 1


def test_upsert_makes_or_changes_documents(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"id": 1, "city": "Bern"}], idColumn="id")
    write(server.url, index, ROWS[1:3], idColumn="id", operation="upsert")
    assert server.documents(index) == {"1": {"city": "Bern", **ROWS[1]}, "2": ROWS[2]}


def test_delete_removes_documents_and_one_that_is_gone_is_no_error(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, ROWS, idColumn="id")
    assert write(server.url, index, [{"id": n} for n in range(10, 30)], idColumn="id", operation="delete").rows == 20
    assert server.documents(index) == {str(row["id"]): row for row in ROWS[:10]}


OPERATIONS = [
    {"op": "index", "id": 1, "name": "one"}, {"op": "create", "id": 2, "name": "two"}, {"op": "CREATE", "id": 3, "name": "no"},
    {"op": "update", "id": 4, "name": "four"}, {"op": "upsert", "id": 5, "name": "five"}, {"op": "delete", "id": 6},
    {"op": "upsert", "id": 7, "name": "seven"}, {"op": "delete", "id": 7}, {"op": "delete", "id": 8, "name": "x"},
    {"op": "create", "id": 8, "name": "eight"},
]  # fmt: skip
OLD = [{"id": number, "name": "old", "city": "Bern"} for number in (3, 4, 6, 8)]


def test_each_row_has_its_own_operation_in_order_and_a_replay_changes_nothing(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, OLD, idColumn="id")
    expected = {
        "1": {"id": 1, "name": "one"}, "2": {"id": 2, "name": "two"}, "3": OLD[0],
        "4": {"id": 4, "name": "four", "city": "Bern"}, "5": {"id": 5, "name": "five"}, "8": {"id": 8, "name": "eight"},
    }  # fmt: skip
    for size in ("1000", "1"):
        staged = write(server.url, index, OPERATIONS, idColumn="id", operationColumn="op", batch__maxRecords=size)
        assert (staged.rows, staged.rejected) == (10, 0)
        assert server.documents(index) == expected


def test_rows_without_an_operation_or_with_a_wrong_one_are_bad_rows(
    server: OpenSearchServer, index: str, tmp_path: Path
) -> None:
    rows = [
        {"op": None, "id": 1}, {"op": "merge", "id": 2}, {"op": "", "id": 3}, {"op": "index", "id": None},
        {"op": "update", "id": 9}, {"op": "index", "id": 5},
    ]  # fmt: skip
    letters = {"errors": "deadLetter", "deadLetterPath": str(tmp_path)}
    staged = write(server.url, index, rows, idColumn="id", operationColumn="op", **letters)
    assert (staged.rejected, list(server.documents(index).values())) == (5, [{"id": 5}])
    errors = [row["error"] for file in tmp_path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    for text in ('"op" is null, and must be one of index, create,', '"op" is "merge", and', '"op" is "", and', '"id" is null'):
        assert sum(text in error for error in errors) == 1
    with pytest.raises(Poison, match='the column "op" is "merge"'):
        write(server.url, index, rows[1:2], idColumn="id", operationColumn="op")


def test_operations_that_need_an_id_are_bad_rows_without(server: OpenSearchServer, index: str) -> None:
    rows = [{"op": operation, "n": 1} for operation in ("index", "create", "update", "upsert", "delete")]
    assert write(server.url, index, rows, operationColumn="op", errors="skip").rejected == 3
    assert [document["n"] for document in server.documents(index).values()] == [1, 1]
    with pytest.raises(Poison, match='the operation "delete" needs the id of a document; give idColumn'):
        write(server.url, index, rows[4:], operationColumn="op")


def test_versions_hold_for_the_operations_of_whole_documents(server: OpenSearchServer, index: str) -> None:
    options = {"idColumn": "id", "operationColumn": "op", "orderColumn": "v"}
    write(server.url, index, [{"op": "index", "id": 1, "v": 5}, {"op": "index", "id": 2, "v": 5}], **options)
    rows = [{"op": "delete", "id": 1, "v": 4}, {"op": "delete", "id": 2, "v": 6}]
    assert write(server.url, index, rows, **options).data == {"stale": 1}
    assert server.documents(index) == {"1": {"id": 1, "v": 5}}
    for operation in ("create", "update", "upsert"):
        with pytest.raises(Poison, match=f'the operation "{operation}" takes no version'):
            write(server.url, index, [{"op": operation, "id": 1, "v": 9}], **options)


@pytest.mark.parametrize("old", [-1, datetime.datetime(1969, 12, 31, tzinfo=UTC)])
def test_a_version_that_no_server_takes_is_a_bad_row_and_others_arrive(
    server: OpenSearchServer, index: str, old: Any
) -> None:
    newer = 0 if old == -1 else datetime.datetime(1970, 1, 1, tzinfo=UTC)
    rows = [{"id": 1, "v": newer}, {"id": 2, "v": old}]
    options = {"idColumn": "id", "orderColumn": "v"}
    staged = write(server.url, index, rows, **options, errors="skip")
    assert (staged.rows, staged.rejected, list(server.documents(index))) == (1, 1, ["1"])
    with pytest.raises(Poison, match='the column "v" must be 0 or more, or a time from 1970 on; as a number it is -'):
        write(server.url, index, rows, **options)


def test_of_rows_with_one_version_the_first_stays(server: OpenSearchServer, index: str) -> None:
    rows = [{"id": 1, "v": 5, "gone": False}, {"id": 1, "v": 5, "gone": True}]
    staged = write(server.url, index, rows, idColumn="id", orderColumn="v", deleteColumn="gone")
    assert (staged.data, server.documents(index)) == ({"stale": 1}, {"1": {"id": 1, "v": 5}})


def test_bytes_that_are_no_text_are_no_id(server: OpenSearchServer, index: str) -> None:
    rows = [{"id": "ä".encode(), "n": 1}, {"id": b"\xff", "n": 2}]
    assert write(server.url, index, rows, idColumn="id", errors="skip").rejected == 1
    assert list(server.documents(index)) == ["ä"]
    with pytest.raises(Poison, match=r"""the column "id" must be text in UTF-8; it is b'\\xff'"""):
        write(server.url, index, rows, idColumn="id")


def test_delete_column_deletes_and_is_not_written(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, ROWS[:3], idColumn="id")
    rows = [
        {"id": 0, "name": "new", "gone": None, "x": 1.0}, {"id": 1, "name": "x", "gone": True, "x": float("nan")},
        {"id": 2, "name": "new", "gone": False, "x": 2.0}, {"id": 9, "name": "x", "gone": True, "x": 0.0},
    ]  # fmt: skip
    for _ in range(2):
        assert write(server.url, index, rows, idColumn="id", deleteColumn="gone").rejected == 0
        assert server.documents(index) == {"0": {"id": 0, "name": "new", "x": 1.0}, "2": {"id": 2, "name": "new", "x": 2.0}}


def test_an_older_version_never_replaces_a_newer_one_and_is_counted(server: OpenSearchServer, index: str) -> None:
    def rows(version: int) -> list[dict[str, Any]]:
        return [{"id": n, "version": version} for n in range(5)]

    write(server.url, index, rows(7), idColumn="id", orderColumn="version")
    staged = write(server.url, index, rows(6), idColumn="id", orderColumn="version")
    assert staged.data == {"stale": 5}
    assert {row["version"] for row in server.documents(index).values()} == {7}


def test_of_one_batch_the_newest_version_stays_whatever_the_order(server: OpenSearchServer, index: str) -> None:
    at = [datetime.datetime(2024, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=n) for n in range(50)]
    rows = [{"id": n % 3, "at": at[(n * 7) % 50], "n": (n * 7) % 50} for n in range(50)]
    write(server.url, index, rows, idColumn="id", orderColumn="at", batch__maxRecords="2")
    newest = {str(key): max(row["n"] for row in rows if row["id"] == key) for key in range(3)}
    assert {key: row["n"] for key, row in server.documents(index).items()} == newest


def test_without_versions_the_last_row_of_an_id_in_a_task_stays(server: OpenSearchServer, index: str) -> None:
    rows = [{"id": n % 5, "n": n} for n in range(200)]
    write(server.url, index, rows, idColumn="id", batch__maxRecords="3")
    assert {key: row["n"] for key, row in server.documents(index).items()} == {str(n % 5): n for n in range(195, 200)}


def test_index_names_are_made_of_dates_in_utc_and_of_columns(server: OpenSearchServer, index: str) -> None:
    zone = datetime.timezone(datetime.timedelta(hours=2))
    rows = [
        {"id": 1, "at": datetime.datetime(2024, 5, 1, 1, tzinfo=zone), "kind": "a"},
        {"id": 2, "at": datetime.datetime(2024, 5, 1, 3, tzinfo=zone), "kind": "b"},
        {"id": 3, "at": None, "kind": "b"},
    ]
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "Europe/Berlin")), ("kind", pa.string())])
    staged = write(server.url, f"{index}-{{kind}}-{{at|yyyy-MM-dd}}", rows, schema, idColumn="id", errors="skip")
    assert (staged.rows, staged.rejected) == (2, 1)
    assert list(server.documents(f"{index}-a-2024-04-30")) == ["1"]
    assert list(server.documents(f"{index}-b-2024-05-01")) == ["2"]


def test_routing_decides_where_a_document_is(server: OpenSearchServer, index: str) -> None:
    write(server.url, index, [{"id": 1, "tenant": "a"}], idColumn="id", routingColumn="tenant")
    server.ask("POST", f"/{index}/_refresh")
    assert server.ask("POST", f"/{index}/_search")["hits"]["hits"][0]["_routing"] == "a"


def test_every_kind_of_value_is_the_json_that_the_server_takes(server: OpenSearchServer, index: str) -> None:
    row = {
        "id": "ä/1",
        "small": 7,
        "price": Decimal("12.3400"),
        "at": datetime.datetime(2024, 1, 2, 3, 4, 5, 600, tzinfo=UTC),
        "day": datetime.date(2024, 1, 2),
        "raw": b"\x00\xff",
        "none": None,
        "flag": True,
        "nested": {"list": [1, None], "deep": [{"x": "y"}]},
        "labels": [("k", Decimal("1.5"))],
    }
    deep = pa.struct([("list", pa.list_(pa.int32())), ("deep", pa.list_(pa.struct([("x", pa.string())])))])
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("small", pa.int16()),
            ("price", pa.decimal128(10, 4)),
            ("at", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("raw", pa.binary()),
            ("none", pa.string()),
            ("flag", pa.bool_()),
            ("nested", deep),
            ("labels", pa.map_(pa.string(), pa.decimal128(5, 1))),
        ]
    )
    write(server.url, index, [row], schema, idColumn="id")
    assert server.documents(index) == {
        "ä/1": {
            **{"id": "ä/1", "small": 7, "price": 12.34, "at": "2024-01-02T03:04:05.000600Z", "day": "2024-01-02"},
            **{"raw": "AP8=", "none": None, "flag": True, "nested": row["nested"], "labels": {"k": 1.5}},
        }
    }
    kinds = server.ask("GET", f"/{index}/_mapping")[index]["mappings"]["properties"]
    assert (kinds["at"]["type"], kinds["day"]["type"], kinds["price"]["type"]) == ("date", "date", "float")


def test_a_document_that_does_not_fit_the_mapping_becomes_a_dead_letter_and_is_sent_once(
    server: OpenSearchServer, proxy: Any, index: str, tmp_path: Path
) -> None:
    server.ask("PUT", f"/{index}", {"mappings": {"properties": {"n": {"type": "integer"}}}})
    rows = [{"id": n, "n": "odd" if n % 7 == 3 else str(n)} for n in range(30)]
    staged = write(proxy.url, index, rows, idColumn="id", errors="deadLetter", deadLetterPath=str(tmp_path))
    assert (staged.rows, staged.rejected) == (26, 4)
    letters = [row for file in tmp_path.glob("*.parquet") for row in pq.read_table(file).to_pylist()]
    assert sorted(json.loads(row["record"])["id"] for row in letters) == [3, 10, 17, 24]
    assert all("mapper_parsing_exception" in row["error"] and "odd" in row["error"] for row in letters)
    assert len(server.documents(index)) == 26
    assert len(proxy.seen) == 1


def test_a_bad_document_fails_the_batch_unless_told_otherwise(server: OpenSearchServer, index: str) -> None:
    server.ask("PUT", f"/{index}", {"mappings": {"properties": {"n": {"type": "integer"}}}})
    with pytest.raises(Poison, match=r"mapper_parsing_exception(.|\n)*errors=deadLetter"):
        write(server.url, index, [{"id": 1, "n": "odd"}], idColumn="id")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_number_that_json_lacks_is_a_bad_row(server: OpenSearchServer, index: str, value: float) -> None:
    rows = [{"id": 1, "x": 1.5, "in": [1.0]}, {"id": 2, "x": value, "in": None}, {"id": 3, "x": None, "in": [value]}]
    assert write(server.url, index, rows, idColumn="id", errors="skip").rejected == 2
    assert server.documents(index) == {"1": rows[0]}


def test_a_row_without_id_is_a_bad_row(server: OpenSearchServer, index: str) -> None:
    assert write(server.url, index, [{"id": None, "x": 1}, {"id": 2, "x": 1}], idColumn="id", errors="skip").rejected == 1


def test_an_index_that_may_not_be_made_is_told_and_not_a_bad_row(server: OpenSearchServer, index: str) -> None:
    name = f"closed-{index}"
    server.ask("PUT", "/_cluster/settings", {"transient": {"action.auto_create_index": "-closed-*,+*"}})
    try:
        with pytest.raises(Fatal, match="index_not_found_exception"):
            write(server.url, name, ROWS, errors="skip")
    finally:
        server.ask("PUT", "/_cluster/settings", {"transient": {"action.auto_create_index": None}})


def test_columns_that_are_not_there_are_told_together(server: OpenSearchServer) -> None:
    with pytest.raises(Misconfigured) as error:
        write(server.url, "logs-{at|yyyy}", ROWS, idColumn="key", orderColumn="v")
    assert {problem.option for problem in error.value.problems} == {"idColumn", "orderColumn", "index"}
