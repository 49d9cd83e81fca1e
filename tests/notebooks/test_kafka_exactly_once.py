"""The job that carries payments from topic to topic while its drivers are killed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .quickstart import run

SMALL = {"payments": "30000", "kills": "1"}


@pytest.mark.soak
def test_each_payment_arrives_once_though_the_driver_is_killed_in_the_middle_of_a_transaction(tmp_path: Path) -> None:
    code, output = run("kafka_exactly_once", {"workdir": str(tmp_path), **SMALL})
    assert code == 0, output
    told = re.search(r"30,000 payments arrived once; drivers killed: 1; ([\d,]+) aborted records", output)
    assert told is not None, output
    assert int(told[1].replace(",", "")) > 0


@pytest.mark.soak
def test_the_gate_sees_the_payments_that_a_weaker_guarantee_doubles(tmp_path: Path) -> None:
    code, output = run("kafka_exactly_once", {"workdir": str(tmp_path), "guarantee": "at-least-once", **SMALL})
    assert code == 1, output
    assert "unique" in output
