"""Lists and ends the open transactions of a cluster, for ``python -m connectors kafka transactions``.

The Python client has no calls for this (KIP-664). So this module reads the topic in which brokers keep the states of
transactions. To end a transaction, a new producer with the same id calls InitProducerId.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...ground import machine
from ...ground.errors import Fatal, Misconfigured, Transient
from ...ground.options import Values
from .config import PREFIX, check_config, client_config, connection_config
from .errors import client, client_errors, error_name, producer_error

STATES: Final = "__transaction_state"
_OPEN: Final = {1: "ongoing", 2: "committing", 3: "aborting", 7: "aborting"}
_ANSWER_SECONDS: Final = 30.0
_READ_SECONDS: Final = 120.0
_KEY: Final = struct.Struct(">hh")
"""Version, length of the transactional id."""
_VALUE: Final = struct.Struct(">hqhib")
"""Version, producer, epoch, timeout in milliseconds, state: the same in all versions so far."""


@dataclass(frozen=True)
class OpenTransaction:
    """A transaction that blocks readers. ``seconds`` is the time since it last got a partition or was decided."""

    id: str
    state: str
    producer: int
    epoch: int
    seconds: float
    timeout: float

    def __str__(self) -> str:
        times = f"quiet for {self.seconds:.0f} s, ended by the broker after {self.timeout:.0f} s"
        return f"{self.id}  {self.state}  producer {self.producer}, epoch {self.epoch}  {times}"

    @classmethod
    def of(cls, name: str, value: bytes, at: int) -> OpenTransaction | None:
        """The transaction in a record of its state; ``None`` if it is not open."""
        _, producer, epoch, timeout, state = _VALUE.unpack_from(value)
        if state not in _OPEN:
            return None
        return cls(name, _OPEN[state], producer, epoch, max(0.0, machine.time() - at / 1000), timeout / 1000)


def client_settings(bootstrap: str, properties: str = "") -> dict[str, str]:
    """The client's settings from ``properties``, the text of a file with ``name=value`` lines. Raises ``Misconfigured``."""
    lines = (line.strip() for line in properties.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    settings = {name.strip().removeprefix(PREFIX): value.strip() for name, _, value in pairs}
    options = {PREFIX + name: value for name, value in {**settings, "bootstrap.servers": bootstrap}.items()}
    values = Values({}, frozenset(options), options)
    if problems := list(check_config(values)):
        raise Misconfigured("kafka transactions", problems)
    return connection_config(client_config(values))


def open_transactions(config: Mapping[str, str], prefix: str) -> list[OpenTransaction]:
    """The open transactions whose ids begin with ``prefix``. Raises ``Fatal`` if the brokers do not show them."""
    newest: dict[str, OpenTransaction | None] = {}
    for key, value, at in _records(config):
        version, length = _KEY.unpack_from(key) if len(key) >= _KEY.size else (-1, 0)
        name = key[_KEY.size : _KEY.size + length].decode(errors="replace")
        if version == 0 and name.startswith(prefix):
            newest[name] = OpenTransaction.of(name, value, at) if value else None
    return sorted(filter(None, newest.values()), key=lambda transaction: transaction.id)


def end_transaction(config: Mapping[str, str], transactional_id: str) -> None:
    """Aborts the open transaction of ``transactional_id``, and fences its producer."""
    settings = {**connection_config(config), "transactional.id": transactional_id, "error_cb": lambda _: None}
    try:
        client().Producer(settings).init_transactions(_ANSWER_SECONDS)
    except client().KafkaException as error:
        raise producer_error(error, f"the transaction of {transactional_id} cannot be ended") from None


def report(config: Mapping[str, str], prefix: str, *, abort: bool) -> Iterator[str]:
    """A line for each open transaction; with ``abort`` it first ends the transaction."""
    try:
        transactions = open_transactions(config, prefix)
    except Fatal:
        if not abort:
            raise
        end_transaction(config, prefix)
        yield f"{prefix}: whatever was open is ended"
        return
    for transaction in transactions:
        if abort:
            end_transaction(config, transaction.id)
        yield f"{transaction}{': ended' if abort else ''}"
    if not transactions:
        yield f"no open transactions whose ids begin with {prefix}"


def _records(config: Mapping[str, str]) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Key, value and time of all records in the topic of transaction states."""
    own = {"group.id": "connectors-transactions", "enable.auto.commit": False, "enable.partition.eof": True}
    quiet = {"fetch.wait.max.ms": 10, "error_cb": lambda _: None}
    reader = client().Consumer({**connection_config(config), **own, **quiet})
    try:
        partitions = _partitions(reader)
        reader.assign(partitions)
        deadline, ended = machine.monotonic() + _READ_SECONDS, 0
        while ended < len(partitions):
            if machine.monotonic() > deadline:
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


def _partitions(reader: Any) -> list[Any]:
    with client_errors("the transactions cannot be listed"):
        try:
            topic = reader.list_topics(STATES, timeout=_ANSWER_SECONDS).topics[STATES]
        except client().KafkaException as error:
            if error_name(error).endswith("AUTHORIZATION_FAILED"):
                raise _hidden(error.args[0].str()) from None
            raise
    if topic.error is not None and topic.error.name() == "UNKNOWN_TOPIC_OR_PART":
        return []  # there has never been a transaction
    if topic.error is not None:
        raise _hidden(topic.error.str())
    return [client().TopicPartition(STATES, number, 0) for number in topic.partitions]


def _hidden(reason: str) -> Fatal:
    return Fatal(
        f"the brokers do not show {STATES} ({reason})",
        way_out="name a user that may read it; or give a whole transactional id as --prefix with --abort: that needs no list",
    )
