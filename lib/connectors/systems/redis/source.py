"""The entries of a Redis Stream, by a consumer group and the epoch log."""

from __future__ import annotations

import contextlib
import logging
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...core import Duration, Flag, Options, Text, Values
from ...core.datasets import Dataset
from ...core.epoch_source import STOP_OPTIONS, EpochSource
from ...core.epochs import Messages, Receiver
from ...ground.errors import DataLoss, Fatal
from ...ground.options import REQUIRED
from ...ground.state import digest
from .connection import CONNECTION, RedisClient, check_connection, dataset_of

_log = logging.getLogger("connectors.redis")
_REPLY, _FIRST_REPLY, _REPLY_BYTES = 10_000, 100, 64 << 20
"""Entries of an answer, those of the first one, and bytes by the entries before: the server makes nothing else meanwhile."""
_IDS: Final = 1_000
"""Ids of one command."""
_LAST_MILLISECOND: Final = 253_402_300_799_999
"""The end of the year 9999, the last one of a timestamp."""
_SECONDS: Final = 10.0
"""The seconds that the server may take to answer, beside the time that a call waits for entries."""
_ID: Final = re.compile(r"\d+(-\d+)?")
_NO_COUNTS: Final = re.compile("wrong number of arguments|syntax error|use the MKSTREAM option")
"""A pattern of the errors of a server before Redis 7 that is given ENTRIESREAD."""
_WAY_OUT: Final = "set failOnDataLoss=false to go on without what is lost"
SCHEMA: Final = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("id", pa.string()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("fields", pa.map_(pa.string(), pa.binary())),
    ]
)


class RedisSource(EpochSource):
    """The entries of a stream. Columns: ``stream, id, timestamp, fields map<string, binary>``.

    A consumer group reads the stream; it is made if there is none. An entry is acknowledged when Spark has committed its
    batch. Entries that another consumer of the group has held for longer than ``minIdle`` are claimed. ``availableNow`` ends
    with what the server had at its start; after a task or driver has died, it goes on for ``minIdle`` at least. An id that the
    server's clock has not reached is no time: its entry is read at once. ``timestamp`` is null for an id beyond the year 9999.

    Guarantee: exactly-once, by the epoch log and the ids of entries. A server that is back from an older copy gives entries
    again; they are left out by their ids. So a group that is set back reads nothing again: that takes a new checkpoint.
    Entries that were trimmed before they were read are data loss (``failOnDataLoss``); before Redis 7 the server tells of it
    only where nothing is left to read.
    """

    name = "redis"
    schema = "stream string, id string, timestamp timestamp, fields map<string, binary>"
    conditions = "the group is of this query alone; entries are not trimmed before they are read"
    options = CONNECTION | STOP_OPTIONS | Options(
        stream=Text(REQUIRED, meaning="the key of the stream"),
        group=Text(REQUIRED, meaning="the consumer group"),
        consumerPrefix=Text("connectors", meaning="the consumer's name begins so; the rest follows from stateLocation"),
        startingPosition=Text(
            "earliest",
            rf"earliest|latest|{_ID.pattern}",
            "earliest, latest, or an id such as 1700000000000-0",
            meaning="where a new group begins: earliest, latest, or after an id",
        ),
        minIdle=Duration(60.0, at_least="100ms", meaning="an entry that a consumer has held for longer is claimed"),
        failOnDataLoss=Flag(True, meaning="entries that were trimmed before they were read are an error"),
    )

    check = staticmethod(check_connection)

    def begin(self) -> None:
        receiver = self.receiver(None)
        receiver.open()
        with contextlib.closing(receiver):
            receiver.make_group()

    def datasets(self) -> Sequence[Dataset]:
        return [dataset_of(self.values, self.values["stream"])]

    def receiver(self, schema: pa.Schema | None) -> RedisReceiver:
        return RedisReceiver(self.values)


