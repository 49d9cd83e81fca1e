"""What an error of a producer means: whose turn it is, what a person must change, or an outage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...core.errors import ConnectorError, Fatal, Misconfigured, Problem, Transient
from .failures import error_of, meaning

FENCED: Final = frozenset({"_FENCED", "INVALID_PRODUCER_EPOCH", "PRODUCER_FENCED", "CONCURRENT_TRANSACTIONS"})
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


class Fenced(Transient):
    """Another attempt at the same batch, or another run of the query, has taken over: the ledger tells what it did."""


class Stuck(Transient):
    """The client waits for a broker that does not come back to it. A new client finds its way."""


def explained(error: Any, what: str, told: Sequence[tuple[str, str]] = ()) -> ConnectorError:
    """The error to raise for a ``KafkaException``; ``told`` are what the client reported meanwhile, the cause too."""
    name, text = error_of(error), error.args[0].str()
    if name in FENCED:
        return Fenced(f"{what}: another attempt or another run has taken over")
    for cause, said in [(name, text), *reversed(told)]:
        if cause in _OPTIONS:
            return Misconfigured("connectors.kafka", [Problem(_OPTIONS[cause], f"{what}: {said}")])
    said = f"{text} ({told[-1][1]})" if told else text
    found = meaning(name, said, what)
    return Fatal(found.message) if name == "MSG_SIZE_TOO_LARGE" else found
