"""Reads shards by polling: a page of records from a position on.

A position is JSON. ``{"after": sequence number}`` is behind a record; with ``sub``, behind a part of a record in which the
producer has packed many. ``{"at": sequence number}`` is before a record. ``{"from": "TRIM_HORIZON"}`` is the oldest record, and
``{"from": milliseconds}`` the first one that arrived then. ``time`` says up to when, in milliseconds, the shard has been read:
what comes behind the position is not older. ``parents`` has the shards, read before, with whose ends it began. ``closed`` says
that it was split or merged.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from itertools import dropwhile
from typing import Any, Final

import pyarrow as pa

from ...batching import Throttled
from ...core import Cursor, DataLoss, Fatal, Page, Values
from ...ground import machine
from ...ground.clients import ClientPool
from ...ground.state import digest, dumps
from ..aws import AWS_OPTIONS, AwsClient
from .aggregates import MAGIC, unpacked

Position = Mapping[str, Any]
Key = tuple[int, int]

SCHEMA: Final = pa.schema(
    [
        pa.field("data", pa.binary()),
        pa.field("partitionKey", pa.string()),
        pa.field("sequenceNumber", pa.string()),
        pa.field("subSequenceNumber", pa.int64()),
        pa.field("shardId", pa.string()),
        pa.field("approximateArrivalTimestamp", pa.timestamp("us", "UTC")),
        pa.field("stream", pa.string()),
    ]
)
CONNECTOR: Final = "connectors.kinesis"
_log = logging.getLogger(CONNECTOR)
_EMPTY: Final = pa.RecordBatch.from_pylist([], schema=SCHEMA)
_ALL: Final = 1 << 62
"""The part behind the last one of a record."""
_REQUEST: Final = 10_000
_SHORTEST_RETENTION: Final = 24 * 3600.0
_LONGEST_PAUSE: Final = 5.0
_BYTES_PER_SECOND: Final = 2 << 20
"""Bytes a second that the service gives out of a shard, to all that poll it; a larger page counts for the seconds after it."""
_SHORT_PAUSE: Final = 0.25
"""So long a read waits for its next poll; after a longer pause the other shards of its reader come first."""
_STALE: Final = ("ExpiredIterator", "ResourceNotFound", "InvalidArgument")
"""What the service answers to an iterator that is too old, or of a stream that was deleted and made anew."""
_WAY_OUT: Final = "set failOnDataLoss=false to go on with the oldest record"


def order(position: Position) -> Key:
    """The key by which positions of one shard are compared: a sequence number, and the part of its record."""
    if "after" in position:
        return int(position["after"]), position.get("sub", _ALL)
    if "at" in position:
        return int(position["at"]), -1
    return -1, 0


def _is_same(position: Position, other: Position) -> bool:
    """True if both are before the same record. Positions without a sequence number all have one order."""
    key = order(position)
    return key == order(other) and (key[0] >= 0 or position.get("from") == other.get("from"))


def _order_of(record: Mapping[str, Any]) -> Key:
    return int(record["SequenceNumber"]), record.get("Sub", _ALL)


@dataclass
class Shard:
    """One shard in this process: ``records`` that were fetched behind ``position``, and where the next ones come from."""

    position: Position
    records: list[dict[str, Any]] = field(default_factory=list)
    iterator: str | None = None
    subscription: Any = None
    is_closed: bool = False
    """True if nothing comes behind ``records``."""
    lag: float | None = None
    due: float = 0.0
    """The time from which the shard may be polled again, as ``machine.monotonic()`` counts."""
    pause: float = 0.0
    previous: tuple[Position, list[dict[str, Any]]] | None = None
    """The position before the last page, and the records of that page: it may be read again."""

    def seek(self, position: Position) -> None:
        """Goes to ``position``, without contact if it is here, or just before the last page."""
        if _is_same(position, self.position):
            self.position = position
            return
        if self.previous is not None and _is_same(position, self.previous[0]):
            self.position, self.records = position, self.previous[1] + self.records
        else:
            self.close()
            self.position, self.records, self.iterator, self.is_closed, self.lag = position, [], None, False, None
        self.previous = None

    def close(self) -> None:
        if self.subscription is not None:
            self.subscription.close()
            self.subscription = None

    def forget(self) -> None:
        """Drops iterator and subscription: what comes next is fetched from the position on."""
        self.close()
        self.iterator = None

    def add(self, records: list[dict[str, Any]], last: str | None) -> None:
        """Adds what was fetched up to the sequence number ``last``, without the records that the position is behind."""
        since = self.position.get("from")
        if isinstance(since, int):
            # what follows the first one belongs to the start: arrival times may go back, and a replay has other pages
            records = list(dropwhile(lambda record: record["ApproximateArrivalTimestamp"] * 1000 < since, records))
        elif "sub" in self.position:
            records = [record for record in records if _order_of(record) > order(self.position)]
        elif last is not None and not records:
            self.position = {**self.position, "after": last}
        self.records += records

    def take(self, count: int, end: Key | None) -> list[dict[str, Any]]:
        """The next records, at most ``count`` and none behind ``end``; they count as read."""
        records = self.records[:count]
        if end is not None and records and _order_of(records[-1]) > end:
            records = [record for record in records if _order_of(record) <= end]
        self.previous = self.position, records
        self.records = self.records[len(records) :]
        if records:
            self.position = self._behind(records[-1])
        elif self.lag == 0 and end is None:  # a replay that finds nothing must stand still
            self.position = {**self.position, "time": round(machine.time() * 1000)}
        return records

    def _behind(self, record: Mapping[str, Any]) -> Position:
        is_read = not self.records and self.lag == 0
        seconds = machine.time() if is_read else record["ApproximateArrivalTimestamp"]
        part = {} if record.get("IsLast", True) else {"sub": record["Sub"]}
        closed = {"closed": True} if self.position.get("closed") else {}
        return {"after": record["SequenceNumber"], **part, **closed, "time": round(seconds * 1000)}


class KinesisClient(AwsClient):
    """The client, and the shards that this process has read: their iterators, and records that nobody has taken."""

    def __init__(self, values: Values) -> None:
        super().__init__(CONNECTOR, "kinesis", values, values["request.timeout"])
        self.name = str(values["streamArn"] or values["streamName"])
        self.stream: dict[str, str] = (
            {"StreamARN": values["streamArn"]} if values["streamArn"] else {"StreamName": values["streamName"]}
        )
        self.shards: dict[str, Shard] = {}
        self.consumer: str | None = None
        """The ARN of the consumer of fan-out, once that was looked up."""

    def close(self) -> None:
        for shard in self.shards.values():
            shard.close()
        super().close()

    def renew(self) -> None:
        """Drops what may not hold any more: the user changes a retention, or deletes a stream and makes it anew."""
        for name in ("retention", "_hash_keys"):
            self.__dict__.pop(name, None)
        for shard in self.shards.values():
            if shard.subscription is None:
                shard.lag = None  # how far behind it was in an earlier run
            if shard.previous is not None and order(shard.previous[0])[0] < 0:
                shard.previous = None  # a start without a sequence number is one of each stream of the name

    def call(self, method: str, **request: Any) -> Any:
        with self.errors(f"the stream {self.name}"):
            return getattr(self.client, method)(**request)

    def summary(self) -> Mapping[str, Any]:
        """The service's summary of the stream: its name, state, retention."""
        summary: Mapping[str, Any] = self.call("describe_stream_summary", **self.stream)["StreamDescriptionSummary"]
        return summary

    def list_shards(self) -> list[Mapping[str, Any]]:
        """All shards, open and closed, whose records have not all expired."""
        answer = self.call("list_shards", **self.stream)
        shards = list(answer["Shards"])
        while token := answer.get("NextToken"):
            answer = self.call("list_shards", NextToken=token)
            shards += answer["Shards"]
        return shards

    def is_open(self, shard: str) -> bool:
        """True if more records may come to a shard."""
        start = {**self.stream, "ShardId": shard, "ShardIteratorType": "LATEST"}
        iterator = self.call("get_shard_iterator", **start)["ShardIterator"]
        return self.call("get_records", ShardIterator=iterator, Limit=1).get("NextShardIterator") is not None

    def time(self) -> int:
        """The time of the service's own clock, in milliseconds since 1970; up to a second may have passed since."""
        date = self.call("describe_stream_summary", **self.stream)["ResponseMetadata"]["HTTPHeaders"]["date"]
        return round(parsedate_to_datetime(date).timestamp()) * 1000

    @property
    def stream_name(self) -> str:
        return self.name.rpartition("stream/")[2]

    @cached_property
    def retention(self) -> float:
        """The stream's retention, in seconds."""
        return float(self.summary()["RetentionPeriodHours"]) * 3600

    @cached_property
    def _hash_keys(self) -> dict[str, tuple[int, int]]:
        ranges = {shard["ShardId"]: shard["HashKeyRange"] for shard in self.list_shards()}
        return {name: (int(keys["StartingHashKey"]), int(keys["EndingHashKey"])) for name, keys in ranges.items()}

    def hash_keys(self, shard: str) -> tuple[int, int] | None:
        """The hash keys of a shard, first and last; ``None`` where it has expired meanwhile."""
        if shard not in self._hash_keys:
            del self._hash_keys
        return self._hash_keys.get(shard)


