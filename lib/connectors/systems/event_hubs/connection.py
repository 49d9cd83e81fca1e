"""What a connection string of Event Hubs says, and the ``kafka.*`` options that follow from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from ...core.errors import Problem
from ...core.options import REQUIRED, Option, Options, Text, Values
from ...core.secret_references import filled

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
    given = [name for name in naming if values.given(name) and values[name] != hub and values[name] != (hub,)]
    if hub and given:
        yield Problem("eventHub", f"is given beside {given[0]}; give one of them.")
    elif hub and entity and hub != entity:
        yield Problem("eventHub", f'is "{hub}", but the connection string is for "{entity}" (EntityPath) alone.')
    elif required and not (hub or entity or given):
        yield Problem("eventHub", "missing; name the event hub, or give a connection string with EntityPath.")
