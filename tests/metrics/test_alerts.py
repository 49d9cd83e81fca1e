"""Which batches raise an alert, and how often; no Spark."""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.core import Misconfigured, Transient
from connectors.metrics import (
    Alert,
    ErrorsGrow,
    LagAbove,
    LagGrows,
    NearTimeout,
    NoData,
    Observation,
    SlotGrows,
    Stalled,
    Watch,
    record,
    warn,
    watch,
    webhook,
)
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


@dataclass
class Answers:
    """A service that takes posts and answers with ``status``."""

    url: str = ""
    status: int = 202
    headers: dict[str, str] = field(default_factory=dict)
    text: Iterable[bytes] = ()
    bodies: list[bytes] = field(default_factory=list)


@pytest.fixture
def answers() -> Iterator[Answers]:
    service = Answers()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            service.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(service.status)
            for name, value in service.headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # nobody wants to read on
                self.wfile.writelines(service.text)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        service.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield service
        server.shutdown()


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


def slot_alerts(rule: Rule, looks: Iterable[tuple[int | None, str | None]]) -> list[tuple[int, str]]:
    """The batches in which an alert is new, and its rule."""
    alerts: list[Alert] = []
    watchman = Watchman([rule], alerts.append)
    for batch, (lag, status) in enumerate(looks):
        row = dict.fromkeys(COLUMNS) | {"component": "source s", "partition": "p"}
        row |= {"slot_lag_bytes": lag, "wal_status": status}
        watchman.look(replace(observation(batch), rows=[row]))
    return [(alert.batch, alert.rule) for alert in alerts]


def test_a_slot_whose_log_grows_is_told_once_and_one_that_moves_now_and_then_is_not() -> None:
    def told(rule: Rule, *lags: int | None) -> list[tuple[int, str]]:
        return slot_alerts(rule, [(lag, "reserved") for lag in lags])

    lags = (2000, 3000, None, 3000, 4000, 5000, 6000, 100, 2000, 3000, 4000)
    assert told(SlotGrows(batches=3, floor="1kB"), *lags) == [(5, "slot_grows"), (10, "slot_grows")]
    assert told(SlotGrows(batches=3, floor=0), 1, 5, 9, 2, 5, 9, 2, 7, 8, 1) == []
    assert told(SlotGrows(batches=3), *range(10)) == [], "a small one may grow"
    assert told(SlotGrows(), *range(1 << 30, (1 << 30) + 7)) == [(5, "slot_grows")]


def test_a_slot_that_is_about_to_be_lost_or_is_lost_is_told_at_once() -> None:
    statuses = ["reserved", "extended", "unreserved", "unreserved", "lost", "lost"]
    looks = [(1, status) for status in statuses]
    assert slot_alerts(SlotGrows(), looks) == [(2, "slot_unreserved"), (4, "slot_lost")]


def test_a_watch_without_rules_looks_at_lags_transactions_and_slots() -> None:
    streams = SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None, active=[])
    with watch(SimpleNamespace(streams=streams), show=False) as active:  # type: ignore[arg-type]
        assert isinstance(active, Watch)
        assert {type(rule) for rule in active._watchman.rules} == {LagGrows, NearTimeout, SlotGrows}


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


def between(rule: Rule, **times: list[float]) -> list[int]:
    """The looks between batches in which the alert is new."""
    alerts: list[Alert] = []
    watchman, looks = Watchman([rule], alerts.append), []
    for number, values in enumerate(zip(*times.values(), strict=True)):
        watchman.look(replace(observation(), **dict(zip(times, values, strict=True))), between=True)
        looks += [number] * (len(alerts) - len(looks))
    return looks


def test_a_batch_that_does_not_end_is_told_once_and_a_quiet_source_is_silent() -> None:
    assert between(Stalled("5s"), busy=[0, 3, 6, 7, 0, 4, 6]) == [2, 6]
    assert between(Stalled("5s"), busy=[0, 0, 0], quiet=[10, 100, 1000]) == []
    (alert,) = Stalled(5)(replace(observation(), busy=9.0, rows=[dict.fromkeys(COLUMNS) | {"waiting_for": "no Redis"}]))
    assert alert.message == "a batch has been under way for 9 s; it waits for: no Redis"


def test_a_source_that_gives_nothing_is_told_and_not_while_its_batch_is_under_way() -> None:
    assert between(NoData("1 minute"), busy=[0, 50, 60, 0, 0], quiet=[10, 61, 71, 72, 0]) == [3]


def test_batches_without_a_row_are_no_end_of_a_silence() -> None:
    assert between(NoData("1 minute"), busy=[0, 0, 1, 0, 1, 0, 0, 0], quiet=[60, 61, 62, 63, 64, 65, 0, 61]) == [1, 7]


