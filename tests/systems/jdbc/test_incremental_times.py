"""What a stream by times, by ids, or of everything promises, on real databases."""

from __future__ import annotations

import contextlib
import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.planning import Offset
from connectors.core.progress import unpacked
from connectors.ground.errors import Fatal, Misconfigured, StateError
from connectors.systems.jdbc.incremental.keys import UTC
from connectors.systems.jdbc.source import JdbcSource
from connectors.testing.source_suite import SourceQuery

from .contexts import DuckDbContext, MariaDbContext, PostgresContext, SqliteContext
from .incremental_contexts import (
    BY_BOTH,
    BY_TIME,
    PostgresById,
    PostgresByTime,
    SqliteById,
    SqliteByTime,
    StreamContext,
)


class MariaById(StreamContext):
    database = MariaDbContext


class MariaByTime(StreamContext):
    database, mode = MariaDbContext, BY_TIME


@pytest.fixture(params=[SqliteByTime, PostgresByTime])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StreamContext]:
    with contextlib.closing(request.param(tmp_path / "system")) as context:
        yield context


def ids(reading: SourceQuery, log: list[Offset]) -> list[int]:
    """The ids of what is new."""
    return [row["id"] for row in reading.rest(log)]


def put(table: StreamContext, number: int, moment: str | None) -> None:
    value = "NULL" if moment is None else f"'{moment}'"
    table.target.run(f"INSERT INTO {table.target.table} VALUES ({number}, 'x', {value})")


def test_a_limit_never_cuts_inside_equal_times(table: StreamContext) -> None:
    for number, second in enumerate((1, 1, 1, 2, 3, 3)):
        put(table, number, f"2024-01-01 00:00:0{second}")
    reading, log = SourceQuery(table, maxRowsPerTrigger="2"), list[Offset]()
    batches = []
    while (rows := reading.next(log)) is not None:
        batches.append(sorted(row["id"] for row in rows))
    assert batches == [[0, 1, 2], [3], [4, 5]]


def test_a_changed_row_is_read_again_and_one_that_did_not_change_is_not(table: StreamContext) -> None:
    put(table, 1, "2024-01-01 00:00:01")
    put(table, 2, "2024-01-01 00:00:02")
    reading, log = SourceQuery(table), list[Offset]()
    assert ids(reading, log) == [1, 2]
    table.target.run(f"UPDATE {table.target.table} SET changed = '2024-01-01 00:00:03' WHERE id = 1")
    assert ids(reading, log) == [1]


def test_times_that_are_not_yet_come_wait_until_they_have(table: StreamContext) -> None:
    put(table, 1, "2024-01-01 00:00:01")
    put(table, 2, "2999-01-01 00:00:00")
    reading, log = SourceQuery(table), list[Offset]()
    assert ids(reading, log) == [1]
    put(table, 3, "2024-01-01 00:00:02")
    assert ids(reading, log) == [3]


def test_a_delay_holds_back_what_is_younger(table: StreamContext) -> None:
    put(table, 1, "2024-01-01 00:00:01")
    put(table, 2, (datetime.datetime.now(UTC) - datetime.timedelta(seconds=1)).strftime("%Y-%m-%d %H:%M:%S"))
    assert ids(SourceQuery(table, timestampDelay="1h"), []) == [1]
    assert ids(SourceQuery(table), []) == [1, 2]


def test_a_row_is_read_when_its_delay_has_passed(table: StreamContext) -> None:
    put(table, 1, "2024-01-01 00:00:01")
    began, delay = datetime.datetime.now(UTC), datetime.timedelta(seconds=2)
    put(table, 2, table.stamp(began))
    reading, log, found = SourceQuery(table, timestampDelay="2s"), list[Offset](), list[int]()
    while 2 not in found and datetime.datetime.now(UTC) < began + 15 * delay:
        found += ids(reading, log)
    assert datetime.datetime.now(UTC) >= began + delay
    assert found == [1, 2]
    assert ids(reading, log) == []


def test_rows_without_a_key_are_left_out_and_counted(table: StreamContext) -> None:
    put(table, 1, "2024-01-01 00:00:01")
    put(table, 2, None)
    reading, log = SourceQuery(table), list[Offset]()
    assert ids(reading, log) == [1]
    left_out = [part for part in unpacked(log[-1]) if part.partition.endswith("without a key")]
    assert [part.lag_records for part in left_out] == [1]