POOL: Final[ClientPool[KinesisClient]] = ClientPool(KinesisClient.close)
"""Idle clients of this process. An iterator goes on in the next epoch where it has stood in the last one."""


def client_key(values: Values) -> str:
    """The key in the pool that the clients of one stream and one account share."""
    return digest(dumps({name: values[name] for name in (*_CLIENT_OPTIONS, "streamArn", "streamName")}))


_CLIENT_OPTIONS: Final = (*AWS_OPTIONS.declared, "consumer", "consumerName", "request.timeout")


class KinesisCursor(Cursor):
    """Polls shards, each as seldom as the service wants it."""

    def __init__(self, values: Values, columns: Sequence[str] = SCHEMA.names) -> None:
        self._values = values
        self._columns = [name for name in SCHEMA.names if name in columns]
        self._fails: bool = values["failOnDataLoss"]
        self._interval: float = values["fetchInterval"]
        self._client: KinesisClient | None = None

    @property
    def client(self) -> KinesisClient:
        assert self._client is not None, "open() was not called"
        return self._client

    def open(self) -> None:
        self._client = POOL.take(client_key(self._values)) or KinesisClient(self._values)
        self._client.renew()

    def close(self) -> None:
        if self._client is not None:
            POOL.give_back(client_key(self._values), self._client)
            self._client = None

    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        if end is not None and order(position) == order(end):
            return Page(_EMPTY.select(self._columns), end)
        shard = self.client.shards.setdefault(partition, Shard(position))
        shard.seek(position)
        has_polled = False
        try:
            if not shard.records and not shard.is_closed:
                self._check_retention(partition, shard.position)  # an iterator that is behind jumps over what expires
                has_polled = self.fetch(partition, shard, rows, is_replay=end is not None)
        except BaseException:
            shard.forget()
            raise
        records = shard.take(rows, None if end is None else order(end))
        reached = end is not None and (
            order(shard.position) >= order(end) or (bool(shard.records) and _order_of(shard.records[0]) > order(end))
        )
        is_finished = shard.is_closed and not shard.records
        if is_finished and end is None:
            del self.client.shards[partition]
        is_known = bool(records) or is_finished or has_polled or shard.lag == 0
        return Page(
            _rows(self.client.stream_name, partition, records).select(self._columns),
            end if reached else shard.position,
            pa.array([record["ApproximateArrivalTimestamp"] for record in records], pa.float64()),
            is_last=has_polled and shard.lag == 0 and not shard.records,
            is_finished=is_finished,
            is_waiting=not is_known,
            lag=shard.lag,
        )

    def fetch(self, partition: str, shard: Shard, rows: int, *, is_replay: bool) -> bool:
        """Polls until there are records, or there is nothing more for now; false if the service was not asked.

        A gap in a shard takes several polls.
        """
        while True:
            pause = shard.due - machine.monotonic()
            if pause > 0 and (shard.lag == 0 or shard.pause or pause > _SHORT_PAUSE) and not is_replay:
                return False
            machine.sleep(max(0.0, pause))
            try:
                answer = self._poll(partition, shard, rows)
            except Throttled as refused:
                shard.pause = min(_LONGEST_PAUSE, max(self._interval, 2 * shard.pause))
                shard.due = machine.monotonic() + shard.pause
                if is_replay:
                    raise
                _log.info("connectors.kinesis: %s; the next poll is in %.1f s", refused, shard.pause)
                return False
            shard.pause = 0.0
            if answer is None:
                shard.is_closed, shard.lag = True, 0.0
                return True
            shard.due = machine.monotonic() + self._pause_after(answer["Records"])
            records, last = self.unpack(partition, answer["Records"])
            shard.iterator = answer.get("NextShardIterator")
            shard.is_closed = shard.iterator is None
            shard.lag = answer["MillisBehindLatest"] / 1000
            shard.add(records, last)
            if shard.records or shard.is_closed or shard.lag == 0:
                return True

    def _pause_after(self, records: Sequence[Mapping[str, Any]]) -> float:
        """Seconds until the next poll of a shard that has given ``records``; none where the user wants no pauses."""
        if not self._interval:
            return 0.0
        return max(self._interval, sum(len(record["Data"]) for record in records) / _BYTES_PER_SECOND)

    def unpack(self, partition: str, fetched: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], str | None]:
        """The records that were fetched, packed ones unpacked, and the last sequence number among them.

        Raises what the service answers where it is asked for the shard's hash keys: nothing may have moved before.
        """
        records: list[dict[str, Any]] = []
        for record in fetched:
            if record["Data"].startswith(MAGIC):
                records += unpacked(record, self.client.hash_keys(partition))
            else:
                records.append(record)
        return records, fetched[-1]["SequenceNumber"] if fetched else None

    def _poll(self, partition: str, shard: Shard, rows: int) -> Mapping[str, Any] | None:
        """An answer; ``None`` where the shard does not exist any more."""
        is_new = shard.iterator is None
        if is_new:
            shard.iterator = self.iterator(partition, shard)
            if shard.iterator is None:
                return None
        try:
            answer: Mapping[str, Any] = self.client.call(
                "get_records", ShardIterator=shard.iterator, Limit=min(rows, _REQUEST)
            )
        except Fatal as refused:
            shard.iterator = None
            if is_new or not any(code in str(refused) for code in _STALE):
                raise
            return self._poll(partition, shard, rows)
        return answer

    def iterator(self, partition: str, shard: Shard) -> str | None:
        """An iterator at the position of ``shard``; ``None`` where the shard has expired."""
        try:
            return self._iterator(partition, shard.position)
        except Fatal as refused:
            if not ("ResourceNotFound" in str(refused) or "InvalidArgument" in str(refused)):
                raise
            if partition not in {listed["ShardId"] for listed in self.client.list_shards()}:
                report_loss(f"{partition} of {self.client.name} has expired before it was read to its end", fails=self._fails)
                return None
            text = (
                f"{partition} of {self.client.name} does not know the record {position_text(shard.position)}, which this query "
                "has read; was the stream deleted and made anew?"
            )
            report_loss(text, fails=self._fails)
            shard.position = {"from": "TRIM_HORIZON"}
            return self._iterator(partition, shard.position)

    def _iterator(self, partition: str, position: Position) -> str:
        names = {"Type": "ShardIteratorType", "SequenceNumber": "StartingSequenceNumber", "Timestamp": "Timestamp"}
        start = {names[name]: value for name, value in place(position).items()}
        return str(self.client.call("get_shard_iterator", **self.client.stream, ShardId=partition, **start)["ShardIterator"])

    def _has(self, partition: str, position: Position) -> bool:
        """True if the record that ``position`` is behind has not expired: a shard begins with its oldest one."""
        if "after" not in position:
            return False
        iterator = self._iterator(partition, {"at": position["after"]})
        records = self.client.call("get_records", ShardIterator=iterator, Limit=1)["Records"]
        return bool(records) and records[0]["SequenceNumber"] == position["after"]

    def _check_retention(self, partition: str, position: Position) -> None:
        """Raises :class:`DataLoss` where records behind ``position`` may have expired.

        None has if the stream still has the record that was read last. The first ones of a shard have not as long as a parent
        is listed.
        """
        if "parents" in position and "time" not in position:
            if not {shard["ShardId"] for shard in self.client.list_shards()}.intersection(position["parents"]):
                text = f"the parents of {partition} of {self.client.name} have expired"
                report_loss(f"{text}: its first records, not read yet, may have", fails=self._fails)
            return
        age = machine.time() - position["time"] / 1000 if position.get("time") else 0.0
        if age < _SHORTEST_RETENTION or age < self.client.retention or self._has(partition, position):
            return
        text = (
            f"{partition} of {self.client.name} was read up to {age / 3600:.1f} hours ago, and the stream keeps records for "
            f"{self.client.retention / 3600:.0f} hours: what came in between may have expired"
        )
        report_loss(text, fails=self._fails)


