"""``connectors.connect.snapshot``: tables of a database are read anew, beside the merge of its log."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from connectors.core import Fatal, Misconfigured
from connectors.core.batch import Batch
from connectors.systems.delta.snapshot import _TableSnapshot
from tests.systems.change_logs import COLUMNS
from tests.systems.merge.shop_log import READ, WRITTEN, Log

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("ranges")]


def test_the_table_has_the_rows_of_the_database_afterwards(log: Log) -> None:
    assert log.snapshot(parallel=2) == {"table": "orders", "source": "shop.orders", "ranges": 3, "removed": 2}
    log.check()
    log.shop.run("DELETE FROM shop.orders WHERE id = 10", "UPDATE shop.orders SET name = NULL WHERE id = 11")
    assert log.snapshot()["removed"] == 1, "another one, with no change of the log between"
    log.check()
    log.upsert(1, "later", 1)
    log.delete(2)
    log.upsert(7, "later", 1)
    log.tables.restart()
    log.merge()
    assert {row["id"]: row["name"] for row in log.tables.rows("orders")}[7] == "later"


@pytest.mark.soak
def test_what_the_merge_writes_beside_it_stays(log: Log, meanwhile: Any) -> None:
    """Each range is read before the changes that come with the log while it is written."""
    keys, gone = iter([*range(40, 46), *range(75, 84)]), set[int]()  # of the second range, and of the third
    moments: list[str] = []

    def change(moment: str) -> None:
        moments.append(moment)
        if len(moments) < 3:  # the first range is written before the merge has deleted anything
            return
        assert not gone & {row["id"] for row in log.tables.rows("orders")}, "not even for a while"
        changed, deleted, moved = next(keys), next(keys), next(keys)
        log.upsert(changed, f"new, as rows were {moment}", 1)
        log.delete(deleted)
        log.delete(moved)
        log.upsert(moved + 1000, "moved", 2)
        log.merge()
        if moment == READ:
            gone.update((deleted, moved))

    meanwhile(change)
    log.snapshot(parallel=1)
    log.check()
    assert moments == [READ, WRITTEN] * 3 + [WRITTEN], "deletions are looked at once more"


@pytest.mark.soak
def test_an_interrupted_snapshot_goes_on_behind_its_last_step(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    write, steps = _TableSnapshot._write, list[Any]()

    def dying(snapshot: Any, plan: Any, step: Any, mark: Any) -> bool:
        if len(steps) == 2:
            raise OSError("no power")
        steps.append(step)
        return write(snapshot, plan, step, mark)

    with monkeypatch.context() as patch:
        patch.setattr(_TableSnapshot, "_write", dying)
        with pytest.raises(OSError, match="no power"):
            log.snapshot(parallel=1)
    log.upsert(7, "later", 1)
    log.delete(51)
    log.upsert(98, "later", 1)
    log.tables.restart()
    log.merge(2)
    monkeypatch.setattr(_TableSnapshot, "_write", lambda *arguments: steps.append(arguments[2]) or write(*arguments))
    log.snapshot(parallel=1)
    assert len(steps) == 3
    assert len({step.conditions[0] for step in steps}) == 3
    log.merge()
    log.check()


@pytest.mark.soak
def test_a_snapshot_that_died_behind_its_last_step_removes_what_is_gone(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(_TableSnapshot, "_end", lambda *_: exec("raise OSError('no power')"))
        with pytest.raises(OSError, match="no power"):
            log.snapshot()
    monkeypatch.setattr(_TableSnapshot, "_write", lambda *_: pytest.fail("all steps are written"))
    assert log.snapshot()["removed"] == 2
    log.check()


@pytest.mark.soak
def test_a_transaction_that_the_log_has_told_and_the_database_does_not_show_yet_is_waited_for(log: Log) -> None:
    """As behind synchronous replication: the log has a commit, while readers do not see it."""
    address = log.shop.connection.info
    with psycopg.connect(host=address.host, port=address.port, user=address.user, dbname=address.dbname) as other:
        other.execute("UPDATE shop.orders SET name = 'committed' WHERE id = 60")
        log.records.append(log.orders.upsert(id=60, name="committed", amount=600))
        log.merge()
        with pytest.raises(Fatal, match=r"transactions that have written are open for more than 1 seconds: session \d+ of"):
            log.snapshot(wait="1s")
        timer = threading.Timer(2.0, other.commit)
        timer.start()
        log.snapshot()
        timer.join()
    log.check()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 30))])
def test_whatever_comes_when_the_table_is_equal_in_the_end(log: Log, meanwhile: Any, seed: int) -> None:
    chance = random.Random(seed)

    def change(moment: str) -> None:
        for _ in range(chance.randrange(6)):
            key = chance.randrange(1, 110)
            if key in log.orders.rows and chance.random() < 0.5:
                log.delete(key)
            else:
                log.upsert(key, f"{moment} {log.orders.lsn}", chance.randrange(1000))
        if log.records and chance.random() < 0.6:
            log.merge(chance.randrange(1, len(log.records) + 1))
        if chance.random() < 0.15:
            log.tables.restart()
        if chance.random() < 0.15:
            raise OSError("no power")

    meanwhile(change)
    for _ in range(20):
        try:
            log.snapshot(parallel=chance.choice([1, 2]))
            break
        except OSError:
            continue
    log.merge()
    log.check()


@pytest.mark.soak
def test_rows_that_are_deleted_stay_with_soft_deletes(spark: Any, tmp_path: Path, meanwhile: Any) -> None:
    log = Log(spark, tmp_path / "shop", deletes="soft")
    log.merge()
    log.lose(7, 14)
    log.delete(30)
    log.merge()
    log.upsert(30, "back", 1)
    meanwhile(lambda moment: log.delete(60) or log.merge() if moment == WRITTEN and 60 in log.orders.rows else None)
    log.snapshot(parallel=1)
    rows = {row["id"]: row for row in log.tables.rows("orders")}
    assert {key for key, row in rows.items() if row["deleted_at"] is not None} == {60, 1001, 1002}
    assert (rows[30]["name"], rows[7]["name"]) == ("back", "name 6")
    log.merge()
    assert {row["id"] for row in log.tables.rows("orders") if row["deleted_at"] is not None} == {60, 1001, 1002}


@pytest.mark.soak
@pytest.mark.parametrize("moment", [READ, WRITTEN])
def test_a_truncation_beside_it_leaves_what_came_later(spark: Any, tmp_path: Path, meanwhile: Any, moment: str) -> None:
    log = Log(spark, tmp_path / "shop", truncate="delete")
    log.merge()
    done = []

    def truncate(at: str) -> None:
        if at == moment and not done:
            done.append(at)
            log.truncate()
            log.upsert(5, "later", 1)
            log.merge()
            log.upsert(6, "on its way", 1)

    meanwhile(truncate)
    log.snapshot(parallel=1)
    log.merge()
    log.check()


@pytest.mark.soak
def test_a_key_whose_deletion_is_newer_than_all_rows_is_read_as_any_other(log: Log) -> None:
    """Somebody has taken rows out of the table since, so the deletion is behind the rows that are left."""
    log.delete(5)
    log.merge()
    log.upsert(5, "again", 1)
    log.merge()
    log.tables.spark.sql(f"DELETE FROM delta.`{log.tables.path}/orders` WHERE id < 10")
    log.snapshot()
    log.check()


@pytest.mark.soak
def test_of_two_calls_at_once_one_stops_and_takes_no_row_of_the_other(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have waited for the transactions of the beginning, and each has a plan."""
    end, steps, others = _TableSnapshot._end, _TableSnapshot._steps, list[Any]()

    def planning(snapshot: Any) -> Any:
        if not others:
            others.append(_TableSnapshot(snapshot.spark, log.shop.options, snapshot.table, snapshot.settings))
            others.append(others[0]._begin())
        return steps(snapshot)

    def ending(snapshot: Any, plan: Any) -> int:
        other, other_plan = others
        with pytest.raises(Fatal, match="another call reads orders anew"):
            other._write(other_plan, other_plan.steps[0], None)
        removed = end(snapshot, plan)
        with pytest.raises(Fatal, match="another call reads orders anew, or has ended this snapshot"):
            end(other, other_plan)
        return removed

    monkeypatch.setattr(_TableSnapshot, "_steps", planning)
    monkeypatch.setattr(_TableSnapshot, "_end", ending)
    assert log.snapshot()["removed"] == 2
    log.check()


