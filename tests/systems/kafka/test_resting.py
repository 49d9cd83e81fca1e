"""Clients between two tasks. No broker."""

from __future__ import annotations

import os

import pytest

from connectors.systems.kafka import resting
from connectors.systems.kafka.resting import Resting


def test_who_takes_one_has_it_alone() -> None:
    rest: Resting[str] = Resting(lambda _: None)
    rest.give_back("key", "a")
    assert rest.take("another") is None
    assert [rest.take("key"), rest.take("key")] == ["a", None]


def test_those_that_have_rested_for_longest_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    rest: Resting[int] = Resting(closed.append)
    for number in range(10):
        rest.give_back("key", number)
    assert (closed, rest.items()) == ([0, 1], list(range(2, 10)))
    monkeypatch.setattr(resting, "_SECONDS", -1.0)
    rest.give_back("key", 10)
    assert (closed, rest.items()) == (list(range(11)), [])


def test_what_another_process_has_left_is_neither_taken_nor_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    rest: Resting[str] = Resting(closed.append)
    rest.give_back("key", "parent's")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert rest.take("key") is None
    rest.close_all()
    assert closed == []
