"""Requests of a source's driver and a sink's sessions to a cluster: topics, offsets, limits."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from ...ground import machine
from ...ground.errors import DataLoss, Misconfigured, Problem, Transient
from .config import connection_config
from .errors import ClientReports, client, client_errors, connector_error, error_name, new_client, producer_error
from .positions import Offsets, Partition, partition_name

if TYPE_CHECKING:
    from confluent_kafka import Consumer
    from confluent_kafka.admin import AdminClient

_log = logging.getLogger("connectors.kafka")
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own topics, as its Java client has them; a pattern matches only the user's, of which some begin with __, too."""
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_NO_TIMES: Final = "the times of the next records cannot be read: no answer in time"
_PEEK_CONFIG: Final = {"queued.min.messages": "1", "queued.max.messages.kbytes": "256", "fetch.message.max.bytes": "65536"}
_CONSUMER_SETTINGS: Final = (
    "group.", "isolation.level", "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof",
    "auto.offset.reset", "queued.", "fetch.", "max.p", "check.crcs", "session.timeout.ms", "heartbeat.interval.ms",
    "allow.auto.create.topics", "partition.assignment.strategy",
)  # fmt: skip


@dataclass(frozen=True)
class KafkaTopic:
    """A topic. ``id`` tells it from a later topic of the same name; ``None`` if the brokers have no ids."""

    id: str | None
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class TimedOffset:
    """The offset of a record, and its time in milliseconds."""

    offset: int
    time: int


@dataclass(frozen=True)
class KafkaHead:
    """The state of the topics to read: the ``first`` and ``last`` (exclusive) offset of each partition.

    ``frozen``: the query ends there.
    """

    topics: Mapping[str, KafkaTopic]
    first: Mapping[Partition, int]
    last: Mapping[Partition, int]
    frozen: bool = False

    def ids(self) -> dict[str, str]:
        """The ids of the topics, if the brokers have ids."""
        return {name: topic.id for name, topic in self.topics.items() if topic.id is not None}