@pytest.mark.soak
def test_a_column_that_comes_while_rows_are_read_is_read_with_them(log: Log, meanwhile: Any) -> None:
    """Else rows that the table lacks would be without the default that the merge has filled in."""
    done = []

    def alter(moment: str) -> None:
        if moment == READ and not done:
            done.append(moment)
            log.shop.run("ALTER TABLE shop.orders ADD extra bigint DEFAULT 7")
            log.shop.run("UPDATE shop.orders SET amount = 1 WHERE id = 60")
            log.orders.fields["extra"] = {"type": "int64", "optional": True, "default": 7}
            log.records.append(log.orders.upsert(id=60, name="name 59", amount=1, extra=7))
            log.merge()

    meanwhile(alter)
    with pytest.raises(Fatal, match="the columns of orders have been altered while its rows were read"):
        log.snapshot()
    log.snapshot()
    rows = log.tables.rows("orders")
    assert (len(rows), {row["extra"] for row in rows}) == (99, {7})


@pytest.mark.soak
def test_a_history_that_begins_beside_it_stops_it(log: Log, meanwhile: Any) -> None:
    def begin(moment: str) -> None:
        log.tables.restart(history=True)
        log.upsert(60, "in the history", 1)
        log.merge()

    meanwhile(begin)
    with pytest.raises(Misconfigured, match="has orders, whose history would lack the snapshot"):
        log.snapshot()
    history = log.tables.spark.read.format("delta").load(f"{log.tables.path}/orders_history").where("is_current")
    rows = [row.asDict() for row in history.select("id", "name", "amount").orderBy("id").collect()]
    assert rows == log.tables.rows("orders")