def test_of_several_times_the_first_that_is_not_null_counts(tmp_path: Path) -> None:
    class Two(StreamContext):
        database = SqliteContext
        mode = {**BY_TIME, "timestampColumns": "changed,made"}  # noqa: RUF012

    with contextlib.closing(Two(tmp_path / "system")) as table:
        table.target.run(f"ALTER TABLE {table.target.table} ADD COLUMN made DATETIME")
        name = table.target.table
        table.target.run(f"INSERT INTO {name} VALUES (1, 'x', NULL, '2024-01-01 00:00:01'), (2, 'x', NULL, NULL)")
        reading, log = SourceQuery(table), list[Offset]()
        assert ids(reading, log) == [1]
        table.target.run(f"UPDATE {name} SET changed = '2024-01-01 00:00:02' WHERE id = 1")
        assert ids(reading, log) == [1]


def test_a_row_of_an_equal_time_and_a_larger_id_is_not_missed(tmp_path: Path) -> None:
    for database in (SqliteContext, DuckDbContext, PostgresContext):
        kind = type("Both", (StreamContext,), {"database": database, "mode": BY_BOTH})
        with contextlib.closing(kind(tmp_path / database.__name__ / "system")) as table:
            put(table, 1, "2024-01-01 00:00:01")
            reading, log = SourceQuery(table), list[Offset]()
            assert ids(reading, log) == [1]
            put(table, 2, "2024-01-01 00:00:01")
            assert ids(reading, log) == [2], database


def test_everything_is_read_once_per_trigger_and_once_per_start_when_available(tmp_path: Path) -> None:
    class Bulk(StreamContext):
        database = SqliteContext
        mode = {"incremental": "bulk"}  # noqa: RUF012

    with contextlib.closing(Bulk(tmp_path / "system")) as table:
        put(table, 1, None)
        reading, log = SourceQuery(table), list[Offset]()
        assert [[row["id"] for row in reading.next(log) or []] for _ in range(2)] == [[1], [1]]
        put(table, 2, None)
        for _ in range(2):
            reading = SourceQuery(table)
            reading.planner.freeze()
            assert ids(reading, log) == [1, 2]


def test_ids_below_those_that_were_read_are_rolled_back_or_read_when_they_come(tmp_path: Path) -> None:
    with contextlib.closing(PostgresById(tmp_path / "system")) as table, contextlib.ExitStack() as stack:
        late, never = (stack.enter_context(contextlib.closing(table.target.connect())) for _ in range(2))
        reading, log = SourceQuery(table), list[Offset]()
        for connection, number in ((late, 2), (never, 3)):
            connection.execute("BEGIN")
            connection.execute(f"INSERT INTO {table.target.table} VALUES ({number}, 'x', now())")
        put(table, 1, None)
        put(table, 4, None)
        assert ids(reading, log) == [1, 4]
        assert _state(log)["holes"] == [[2, 3]]
        table.target.run(f"UPDATE {table.target.table} SET name = 'changed' WHERE id = 1")
        late.execute("COMMIT")
        never.execute("ROLLBACK")
        assert ids(SourceQuery(table), log) == [2]
        put(table, 5, None)
        assert ids(SourceQuery(table), log) == [5]
        assert "holes" not in _state(log)


def test_the_least_id_of_a_type_is_read_beside_an_open_transaction(tmp_path: Path) -> None:
    with contextlib.closing(PostgresById(tmp_path / "system")) as table:
        name = table.target.table
        table.target.run(f"ALTER TABLE {name} ALTER id TYPE integer")
        put(table, -(2**31), None)
        with contextlib.closing(table.target.connect()) as late:
            late.execute("BEGIN")
            late.execute(f"INSERT INTO {name} VALUES (2, 'x', NULL)")
            put(table, 3, None)
            reading, log = SourceQuery(table), list[Offset]()
            assert ids(reading, log) == [-(2**31), 3]
            late.execute("COMMIT")
        assert ids(reading, log) == [2]


