"""The connection string of Event Hubs: the ``kafka.*`` options that follow from it, and what only the service can tell."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

from ...ground import machine
from ...ground.errors import Misconfigured, Problem, Transient
from ...ground.options import REQUIRED, Option, Options, Text, Values, masker
from ...ground.secrets import filled
from ..kafka.config import connection_config
from ..kafka.errors import ClientReports, client, error_name

USER: Final = "$ConnectionString"
LARGEST_REQUEST: Final = 1_046_528 - 1024
"""Bytes: the service closes a connection that sends more than the first number at once; the rest is for a request's frame."""

_IDLE: Final = "180000"
"""Milliseconds: the service's load balancer forgets connections that were idle for 240 seconds."""
_SHAPE: Final = "Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=NAME;SharedAccessKey=KEY"
_ANSWER_SECONDS: Final = 30.0
_CALL_SECONDS: Final = 1.0
_NO_ANSWER: Final = frozenset({"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE"})

Config = tuple[tuple[str, str], ...]
"""The client's settings, as a key."""


@dataclass(frozen=True)
class ConnectionString:
    """A connection string, in parts. ``text`` is the whole of it, which is also the password."""

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
        parts = {}
        for part in text.split(";"):
            name, _, value = part.partition("=")  # a key may end with "="
            parts[name.strip().lower()] = value.strip()
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

    def settings(self) -> dict[str, str]:
        """The client's settings that follow from the string."""
        return {
            "bootstrap.servers": f"{self.host}:{self.port}",
            "security.protocol": "SASL_PLAINTEXT" if self.emulated else "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": self.text,
            "metadata.max.age.ms": _IDLE,
            "connections.max.idle.ms": _IDLE,
            "socket.keepalive.enable": "true",
        }


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


CONNECTION: Final = Options(
    connectionString=ConnectionStringOption(
        REQUIRED, meaning="of the namespace or of the event hub; gives kafka.bootstrap.servers and the login"
    ),
    eventHub=Text(None, meaning="the event hub; default: the string's EntityPath"),
)


def with_derived(typed: Mapping[str, Any], topic_option: str, *others: str, **more: str) -> dict[str, Any]:
    """The options of the user, and those that follow from the connection string; the user's win.

    ``topic_option`` names the topic, and ``others`` exclude it; ``more`` are ``kafka.*`` options (with ``_`` for dots).
    """
    options = {name.lower(): value for name, value in typed.items()}
    try:
        connection = ConnectionString.parse(str(options["connectionstring"]))
    except (KeyError, ValueError):
        return dict(typed)  # the check of the option itself reports it
    settings = connection.settings() | {name.replace("_", "."): value for name, value in more.items()}
    for name in _contradictions(options):
        settings.pop(name, None)
    derived = {f"kafka.{name}": value for name, value in settings.items()}
    hub = options.get("eventhub") or connection.entity
    if hub and not any(name.lower() in options for name in (topic_option, *others)):
        derived[topic_option] = str(hub)
    return {**{name: value for name, value in derived.items() if name.lower() not in options}, **typed}


def _contradictions(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The derived settings that contradict the user's own way to log in."""
    if "SASL" not in str(options.get("kafka.security.protocol", "SASL")).upper():
        return ("sasl.mechanism", "sasl.username", "sasl.password")
    if "kafka.sasl.jaas.config" in options:
        return ("sasl.username", "sasl.password")
    return ("sasl.mechanism",) if "kafka.sasl.mechanisms" in options else ()


def check_hub(values: Values, *topic_options: str, required: bool) -> Iterator[Problem]:
    """The problems of the event hub's name. ``topic_options`` are the options of Kafka that name topics."""
    hub, entity = values["eventHub"], values["connectionString"].entity
    rivals = [name for name in topic_options if values.is_set(name) and values[name] not in (hub, (hub,))]
    if hub and rivals:
        yield Problem("eventHub", f"is given beside {rivals[0]}; give one of them.")
    elif hub and entity and hub != entity:
        yield Problem("eventHub", f'is "{hub}", but the connection string is for "{entity}" (EntityPath) alone.')
    elif required and not (hub or entity or rivals):
        yield Problem("eventHub", "missing; name the event hub, or give a connection string with EntityPath.")


class _Refused(Exception):
    """The service, or the way to it, refuses the client; ``name`` is the client's name of the error."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def check_access(connection: ConnectionString, config: Mapping[str, str]) -> None:
    """Returns when the service has taken the key. Raises ``Misconfigured`` if it does not, ``Transient`` without an answer."""
    try:
        _connect(tuple(sorted(connection_config(config).items())))
    except _Refused as refused:
        raise Misconfigured("connectors.event_hubs", [_problem(connection, refused)]) from None


@lru_cache(maxsize=64)
def _connect(config: Config) -> None:
    """Asks for the topics. Only a success is cached. The client itself would only say that no answer came in time."""
    reports = ClientReports()
    producer = client().Producer({**dict(config), "error_cb": reports.failed, "log_level": "0"})
    deadline = machine.monotonic() + _ANSWER_SECONDS
    while True:
        try:
            producer.list_topics(timeout=_CALL_SECONDS)
            return
        except client().KafkaException as error:
            producer.poll(0)
            for name, text in reports.errors:
                if name in ("_AUTHENTICATION", "_SSL"):
                    raise _Refused(name, text) from None
            if machine.monotonic() > deadline:
                text = reports.errors[-1][1] if reports.errors else error.args[0].str()
                raise Transient(f"the service does not answer: {text}") from None


def _problem(connection: ConnectionString, refused: _Refused) -> Problem:
    reason = masker([connection.text, connection.key])(str(refused))
    if refused.name == "_SSL":
        return Problem("kafka.ssl.ca.location", f"no secure connection: {reason}")
    text = (
        f'the service refuses the key "{connection.key_name}": {reason}. Take the string of a key that may send or listen; '
        "keys can be renewed, and a string with EntityPath is good for that event hub alone."
    )
    return Problem("connectionString", text)


@lru_cache(maxsize=64)
def missing_transactions(config: Config, transactional_id: str) -> str:
    """Why the service has no transactions; empty if it has. Raises ``Transient`` when it cannot tell now.

    It prepares a transaction with an id that nobody else uses, which writes nothing.
    """
    quiet = {"logger": logging.getLogger("connectors.event_hubs.proof")}  # else it prints that the refusal is fatal
    producer = client().Producer({**dict(config), "transactional.id": f"{transactional_id}-proof", **quiet})
    try:
        producer.init_transactions(_ANSWER_SECONDS)
    except client().KafkaException as error:
        refusal = error.args[0]
        if refusal.retriable() or error_name(error) in _NO_ANSWER:
            raise Transient(f"the service does not tell whether it has transactions: {refusal.str()}") from None
        return str(refusal.str())
    return ""
