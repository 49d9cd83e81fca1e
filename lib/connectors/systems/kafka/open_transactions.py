"""Open transactions of a cluster, listed and ended by hand.

The Python client has no calls for this (KIP-664). What is open is read from the topic in which the brokers keep the states of
transactions; one is ended as a new producer of the same id ends it, by InitProducerId.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...core.errors import Fatal, Misconfigured, Transient
from ...core.options import Values
from .config import PREFIX, check_config, client, client_config, connection_config, error_of, explained, failed

STATES: Final = "__transaction_state"
_OPEN: Final = {1: "ongoing", 2: "committing", 3: "aborting", 7: "aborting"}
_SECONDS: Final = 30.0
_READ_SECONDS: Final = 120.0
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hqhib")
"""Version, producer, epoch, timeout in milliseconds, state: the same in all versions so far."""


@dataclass(frozen=True)
class Open:
    """A transaction that keeps readers waiting. ``seconds`` is the time since it last took in a partition, or was decided."""

    id: str
    state: str
    producer: int
    epoch: int
    seconds: float
    timeout: float

    def __str__(self) -> str:
        often = f"quiet for {self.seconds:.0f} s, ended by the broker after {self.timeout:.0f} s"
        return f"{self.id}  {self.state}  producer {self.producer}, epoch {self.epoch}  {often}"


def settings(bootstrap: str, properties: str = "") -> dict[str, str]:
    """The client's settings of ``properties``, the text of a file with ``name=value`` lines. Raises ``Misconfigured``."""
    lines = (line.strip() for line in properties.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    given = {name.strip().removeprefix(PREFIX): value.strip() for name, _, value in pairs}
    typed = {PREFIX + name: value for name, value in {**given, "bootstrap.servers": bootstrap}.items()}
    values = Values({}, frozenset(typed), typed)
    if problems := list(check_config(values)):
        raise Misconfigured("kafka transactions", problems)
    return connection_config(client_config(values))


def open_transactions(config: Mapping[str, str], prefix: str) -> list[Open]:
    """The open transactions whose ids begin with ``prefix``. Raises ``Fatal`` if the brokers do not show them."""
    newest: dict[str, Open | None] = {}
    for key, value, at in _records(config):
        version, length = _KEY.unpack_from(key) if len(key) >= _KEY.size else (-1, 0)
        name = key[_KEY.size : _KEY.size + length].decode(errors="replace")
        if version == 0 and name.startswith(prefix):
            newest[name] = _of(name, value, at) if value else None
    return sorted((one for one in newest.values() if one is not None), key=lambda one: one.id)


def end_transaction(config: Mapping[str, str], transactional_id: str) -> None:
    """Aborts what is open under ``transactional_id``, and shuts out the producer that has it."""
    made = {**connection_config(config), "transactional.id": transactional_id, "error_cb": lambda _: None}
    try:
        client().Producer(made).init_transactions(_SECONDS)
    except client().KafkaException as error:
        raise explained(error, f"the transaction of {transactional_id} cannot be ended") from None


def told(config: Mapping[str, str], prefix: str, *, abort: bool) -> Iterator[str]:
    """A line for each open transaction; with ``abort`` after it was ended."""
    try:
        found = open_transactions(config, prefix)
    except Fatal:
        if not abort:
            raise
        end_transaction(config, prefix)
        yield f"{prefix}: whatever was open is ended"
        return
    for one in found:
        if abort:
            end_transaction(config, one.id)
        yield f"{one}{': ended' if abort else ''}"
    if not found:
        yield f"no open transactions whose ids begin with {prefix}"


def _of(name: str, value: bytes, at: int) -> Open | None:
    _, producer, epoch, timeout, state = _VALUE.unpack_from(value)
    if state not in _OPEN:
        return None
    return Open(name, _OPEN[state], producer, epoch, max(0.0, time.time() - at / 1000), timeout / 1000)


def _records(config: Mapping[str, str]) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Key, value and time of all records of the states."""
    only_read = {"group.id": "connectors-transactions", "enable.auto.commit": False, "enable.partition.eof": True}
    reader = client().Consumer(
        {**connection_config(config), **only_read, "fetch.wait.max.ms": 10, "error_cb": lambda _: None}
    )
    try:
        places = _places(reader)
        reader.assign(places)
        until, ended = time.monotonic() + _READ_SECONDS, 0
        while ended < len(places):
            if time.monotonic() > until:
                raise Transient(f"{STATES} cannot be read to its end")
            for message in reader.consume(1000, 0.1):
                if message.error() is None:
                    yield message.key() or b"", message.value(), message.timestamp()[1]
                elif message.error().name() == "_PARTITION_EOF":
                    ended += 1
                else:
                    raise _hidden(message.error().str())
    finally:
        reader.close()


def _places(reader: Any) -> list[Any]:
    with failed("the transactions cannot be listed"):
        try:
            found = reader.list_topics(STATES, timeout=_SECONDS).topics[STATES]
        except client().KafkaException as error:
            if error_of(error).endswith("AUTHORIZATION_FAILED"):
                raise _hidden(error.args[0].str()) from None
            raise
    if found.error is not None and found.error.name() == "UNKNOWN_TOPIC_OR_PART":
        return []  # there has never been a transaction
    if found.error is not None:
        raise _hidden(found.error.str())
    return [client().TopicPartition(STATES, number, 0) for number in found.partitions]


def _hidden(why: str) -> Fatal:
    return Fatal(
        f"the brokers do not show {STATES} ({why})",
        way_out="name a user that may read it; or give a whole transactional id as --prefix with --abort: that needs no list",
    )
