"""``connectors.kafka``, the sink: its options, its columns and its guarantee."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final

import pyarrow as pa

from ...core.batch import Batch
from ...core.datasets import Dataset
from ...core.ledger import LedgerContent
from ...core.sink import RETENTION, FrameSink, Guarantee, SinkWriter
from ...formats import format_options
from ...formats.options import check_format, sides
from ...ground.columns import Column, Template
from ...ground.errors import Misconfigured, Problem
from ...ground.options import Choice, Duration, Int, Options, Text, Values
from ...storage.location import Location
from .cluster import MAX_SLOTS
from .committer import KafkaCommitter, KafkaFrameCommitter
from .config import CREDENTIAL_REFUSED, check_config, client_config, topic_dataset
from .ledger import TransactionSettings, contents
from .producer import SendingWriter, StagingWriter
from .records import fixed_topic, wrong_columns

SCHEME: Final = "kafka://"
"""The prefix of a broker address in commands that take several kinds of addresses."""
_PATIENCE_SECONDS: Final = 120.0
_TRANSACTIONS: Final = "transactionalIdPrefix: it needs exactly-once"
_NO_TRANSACTIONS: Final = "guarantee=at-least-once: it needs exactly-once"
_OF_SOURCE: Final = "is an option of the source; this sink writes."
_OF_FRAME: Final = "is an option of the source; a sink takes the types of its columns."
_FORMATS: Final = {
    name: option
    for name, option in format_options("bytes", key="bytes").declared.items()
    if name not in ("schema", "key.schema", "errors", "deadLetterPath", "storageOptions")
}
_REFUSED: Final = {
    **CREDENTIAL_REFUSED,
    **dict.fromkeys(
        ("subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "minPartitions"), _OF_SOURCE
    ),
    **dict.fromkeys(("schema", "value.schema", "key.schema"), _OF_FRAME),
    "includeHeaders": "is not needed: a column headers is written when it is there.",
    "topics": "is not supported; give one topic, or a column topic.",
}
_OWN_SETTINGS: Final = {
    "transactional.id": "is made by the sink; give transactionalIdPrefix.",
    "transaction.timeout.ms": "is given by transactionTimeout.",
    "group.id": "has no use in a sink; the ledger's group is named after sinkId.",
    "enable.auto.commit": "has no use in a sink.",
}


class KafkaSink(FrameSink):
    """Writes records to Kafka topics, each batch in one transaction.

    Columns: ``value`` (string or binary; null is a tombstone), and optional ``key``, ``topic``, ``partition`` (int; else by
    the key, as Kafka's own clients do), ``timestamp``, ``headers`` (array<struct<key string, value binary>>). The sink
    ignores other columns.

    A topic may get more partitions and a larger ``max.message.bytes`` while the query runs. A transaction that takes longer
    than ``transactionTimeout`` fails, and the sink warns after half of it.

    Guarantee: exactly-once for readers with ``isolation.level=read_committed``; other readers also see aborted
    records. Without ``transactionalIdPrefix`` at-least-once, by an idempotent producer. With ``slots`` above 1 readers see a
    batch slot by slot, and a replay must give the same rows: the sink refuses a query that is known not to.

    All transactional ids, and the ledger's consumer group, begin with ``transactionalIdPrefix`` and a hyphen. ACLs must allow
    that prefix: in addition to the ids of the sink and its slots there are ``-note``, for batches without rows, and ids
    behind ``-<digest>`` for each ``txnAppId``.
    """

    name = "kafka"
    options = Options(
        {
            "topic": Template(None, example="orders_{region}", meaning="the topic, or orders_{region}; or a column topic"),
            "transactionalIdPrefix": Text(
                None, needed_by='guarantee=exactly-once: a name that is unique to this query, such as "orders-to-kafka"',
                meaning="required for exactly-once; unique to the query",
            ),
            "transactionTimeout": Duration(
                600.0,
                unit="ms",
                meaning="after it the broker aborts a transaction; at most its transaction.max.timeout.ms",
            ),
            "slots": Int(
                1, at_least=1, at_most=MAX_SLOTS, carrier="foreach_batch", only_with=_TRANSACTIONS,
                excludes=(
                    _NO_TRANSACTIONS,
                    "stagingLocation: what is staged is sent in one transaction",
                    "errors=deadLetter: dead letters belong to a batch as a whole",
                ),
                meaning="as many tasks send a batch, each in a transaction of its own",
            ),
            "operation": Choice(
                "append", among=("append", "upsert"), only_with=_TRANSACTIONS, excludes=_NO_TRANSACTIONS,
                meaning="upsert sends only the last row of each key in a batch"
            ),
            "orderColumn": Column(None, only_with="operation=upsert", meaning="its largest value is the last row"),
            "stagingLocation": Location(
                None, only_with=_TRANSACTIONS, excludes=_NO_TRANSACTIONS,
                meaning="a folder that driver and tasks share; a stream has one in its checkpoint"
            ),
            "stagingRetention": RETENTION,
            "ledgerTopic": Text("_connectors_ledger", meaning="a compacted topic, created when it is missing"),
            **_FORMATS,
        },
        through={"kafka.": "every setting of Kafka's client; kafka.bootstrap.servers is required"},
        refused=_REFUSED,
    )
    conditions = "transactionalIdPrefix; readers with read_committed"
    rejects_rows = True
    driver_bytes: ClassVar[int] = 1 << 20
    """The driver sends a batch of ``foreach_batch`` up to this size; Spark returns so much with a task's result."""

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_config(values)
        yield from _check_settings(values)
        yield from _check_formats(values)
        if values["guarantee"] == Guarantee.IDEMPOTENT.value:
            yield Problem("guarantee", '"idempotent" is not possible: Kafka keeps every record. Take exactly-once.')

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        if values["transactionalIdPrefix"] or values["guarantee"]:  # check() has reported a missing prefix
            return Guarantee.EXACTLY_ONCE, ""
        return Guarantee.AT_LEAST_ONCE, "transactionalIdPrefix is missing"

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        """``target`` is ``kafka://broker:9092``, or several brokers with commas; ``ledgerTopic`` another topic."""
        if not target.startswith(SCHEME):
            return None
        brokers = target.removeprefix(SCHEME).rstrip("/")
        values = cls.known_options().parse("connectors.kafka", {"kafka.bootstrap.servers": brokers, **options}, check_config)
        return contents(client_config(values), values["ledgerTopic"])

    def target(self) -> str:
        return f"{self.config()['bootstrap.servers']}/{self.values['topic'] or ''}"

    def datasets(self) -> Sequence[Dataset]:
        topic = fixed_topic(self.values)
        return [topic_dataset(self.config(), topic)] if topic else []

    def sink_id(self) -> str:
        return str(self.values["sinkId"] or self.values["transactionalIdPrefix"] or super().sink_id())

    def config(self) -> dict[str, str]:
        """The client's settings from the user's options."""
        return client_config(self.values)

    def patience(self) -> float:
        """The longest time that brokers may take for a record, in seconds."""
        timeout = self.config().get("message.timeout.ms")
        return int(timeout) / 1000 if timeout else _PATIENCE_SECONDS

    def transaction_settings(self) -> TransactionSettings:
        prefix, sink_id = self.values["transactionalIdPrefix"], self.sink_id()
        return TransactionSettings(
            config=tuple(sorted(self.config().items())),
            ledger_topic=self.values["ledgerTopic"],
            prefix=prefix if prefix == sink_id else f"{prefix}-{sink_id}",
            timeout=self.values["transactionTimeout"],
            patience=self.patience(),
            topic=fixed_topic(self.values),
        )

    def places_rows(self) -> bool:
        return int(self.values["slots"]) > 1

    def check_replay(self, is_deterministic: Callable[[], bool]) -> None:
        """Raises ``Misconfigured`` if a replay may give other rows, since written slots keep their rows."""
        if self.values["slots"] > 1 and not is_deterministic():
            text = (
                "above 1 needs a query that gives the same rows when it is run again; this one has rand(), uuid() or a "
                "function that is marked as non-deterministic. Leave it at 1, where a batch is one transaction."
            )
            raise Misconfigured("connectors.kafka", [Problem("slots", text)])

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        yield from wrong_columns(self.values, schema, placed=placed)
        if placed or self.guarantee() is Guarantee.AT_LEAST_ONCE:
            return
        if self.values["slots"] > 1:
            yield Problem("slots", "above 1 is for foreach_batch alone: elsewhere Spark does not let a sink place its rows.")
        elif not self.staging_location():
            text = "missing; give a folder that driver and tasks share. Only foreach_batch does without it."
            yield Problem("stagingLocation", text)

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        if self.guarantee() is Guarantee.AT_LEAST_ONCE:
            return SendingWriter(self, batch, schema)
        return StagingWriter(self, batch, schema)

    def committer(self) -> KafkaCommitter | None:
        if self.guarantee() is Guarantee.AT_LEAST_ONCE:
            return None
        return KafkaCommitter(self) if self.staging_location() else KafkaFrameCommitter(self)


def _exactly_once(values: Values) -> bool:
    return bool(values["transactionalIdPrefix"]) and values["guarantee"] in (None, Guarantee.EXACTLY_ONCE.value)


def _check_settings(values: Values) -> Iterator[Problem]:
    config = client_config(values)
    for name, why in _OWN_SETTINGS.items():
        if name in config:
            yield Problem(f"kafka.{name}", why)
    if _exactly_once(values) and config.get("enable.idempotence", "true") != "true":
        yield Problem("kafka.enable.idempotence", "must be true for exactly-once.")
    if _exactly_once(values) and config.get("acks", "all") != "all":
        yield Problem("kafka.acks", f"must be all for exactly-once; got {config['acks']}.")
    timeout = config.get("message.timeout.ms", "")
    if timeout.isdecimal() and int(timeout) > values["transactionTimeout"] * 1000:
        text = f"must not be above transactionTimeout ({round(values['transactionTimeout'] * 1000)} ms)."
        yield Problem("kafka.delivery.timeout.ms", text)


def _check_formats(values: Values) -> Iterator[Problem]:
    typed = Values({**dict(values), "schema": "c string", "key.schema": "c string"}, frozenset(), {})  # the frame has others
    yield from check_format(typed)
    for side in sides(values) if values["schemaRegistry.url"] and not fixed_topic(values) else ():
        if values[f"{side}.format"] in ("avro", "protobuf", "json") and not values[f"{side}.subject"]:
            text = "missing; the subject in the schema registry, which follows from topic only where that is an option."
            yield Problem(f"{side}.subject", text)