@pytest.mark.parametrize("first", [-4, 0])
@pytest.mark.parametrize("kind", ["integer", "bigint", "numeric(10,0)"])
def test_an_id_below_all_others_is_read_when_it_comes(tmp_path: Path, kind: str, first: int) -> None:
    with contextlib.closing(PostgresById(tmp_path / "system")) as table:
        name = table.target.table
        table.target.run(f"ALTER TABLE {name} ALTER id TYPE {kind}")
        with contextlib.closing(table.target.connect()) as late:
            late.execute("BEGIN")
            late.execute(f"INSERT INTO {name} VALUES (-5, 'x', NULL)")
            put(table, first, None)
            put(table, 1, None)
            reading, log = SourceQuery(table), list[Offset]()
            assert ids(reading, log) == [first, 1]
            late.execute("COMMIT")
        put(table, 7, None)
        assert ids(reading, log) == [-5, 7]
        assert "holes" not in _state(log)


def test_unsigned_decimals_of_mariadb_are_ids(tmp_path: Path) -> None:
    with contextlib.closing(MariaById(tmp_path / "system")) as table:
        table.target.run(f"ALTER TABLE {table.target.table} MODIFY id decimal(20,0) unsigned")
        log = list[Offset]()
        for number in (1, 3):
            put(table, number, None)
            assert ids(SourceQuery(table), log) == [number]


def test_a_gap_that_nobody_can_fill_is_no_hole(tmp_path: Path) -> None:
    with contextlib.closing(PostgresById(tmp_path / "system")) as table:
        put(table, 1, None)
        put(table, 1 << 40, None)
        log = list[Offset]()
        assert ids(SourceQuery(table), log) == [1, 1 << 40]
        assert "holes" not in _state(log)


def test_more_holes_than_are_watched_make_later_ids_wait_and_nothing_is_lost(tmp_path: Path) -> None:
    with contextlib.closing(PostgresById(tmp_path / "system")) as table, contextlib.closing(table.target.connect()) as late:
        late.execute("BEGIN")
        late.execute(f"INSERT INTO {table.target.table} SELECT 2 * n, 'late', now() FROM generate_series(1, 700) n")
        table.target.run(f"INSERT INTO {table.target.table} SELECT 2 * n + 1, 'x', now() FROM generate_series(0, 800) n")
        log, reading = list[Offset](), SourceQuery(table)
        first = ids(reading, log)
        assert first == [2 * n + 1 for n in range(len(first))]
        assert 400 <= len(first) <= 600
        late.execute("COMMIT")
        assert sorted(first + ids(reading, log)) == sorted([2 * n for n in range(1, 701)] + [2 * n + 1 for n in range(801)])


def test_other_transactions_do_not_hold_up_rows_that_are_there(tmp_path: Path) -> None:
    with contextlib.closing(PostgresByTime(tmp_path / "system")) as table, contextlib.closing(table.target.connect()) as late:
        late.execute("BEGIN")
        late.execute(f"INSERT INTO {table.target.table} VALUES (1, 'late', now())")
        table.target.run(f"INSERT INTO {table.target.table} VALUES (2, 'x', now())")
        reading, log = SourceQuery(table), list[Offset]()
        assert ids(reading, log) == [2]
        late.execute("COMMIT")
        assert ids(reading, log) == [1]
        table.target.run(f"INSERT INTO {table.target.table} VALUES (3, 'x', now())")
        assert ids(reading, log) == [3]
        assert "low" not in _state(log)


def test_a_transaction_that_has_not_written_yet_may_write_an_earlier_time(tmp_path: Path) -> None:
    with contextlib.closing(PostgresByTime(tmp_path / "system")) as table, contextlib.closing(table.target.connect()) as late:
        put(table, 1, "2024-01-01 00:00:01")
        reading, log = SourceQuery(table), list[Offset]()
        assert ids(reading, log) == [1]
        late.execute("BEGIN")
        late.rows("SELECT now()")
        table.target.run(f"INSERT INTO {table.target.table} VALUES (2, 'x', now())")
        assert ids(reading, log) == [2]
        late.execute(f"INSERT INTO {table.target.table} VALUES (3, 'late', now())")
        late.execute("COMMIT")
        assert ids(SourceQuery(table), log) == [3]


