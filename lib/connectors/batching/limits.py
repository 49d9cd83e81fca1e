"""How much goes into a request, how many are under way, and how much waits: the options ``batch.*`` and ``request.*``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.breaker import BREAKER_OPTIONS
from ..core.errors import Problem
from ..core.options import Choice, Duration, Int, Options, Size, Values, duration, size


def batching_options(*, max_records: int, max_bytes: str, max_time: str) -> Options:
    """The options of a sink that sends requests, with the defaults of one system."""
    return BREAKER_OPTIONS | Options(
        {
            "batch.maxRecords": Int(max_records, at_least=1),
            "batch.maxBytes": Size(size(max_bytes), at_least=1),
            "batch.maxTime": Duration(duration(max_time)),
            "batch.maxRecordBytes": Size(None, at_least=1),
            "batch.maxInFlight": Int(50, at_least=1),
            "batch.maxBuffered": Int(None, at_least=1),
            "request.timeout": Duration(30.0),
            "request.onTimeout": Choice("retry", among=("retry", "fail")),
        }
    )


def check_batching(values: Values) -> Iterator[Problem]:
    """What is wrong with ``batch.*`` taken together."""
    records, buffered = values["batch.maxRecords"], values["batch.maxBuffered"]
    if buffered is not None and buffered <= records:
        text = f"must be larger than batch.maxRecords ({records}), or no batch could ever be full; got {buffered}."
        yield Problem("batch.maxBuffered", text)
    whole, one = values["batch.maxBytes"], values["batch.maxRecordBytes"]
    if one is not None and one > whole:
        yield Problem("batch.maxRecordBytes", f"must not be above batch.maxBytes ({whole}); got {one}.")
    if values["request.timeout"] <= 0:
        yield Problem("request.timeout", "must be longer than 0s.")


@dataclass(frozen=True)
class Limits:
    """``records``, ``bytes`` and ``seconds`` close a request; ``in_flight`` requests are under way at most.

    ``buffered`` records wait for theirs, not counting those that are to be sent again. A record of more than
    ``record_bytes`` is a bad one. A request without an answer for ``timeout`` seconds has failed; with ``fail_on_timeout``
    for good.
    """

    records: int = 1000
    bytes: int = 5 << 20
    seconds: float = 5.0
    record_bytes: int = 5 << 20
    in_flight: int = 50
    buffered: int = 10_000
    timeout: float = 30.0
    fail_on_timeout: bool = False

    @classmethod
    def of(cls, values: Values) -> Limits:
        """The limits that a user set, with the defaults that depend on others."""
        return cls(
            values["batch.maxRecords"],
            values["batch.maxBytes"],
            values["batch.maxTime"],
            values["batch.maxRecordBytes"] or values["batch.maxBytes"],
            values["batch.maxInFlight"],
            values["batch.maxBuffered"] or 10 * values["batch.maxRecords"],
            values["request.timeout"],
            values["request.onTimeout"] == "fail",
        )
