"""What a table remembers of its log: positions that can be compared, and an initial snapshot that begins again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.core import StateError
from connectors.systems.delta.log_state import LogState, SnapshotRows
from connectors.systems.delta.positions import place_text

STATE = LogState("shop.public.orders")


def test_the_state_is_read_as_it_was_written() -> None:
    state = replace(STATE, order="binlog", log="gtid domain 0", snapshot=place_text(0, 1, 2), is_read=True)
    assert LogState.of(state.text(), "orders") == state
    assert "orders" not in state.text(), "Spark hides properties with words such as token in them"
    for text in ('{"v": 99}', b'{"v": 99}'.hex()):
        with pytest.raises(StateError):
            LogState.of(text, "orders")


def test_positions_of_another_server_stop_the_query_and_arrival_goes_on() -> None:
    state = STATE.ordered("binlog", ["file bin of server 1"])
    assert state.ordered("binlog", []) == state, "a batch of a snapshot has no positions"
    with pytest.raises(StateError, match=r"(?s)file bin of server 2.*order=arrival"):
        state.ordered("binlog", ["file bin of server 2"])
    with pytest.raises(StateError):
        STATE.ordered("binlog", ["file bin of server 1", "file bin of server 2"])
    with pytest.raises(StateError, match='order "sequence"'):
        state.ordered("sequence", [])
    after = state.ordered("arrival", [])
    assert (after.generation, after.log) == (1, None), "all later changes are newer"
    assert after.ordered("arrival", []) == after


def test_the_places_of_another_query_come_behind_those_of_the_first() -> None:
    first = STATE.of_query("q")
    assert (first.life, first.of_query("q")) == (0, first)
    assert first.of_query("another").life == 1
    assert place_text(1, 0, 0) > place_text(0, 999, 999)


def test_another_key_is_refused() -> None:
    state = STATE.with_keys(("id", "region"))
    assert state.with_keys(("region", "id")).keys == ("region", "id")
    with pytest.raises(StateError, match=r"\(id\) now, and was \(id, region\)"):
        state.with_keys(("id",))


def test_an_end_counts_once_its_batch_is_committed() -> None:
    state = replace(STATE, snapshot=place_text(0, 0, 0), attempt="5", ends=3)
    assert state.behind(2) == state
    assert replace(state, ends=None, is_read=True) == state.behind(3)
    over = replace(state, streams=True).behind(3)
    assert (over.snapshot, over.attempt, over.ends) == (None, None, None)


def test_a_snapshot_that_begins_again_moves_the_place_before_which_rows_are_old() -> None:
    begun = replace(STATE, snapshot=place_text(0, 0, 0))
    first = begun.with_snapshot(None, SnapshotRows("500", place_text(0, 0, 1), False))
    assert (first.snapshot, first.attempt) == (place_text(0, 0, 0), "500")
    assert first.with_snapshot(None, SnapshotRows("500", place_text(0, 3, 1), False)) == first
    assert first.with_snapshot(None, SnapshotRows("700", place_text(0, 4, 9), True)).snapshot == place_text(0, 4, 9)
    assert first.with_snapshot(place_text(0, 5, 0), None).snapshot == place_text(0, 5, 0)


def test_a_snapshot_behind_the_initial_one_moves_nothing() -> None:
    read = replace(STATE, snapshot=place_text(0, 0, 0), attempt="500", is_read=True)
    assert read.with_snapshot(None, SnapshotRows("900", place_text(0, 8, 0), True)) == read, "it may be one of a part"
    assert STATE.with_snapshot(place_text(0, 5, 0), SnapshotRows("900", place_text(0, 8, 0), True)) == STATE
    assert read.with_snapshot(place_text(0, 5, 0), None).snapshot == place_text(0, 5, 0), "the source says that it begins again"