@pytest.mark.soak
def test_rows_that_were_written_by_hand_have_no_place_and_are_before_the_snapshot(log: Log) -> None:
    place = f"delta.`{log.tables.path}/orders`"
    log.tables.spark.sql(f"INSERT INTO {place} (id, name, amount) VALUES (5000, 'ghost', 1)")
    log.tables.spark.sql(f"UPDATE {place} SET _position = NULL, name = 'other' WHERE id = 20")
    assert log.snapshot()["removed"] == 3
    log.check()


@pytest.mark.soak
def test_behind_another_query_it_begins_anew(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that begins with a slot of its own has a gap in front of it, which an older plan does not know of."""
    with monkeypatch.context() as patch:
        patch.setattr(_TableSnapshot, "_write", lambda *_: exec("raise OSError('no power')"))
        with pytest.raises(OSError, match="no power"):
            log.snapshot()
    log.upsert(40, "seen", 1)
    log.merge()
    log.shop.run("UPDATE shop.orders SET name = 'untold' WHERE id = 40", "DELETE FROM shop.orders WHERE id = 41")
    log.upsert(42, "told", 1)
    records, log.records = log.records, []
    log.tables.restart(onNewQuery="continue")
    rows = [(record["topic"], record["key"], record["value"], None) for record in records]
    frame = log.tables.spark.createDataFrame(rows, COLUMNS)
    log.tables.function.write(frame, Batch(log.tables.function.sink.sink_id(), "another", 0))
    log.snapshot()
    log.check()
