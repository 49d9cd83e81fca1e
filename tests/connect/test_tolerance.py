"""What becomes of a value that a converter refuses, and of an outage of what the converter needs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from connectors.connect import RecordConverter, RetriableException, Schema, SourceRecord
from connectors.connect.errors import ConnectException
from connectors.connect.pipeline import Outcome, SourcePipeline


class Upper(RecordConverter):
    """Refuses ``bad``; its system is away once for each of ``outages``."""

    outages: list[str]

    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        if value == "bad":
            raise ValueError("no letters")
        if value in self.outages:
            self.outages.remove(value)
            raise RetriableException("later")
        return str(value).upper().encode()

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        raise NotImplementedError


def converted(*values: str, outages: tuple[str, ...] = (), **errors: str) -> tuple[Outcome, SourcePipeline]:
    """What becomes of ``values``, with settings ``errors.…``."""
    Upper.outages = list(outages)
    properties = {f"errors.{name.replace('_', '.')}": text for name, text in errors.items()}
    properties["value.converter"] = f"{__name__}.Upper"
    pipeline = SourcePipeline(properties, lambda seconds: bool(time.sleep(seconds)))
    records = [SourceRecord({"p": 1}, {"o": number}, "t", value) for number, value in enumerate(values)]
    return pipeline.run(pipeline.in_columns(records)), pipeline


def test_of_a_thousand_one_fails_once_one_for_ever_and_999_pass() -> None:
    values = ["bad" if number == 500 else "once" if number == 300 else f"v{number}" for number in range(1000)]
    outcome, pipeline = converted(*values, outages=("once",), tolerance="all", retry_timeout="2000")
    passed = [value.upper().encode() for value in values if value != "bad"]
    assert outcome.rows["value"].to_pylist() == passed
    (letter,) = outcome.letters
    assert (letter.stage, letter.executing_class, letter.message) == ("VALUE_CONVERTER", f"{__name__}.Upper", "no letters")
    assert letter.value == b"bad"
    assert outcome.failed == {500}
    assert pipeline.tolerance.retries == 1


def test_without_tolerance_the_first_failure_ends_the_task() -> None:
    with pytest.raises(ConnectException, match=r"Tolerance exceeded .*: VALUE_CONVERTER by .*Upper.*no letters"):
        converted("bad")
    with pytest.raises(ConnectException, match="later"):
        converted("once", outages=("once",))  # errors.retry.timeout is 0


def test_an_outage_makes_no_dead_letters() -> None:
    with pytest.raises(RetriableException, match=r"VALUE_CONVERTER by .*Upper failed: later"):
        converted("bad", "once", "v", outages=("once",), tolerance="all")
