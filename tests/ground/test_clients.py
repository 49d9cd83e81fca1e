"""Client libraries that are missing, and clients between two tasks."""

from __future__ import annotations

import os
import queue

import pytest

from connectors.core import Misconfigured
from connectors.ground import clients
from connectors.ground.clients import ClientPool, client_library


def test_a_missing_library_is_an_error_that_names_the_option_and_what_to_install() -> None:
    text = r"url +needs a package that is not here \(no_such_driver\); pip install 'driver>=2'"
    with pytest.raises(Misconfigured, match=text):
        client_library("no_such_driver", "'driver>=2'", connector="connectors.jdbc", option="url")


def test_a_client_has_one_user_at_a_time() -> None:
    pool: ClientPool[str] = ClientPool(lambda _: None)
    pool.give_back("key", "a")
    assert pool.take("another") is None
    assert [pool.take("key"), pool.take("key")] == ["a", None]


def test_the_clients_that_were_idle_for_longest_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    pool: ClientPool[int] = ClientPool(closed.append)
    for number in range(10):
        pool.give_back("key", number)
    assert (closed, pool.clients()) == ([0, 1], list(range(2, 10)))
    monkeypatch.setattr(clients, "_IDLE_SECONDS", -1.0)
    pool.give_back("key", 10)
    assert (closed, pool.clients()) == (list(range(11)), [])


def test_a_client_that_nobody_takes_is_closed_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "call_at_end", lambda _: None)
    closed: queue.Queue[str] = queue.Queue()
    pool: ClientPool[str] = ClientPool(closed.put, idle_seconds=0.2)
    pool.give_back("key", "idle")
    pool.give_back("key", "busy")
    assert pool.take("key") == "idle"
    assert closed.get(timeout=10) == "busy"
    pool.give_back("key", "idle")  # its first time has passed while it was in use
    assert pool.clients() == ["idle"]
    assert closed.get(timeout=10) == "idle"
    assert pool.clients() == []


def test_a_client_that_fails_to_close_keeps_no_other_open() -> None:
    closed: list[int] = []

    def close(number: int) -> None:
        closed.append(number)
        raise OSError("the server is away")

    pool: ClientPool[int] = ClientPool(close)
    pool.give_back("key", 1)
    pool.give_back("key", 2)
    pool.close_all()
    assert (closed, pool.clients()) == ([1, 2], [])


def test_the_clients_of_a_parent_process_are_neither_taken_nor_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    pool: ClientPool[str] = ClientPool(closed.append)
    pool.give_back("key", "parent's")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert pool.take("key") is None
    pool.close_all()
    assert closed == []
