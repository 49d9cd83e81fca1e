"""Which batches raise an alert, and how often; no Spark."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.core import Misconfigured
from connectors.metrics import Alert, LagAbove, LagGrows, NearTimeout, Observation, record, warn, watch
from connectors.metrics.alerts import Rule, Watchman
from connectors.metrics.frame import COLUMNS
from connectors.metrics.watch import cells


def observation(batch: int = 0, query: str = "q", seconds: float = 1.0, **partitions: int) -> Observation:
    progress = {"id": query, "batchId": batch, "batchDuration": seconds * 1000, "numInputRows": 1234, "sources": []}
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    rows = [
        empty | {"component": "source s", "partition": name, "lag_records": lag, "lag_seconds": lag / 10, "rows": 5}
        for name, lag in partitions.items()
    ]
    return Observation(progress, rows)


def raised(rule: Rule, lags: list[int]) -> list[int]:
    """The batches in which the alert is new."""
    alerts: list[Alert] = []
    watchman = Watchman([rule], alerts.append)
    for batch, lag in enumerate(lags):
        watchman.look(observation(batch, p=lag))
    return [alert.batch for alert in alerts]


def test_a_lag_that_grows_is_told_once_and_again_after_it_fell() -> None:
    assert raised(LagGrows(batches=3), [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]) == [3, 9]


def test_a_lag_that_goes_up_and_down_is_not_told() -> None:
    assert raised(LagGrows(batches=3), [1, 5, 9, 2, 5, 9, 2, 7, 8, 1]) == []


def test_a_small_lag_may_grow() -> None:
    assert raised(LagGrows(batches=2, floor=100), [1, 2, 3, 4, 200]) == [4]


def test_a_lag_above_a_limit_is_told_by_records_or_by_seconds() -> None:
    assert raised(LagAbove(records=50), [10, 50, 51, 99, 50, 60]) == [2, 5]
    assert raised(LagAbove(seconds="5s"), [10, 50, 51, 99, 50, 60]) == [2, 5]


def test_partitions_and_queries_are_told_apart() -> None:
    alerts: list[Alert] = []
    watchman = Watchman([LagAbove(records=5)], alerts.append)
    for query in ("one", "two"):
        watchman.look(observation(0, query, a=9, b=1, c=7))
    assert [(alert.query, alert.partition) for alert in alerts] == [("one", "a"), ("one", "c"), ("two", "a"), ("two", "c")]


def test_a_batch_or_commit_near_a_timeout_is_told() -> None:
    rule = NearTimeout("10s", share=0.5)
    assert [alert.component for alert in rule(observation(seconds=5.1))] == [""]
    assert list(rule(observation(seconds=4.9))) == []
    slow = Observation(observation().progress, [dict.fromkeys(COLUMNS) | {"component": "sink s", "commit_ms": 7000}])
    assert [alert.component for alert in rule(slow)] == ["sink s"]


def test_a_transaction_near_the_timeout_of_its_own_sink_is_told_by_default() -> None:
    times = {"a": (301_000, 600_000), "b": (299_000, 600_000), "c": (None, None)}
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    rows = [
        empty | {"component": name, "transaction_ms": took, "timeout_ms": limit} for name, (took, limit) in times.items()
    ]
    (alert,) = NearTimeout()(Observation(observation(seconds=3600).progress, rows))
    assert (alert.component, alert.message) == ("a", "its transaction took 301.0 s; the target ends one after 600 s")


def test_a_rule_or_callback_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Observation) -> Iterator[Alert]:
        raise KeyError("typo")

    def deaf(_: Alert) -> None:
        raise OSError("no mail")

    assert len(Watchman([broken, LagAbove(records=1)], deaf).look(observation(p=2))) == 1
    assert caplog.text.count("failed") == 2


def test_the_default_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "connectors.metrics"):
        warn(Alert("lag_above", "q", 3, "the lag is 9, above 5", "source s", "p"))
    assert caplog.messages == ["lag_above: query q, batch 3, source s p: the lag is 9, above 5"]


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: LagAbove(), "records"),
        (lambda: LagAbove(seconds="soon"), "seconds"),
        (lambda: NearTimeout("a while"), "timeout"),
        (lambda: watch(None, rules=[LagGrows]), "rules"),  # type: ignore[arg-type, list-item]
        (lambda: record(None, "", file_format="csv", every="often"), "file_format"),  # type: ignore[arg-type]
    ],
)
def test_what_is_wrong_is_told_at_once(make: Any, option: str) -> None:
    with pytest.raises(Misconfigured) as wrong:
        make()
    assert option in {problem.option for problem in wrong.value.problems}


def test_a_batch_is_shown_in_one_line() -> None:
    shown = cells(observation(7, p=1500, q=0), "running", [Alert("r", "q", 7, "the lag is large")])
    assert shown == ("q", "7", "1,234", "0", "10", "1,500", "-", "0", "running: the lag is large")
