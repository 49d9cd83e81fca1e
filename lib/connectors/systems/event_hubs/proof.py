"""What only the service can tell: whether it takes the key, and whether it has transactions."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from ...core.errors import Misconfigured, Problem, Transient
from ..kafka.client import connection_config
from ..kafka.failures import client, error_of
from .connection import ConnectionString

_SECONDS: Final = 30.0
_STEP: Final = 1.0
_NO_ANSWER: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"})

Config = tuple[tuple[str, str], ...]
"""The client's settings, as a key."""


def let_in(connection: ConnectionString, config: Mapping[str, str]) -> None:
    """Returns when the service has taken the key. Raises ``Misconfigured`` if it does not, ``Transient`` without an answer."""
    try:
        _connect(tuple(sorted(connection_config(config).items())))
    except _Refused as refused:
        raise Misconfigured("connectors.event_hubs", [_problem(connection, refused)]) from None


class _Refused(Exception):
    """The service, or the way to it, says no; ``name`` is the client's name of the error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


@lru_cache(maxsize=64)
def _connect(config: Config) -> None:
    """Asks for the topics. Only a success is remembered. The client itself would only say that no answer came in time."""
    told: list[Any] = []
    asking = client().Producer({**dict(config), "error_cb": told.append, "log_level": "0"})
    until = time.monotonic() + _SECONDS
    while True:
        try:
            asking.list_topics(timeout=_STEP)
            return
        except client().KafkaException as error:
            asking.poll(0)
            refused = next((one for one in told if one.name() in ("_AUTHENTICATION", "_SSL")), None)
            if refused is not None:
                raise _Refused(refused.name(), refused.str()) from None
            if time.monotonic() > until:
                said = (told[-1] if told else error.args[0]).str()
                raise Transient(f"the service does not answer: {said}") from None


def _problem(connection: ConnectionString, refused: _Refused) -> Problem:
    said = str(refused).replace(connection.text, "***").replace(connection.key, "***")
    if refused.name == "_SSL":
        return Problem("kafka.ssl.ca.location", f"no secure connection: {said}")
    text = (
        f'the service refuses the key "{connection.key_name}": {said}. Take the string of a key that may send or listen; '
        "keys can be renewed, and a string with EntityPath is good for that event hub alone."
    )
    return Problem("connectionString", text)


@lru_cache(maxsize=64)
def missing_transactions(config: Config, transactional_id: str) -> str:
    """Why there are no transactions; empty if there are. Raises ``Transient`` when the service cannot tell now.

    It prepares one under an id that nobody else uses, which writes nothing.
    """
    quiet = {"logger": logging.getLogger("connectors.event_hubs.proof")}  # else it prints that the refusal is fatal
    producer = client().Producer({**dict(config), "transactional.id": f"{transactional_id}-proof", **quiet})
    try:
        producer.init_transactions(_SECONDS)
    except client().KafkaException as error:
        refused = error.args[0]
        if refused.retriable() or error_of(error) in _NO_ANSWER:
            raise Transient(f"the service does not tell whether it has transactions: {refused.str()}") from None
        return str(refused.str())
    return ""
