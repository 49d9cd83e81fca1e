"""What a watch sees of its queries while one of them, a rule or a callback hangs; no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.metrics import Alert, NoData, Observation, Stalled
from connectors.metrics.alerts import Watchman
from connectors.metrics.watch import Watch
from connectors.testing.sampling import wait_until


@dataclass
class Query:
    """A streaming query in whose batch something happens all the time."""

    id: str
    status: dict[str, bool] = field(default_factory=lambda: {"isTriggerActive": True, "isDataAvailable": True})

    @property
    def runId(self) -> str:  # noqa: N802 - Spark's name
        return self.id

    @property
    def name(self) -> str:
        return self.id

    def ends_batch(self, watch: Watch, batch: int) -> None:
        progress = {"id": self.id, "runId": self.id, "batchId": batch, "numInputRows": 5, "sources": []}
        watch.take("progress", SimpleNamespace(progress=progress))


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The queries that run."""
    module = import_module("connectors.metrics.watch")
    monkeypatch.setattr(module, "_listener", lambda listening: None)
    monkeypatch.setattr(module, "rows_of", lambda query, progress: [])
    return []


def session(queries: list[Any]) -> Any:
    streams = {"addListener": lambda listener: None, "removeListener": lambda listener: None, "active": queries}
    return SimpleNamespace(streams=SimpleNamespace(**streams))


def first_batch(batch: Observation) -> Iterator[Alert]:
    if batch.query == "first":
        yield Alert("first", batch.query, batch.batch, "is there")


def test_a_callback_that_hangs_hides_no_batch_of_another_query(queries: list[Any]) -> None:
    ends, calls = threading.Event(), []

    def hang(alert: Alert) -> None:
        calls.append(alert.rule)
        ends.wait(60)

    first, second = Query("first"), Query("second")
    queries.append(second)
    watch = Watch(session(queries), Watchman([first_batch, Stalled(1.5), NoData(1.5)], hang), None)
    for batch in range(24):
        if batch == 12:
            first.ends_batch(watch, 0)
        second.ends_batch(watch, batch)
        time.sleep(0.2)
    ends.set()
    watch.stop()
    assert calls == [alert.rule for alert in watch.alerts] == ["first"]


def test_a_query_that_does_not_answer_hides_no_other(queries: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    queries += [Query("first", {}), Query("second")]
    watch = Watch(session(queries), Watchman([Stalled(0.5)], lambda alert: None), None)
    wait_until(lambda: [alert.query for alert in watch.alerts] == ["second"], 5)
    watch.stop()
    assert "the query goes on" in caplog.text


def test_a_callback_may_stop_its_watch(queries: list[Any]) -> None:
    watch: Watch

    def stop(alert: Alert) -> None:
        watch.stop()

    watch = Watch(session(queries), Watchman([first_batch], stop), None)
    Query("first").ends_batch(watch, 0)
    wait_until(lambda: not watch._sender.is_alive(), 5)
