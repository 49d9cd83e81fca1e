"""What a connection string of Event Hubs says, and the ``kafka.*`` options that follow from it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from ...core.errors import Misconfigured, Problem, Transient
from ...core.options import REQUIRED, Option, Options, Text, Values, filled
from ..kafka.config import client, connection_config, error_of

USER: Final = "$ConnectionString"
LARGEST_REQUEST: Final = 1_046_528 - 1024
"""Bytes: the service closes a connection that sends more than the first number at once; the rest is for a request's frame."""

_IDLE: Final = "180000"
"""Milliseconds: the service's load balancer forgets connections that rest for 240 seconds."""
_SHAPE: Final = "Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"


@dataclass(frozen=True)
class ConnectionString:
    """A connection string, read. ``text`` is the whole of it, which is also the password."""

    text: str = field(repr=False)
    host: str
    port: int
    key_name: str
    key: str = field(repr=False)
    entity: str | None = None
    emulated: bool = False

    @classmethod
    def parse(cls, text: str) -> ConnectionString:
        """Reads ``text``, or the secret that it refers to. Raises ``ValueError`` with a phrase after "must be"."""
        text = filled(text).strip()
        parts = dict(_parts(text))
        missing = [name for name in ("Endpoint", "SharedAccessKeyName", "SharedAccessKey") if not parts.get(name.lower())]
        if missing:
            raise ValueError(f"a connection string such as {_SHAPE}, which has {' and '.join(missing)}")
        emulated = parts.get("usedevelopmentemulator", "").lower() == "true"
        host, port = _address(parts["endpoint"])
        return cls(
            text=text,
            host=host,
            port=port or (9092 if emulated else 9093),
            key_name=parts["sharedaccesskeyname"],
            key=parts["sharedaccesskey"],
            entity=parts.get("entitypath") or None,
            emulated=emulated,
        )


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """A key may end with ``=``; names are in any case."""
    for part in text.split(";"):
        name, _, value = part.partition("=")
        yield name.strip().lower(), value.strip()


def _address(endpoint: str) -> tuple[str, int | None]:
    try:
        url = urlsplit(endpoint)
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if not host:
        raise ValueError(f"a connection string such as {_SHAPE}, whose Endpoint is a URL")
    return host, port


@dataclass(frozen=True)
class ConnectionStringOption(Option):
    """A connection string, or a reference to a secret that is one; the value is a :class:`ConnectionString`."""

    def parse(self, text: str) -> ConnectionString:
        return ConnectionString.parse(text)


CONNECTION: Final = Options(connectionString=ConnectionStringOption(REQUIRED), eventHub=Text(None))


def with_derived(typed: Mapping[str, Any], naming: str, *others: str, **more: str) -> dict[str, Any]:
    """What the user typed, and what follows from the connection string where the user did not say otherwise.

    ``naming`` is the option that names the topic, and ``others`` exclude it; ``more`` are ``kafka.*`` options (with ``_``).
    """
    given = {name.lower(): value for name, value in typed.items()}
    try:
        connection = ConnectionString.parse(str(given["connectionstring"]))
    except (KeyError, ValueError):
        return dict(typed)  # the option itself will be told
    found = _settings(connection) | {name.replace("_", "."): value for name, value in more.items()}
    for name in _idle_credentials(given):
        found.pop(name, None)
    derived = {f"kafka.{name}": value for name, value in found.items()}
    hub = given.get("eventhub") or connection.entity
    if hub and not any(name.lower() in given for name in (naming, *others)):
        derived[naming] = str(hub)
    return {**{name: value for name, value in derived.items() if name.lower() not in given}, **typed}


def _settings(connection: ConnectionString) -> dict[str, str]:
    return {
        "bootstrap.servers": f"{connection.host}:{connection.port}",
        "security.protocol": "SASL_PLAINTEXT" if connection.emulated else "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": connection.text,
        "metadata.max.age.ms": _IDLE,
        "connections.max.idle.ms": _IDLE,
        "socket.keepalive.enable": "true",
    }


def _idle_credentials(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What would contradict the way in which the user wants to be known."""
    if "SASL" not in str(given.get("kafka.security.protocol", "SASL")).upper():
        return ("sasl.mechanism", "sasl.username", "sasl.password")
    if "kafka.sasl.jaas.config" in given:
        return ("sasl.username", "sasl.password")
    return ("sasl.mechanism",) if "kafka.sasl.mechanisms" in given else ()


def check_hub(values: Values, *naming: str, required: bool) -> Iterator[Problem]:
    """What is wrong with the name of the event hub. ``naming`` are the options of Kafka that name topics."""
    hub, entity = values["eventHub"], values["connectionString"].entity
    given = [name for name in naming if values.is_set(name) and values[name] != hub and values[name] != (hub,)]
    if hub and given:
        yield Problem("eventHub", f"is given beside {given[0]}; give one of them.")
    elif hub and entity and hub != entity:
        yield Problem("eventHub", f'is "{hub}", but the connection string is for "{entity}" (EntityPath) alone.')
    elif required and not (hub or entity or given):
        yield Problem("eventHub", "missing; name the event hub, or give a connection string with EntityPath.")


# MERGED What only the service can tell: whether it takes the key, and whether it has transactions.

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
