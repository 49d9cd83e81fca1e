"""What the driver asks a Kafka cluster: topics, where partitions begin and end, offsets by time, and those of a group."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import DataLoss, Misconfigured, Problem, Transient
from .config import client, connection_config, error_of, explained, failed, meaning
from .positions import Offsets, Partition, named

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient



_log = logging.getLogger("connectors.kafka")
_INTERNAL = "__"  # what Kafka itself keeps in topics; a pattern means the user's


@dataclass(frozen=True)
class Topic:
    """``id`` tells a topic from a later one of the same name; ``None`` where the brokers know no ids."""

    id: str | None
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class Head:
    """What there is to read: ``first`` and ``last`` (exclusive) offset of each partition of the topics that are read."""

    topics: Mapping[str, Topic]
    first: Mapping[Partition, int]
    last: Mapping[Partition, int]
    frozen: bool = False


@dataclass(frozen=True)
class Record:
    """Where a record is, and its time in milliseconds."""

    offset: int
    time: int


class Cluster:
    """A connection to a cluster, made when it is first used. Every method raises ``Transient`` for an outage."""

    def __init__(self, config: Mapping[str, str], *, committed: bool, timeout: float) -> None:
        self.config = dict(config)
        self.only_committed = committed
        self.timeout = timeout
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._peeking: Consumer | None = None

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = client("confluent_kafka.admin").AdminClient(_shared(self.config))
        return self._admin

    @property
    def consumer(self) -> Consumer:
        """A consumer that never joins its group."""
        if self._consumer is None:
            self._consumer = client().Consumer(self.config)
        return self._consumer

    def names(self) -> list[str]:
        """All topics but Kafka's own."""
        with failed("the topics cannot be listed"):
            found = self.admin.list_topics(timeout=self.timeout).topics
        return sorted(name for name in found if not name.startswith(_INTERNAL))

    def topics(self, names: Sequence[str]) -> dict[str, Topic]:
        """Those of ``names`` that exist."""
        if not names:
            return {}
        asked = client().TopicCollection(list(names))
        found: dict[str, Topic] = {}
        with failed("the topics cannot be described"):
            for name, future in self.admin.describe_topics(asked, request_timeout=self.timeout).items():
                try:
                    told = future.result(self.timeout)
                except client().KafkaException as error:
                    if error_of(error) in ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"):
                        continue
                    raise
                topic_id = str(told.topic_id) if told.topic_id is not None else None
                numbers = tuple(sorted(one.id for one in told.partitions))
                found[name] = Topic(None if topic_id == _NO_ID else topic_id, numbers)
        return found

    def first(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still holds."""
        return {one: told.offset for one, told in self._offsets(partitions, lambda spec, _: spec.earliest()).items()}

    def last(self, partitions: Iterable[Partition], *, written: bool = False) -> dict[Partition, int]:
        """The offset after the last one that can be read; after the last one at all if ``written``.

        With read_committed that is the last stable offset: what lies after it waits for a transaction that is open.
        """
        told = self._offsets(partitions, lambda spec, _: spec.latest(), committed=self.only_committed and not written)
        return {one: record.offset for one, record in told.items()}

    def after(self, times: Mapping[Partition, int]) -> dict[Partition, Record | None]:
        """The first record whose time is the given one (milliseconds) or later; ``None`` where there is none yet."""
        told = self._offsets(times, lambda spec, one: spec.for_timestamp(times[one]))
        return {one: record if record.offset >= 0 else None for one, record in told.items()}

    def times(self, offsets: Offsets) -> dict[Partition, int | None]:
        """The time of the first record at or after each offset; ``None`` where there is none. It reads them."""
        if not offsets:
            return {}
        if self._peeking is None:
            self._peeking = client().Consumer({**self.config, **_SMALL})
        found: dict[Partition, int | None] = {}
        until = time.monotonic() + self.timeout
        with failed("the times of the next records cannot be read"):
            self._peeking.assign([client().TopicPartition(*one, offset) for one, offset in offsets.items()])
            while len(found) < len(offsets):
                message = self._peeking.poll(0.5)
                if message is not None:
                    self._note(message, found)
                if time.monotonic() > until:
                    raise Transient("the times of the next records cannot be read: no answer in time")
        self._peeking.unassign()
        return found

    @staticmethod
    def _note(message: Any, found: dict[Partition, int | None]) -> None:
        one, error = (message.topic(), message.partition()), message.error()
        if error is None or error.name() == "_PARTITION_EOF":
            found.setdefault(one, None if error else message.timestamp()[1])
        elif isinstance(wrong := meaning(error.name(), error.str(), named(one)), (Transient, DataLoss)):
            raise Transient(wrong.message)
        else:
            raise wrong

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offsets of the group, of those partitions that it has one of."""
        asked = [client().TopicPartition(*one) for one in partitions]
        with failed("the offsets of the group cannot be read"):
            told = self.consumer.committed(asked, timeout=self.timeout)
        return {(one.topic, one.partition): one.offset for one in told if one.offset >= 0}

    def publish(self, offsets: Offsets) -> None:
        """Makes ``offsets`` those of the group. It is for people and tools: a failure is logged, and no more."""
        asked = [client().TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            with failed("the offsets of the group cannot be written"):
                refused = [
                    one.error for one in self.consumer.commit(offsets=asked, asynchronous=False) or () if one.error
                ]
            if refused:
                raise Transient(str(refused[0]))
        except Exception as error:
            _log.warning("the offsets of group %s were not published: %s", self.config.get("group.id"), error)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        if self._peeking is not None:
            self._peeking.close()
        self._admin = self._consumer = self._peeking = None

    def _offsets(
        self, partitions: Iterable[Partition], spec: Callable[[Any, Partition], Any], *, committed: bool | None = None
    ) -> dict[Partition, Record]:
        api, admin_api = client(), client("confluent_kafka.admin")
        levels = api.IsolationLevel
        stable = self.only_committed if committed is None else committed
        asked = {api.TopicPartition(*one): spec(admin_api.OffsetSpec, one) for one in partitions}
        if not asked:
            return {}
        found: dict[Partition, Record] = {}
        level = levels.READ_COMMITTED if stable else levels.READ_UNCOMMITTED
        told = self.admin.list_offsets(asked, isolation_level=level, request_timeout=self.timeout)
        for one, future in told.items():
            with failed(f"the offsets of {named((one.topic, one.partition))} cannot be read"):
                record = future.result(self.timeout + 5)
                found[one.topic, one.partition] = Record(record.offset, record.timestamp)
        return found


_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_SMALL = {"queued.min.messages": "1", "queued.max.messages.kbytes": "256", "fetch.message.max.bytes": "65536"}
_OF_CONSUMERS = (
    "group.id",
    "isolation.level",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.partition.eof",
    "auto.offset.reset",
    "queued.",
    "fetch.",
    "max.p",
    "check.crcs",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "allow.auto.create.topics",
    "partition.assignment.strategy",
    "group.",
)


def _shared(config: Mapping[str, str]) -> dict[str, str]:
    """Without the settings that only a consumer knows, of which an admin client would complain."""
    return {key: value for key, value in config.items() if not key.startswith(_OF_CONSUMERS)}


# MERGED What a writer must know of topics: that they are there, how many partitions they have, how large a record may
# be.

_SECONDS: Final = 30.0
_PROPAGATION: Final = 5.0
_USUAL_MAXIMUM: Final = 1_048_588
"""Kafka's default for ``max.message.bytes``, for who may not read the topic's own."""

LEDGER_PARTITIONS: Final = 32
MOST_SLOTS: Final = LEDGER_PARTITIONS - 2
"""The ledger has a partition for the book of each slot, and two for the sink."""


@dataclass(frozen=True)
class TopicDescription:
    """``largest`` is the size in bytes of the largest record (with its headers and its frame)."""

    partitions: int
    largest: int


class Topics:
    """The topics of a cluster, each looked up once, and again by :meth:`look_again`."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._known: dict[str, TopicDescription] = {}

    def __getitem__(self, name: str) -> TopicDescription:
        """Raises ``Misconfigured`` when there is no such topic."""
        return self._known.get(name) or self.look_again(name)

    def look_again(self, name: str) -> TopicDescription:
        """The topic as it is now: an operator adds partitions and raises ``max.message.bytes`` while queries run."""
        admin = _admin(self._config)
        client_maximum = int(self._config.get("message.max.bytes", sys.maxsize))  # the client refuses larger ones itself
        self._known[name] = TopicDescription(_partitions(admin, name), min(_largest(admin, name), client_maximum))
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
