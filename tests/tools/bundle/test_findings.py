"""Small rules of names."""

from __future__ import annotations

import itertools
import time

import pytest

from connectors_tools.bundle.configuration import Findings, Interpolation, one_letter_apart, short_name

WORDS = ["".join(letters) for length in range(5) for letters in itertools.product("abc", repeat=length)]


def distance(first: str, second: str) -> int:
    """Edits and swaps of neighbours between two words (optimal string alignment), by the book."""
    table = {(i, -1): i + 1 for i in range(-1, len(first))} | {(-1, j): j + 1 for j in range(-1, len(second))}
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i, j] = min(table[i - 1, j] + 1, table[i, j - 1] + 1, table[i - 1, j - 1] + (a != b))
            if i and j and a == second[j - 1] and first[i - 1] == b:
                table[i, j] = min(table[i, j], table[i - 2, j - 2] + 1)
    return table[len(first) - 1, len(second) - 1]


@pytest.mark.parametrize("length", range(5))
def test_one_letter_apart_is_a_distance_of_one(length: int) -> None:
    for first, second in itertools.product([word for word in WORDS if len(word) == length], WORDS):
        assert one_letter_apart(first, second) is (distance(first, second) == 1), (first, second)


@pytest.mark.parametrize(
    ("user", "short"),
    [("ann@example.com", "ann"), ("Ann.B-C@x", "ann_b_c"), ("_ann__b_@x", "ann_b"), ("åsa@x", "åsa"), ("root", "root")],
)
def test_the_short_name_of_a_user_is_the_clis(user: str, short: str) -> None:
    assert short_name(user) == short


def test_long_names_and_open_braces_take_no_time() -> None:
    start = time.monotonic()
    text = "${" + "workspace_current_user_" * 500 + " ${" + "a" * 5000
    assert Interpolation({}, Findings()).resolved(text, "x") == text
    assert time.monotonic() - start < 2
