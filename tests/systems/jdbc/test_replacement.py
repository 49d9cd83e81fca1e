"""A new query that takes the place of all others: their rows go, and they with them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from connectors.core import Batch, Committable, Misconfigured
from connectors.core.commit import Commit
from connectors.core.ledger import Entry, app_query
from connectors.core.sink import GlobalCommitter
from connectors.core.writing import stage
from connectors.ground.errors import CommitRefused
from connectors.systems.jdbc import JdbcSink
from connectors.systems.jdbc.prepared import PreparedTransactions

from .contexts import DatabaseContext, PostgresContext
from .test_operations import DATABASES, KEYED, ROWS, content, rows


@pytest.fixture(params=DATABASES, ids=lambda kind: kind.__name__.removesuffix("Context").lower())
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseContext]:
    class Keyed(request.param):  # type: ignore[name-defined, misc]
        body = KEYED.replace(" NOT NULL PRIMARY KEY", "")

    with contextlib.closing(Keyed(tmp_path / "target")) as database:
        yield database


class Query:
    """A query into ``database``: its driver, which lives as long as this object."""

    def __init__(self, database: DatabaseContext, name: str, **options: str) -> None:
        self.name, self.sink = name, JdbcSink.of({**database.options(), **options})
        self.commit = Commit(self.sink)

    def staged(self, number: int, *ids: int) -> tuple[Batch, list[Committable]]:
        batch = Batch(self.sink.sink_id(), self.name, number)
        part = rows(*((i, "a", i) for i in ids))
        return batch, [stage(self.sink, batch, ROWS, 0, iter([part]))]

    def write(self, number: int, *ids: int) -> None:
        self.commit.finish(*self.staged(number, *ids))


class Orders(PostgresContext):
    body = KEYED


def ids(database: DatabaseContext) -> list[int]:
    return [i for (i,) in content(database, "id")]


@pytest.mark.parametrize("is_deciding", [False, True], ids=["before its commit", "in its commit"])
def test_a_driver_that_stood_still_adds_nothing_to_what_has_replaced_its_rows(
    database: DatabaseContext, monkeypatch: pytest.MonkeyPatch, *, is_deciding: bool
) -> None:
    old, new = Query(database, "old"), Query(database, "new", onNewQuery="replace")
    old.write(0, 1, 2)
    late = old.staged(1, 3)
    if is_deciding:
        committer = old.commit.committer
        assert isinstance(committer, GlobalCommitter)
        commit = committer.commit

        def stands_still(entry: Entry, committables: Sequence[Committable]) -> None:
            new.write(0, 1, 2, 3)
            commit(entry, committables)

        monkeypatch.setattr(committer, "commit", stands_still)
    else:
        new.write(0, 1, 2, 3)
    with pytest.raises(CommitRefused, match="already belongs to query new"):
        old.commit.finish(*late)
    new.write(1, 4)
    assert ids(database) == [1, 2, 3, 4]


def test_of_two_flows_that_both_take_the_place_of_others_one_is_stopped(database: DatabaseContext) -> None:
    first, second = (Query(database, name, onNewQuery="replace") for name in ("first", "second"))
    first.write(0, 1, 2)
    second.write(0, 11)
    with pytest.raises(CommitRefused, match="belongs to query second"):
        first.write(1, 3)


def test_a_batch_write_whose_rows_are_gone_is_written_when_it_is_repeated(database: DatabaseContext) -> None:
    load = app_query("load")
    Query(database, load).write(1, 100)
    Query(database, "old").write(0, 1)
    Query(database, "new", onNewQuery="replace").write(0, 1, 2)
    assert ids(database) == [1, 2]
    Query(database, load).write(1, 100)
    Query(database, load).write(1, 100)
    assert ids(database) == [1, 2, 100]


def test_a_batch_that_is_decided_and_not_committed_yet_comes_before_what_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are prepared in PostgreSQL, and its driver stands still between the decision and their commit."""
    class Orders(PostgresContext):
        body = KEYED.replace(" NOT NULL PRIMARY KEY", "")

    with contextlib.closing(Orders(tmp_path / "target")) as database:
        old, new = Query(database, "old", commit="prepared"), Query(database, "new", onNewQuery="replace")
        replacement = new.staged(0, 1, 2, 3)
        new.commit.begin(replacement[0])  # its look for what is unfinished lies behind it
        thread = threading.Thread(target=new.commit.finish, args=replacement)
        commit = PreparedTransactions.commit

        def stands_still(self: PreparedTransactions, names: Sequence[str]) -> None:
            if not thread.ident:
                thread.start()
                thread.join(2)
            commit(self, names)

        monkeypatch.setattr(PreparedTransactions, "commit", stands_still)
        old.write(0, 1, 2)
        thread.join()
        assert ids(database) == [1, 2, 3]