def report_loss(text: str, *, fails: bool) -> None:
    """Raises :class:`DataLoss`; warns where the query is to go on without what is lost."""
    DataLoss(text, connector=CONNECTOR, way_out=_WAY_OUT).report(_log, fails=fails)


def position_text(position: Position) -> str:
    """A position as people read it."""
    return str(position.get("after") or position.get("at") or position.get("from"))


def place(position: Position) -> dict[str, Any]:
    """A position in the service's terms."""
    if "after" in position:
        kind = "AT_SEQUENCE_NUMBER" if "sub" in position else "AFTER_SEQUENCE_NUMBER"
        return {"Type": kind, "SequenceNumber": position["after"]}
    if "at" in position:
        return {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": position["at"]}
    if position["from"] == "TRIM_HORIZON":
        return {"Type": "TRIM_HORIZON"}
    return {"Type": "AT_TIMESTAMP", "Timestamp": position["from"] // 1000}  # the client sends whole seconds


def _rows(stream: str, shard: str, records: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    if not records:
        return _EMPTY
    micros = [round(record["ApproximateArrivalTimestamp"] * 1_000_000) for record in records]
    columns = [
        pa.array([record["Data"] for record in records], pa.binary()),
        pa.array([record["PartitionKey"] for record in records], pa.string()),
        pa.array([record["SequenceNumber"] for record in records], pa.string()),
        pa.array([record.get("Sub", 0) for record in records], pa.int64()),
        pa.repeat(pa.scalar(shard, pa.string()), len(records)),
        pa.array(micros, pa.int64()).cast(pa.timestamp("us", "UTC")),
        pa.repeat(pa.scalar(stream, pa.string()), len(records)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
