"""The Kafka client, and its errors as errors of this library: an outage, lost data, or a problem for a person."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from ...ground.clients import client_library
from ...ground.errors import ConnectorError, DataLoss, Fatal, Misconfigured, Problem, Transient

FENCED: Final = frozenset({"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS"})
_LOST: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_FOR_A_PERSON: Final = frozenset({
    "_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE",
    "TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED",
    "_UNSUPPORTED_FEATURE", "UNSUPPORTED_VERSION", "_INVALID_ARG", "INVALID_GROUP_ID",
})  # fmt: skip
_OPTIONS: Final = {
    "_INVALID_ARG": "kafka.*",
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "transactionalIdPrefix",
    "GROUP_AUTHORIZATION_FAILED": "sinkId",
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "UNKNOWN_TOPIC_OR_PART": "topic",
    "_UNKNOWN_TOPIC": "topic",
    "_AUTHENTICATION": "kafka.sasl.*",
    "_SSL": "kafka.ssl.*",
}
"""For each error of a sink's producer the option that it concerns."""
_REPORTS: Final = 20


class Fenced(Transient):
    """Another attempt at the batch, or another run of the query, has taken over; the ledger tells what it committed."""


class Stuck(Transient):
    """The client waits for a broker that is gone. A new client finds the broker that replaced it."""


def client(module: str = "confluent_kafka") -> Any:
    """The client library. If it is not installed, raises ``Misconfigured``, which says what to install."""
    return client_library(module, "'confluent-kafka>=2.6'", connector="connectors.kafka")


class ClientReports:
    """The callbacks of a client: they store the newest errors, each a name and a text.

    They are no methods of the client's owner, because a client that refers to its owner is never freed.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.errors: list[tuple[str, str]] = []
        self.undelivered = ""
        """Why a record did not arrive; empty while all records have arrived."""

    def failed(self, error: Any) -> None:
        """The client's ``error_cb``."""
        self.errors = [*self.errors[-_REPORTS:], (error.name(), error.str())]

    def delivered(self, error: Any, _: Any) -> None:
        """The client's ``on_delivery``."""
        if error is not None:
            self.undelivered = error.str()
            self.failed(error)

    def has(self, *names: str) -> bool:
        return any(name in names for name, _ in self.errors)


def new_client(kind: str, config: Mapping[str, Any], reports: ClientReports, module: str = "confluent_kafka") -> Any:
    """A ``Producer``, ``Consumer`` or ``AdminClient`` that reports its errors to ``reports``."""
    try:
        return getattr(client(module), kind)({**config, "error_cb": reports.failed})
    except client().KafkaException as error:
        raise producer_error(error, "the client refuses the options", reports.errors) from None


def error_name(error: BaseException) -> str:
    """The name of a client's error, such as ``UNKNOWN_TOPIC_OR_PART``; empty for another exception."""
    inner: Any = error.args[0] if error.args else None
    return str(inner.name()) if hasattr(inner, "name") else ""


def connector_error(name: str, text: str, failure: str) -> ConnectorError:
    """The error to raise for the client's error ``name``; ``failure`` says what failed."""
    if name in _LOST:
        return DataLoss(f"{failure}: {text}")
    if name in _FOR_A_PERSON:
        return Fatal(f"{failure}: {text}", way_out="see the kafka.* options, and the rights of the user that they name")
    return Transient(f"{failure}: {text}")


def fenced(failure: str) -> Fenced:
    """The error of a producer that another one with its transactional id has fenced."""
    return Fenced(f"{failure}: another attempt or another run has taken over")


def producer_error(
    error: Any, failure: str, reports: Sequence[tuple[str, str]] = (), *, topic: str = "topic"
) -> ConnectorError:
    """The error to raise for a ``KafkaException`` of a sink; ``reports`` of the client may name the cause.

    ``topic`` is the option that names the topic of the failed call.
    """
    name, text = error_name(error), error.args[0].str()
    if name in FENCED:
        return fenced(failure)
    for cause, report in [(name, text), *reversed(reports)]:
        if cause in _OPTIONS:
            option = topic if _OPTIONS[cause] == "topic" else _OPTIONS[cause]
            return Misconfigured("connectors.kafka", [Problem(option, f"{failure}: {report}")])
    text = f"{text} ({reports[-1][1]})" if reports else text
    translated = connector_error(name, text, failure)
    return Fatal(translated.message) if name == "MSG_SIZE_TOO_LARGE" else translated


@contextlib.contextmanager
def client_errors(failure: str) -> Iterator[None]:
    """Inside, raises errors of the client as errors of this library."""
    try:
        yield
    except (FutureTimeout, TimeoutError) as error:
        raise Transient(f"{failure}: no answer in time") from error
    except client().KafkaException as error:
        raise connector_error(error_name(error), error.args[0].str(), failure) from None