def test_keys_that_a_dead_query_has_prepared_and_not_decided_do_not_hold_up_what_takes_its_place(tmp_path: Path) -> None:
    with contextlib.closing(Orders(tmp_path / "target")) as database:
        old = Query(database, "old", commit="prepared")
        new = Query(database, "new", onNewQuery="replace", outageTimeout="1s", **{"request.timeout": "1s"})
        old.write(0, 1, 2)
        late = old.staged(1, 3, 4)
        new.write(0, 1, 2, 3, 4)
        with pytest.raises(CommitRefused, match="already belongs to query new"):
            old.commit.finish(*late)
        assert sorted(ids(database)) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_decided", [True, False], ids=["decided", "not decided yet"])
def test_what_a_sink_of_the_same_id_in_another_schema_has_prepared_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_decided: bool
) -> None:
    class Death(Exception):
        pass

    def dies(*_: object) -> None:
        raise Death

    name = {"sinkId": "orders"}
    with contextlib.closing(Orders(tmp_path / "one" / "t")) as one, contextlib.closing(Orders(tmp_path / "two" / "t")) as two:
        beside = Query(two, "beside", commit="prepared", **name)
        beside.write(0, 1)
        late = beside.staged(1, 2)
        if is_decided:
            with monkeypatch.context() as patch:
                patch.setattr(PreparedTransactions, "commit", dies)
                with pytest.raises(Death):
                    beside.commit.finish(*late)
        Query(one, "old", **name).write(0, 1)
        Query(one, "new", onNewQuery="replace", **name).write(0, 2)
        Query(two, "beside", commit="prepared", **name).commit.finish(*late)
        assert sorted(ids(two)) == [1, 2]


def test_a_claim_that_comes_too_late_ends_nothing_of_the_query_that_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(Orders(tmp_path / "target")) as database:
        Query(database, "old").write(0, 1)
        new = Query(database, "new", onNewQuery="replace")
        faster = Query(database, "faster", commit="prepared", onNewQuery="continue")
        committer, prepared = new.commit.committer, []
        assert isinstance(committer, GlobalCommitter)
        commit = committer.commit

        def stands_still(entry: Entry, committables: Sequence[Committable]) -> None:
            faster.write(0, 2)
            prepared.append(faster.staged(1, 3))
            commit(entry, committables)

        monkeypatch.setattr(committer, "commit", stands_still)
        with pytest.raises(CommitRefused, match="already belongs to query faster"):
            new.write(0, 9)
        faster.commit.finish(*prepared[0])
        assert sorted(ids(database)) == [1, 2, 3]


def test_other_sinks_and_queries_that_go_on_beside_each_other_keep_their_place(database: DatabaseContext) -> None:
    other = Query(database, "old", sinkId="other")
    other.write(0, 50)
    Query(database, "old").write(0, 1)
    new, beside = Query(database, "new", onNewQuery="replace"), Query(database, "beside", onNewQuery="continue")
    new.write(0, 1, 2)
    beside.write(0, 11)
    new.write(1, 3)
    beside.write(1, 12)
    other.write(1, 51)
    assert ids(database) == [1, 2, 3, 11, 12, 51]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"operation": "update", "keyColumns": "id"}, r"operation .*only changes rows that are there"),
        ({"commit": "prepared"}, r"commit .*prepared cannot replace"),
        ({"guarantee": "idempotent", "operation": "upsert", "keyColumns": "id"}, r"onNewQuery .*in one step, exactly-once"),
    ],
    ids=lambda part: "" if isinstance(part, str) else "-".join(part),
)
def test_what_cannot_take_the_place_of_all_rows_in_one_step_is_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(Misconfigured, match=text):
        JdbcSink.of({"url": "jdbc:postgresql://localhost/shop", "dbtable": "t", "onNewQuery": "replace", **options})
