"""What a writer must know of topics: that they are there, how many partitions they have, how large a record may be."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...core.errors import Misconfigured, Problem
from .client import connection_config
from .client_errors import explained
from .failures import client, error_of, failed

_SECONDS: Final = 30.0
_PROPAGATION: Final = 5.0
_USUAL_MAXIMUM: Final = 1_048_588
"""Kafka's default for ``max.message.bytes``, for who may not read the topic's own."""

LEDGER_PARTITIONS: Final = 32
MOST_SLOTS: Final = LEDGER_PARTITIONS - 2
"""The ledger has a partition for the book of each slot, and two for the sink."""


@dataclass(frozen=True)
class Topic:
    """``largest`` is the size in bytes of the largest record (with its headers and its frame)."""

    partitions: int
    largest: int


class Topics:
    """The topics of a cluster, each looked up once, and again by :meth:`look_again`."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._known: dict[str, Topic] = {}

    def __getitem__(self, name: str) -> Topic:
        """Raises ``Misconfigured`` when there is no such topic."""
        return self._known.get(name) or self.look_again(name)

    def look_again(self, name: str) -> Topic:
        """The topic as it is now: an operator adds partitions and raises ``max.message.bytes`` while queries run."""
        admin = _admin(self._config)
        client_maximum = int(self._config.get("message.max.bytes", sys.maxsize))  # the client refuses larger ones itself
        self._known[name] = Topic(_partitions(admin, name), min(_largest(admin, name), client_maximum))
        return self._known[name]


def make_ledger(config: Mapping[str, str], name: str) -> None:
    """Makes the ledger topic, compacted, if it is not there."""
    admin, admin_api = _admin(config), client("confluent_kafka.admin")
    wanted = admin_api.NewTopic(name, LEDGER_PARTITIONS, config={"cleanup.policy": "compact"})
    with failed("the ledger topic cannot be made"):
        try:
            admin.create_topics([wanted], request_timeout=_SECONDS)[name].result(_SECONDS)
        except client().KafkaException as error:
            if error_of(error) == "TOPIC_ALREADY_EXISTS":
                return
            if error_of(error).endswith("AUTHORIZATION_FAILED"):
                text = f"the topic {name} cannot be made: make it (cleanup.policy=compact, {LEDGER_PARTITIONS} partitions)."
                raise Misconfigured("connectors.kafka", [Problem("ledgerTopic", text)]) from None
            raise


def transaction_maximum(config: Mapping[str, str]) -> int | None:
    """The broker's ``transaction.max.timeout.ms``; ``None`` if it does not tell."""
    with contextlib.suppress(Exception):
        admin = _admin(config)
        broker = next(iter(admin.list_topics(timeout=_SECONDS).brokers))
        told = _described(admin, "BROKER", str(broker))
        return int(told["transaction.max.timeout.ms"].value)
    return None


def _admin(config: Mapping[str, str]) -> Any:
    return client("confluent_kafka.admin").AdminClient(connection_config(config))


def _described(admin: Any, kind: str, name: str) -> Mapping[str, Any]:
    api = client("confluent_kafka.admin")
    asked = api.ConfigResource(getattr(api.ConfigResource.Type, kind), name)
    found: Mapping[str, Any] = admin.describe_configs([asked], request_timeout=_SECONDS)[asked].result(_SECONDS)
    return found


def _partitions(admin: Any, name: str) -> int:
    """A topic that was made a moment ago may not be known to every broker yet."""
    until = time.monotonic() + _PROPAGATION
    while (found := _described_topic(admin, name)) is None:
        if time.monotonic() > until:
            text = f'"{name}" does not exist in this cluster; make it first, or correct the name.'
            raise Misconfigured("connectors.kafka", [Problem("topic", text)])
        time.sleep(0.1)
    return found


def _described_topic(admin: Any, name: str) -> int | None:
    api = client()
    with failed(f"the topic {name} cannot be described"):
        try:
            asked = api.TopicCollection([name])
            return len(admin.describe_topics(asked, request_timeout=_SECONDS)[name].result(_SECONDS).partitions)
        except api.KafkaException as error:
            if error_of(error) in ("UNKNOWN_TOPIC_OR_PART", "INVALID_TOPIC_EXCEPTION"):
                return None
            if error_of(error).endswith("AUTHORIZATION_FAILED"):
                raise explained(error, f"the topic {name} cannot be described") from None
            raise


def _largest(admin: Any, name: str) -> int:
    with contextlib.suppress(client().KafkaException):
        return int(_described(admin, "TOPIC", name)["max.message.bytes"].value)
    return _USUAL_MAXIMUM
