"""What a table remembers of its log: positions that can be compared, and an initial snapshot that begins again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.core import StateError
from connectors.systems.delta.log_state import LogState, SnapshotRows
from connectors.systems.delta.positions import place_text

STATE = LogState("shop.public.orders")


def test_the_state_is_read_as_it_was_written() -> None:
    state = replace(STATE, order="binlog", log="gtid domain 0", snapshot=place_text(1, 2), is_read=True)
    assert LogState.of(state.text(), "orders") == state
    with pytest.raises(StateError):
        LogState.of('{"v": 99}', "orders")


def test_positions_of_another_server_stop_the_query_and_arrival_goes_on() -> None:
    state = STATE.ordered("binlog", ["file bin of server 1"], "q")
    assert state.ordered("binlog", [], "q") == state, "a batch of a snapshot has no positions"
    with pytest.raises(StateError, match=r"(?s)file bin of server 2.*order=arrival"):
        state.ordered("binlog", ["file bin of server 2"], "q")
    with pytest.raises(StateError):
        STATE.ordered("binlog", ["file bin of server 1", "file bin of server 2"], "q")
    with pytest.raises(StateError, match='order "sequence"'):
        state.ordered("sequence", [], "q")
    after = state.ordered("arrival", [], "q")
    assert (after.generation, after.log) == (1, None), "all later changes are newer"
    assert after.ordered("arrival", [], "q") == after


def test_the_places_of_another_query_come_behind_those_of_the_first() -> None:
    state = STATE.ordered("arrival", [], "q")
    assert state.generation == 0
    assert state.ordered("arrival", [], "another").generation == 1
    assert STATE.ordered("sequence", [], "q").ordered("sequence", [], "another").generation == 0


def test_a_snapshot_that_begins_again_moves_the_place_before_which_rows_are_old() -> None:
    begun = replace(STATE, snapshot=place_text(0, 0))
    first = begun.with_snapshot(None, SnapshotRows("500", place_text(0, 1), False))
    assert (first.snapshot, first.attempt) == (place_text(0, 0), "500")
    assert first.with_snapshot(None, SnapshotRows("500", place_text(3, 1), False)) == first
    assert first.with_snapshot(None, SnapshotRows("700", place_text(4, 9), True)).snapshot == place_text(4, 9)
    assert first.with_snapshot(place_text(5, 0), None).snapshot == place_text(5, 0)


def test_a_snapshot_behind_the_initial_one_moves_nothing() -> None:
    read = replace(STATE, snapshot=place_text(0, 0), attempt="500", is_read=True)
    assert read.with_snapshot(None, SnapshotRows("900", place_text(8, 0), True)) == read, "it may be one of a part"
    assert STATE.with_snapshot(place_text(5, 0), SnapshotRows("900", place_text(8, 0), True)) == STATE
    assert read.with_snapshot(place_text(5, 0), None).snapshot == place_text(5, 0), "the source says that it begins again"