def test_a_transaction_that_is_prepared_is_as_late_as_it_was_before(tmp_path: Path) -> None:
    with contextlib.closing(PostgresByTime(tmp_path / "system")) as table, contextlib.closing(table.target.connect()) as late:
        name, transaction = table.target.table, f"late-{table.target.table}"
        put(table, 1, "2024-01-01 00:00:01")
        reading, log = SourceQuery(table), list[Offset]()
        assert ids(reading, log) == [1]
        late.execute("BEGIN")
        late.execute(f"INSERT INTO {name} VALUES (2, 'late', now())")
        table.target.run(f"INSERT INTO {name} VALUES (3, 'x', now())")
        assert ids(reading, log) == [3]
        late.execute(f"PREPARE TRANSACTION '{transaction}'")
        table.target.run(f"INSERT INTO {name} VALUES (4, 'x', now())")
        assert ids(reading, log) == [4]
        late.execute(f"COMMIT PREPARED '{transaction}'")
        assert ids(reading, log) == [2]


def test_a_query_is_a_stream_too(table: StreamContext) -> None:
    put(table, 1, "2024-01-01 00:00:01")
    query = f"SELECT id, name, changed FROM {table.target.table} WHERE id < 10 -- 100%"
    options = {**table.options(), "query": query}
    del options["dbtable"]
    table.options = lambda: options  # type: ignore[method-assign]
    reading, log = SourceQuery(table), list[Offset]()
    assert ids(reading, log) == [1]
    put(table, 2, "2024-01-01 00:00:02")
    put(table, 20, "2024-01-01 00:00:03")
    assert ids(reading, log) == [2]


def test_the_checkpoint_of_another_key_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(SqliteById(tmp_path / "system")) as table:
        put(table, 1, "2024-01-01 00:00:01")
        log = list[Offset]()
        ids(SourceQuery(table), log)
        table.mode = BY_TIME  # type: ignore[misc]
        with pytest.raises(StateError, match="by id, and now it is to be by changed"):
            ids(SourceQuery(table), log)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"incremental": "timestamp"}, "timestampColumns"),
        ({"incremental": "sometimes"}, "incremental"),
        ({"incremental": "incrementing", "timestampColumns": "changed"}, "timestampColumns"),
        ({"incremental": "bulk", "incrementingColumn": "id"}, "incrementingColumn"),
        ({"incremental": "incrementing", "timestampDelay": "1s"}, "timestampDelay"),
        ({"incremental": "incrementing", "includeSchema": "true"}, "includeSchema"),
        ({"incremental": "incrementing", "tables": "("}, "tables"),
    ],
)
def test_options_that_do_not_go_together_are_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(Misconfigured, match=named):
        JdbcSource.of({"url": "sqlite:///x.db", "dbtable": "t", **options}, streaming=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"incremental": "incrementing", "incrementingColumn": "name"}, "no whole number"),
        ({"incremental": "incrementing", "incrementingColumn": "nothing"}, 'names "nothing", but the columns'),
        ({"incremental": "incrementing"}, "no primary key of one column"),
        ({"incremental": "timestamp", "timestampColumns": "name"}, "is no time but"),
    ],
)
def test_columns_that_cannot_be_keys_are_named(tmp_path: Path, options: dict[str, str], text: str) -> None:
    with contextlib.closing(PostgresById(tmp_path / "system")) as table:
        table.mode = options  # type: ignore[misc]
        with pytest.raises(Misconfigured, match=text):
            SourceQuery(table).rest([])


def test_text_that_is_no_time_is_told(tmp_path: Path) -> None:
    with contextlib.closing(SqliteByTime(tmp_path / "system")) as table:
        put(table, 1, "yesterday")
        with pytest.raises(Fatal, match="'yesterday' in changed"):
            SourceQuery(table).rest([])


@pytest.mark.parametrize("stamps", [(1704067201, 1704067202, 1704067203), (1704067201000, 1704067202000, 1704067203000)])
def test_numbers_are_times_where_a_database_has_none(tmp_path: Path, stamps: tuple[int, int, int]) -> None:
    with contextlib.closing(SqliteByTime(tmp_path / "system")) as table:
        name = table.target.table
        table.target.run(f"DROP TABLE {name}")
        table.target.run(f"CREATE TABLE {name} (id INTEGER, name TEXT, changed INTEGER)")
        table.schema = pa.schema([("id", pa.int64()), ("changed", pa.int64())])  # type: ignore[misc]
        log = list[Offset]()
        for number, stamp in enumerate(stamps):
            table.target.run(f"INSERT INTO {name} VALUES ({number}, 'x', {stamp})")
            assert ids(SourceQuery(table), log) == [number]


