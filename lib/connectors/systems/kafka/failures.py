"""What an error of the Kafka client means here: an outage, lost data, or something that a person must change."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from ...core.errors import ConnectorError, DataLoss, Fatal, Misconfigured, Problem, Transient

_INSTALL: Final = "confluent-kafka>=2.6"
_LOST: Final = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "_LOG_TRUNCATION"})
_FOR_A_PERSON: Final = frozenset(
    {
        "_AUTHENTICATION",
        "SASL_AUTHENTICATION_FAILED",
        "_SSL",
        "UNSUPPORTED_SASL_MECHANISM",
        "ILLEGAL_SASL_STATE",
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
        "CLUSTER_AUTHORIZATION_FAILED",
        "_UNSUPPORTED_FEATURE",
        "UNSUPPORTED_VERSION",
        "_INVALID_ARG",
        "INVALID_GROUP_ID",
    }
)


def client(module: str = "confluent_kafka") -> Any:
    """The client library. Raises ``Misconfigured`` with what to install when it is not here."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        text = f"needs a package that is not here ({missing.name}); pip install '{_INSTALL}'."
        raise Misconfigured("connectors.kafka", [Problem("format", text)]) from None


def error_of(error: BaseException) -> str:
    """The name of a client's error, such as ``UNKNOWN_TOPIC_OR_PART``; empty for another exception."""
    inner: Any = error.args[0] if error.args else None
    return str(inner.name()) if hasattr(inner, "name") else ""


def meaning(name: str, text: str, what: str) -> ConnectorError:
    """The error to raise for the client's error ``name``; ``what`` says what could not be done."""
    if name in _LOST:
        return DataLoss(f"{what}: {text}")
    if name in _FOR_A_PERSON:
        return Fatal(f"{what}: {text}", way_out="see the kafka.* options, and the rights of the user that they name")
    return Transient(f"{what}: {text}")


@contextlib.contextmanager
def failed(what: str) -> Iterator[None]:
    """Turns the client's errors into ours."""
    try:
        yield
    except (FutureTimeout, TimeoutError) as error:
        raise Transient(f"{what}: no answer in time") from error
    except client().KafkaException as error:
        raise meaning(error_of(error), error.args[0].str(), what) from None