class RedisReceiver(Receiver):
    """One consumer of the group. All tasks of a query share its name, so that none is left behind when a task ends.

    The lease of an entry is its id. The log knows an entry by its id with both numbers at full length, as texts in their order.
    """

    lease_option = "minIdle"

    def __init__(self, values: Values) -> None:
        self.stream, self.group = values["stream"], values["group"]
        self.consumer = f"{values['consumerPrefix']}-{digest(str(values['stateLocation']))[:8]}"
        self.lease_seconds = values["minIdle"]
        self._values = values
        self._min_idle = int(values["minIdle"] * 1000)
        self._fails: bool = values["failOnDataLoss"]
        self._claim_from: str | None = "-"
        self._reply = _FIRST_REPLY

    def open(self) -> None:
        wait = max(self._values["pollInterval"], self._values["drainTimeout"])
        self.client = RedisClient("connectors.redis", self._values, _SECONDS + wait)

    def close(self) -> None:
        if hasattr(self, "client"):
            self.client.close()

    def receive(self, rows: int, seconds: float) -> Messages | None:
        self._check_trimmed(self._group())
        entries = self._claim(rows) or self._read(rows, 0.0)
        if not entries:
            self._claim_from = "-"
            entries = self._claim(rows) or self._read(rows, seconds)
        return self._messages(entries) if entries else None

    def acknowledge(self, leases: Sequence[str]) -> None:
        for ids in _chunks(leases):
            self.client.command("XACK", self.stream, self.group, *ids)

    def release(self, leases: Sequence[str]) -> None:
        self._set_idle(leases, self._min_idle)

    def extend(self, leases: Sequence[str]) -> None:
        self._set_idle(leases, 0)

    def pending(self) -> bool:
        group = self._group()
        newer = self.client.command("XRANGE", self.stream, f"({_text(group['last-delivered-id'])}", "+", "COUNT", 1)
        self._check_trimmed(group)
        return bool(newer or self._idle("-", 1))

    def settled(self) -> str:
        last = _order(_text(self._group()["last-delivered-id"]))  # asked for first: what is delivered meanwhile is above it
        count, smallest, *_ = self._command("XPENDING", self.stream, self.group)
        first, second = min(last, _order(_before(_text(smallest)))) if count else last
        return f"{first:020d}-{second:020d}"

    def now(self) -> float:
        seconds, microseconds = self.client.command("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def make_group(self) -> None:
        """Makes the group where there is none.

        A group that begins with the first entry is told how many there were before. Without, the server begins to count with
        what it delivers first, so it would not show what is trimmed before.
        """
        start = {"earliest": "0", "latest": "$"}.get(self._values["startingPosition"], self._values["startingPosition"])
        create = ("XGROUP", "CREATE", self.stream, self.group, start, "MKSTREAM")
        counted = (*create, "ENTRIESREAD", self._removed()) if start == "0" else create
        for command in (counted, create):
            try:
                self.client.command(*command)
                return
            except Fatal as refused:
                if "BUSYGROUP" in str(refused):
                    return
                if command is create or not _NO_COUNTS.search(str(refused)):
                    raise self._named(refused) from None

    def _removed(self) -> int:
        """The number of entries that the stream has had and has no more."""
        try:
            info = _pairs(self.client.command("XINFO", "STREAM", self.stream))
        except Fatal:  # there is none; whatever else it is, the next command says it
            return 0
        return int(info.get("entries-added", info["length"])) - int(info["length"])

    def _named(self, error: Fatal) -> Fatal:
        if "WRONGTYPE" in str(error) or "not a stream" in str(error):
            return Fatal(f'the key "{self.stream}" holds no stream', way_out="name another one by the option stream")
        if "NOGROUP" in str(error) or "no such key" in str(error):
            return DataLoss(
                f'the stream "{self.stream}" has no group "{self.group}" any more: it was deleted, or the server lost its data',
                way_out=f"{_WAY_OUT}: the group is then made anew, from startingPosition on",
            )
        return error

    def _command(self, *parts: Any) -> Any:
        """The answer to a command on the group, which is made anew if it was lost and may be."""
        for last_try in (False, True):
            try:
                return self.client.command(*parts)
            except Fatal as refused:
                error = self._named(refused)
                if not isinstance(error, DataLoss) or self._fails or last_try:
                    raise error from None
                _log.warning("connectors.redis: %s", error)
                self.make_group()
        raise AssertionError

    def _read(self, rows: int, seconds: float) -> list[Any]:
        """Entries that no consumer of the group has had."""
        block = ("BLOCK", max(1, int(seconds * 1000))) if seconds > 0 else ()
        consumer = ("XREADGROUP", "GROUP", self.group, self.consumer, "COUNT", min(rows, self._reply))
        answer = self._command(*consumer, *block, "STREAMS", self.stream, ">")
        return list(answer[0][1]) if answer else []

    def _claim(self, rows: int) -> list[Any]:
        """Entries that a consumer has held for longer than ``minIdle``, and never acknowledged.

        Redis 7 forgets a deleted entry when it is claimed. They are read first, so that a second try still sees the loss.
        """
        while self._claim_from is not None:
            idle = [_text(entry[0]) for entry in self._idle(self._claim_from, min(rows, _IDS, self._reply))]
            self._claim_from = f"({idle[-1]}" if idle else None
            with self.client.errors():
                pipeline = self.client.pipeline()
                for id in idle:
                    pipeline.execute_command("XRANGE", self.stream, id, id)
                answers = pipeline.execute() if idle else []
            self._report_deleted([id for id, answer in zip(idle, answers, strict=True) if not answer])
            idle_entries = [answer[0] for answer in answers if answer]
            if idle_entries:
                ids = [id for id, _ in idle_entries]
                claim = ("XCLAIM", self.stream, self.group, self.consumer, self._min_idle, *ids, "JUSTID")
                claimed = set(self._command(*claim))  # another reader may have been faster
                if entries := [entry for entry in idle_entries if entry[0] in claimed]:
                    return entries
        return []

    def _report_deleted(self, ids: Sequence[str]) -> None:
        """Entries that were delivered, never acknowledged, and are no longer in the stream."""
        if not ids:
            return
        names = f"{', '.join(ids[:5])}{f' and {len(ids) - 5} more' if len(ids) > 5 else ''}"
        loss = DataLoss(
            f'{len(ids)} entries of the stream "{self.stream}" were trimmed or deleted before they were read: {names}',
            connector="connectors.redis",
            way_out=_WAY_OUT,
        )
        loss.report(_log, fails=self._fails)
        self.acknowledge(ids)

    def _check_trimmed(self, group: dict[str, Any]) -> None:
        """Raises ``DataLoss`` where entries were trimmed that the group has not received."""
        info = _pairs(self.client.command("XINFO", "STREAM", self.stream))
        delivered, generated = _text(group["last-delivered-id"]), _text(info["last-generated-id"])
        first = info["first-entry"]
        if first and _order(_text(first[0])) <= _order(delivered):
            return
        is_counted = group.get("entries-read") is not None  # since Redis 7
        if is_counted:
            count = int(info["entries-added"]) - int(group["entries-read"]) - int(info["length"])
        else:
            count = int(not first and _order(generated) > _order(delivered))
        if count <= 0:
            return
        text = f'of the stream "{self.stream}" after {delivered} were trimmed before the group "{self.group}" received them'
        loss = DataLoss(f"{count if is_counted else 'some'} entries {text}", connector="connectors.redis", way_out=_WAY_OUT)
        loss.report(_log, fails=self._fails)
        reset = (first and _before(_text(first[0]))) or generated
        entries_read = ("ENTRIESREAD", int(info["entries-added"]) - int(info["length"])) if is_counted else ()
        self._command("XGROUP", "SETID", self.stream, self.group, reset, *entries_read)

    def _group(self) -> dict[str, Any]:
        for last_try in (False, True):
            groups = [_pairs(group) for group in self._command("XINFO", "GROUPS", self.stream)]
            for group in groups:
                if _text(group["name"]) == self.group:
                    return group
            error = self._named(Fatal("NOGROUP"))
            if self._fails or last_try:
                raise error
            self.make_group()
        raise AssertionError

    def _idle(self, start: str, count: int) -> list[Any]:
        """The entries that the group has held for longer than ``minIdle``, from the id ``start`` on, ``count`` at most."""
        return list(self._command("XPENDING", self.stream, self.group, "IDLE", self._min_idle, start, "+", count))

    def _set_idle(self, leases: Sequence[str], milliseconds: int) -> None:
        """Leaves out entries that were trimmed: Redis 7 forgets them when they are claimed, so nobody would report the loss."""
        first = _pairs(self._command("XINFO", "STREAM", self.stream))["first-entry"] if leases else None
        for ids in _chunks([id for id in leases if first and _order(id) >= _order(_text(first[0]))]):
            self._command("XCLAIM", self.stream, self.group, self.consumer, 0, *ids, "IDLE", milliseconds, "JUSTID")

    def _messages(self, entries: Sequence[Any]) -> Messages:
        """Entries as rows. Each is a pair of its id and a list in which names and values alternate."""
        ids = pa.array([id for id, _ in entries], pa.binary()).cast(pa.string())
        parts = pc.split_pattern(ids, "-").flatten()
        first, second = parts[::2], parts[1::2]
        milliseconds = first.cast(pa.uint64())
        offsets, names, values = [0], [], []
        for _, fields in entries:
            names += fields[::2]
            values += fields[1::2]
            offsets.append(len(names))
        self._reply = max(1, min(_REPLY, _REPLY_BYTES * len(entries) // (1 + sum(map(len, values)))))
        keys = _texts(names)
        fields = pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, pa.array(values, pa.binary()))
        times = _up_to(_LAST_MILLISECOND, milliseconds).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
        streams = pa.repeat(pa.scalar(self.stream, pa.string()), len(entries))
        rows = pa.RecordBatch.from_arrays([streams, ids, times, fields], schema=SCHEMA)
        full_ids = pc.binary_join_element_wise(*(pc.utf8_lpad(part, 20, "0") for part in (first, second)), "-")
        published = pc.divide(_up_to(math.ceil(self.now() * 1000), milliseconds).cast(pa.float64()), 1000.0)
        return Messages(rows, ids.cast(pa.large_string()), full_ids.cast(pa.large_string()), published)


def _up_to(most: int, numbers: pa.Array) -> pa.Array:
    """``numbers`` as signed ones, null where they are above ``most``."""
    is_within = pc.less_equal(numbers, pa.scalar(most, pa.uint64()))
    return pc.if_else(is_within, numbers, pa.scalar(None, pa.uint64())).cast(pa.int64())


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _IDS):
        yield ids[start : start + _IDS]


def _texts(names: Sequence[bytes]) -> pa.Array:
    """Names of fields as text; bytes that are no UTF-8 as escapes."""
    try:
        return pa.array(names, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="backslashreplace") for name in names], pa.string())


def _pairs(answer: Any) -> dict[str, Any]:
    """An answer as a dictionary: some clients give one, others a list in which names and values alternate."""
    items = answer.items() if isinstance(answer, dict) else zip(answer[::2], answer[1::2], strict=True)
    return {_text(name): value for name, value in items}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _order(id: str) -> tuple[int, int]:
    first, _, second = id.partition("-")
    return int(first), int(second or 0)


def _before(id: str) -> str:
    """The largest id below ``id``."""
    first, second = _order(id)
    return f"{first}-{second - 1}" if second else f"{first - 1}-18446744073709551615"