def test_rules_without_a_clock_are_not_asked_between_batches() -> None:
    assert between(LagAbove(records=0), busy=[0, 9]) == []


def test_errors_that_grow_batch_by_batch_are_told() -> None:
    alerts: list[Alert] = []
    watchman = Watchman([ErrorsGrow(batches=2, floor=1)], alerts.append)
    for batch, errors in enumerate([5, 7, 9, 9, 10, 11, 13, 15]):
        row = dict.fromkeys(COLUMNS) | {"component": "sink jdbc", "errors": errors}
        watchman.look(replace(observation(batch), rows=[row]))
    assert [(alert.batch, alert.message) for alert in alerts] == [
        (2, "its errors have grown for 2 batches, to 9"), (7, "its errors have grown for 2 batches, to 15"),
    ]  # fmt: skip


ALERT = Alert("stalled", "q", 3, "a batch has been under way for 9 s", "sink redis")
TEXT = "stalled: query q, batch 3, sink redis: a batch has been under way for 9 s"


@pytest.mark.parametrize(
    ("form", "place", "expected"),
    [
        ("json", "message", ALERT.message),
        ("slack", "text", TEXT),
        ("teams", "attachments[0].content.body[0].text", TEXT),
        ("pagerduty", "payload.summary", TEXT),
        ("pagerduty", "routing_key", "hush"),
        ("pagerduty", "dedup_key", "stalled/q/sink redis/"),
    ],
)
def test_a_webhook_gets_an_alert_in_its_form(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, form: str, place: str, expected: str
) -> None:
    import jmespath

    monkeypatch.setenv("SECRET_OPS_PAGER", "hush")
    webhook(answers.url, form=form, key="{{secrets/ops/pager}}" if form == "pagerduty" else "")(ALERT)
    assert jmespath.search(place, json.loads(answers.bodies[-1])) == expected


def test_a_webhook_that_refuses_is_a_warning_without_its_address(answers: Answers, caplog: pytest.LogCaptureFixture) -> None:
    answers.status = 500
    for url in (f"{answers.url}/services/hush", "http://127.0.0.1:9/services/hush"):
        Watchman([LagAbove(records=1)], webhook(url)).look(observation(p=2))
    assert "the webhook at 127.0.0.1 answered 500" in caplog.text
    assert "the webhook at 127.0.0.1 gave no answer" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize("status", [302, 307])
def test_a_webhook_that_redirects_has_not_taken_the_alert(answers: Answers, status: int) -> None:
    answers.status, answers.headers = status, {"Location": "/login"}
    with pytest.raises(Transient, match=f"the webhook at 127.0.0.1 answered {status}"):
        webhook(answers.url, form="pagerduty", key="hush")(ALERT)
    assert len(answers.bodies) == 1


def test_the_text_of_an_answer_is_not_read(answers: Answers) -> None:
    rest = itertools.repeat(bytes(1 << 16), 1000)
    answers.text = rest
    webhook(answers.url)(ALERT)
    assert list(rest)


def test_an_answer_that_is_not_http_is_told_without_the_address(answers: Answers, caplog: pytest.LogCaptureFixture) -> None:
    answers.headers = {"": "no header"}
    with caplog.at_level(logging.DEBUG):
        webhook(f"{answers.url}/services/hush")(ALERT)
    assert len(answers.bodies) == 1
    assert "hush" not in caplog.text


def test_a_rule_or_callback_that_fails_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Observation) -> Iterator[Alert]:
        raise KeyError("typo")

    def deaf(_: Alert) -> None:
        raise OSError("no mail")

    assert len(Watchman([broken, LagAbove(records=1)], deaf).look(observation(p=2))) == 1
    assert caplog.text.count("failed") == 2


def test_a_rule_that_fails_now_and_then_says_nothing_twice(caplog: pytest.LogCaptureFixture) -> None:
    def rule(batch: Observation) -> Iterator[Alert]:
        if batch.batch in (2, 3, 4, 6):
            raise KeyError("typo")
        yield Alert("mine", batch.query, batch.batch, "is wrong")

    assert raised(rule, [0] * 8) == [0]
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
        (lambda: Stalled("soon"), "seconds"),
        (lambda: NoData("soon"), "seconds"),
        (lambda: NoData(float("nan")), "seconds"),
        (lambda: Stalled(-1), "seconds"),
        (lambda: webhook("hooks.example.org"), "url"),
        (lambda: webhook("https://[::1/services"), "url"),
        (lambda: webhook("https://x.org/{{secrets/ops/none}}"), "url"),
        (lambda: webhook(form="pagerduty"), "key"),
        (lambda: webhook("https://x.org", form="mail"), "form"),
        (lambda: SlotGrows(floor="1 XB"), "floor"),
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