class Cluster:
    """The connections of a source's driver, opened at first use. Every method raises ``Transient`` for an outage."""

    def __init__(self, config: Mapping[str, str], *, committed: bool, timeout: float) -> None:
        self.config = dict(config)
        self.only_committed = committed
        self.timeout = timeout
        self._admin: AdminClient | None = None
        self._consumer: Consumer | None = None
        self._peeking: Consumer | None = None

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:  # an admin client warns about the settings of a consumer
            config = {key: value for key, value in self.config.items() if not key.startswith(_CONSUMER_SETTINGS)}
            self._admin = connected_admin(config)
        return self._admin

    @property
    def consumer(self) -> Consumer:
        """A consumer that never joins its group."""
        if self._consumer is None:
            self._consumer = client().Consumer(self.config)
        return self._consumer

    def names(self) -> list[str]:
        """All topics except Kafka's own."""
        with client_errors("the topics cannot be listed"):
            topics = self.admin.list_topics(timeout=self.timeout).topics
        return sorted(topics.keys() - _INTERNAL)

    def topics(self, names: Sequence[str]) -> dict[str, KafkaTopic]:
        """The topics among ``names`` that exist."""
        if not names:
            return {}
        topics: dict[str, KafkaTopic] = {}
        with client_errors("the topics cannot be described"):
            request = client().TopicCollection(list(names))
            for name, future in self.admin.describe_topics(request, request_timeout=self.timeout).items():
                try:
                    topic = future.result(self.timeout)
                except client().KafkaException as error:
                    if error_name(error) in ("UNKNOWN_TOPIC_OR_PART", "UNKNOWN_TOPIC_ID"):
                        continue
                    raise
                topic_id = str(topic.topic_id) if topic.topic_id is not None else None
                partitions = tuple(sorted(partition.id for partition in topic.partitions))
                topics[name] = KafkaTopic(None if topic_id == _NO_ID else topic_id, partitions)
        return topics

    def first(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The first offset that each partition still holds."""
        records = self._list_offsets(dict.fromkeys(partitions, _offset_spec().earliest()))
        return {partition: record.offset for partition, record in records.items()}

    def last(self, partitions: Iterable[Partition], *, written: bool = False) -> dict[Partition, int]:
        """The offset after the last readable record; with ``written`` after the last record of all.

        With read_committed that is the last stable offset: the records after it wait for an open transaction.
        """
        request = dict.fromkeys(partitions, _offset_spec().latest())
        records = self._list_offsets(request, committed=self.only_committed and not written)
        return {partition: record.offset for partition, record in records.items()}

    def after(self, times: Mapping[Partition, int]) -> dict[Partition, TimedOffset | None]:
        """The first record at or after each time (milliseconds); ``None`` if there is none yet."""
        request = {partition: _offset_spec().for_timestamp(stamp) for partition, stamp in times.items()}
        records = self._list_offsets(request)
        return {partition: record if record.offset >= 0 else None for partition, record in records.items()}

    def _list_offsets(self, request: Mapping[Partition, Any], committed: bool | None = None) -> dict[Partition, TimedOffset]:
        """The record that each ``OffsetSpec`` of ``request`` names."""
        if not request:
            return {}
        levels = client().IsolationLevel
        is_stable = self.only_committed if committed is None else committed
        level = levels.READ_COMMITTED if is_stable else levels.READ_UNCOMMITTED
        specs = {client().TopicPartition(*partition): spec for partition, spec in request.items()}
        offsets: dict[Partition, TimedOffset] = {}
        futures = self.admin.list_offsets(specs, isolation_level=level, request_timeout=self.timeout)
        for token, future in futures.items():
            partition = (token.topic, token.partition)
            with client_errors(f"the offsets of {partition_name(partition)} cannot be read"):
                record = future.result(self.timeout + 5)
                offsets[partition] = TimedOffset(record.offset, record.timestamp)
        return offsets

    def times(self, offsets: Offsets) -> dict[Partition, int | None]:
        """The time of the first record at or after each offset; ``None`` if there is none. Reads the records."""
        if not offsets:
            return {}
        times: dict[Partition, int | None] = {}
        deadline = machine.monotonic() + self.timeout
        for partition, _, stamp in self._peek(offsets):
            times.setdefault(partition, stamp)
            if len(times) == len(offsets):
                break
            if machine.monotonic() > deadline:  # a partition that grows answers all the time, in place of the others
                raise Transient(_NO_TIMES)
        return times

    def times_from(self, partition: Partition, offset: int) -> Iterator[tuple[int, int]]:
        """The offsets of the records from ``offset`` on, with their times. Reads the records."""
        for _, at, stamp in self._peek({partition: offset}):
            if stamp is None:
                return
            yield at, stamp

    def _peek(self, offsets: Offsets) -> Iterator[tuple[Partition, int, int | None]]:
        """The partition, offset and time of each next record; at the end of a partition no time."""
        if self._peeking is None:
            self._peeking = client().Consumer({**self.config, **_PEEK_CONFIG})
        consumer, deadline = self._peeking, machine.monotonic() + self.timeout
        with client_errors("the times of the next records cannot be read"):
            consumer.assign([client().TopicPartition(*partition, offset) for partition, offset in offsets.items()])
            try:
                while machine.monotonic() <= deadline:
                    message = consumer.poll(0.5)
                    if message is not None:
                        yield self._place_and_time(message)
                        deadline = machine.monotonic() + self.timeout
            finally:
                consumer.unassign()
            raise Transient(_NO_TIMES)

    @staticmethod
    def _place_and_time(message: Any) -> tuple[Partition, int, int | None]:
        partition, error = (message.topic(), message.partition()), message.error()
        if error is None or error.name() == "_PARTITION_EOF":
            return partition, message.offset(), None if error else message.timestamp()[1]
        translated = connector_error(error.name(), error.str(), partition_name(partition))
        raise Transient(translated.message) if isinstance(translated, (Transient, DataLoss)) else translated

    def committed(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The group's committed offsets, for the partitions that have one."""
        request = [client().TopicPartition(*partition) for partition in partitions]
        with client_errors("the offsets of the group cannot be read"):
            tokens = self.consumer.committed(request, timeout=self.timeout)
        return {(token.topic, token.partition): token.offset for token in tokens if token.offset >= 0}

    def publish(self, offsets: Offsets) -> None:
        """Commits ``offsets`` for the group, for people and tools. Only logs a failure."""
        tokens = [client().TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        try:
            with client_errors("the offsets of the group cannot be written"):
                committed = self.consumer.commit(offsets=tokens, asynchronous=False) or ()
            if refusals := [token.error for token in committed if token.error]:
                raise Transient(str(refusals[0]))
        except Exception as error:
            _log.warning("the offsets of group %s were not published: %s", self.config.get("group.id"), error)

    def close(self) -> None:
        for consumer in (self._consumer, self._peeking):
            if consumer is not None:
                consumer.close()
        self._admin = self._consumer = self._peeking = None


_SCANNED: Final = 10_000
"""The records after which times are taken to grow with the offsets."""


def first_records(
    cluster: Cluster, times: Mapping[Partition, int], ends: Offsets, earlier: Offsets | None = None
) -> dict[Partition, int | None]:
    """The offset of the first record at or after each time (milliseconds), before ``ends``; ``None`` if there is none.

    Brokers also answer with transaction markers, whose time is when they were written, and with aborted records.
    ``earlier`` has offsets before which no record has the time.
    """
    answers, least = cluster.after(times), earlier or {}
    offsets = {name: max(answer.offset, least.get(name, 0)) for name, answer in answers.items() if answer is not None}
    offsets = {name: offset for name, offset in offsets.items() if offset < ends[name]}
    found: dict[Partition, int | None] = dict.fromkeys(times)
    for name, stamp in cluster.times(offsets).items():
        at = offsets[name]
        if stamp is not None and stamp < times[name]:
            at = _first_of_time(cluster, name, at, ends[name], times[name])
            stamp = cluster.times({name: at})[name] if at < ends[name] else None
        if stamp is not None and stamp >= times[name]:  # an earlier one may have come meanwhile
            found[name] = at
    return found


def _first_of_time(cluster: Cluster, partition: Partition, low: int, high: int, stamp: int) -> int:
    """The first offset from ``low`` on whose record is at or after ``stamp``; behind :data:`_SCANNED` by a search of halves."""
    for at, time in islice(cluster.times_from(partition, low), _SCANNED):
        if at >= high:
            return high
        if time >= stamp:
            return at
        low = at
    return first_after(cluster, partition, low, high, stamp - 1)


def first_after(cluster: Cluster, partition: Partition, low: int, high: int, limit: int) -> int:
    """The first offset after ``low`` whose record is later than ``limit``, if times only grow from there."""
    while high - low > 1:
        middle = (low + high) // 2
        stamp = cluster.times({partition: middle})[partition]
        if stamp is not None and stamp <= limit:
            low = middle
        else:
            high = middle
    return high


_CONTACT_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
_NOT_REACHED: Final = "see that kafka.bootstrap.servers is right, and that a broker runs there and can be reached from here"


def connected_admin(config: Mapping[str, str]) -> AdminClient:
    """An admin client of a cluster that answers.

    The client itself would wait until its timeout, even if nobody listens at the address. Raises ``Transient``, which names
    the brokers, if none of them can be reached, and ``Misconfigured`` if they refuse the login.
    """
    reports = ClientReports()
    admin: AdminClient = new_client("AdminClient", config, reports, "confluent_kafka.admin")
    deadline = machine.monotonic() + _CONTACT_SECONDS
    while True:
        try:
            admin.list_topics(timeout=_LOOK_SECONDS)
            return admin
        except client().KafkaException as error:
            admin.poll(0)
            brokers = f"no broker of {config['bootstrap.servers']} can be reached"
            refusal = producer_error(error, brokers, reports.errors)
            if not isinstance(refusal, Transient):
                raise refusal from None
            if reports.has("_ALL_BROKERS_DOWN") or machine.monotonic() > deadline:
                cause = next((text for name, text in reports.errors if name != "_ALL_BROKERS_DOWN"), error.args[0].str())
                raise Transient(f"{brokers}: {cause}", connector="connectors.kafka", way_out=_NOT_REACHED) from None


def _offset_spec() -> Any:
    return client("confluent_kafka.admin").OffsetSpec


_ANSWER_SECONDS: Final = 30.0
_PROPAGATION_SECONDS: Final = 5.0
_DEFAULT_MAXIMUM: Final = 1_048_588
"""Kafka's default for ``max.message.bytes``, for a user who may not read the topic's value."""
_NO_TOPIC_MAXIMUM: Final = 1_000_000
MAX_MILLISECONDS: Final = 2**63 - 1
"""Kafka's default for how old a record may be."""
LEDGER_PARTITIONS: Final = 32
MAX_SLOTS: Final = LEDGER_PARTITIONS - 2
"""The ledger topic has a partition for the entry of each slot, and two for the sink."""


@dataclass(frozen=True)
class SinkTopic:
    """A topic to write to. ``largest`` is the most bytes that a record may have, with headers and frame.

    ``past`` and ``future`` are how far the time of a record may be from the broker's, in milliseconds.
    """

    name: str
    partitions: int
    largest: int
    past: int = MAX_MILLISECONDS
    future: int = MAX_MILLISECONDS


class SinkTopics:
    """The topics that a sink writes to. It looks up each topic once, and again by :meth:`look_up`."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._topics: dict[str, SinkTopic] = {}

    def __getitem__(self, name: str) -> SinkTopic:
        """The topic ``name``. Raises ``Misconfigured`` if it does not exist."""
        return self._topics.get(name) or self.look_up(name)

    def look_up(self, name: str) -> SinkTopic:
        """The topic's present state: an operator may add partitions and raise ``max.message.bytes`` while queries run."""
        admin = _admin(self._config)
        client_maximum = int(self._config.get("message.max.bytes", sys.maxsize))  # the client itself refuses larger records
        partitions, settings = _partitions(admin, name), _topic_settings(admin, name)
        largest = min(int(settings.get("max.message.bytes", _DEFAULT_MAXIMUM)), client_maximum)
        self._topics[name] = SinkTopic(name, partitions, largest, **_time_limits(settings))
        return self._topics[name]

    def largest_record(self, name: str | None) -> int:
        """The size limit of records of the topic ``name``; the default size if rows name their topics."""
        return self[name].largest if name else _NO_TOPIC_MAXIMUM


def make_ledger_topic(config: Mapping[str, str], name: str) -> None:
    """Creates the ledger topic, compacted, unless it exists."""
    admin, api = _admin(config), client("confluent_kafka.admin")  # the admin client must live until the answer
    topic = api.NewTopic(name, LEDGER_PARTITIONS, config={"cleanup.policy": "compact"})
    with client_errors("the ledger topic cannot be made"):
        try:
            admin.create_topics([topic], request_timeout=_ANSWER_SECONDS)[name].result(_ANSWER_SECONDS)
        except client().KafkaException as error:
            if error_name(error) == "TOPIC_ALREADY_EXISTS":
                return
            if not error_name(error).endswith("AUTHORIZATION_FAILED"):
                raise
            if not _is_visible(admin, name):  # brokers refuse before they check whether it exists
                text = (
                    f'"{name}" does not exist, and this user may not create topics; let somebody create it '
                    f"(cleanup.policy=compact, {LEDGER_PARTITIONS} partitions), and give this user READ and WRITE there."
                )
                raise Misconfigured("connectors.kafka", [Problem("ledgerTopic", text)]) from None


def transaction_maximum(config: Mapping[str, str]) -> int | None:
    """The broker's ``transaction.max.timeout.ms``; ``None`` if the broker does not tell."""
    with contextlib.suppress(Exception):
        admin = _admin(config)
        broker = next(iter(admin.list_topics(timeout=_ANSWER_SECONDS).brokers))
        return int(_described_config(admin, "BROKER", str(broker))["transaction.max.timeout.ms"].value)
    return None


def _admin(config: Mapping[str, str]) -> Any:
    return connected_admin(connection_config(config))


def _described_config(admin: Any, kind: str, name: str) -> Any:
    api = client("confluent_kafka.admin")
    resource = api.ConfigResource(getattr(api.ConfigResource.Type, kind), name)
    return admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS)[resource].result(_ANSWER_SECONDS)


def _partitions(admin: Any, name: str) -> int:
    """The number of partitions. Not every broker may know a new topic yet."""
    deadline = machine.monotonic() + _PROPAGATION_SECONDS
    while (count := _described_partitions(admin, name)) is None:
        if machine.monotonic() > deadline:
            text = f'"{name}" does not exist in this cluster; make it first, or correct the name.'
            raise Misconfigured("connectors.kafka", [Problem("topic", text)])
        machine.sleep(0.1)
    return count


def _described_partitions(admin: Any, name: str) -> int | None:
    """The number of partitions; ``None`` if there is no such topic."""
    failure = f"the topic {name} cannot be described"
    with client_errors(failure):
        try:
            futures = admin.describe_topics(client().TopicCollection([name]), request_timeout=_ANSWER_SECONDS)
            return len(futures[name].result(_ANSWER_SECONDS).partitions)
        except client().KafkaException as error:
            if error_name(error) in ("UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION"):
                return None
            if error_name(error).endswith("AUTHORIZATION_FAILED"):
                raise producer_error(error, failure) from None
            raise


def _is_visible(admin: Any, name: str) -> bool:
    """True if the topic exists, and the user may see it."""
    with contextlib.suppress(Misconfigured):
        return _described_partitions(admin, name) is not None
    return False


def _topic_settings(admin: Any, name: str) -> dict[str, str]:
    """The settings of a topic; none if the broker does not tell them."""
    with contextlib.suppress(client().KafkaException):
        return {key: entry.value for key, entry in _described_config(admin, "TOPIC", name).items() if entry.value}
    return {}


def _time_limits(settings: Mapping[str, str]) -> dict[str, int]:
    """``past`` and ``future`` of a topic that takes the times of records. Brokers before 3.6 have one limit for both."""
    if settings.get("message.timestamp.type") != "CreateTime":
        return {}
    both = settings.get("message.timestamp.difference.max.ms", MAX_MILLISECONDS)
    names = {"past": "message.timestamp.before.max.ms", "future": "message.timestamp.after.max.ms"}
    return {side: int(settings.get(name, both)) for side, name in names.items()}
