"""State is canonical JSON with a version."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core import StateError
from connectors.core.ledger import Entry
from connectors.ground.state import VERSION, canonical, checked, digest, dumps, loads, versioned

STATES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), STATES, max_size=5), st.randoms())
def test_equal_states_are_equal_text_whatever_their_order(state: dict[str, object], chance: object) -> None:
    items = list(state.items())
    chance.shuffle(items)  # type: ignore[attr-defined]
    assert dumps(dict(items)) == dumps(state)
    assert json.loads(dumps(state)) == state


@given(STATES)
def test_canonical_state_stays_as_it_is_through_json(state: object) -> None:
    assert json.dumps(canonical(json.loads(dumps(state))), separators=(",", ":"), ensure_ascii=False) == dumps(state)


def test_keys_are_sorted_at_every_depth() -> None:
    assert dumps({"b": [{"z": 1, "a": (2, 3)}], "a": 1}) == '{"a":1,"b":[{"a":[2,3],"z":1}]}'


def test_canonical_state_has_its_keys_in_order_for_whoever_writes_it() -> None:
    state = canonical({"b": [{"z": 1, "a": 2}], "a": 1})
    assert json.dumps(state) == '{"a": 1, "b": [{"a": 2, "z": 1}]}'
    assert list(versioned(z=1, a=2)) == ["a", "v", "z"]


def test_a_state_carries_its_version_and_no_empty_fields() -> None:
    assert versioned(b=1, a=None) == {"b": 1, "v": VERSION}


def test_a_state_is_read_back() -> None:
    assert loads(dumps(versioned(at={"x": 1})), "the offset") == {"v": VERSION, "at": {"x": 1}}


def test_an_older_version_is_read() -> None:
    assert checked({"v": VERSION - 1, "at": 1}, "the offset") == {"v": VERSION - 1, "at": 1}


def test_a_newer_version_is_a_clear_error() -> None:
    with pytest.raises(StateError, match="the offset has version 99; this library reads versions up to 1") as caught:
        checked({"v": 99}, "the offset")
    assert "newer version" in caught.value.way_out


@pytest.mark.parametrize("state", [{}, {"v": "1"}, {"v": None}, [], "x", None, 7])
def test_a_foreign_state_is_a_clear_error(state: object) -> None:
    with pytest.raises(StateError, match="the offset is no state of this library"):
        checked(state, "the offset")


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe", "nonsense"])
def test_what_is_no_json_is_a_clear_error(text: str | bytes) -> None:
    with pytest.raises(StateError, match="the offset is not JSON"):
        loads(text, "the offset")


def test_a_digest_is_the_same_in_every_process() -> None:
    code = "from connectors.ground.state import digest; print(digest('a', 'b', 7))"
    others = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        for _ in range(2)
    }
    assert others == {digest("a", "b", 7)}


def test_a_digest_keeps_its_parts_apart() -> None:
    assert digest("a", "b") != digest("ab") != digest("", "ab")


def test_an_entry_of_a_ledger_is_read_back() -> None:
    entry = Entry("q", 3, 10, "abc", ({"rows": 1, "data": {}},), at=5.0, replace=True)
    assert Entry.of(loads(dumps(entry.state()), "an entry")) == entry


def test_an_entry_with_fields_of_a_later_version_is_read() -> None:
    assert Entry.of({**Entry("q", 3, at=1.0).state(), "colour": "red"}) == Entry("q", 3, at=1.0)


def test_an_entry_that_lacks_its_batch_is_a_clear_error() -> None:
    with pytest.raises(StateError):
        Entry.of({"v": 1, "query": "q"})