def test_rows_of_one_second_are_read_together_when_it_is_over(tmp_path: Path) -> None:
    with contextlib.closing(SqliteByTime(tmp_path / "system")) as table:
        log, now = list[Offset](), datetime.datetime.now(UTC).replace(microsecond=0)
        put(table, 1, f"{now:%Y-%m-%d %H:%M:%S}")
        found = ids(SourceQuery(table), log)
        put(table, 2, f"{now:%Y-%m-%d %H:%M:%S}")
        while len(found) < 2 and datetime.datetime.now(UTC) < now + datetime.timedelta(seconds=10):
            found += ids(SourceQuery(table), log)
        assert found == [1, 2]


def test_rows_of_one_minute_wait_until_it_is_over(tmp_path: Path) -> None:
    with contextlib.closing(SqliteByTime(tmp_path / "system")) as table:
        log, now = list[Offset](), datetime.datetime.now(UTC)
        for number, minutes in ((1, 2), (2, 0)):
            put(table, number, f"{now - datetime.timedelta(minutes=minutes):%Y-%m-%d %H:%M}")
        found = ids(SourceQuery(table), log)
        assert found == [1] or datetime.datetime.now(UTC).minute != now.minute


def test_texts_with_an_offset_are_of_the_given_zone_or_of_utc(tmp_path: Path) -> None:
    with contextlib.closing(SqliteByTime(tmp_path / "system")) as table:
        table.schema = pa.schema([("id", pa.int64())])  # type: ignore[misc]
        put(table, 1, "2024-01-01T00:00:00Z")
        put(table, 2, "2024-01-01T12:00:00-05:00")
        with pytest.raises(Fatal, match=r"'2024-01-01T12:00:00-05:00' in changed .* of the zone UTC.*\n.*set timeZone"):
            ids(SourceQuery(table), [])
        assert ids(SourceQuery(table, timeZone="America/New_York"), []) == [1, 2]
        put(table, 3, "9999-12-31T23:59:59-05:00")
        assert ids(SourceQuery(table, timeZone="America/New_York"), []) == [1, 2]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_timestamp_of_mariadb_is_compared_with_the_clock_in_utc(tmp_path: Path, zone: str) -> None:
    with contextlib.closing(MariaByTime(tmp_path / "system")) as table:
        table.target.run(f"ALTER TABLE {table.target.table} MODIFY changed TIMESTAMP(6) NULL")
        for minutes in (10, 2):
            moment = datetime.datetime.now(UTC) - datetime.timedelta(minutes=minutes)
            put(table, minutes, table.stamp(moment))
        assert ids(SourceQuery(table, timeZone=zone, timestampDelay="5 minutes"), []) == [10]


@pytest.mark.parametrize(("kind", "first"), [("timestamptz", "-infinity"), ("date", "0044-03-15 BC")])
def test_times_before_the_first_year_are_read_in_batches_too(tmp_path: Path, kind: str, first: str) -> None:
    with contextlib.closing(PostgresByTime(tmp_path / "system")) as table:
        table.schema = pa.schema([("id", pa.int64())])  # type: ignore[misc]
        table.target.run(f"ALTER TABLE {table.target.table} ALTER changed TYPE {kind}")
        for number, moment in enumerate((first, first, "2024-01-01")):
            put(table, number, moment)
        assert ids(SourceQuery(table, maxRowsPerTrigger="1", outageTimeout="1s"), []) == [0, 1, 2]


def test_a_stream_of_mariadb_reads_what_is_new(tmp_path: Path) -> None:
    for mode in (BY_BOTH, BY_TIME, {"incremental": "incrementing", "incrementingColumn": "id"}):
        kind = type("Maria", (StreamContext,), {"database": MariaDbContext, "mode": mode})
        with contextlib.closing(kind(tmp_path / mode["incremental"] / "system")) as table:
            put(table, 1, "2024-01-01 00:00:01")
            reading, log = SourceQuery(table), list[Offset]()
            assert ids(reading, log) == [1]
            put(table, 2, "2024-01-01 00:00:02")
            assert ids(reading, log) == [2]


def _state(log: list[Offset]) -> dict[str, Any]:
    (state,) = log[-1]["at"]["tables"].values()
    return json.loads(json.dumps(state))  # type: ignore[no-any-return]
