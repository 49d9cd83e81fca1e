"""The records of a stream: which shards there are, and which of them may be read."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from ...core import (
    Choice,
    CursorSource,
    Discovery,
    Duration,
    Flag,
    Int,
    Misconfigured,
    Options,
    Problem,
    RecordEmitter,
    Text,
    Values,
)
from ...core.datasets import Dataset
from ...core.epoch_source import STOP_OPTIONS
from ...formats import check_format, format_options, value_type
from ...formats.emitter import FormatEmitter
from ...ground import machine
from ..aws import AWS_OPTIONS, aws_dataset
from .cursor import CONNECTOR, POOL, KinesisClient, KinesisCursor, client_key, position_text, report_loss
from .fan_out import FanOutCursor, deregister_consumer, register_consumer

_LATEST, _OLDEST, _AT_TIME = "LATEST", "TRIM_HORIZON", "AT_TIMESTAMP"
_POSITION: Final = ("shardId", "sequenceNumber", "subSequenceNumber")
_REGISTERED: Final = "consumer.json"
_CLOCK_MARGIN: Final = 1000
"""Milliseconds that the clocks of the service may differ by: the one that says when a record arrived is not promised exact."""
STREAM: Final = AWS_OPTIONS | Options(
    {"request.timeout": Duration(30.0, at_least="1ms", meaning="of one request")},
    streamName=Text(None, alternatives=("streamArn",), meaning="the stream"),
    streamArn=Text(None, meaning="the stream, also one of another account"),
)


class KinesisSource(CursorSource):
    """The records of a stream, each shard in its order, and its children after it.

    Columns: ``data`` (binary, or what ``value.format`` gives), ``partitionKey, sequenceNumber, subSequenceNumber, shardId,
    approximateArrivalTimestamp, stream``.

    The children of a shard that was split or merged are read after it. ``subSequenceNumber`` counts the records that Amazon's
    producer library has packed into one.

    Guarantee: exactly-once, as long as the stream retains what a batch has read until the batch is committed.
    """

    name = "kinesis"
    conditions = "the stream retains records until their batch is committed"
    options = (
        STREAM
        | STOP_OPTIONS
        | format_options("bytes")
        | Options(
            startingPosition=Text(
                None,
                meaning=f"{_LATEST} (default in a stream; two seconds before the start at most), {_OLDEST} (in a batch), "
                f"{_AT_TIME}, or JSON: a record by shard",
            ),
            startingTimestamp=Int(None, at_least=0, meaning=f"{_AT_TIME}: milliseconds; the first record that arrived then"),
            consumer=Choice("polling", among=("polling", "efo"), meaning="efo: enhanced fan-out, 2 MB/s a shard to each query"),
            consumerName=Text(
                None, only_with="consumer=efo", needed_by="consumer=efo: the name of a consumer of this query alone",
                meaning="the consumer, of this query alone; it is registered if there is none",
            ),
            deregisterConsumer=Flag(False, meaning="efo: a consumer that the query registered goes when the query ends"),
            discoveryInterval=Duration(10.0, meaning="how often new shards are looked for"),
            fetchInterval=Duration(
                0.2, meaning="polling: between two requests to a shard, which gives five answers and 2 MB a second; 0s: none"
            ),
        )
    )

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        self.schema = (
            f"data {value_type(values)}, partitionKey string, sequenceNumber string, subSequenceNumber bigint, shardId string, "
            "approximateArrivalTimestamp timestamp, stream string"
        )
        self._shards: dict[str, Mapping[str, Any]] = {}
        self._listed_at = 0.0
        self._listed_for: Collection[str] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Tasks need no list of shards."""
        return {**vars(self), "_shards": {}}

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_format(values)
        start = _start(values)
        if isinstance(start, str) and start not in (_LATEST, _OLDEST, _AT_TIME):
            text = f"must be {_LATEST}, {_OLDEST}, {_AT_TIME}, or a JSON object of sequence numbers by shard"
            yield Problem("startingPosition", f'{text}; got "{start}".')
        if start == _AT_TIME and values["startingTimestamp"] is None:
            yield Problem("startingTimestamp", f"missing; startingPosition={_AT_TIME} needs the time.")
        if values["startingTimestamp"] is not None and start != _AT_TIME:
            yield Problem("startingTimestamp", f"has no use without startingPosition={_AT_TIME}.")

    @classmethod
    def start_options(cls, time: int | None) -> Mapping[str, str]:
        if time is None:
            return {"startingPosition": _OLDEST}
        return {"startingPosition": _AT_TIME, "startingTimestamp": str(time)}

    def begin(self) -> None:
        with self._client() as client:
            client.summary()
            self._check_start(client)
            self._register(client)

    def _check_start(self, client: KinesisClient) -> None:
        start = _start(self.values)
        if isinstance(start, dict) and (unknown := sorted(start.keys() - {shard["ShardId"] for shard in client.list_shards()})):
            text = f"names shards that the stream does not have, or has no more: {', '.join(unknown)}."
            raise Misconfigured(CONNECTOR, [Problem("startingPosition", text)])

    def resume(self) -> None:
        if self.values["consumer"] == "efo":
            with self._client() as client:
                self._register(client)

    def _register(self, client: KinesisClient) -> None:
        if self.values["consumer"] == "efo" and register_consumer(client, self.values["consumerName"]) and self.streaming:
            self.log().storage.put_if_absent(_REGISTERED, json.dumps({"name": self.values["consumerName"]}).encode())

    def end(self) -> None:
        if self.values["consumer"] == "efo" and self.values["deregisterConsumer"] and self.streaming:
            storage = self.log().storage
            if storage.size(_REGISTERED) is not None:
                with self._client() as client:
                    deregister_consumer(client, self.values["consumerName"])
                storage.delete(_REGISTERED)

    def start_positions(self) -> dict[str, Any]:
        """LATEST: each open shard from the service's time on. A split after the listing is no loss: the shard has it."""
        if not (_start(self.values) == _LATEST or (_start(self.values) is None and self.streaming)):
            return {}
        shards = self._list(())
        with self._client() as client:
            now = client.time() - _CLOCK_MARGIN
        return {name: {"from": now, "time": now} for name, shard in shards.items() if not _is_closed(shard)}

    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        shards = self._list(finished)
        is_later = self.streaming and bool(positions or finished)  # a batch has no earlier epochs
        reopened = self._reopened([name for name in finished if is_later and name in shards and not _is_closed(shards[name])])
        over = ({name for name in finished if name in shards} | _ancestors(shards, {*positions, *finished})) - {*reopened}
        expired = [name for name in positions if name not in shards and name not in finished]
        partitions, orphans = {}, []
        for name, shard in shards.items():
            if name in over:
                continue
            listed = [parent for parent in _parents(shard) if parent in shards]
            if name in positions or all(parent in over for parent in listed):
                if is_later and name not in positions and _parents(shard) and not listed:
                    orphans.append(name)
                position = positions.get(name) or self._start_of(shard, is_later)
                partitions[name] = {**position, **({"closed": True} if _is_closed(shard) else {})}
        self._check_loss([*expired, *orphans], reopened)
        return Discovery(partitions, gone={*expired, *(set(finished) - over)}, finished=over)

    def _reopened(self, shards: Sequence[str]) -> list[str]:
        """Those of ``shards``, which were read to their ends, that are open. The listing may not know an end yet."""
        if not shards:
            return []
        with self._client() as client:
            return [name for name in shards if client.is_open(name)]

    def _check_loss(self, expired: Collection[str], reopened: Collection[str]) -> None:
        """Raises :class:`DataLoss` for shards that are not listed any more, and for children none of whose parents is.

        The service lists a shard as long as it retains records of it, and a child began when its parents ended. A shard that
        was read to its end and is open is one of another stream.
        """
        lost = []
        if expired:
            lost.append(f"{', '.join(sorted(expired))} have expired, or their first records may have")
        if reopened:
            lost.append(f"{', '.join(sorted(reopened))} are open again; was the stream deleted and made anew?")
        if lost:
            stream = self.values["streamArn"] or self.values["streamName"]
            text = f"{stream} has lost records that were not read: {'; '.join(lost)}"
            report_loss(text, fails=self.values["failOnDataLoss"])

    def datasets(self) -> Sequence[Dataset]:
        return [aws_dataset("kinesis", self.values, self.values["streamArn"] or self.values["streamName"])]

    def cursor(self, schema: pa.Schema) -> KinesisCursor:
        columns = schema.names if self.values["value.format"] == "bytes" else [*schema.names, *_POSITION, "data"]
        return (FanOutCursor if self.values["consumer"] == "efo" else KinesisCursor)(self.values, columns)

    def driver_cursor(self) -> KinesisCursor:
        return KinesisCursor(self.values, ())

    def emitter(self, schema: pa.Schema) -> RecordEmitter | None:
        if self.values["value.format"] == "bytes":
            return None
        return FormatEmitter(CONNECTOR, self.values, schema, _POSITION, value="data")

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or 2)

    def now(self) -> float:
        with self._client() as client:
            now = client.time() + 1000 + _CLOCK_MARGIN  # the second that may have passed
        return now / 1000 + machine.time() % 1  # two runs of one second have two moments

    def position_text(self, position: Any) -> str:
        return position_text(position)

    def _list(self, finished: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """The shards by name, at most ``discoveryInterval`` old; new ones when a shard has ended, for it may have children."""
        is_old = machine.monotonic() - self._listed_at > self.values["discoveryInterval"]
        if not self._shards or is_old or set(finished) != set(self._listed_for):
            with self._client() as client:
                self._shards = {shard["ShardId"]: shard for shard in client.list_shards()}
            self._listed_at, self._listed_for = machine.monotonic(), finished
        return self._shards

    def _start_of(self, shard: Mapping[str, Any], is_later: bool) -> dict[str, Any]:
        """The start of a shard that was never read; where ``is_later``, with what says when its first records came."""
        start, name = _start(self.values), shard["ShardId"]
        since: dict[str, Any] = {}
        if is_later:
            since = {"parents": _parents(shard)} if _parents(shard) else {"time": round(machine.time() * 1000)}
        if isinstance(start, dict) and name in start:
            return {"at": start[name], **since}
        return {"from": self.values["startingTimestamp"] if start == _AT_TIME else _OLDEST, **since}

    @contextlib.contextmanager
    def _client(self) -> Iterator[KinesisClient]:
        client = POOL.take(client_key(self.values)) or KinesisClient(self.values)
        yield client
        POOL.give_back(client_key(self.values), client)


def _start(values: Values) -> str | dict[str, str] | None:
    text = values["startingPosition"]
    if text is None:
        return None
    try:
        start = json.loads(text)
    except ValueError:
        return str(text).upper()
    is_positions = isinstance(start, dict) and all(isinstance(place, str) and place.isdigit() for place in start.values())
    return start if is_positions else str(text)


def _parents(shard: Mapping[str, Any]) -> list[str]:
    """The shards that were split or merged into ``shard``."""
    names = ("ParentShardId", "AdjacentParentShardId")
    return [shard[name] for name in names if shard.get(name)]


def _ancestors(shards: Mapping[str, Mapping[str, Any]], names: Collection[str]) -> set[str]:
    """The shards that are over, as children of theirs were read: those before ``names``."""
    ancestors: set[str] = set()
    new = set(names)
    while new:
        new = {parent for name in new if name in shards for parent in _parents(shards[name])} & shards.keys() - ancestors
        ancestors |= new
    return ancestors


def _is_closed(shard: Mapping[str, Any]) -> bool:
    return shard["SequenceNumberRange"].get("EndingSequenceNumber") is not None
