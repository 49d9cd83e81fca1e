"""Rows as commands of Redis, many to a request."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, BatchingWriter, Failure, batching_options
from ...core import (
    REQUIRED,
    Batch,
    Choice,
    Fatal,
    Flag,
    Guarantee,
    Int,
    Options,
    Poison,
    Problem,
    Transient,
    Values,
)
from ...core.datasets import Dataset
from ...core.ledger import LedgerContent
from ...core.sink import RETENTION
from ...formats.documents import documents
from ...formats.templates import filled, texts
from ...ground import machine
from ...ground.columns import Column, ColumnType, Template
from .connection import CONNECTION, SCHEMES, RedisClient, check_connection, dataset_of, is_cluster, without_login
from .script import LEAST_SECONDS, MOST_PARTS, ScriptCommitter, SinkKeys, contents, staged

_IDEMPOTENT: Final = ("hset", "set", "zadd")
_COMMANDS: Final = (*_IDEMPOTENT, "lpush", "rpush", "xadd", "publish")
_OF_SEVERAL: Final = ("hset", "zadd", "lpush", "rpush")
"""Commands that take what several rows write to a key."""
_SCRIPT_SECONDS: Final = 120.0
"""A script that is not done by then is taken for an outage; the ledger says what became of it."""

_NUMBER: Final = ColumnType("a column of numbers", types.is_integer, types.is_floating)

Command = tuple[Any, ...]
"""The command's name, and its arguments as bytes."""


class RedisSink(BatchingSink):
    """Writes each row by one command.

    ``key`` and ``field`` are texts with columns in braces. The value is the row as JSON; ``xadd``, and ``hset`` without
    ``field``, write each column as a field, nulls left out. With ``multi`` readers see whole what a request writes to a key. A
    row that the server refuses for itself, such as one for a key that holds another type, is a bad row.

    Guarantee: idempotent with hset, set and zadd: a replay writes the same again. At-least-once with the others. With
    ``guarantee=exactly-once`` tasks stage their commands in Redis, and a script runs those of a batch together with an entry
    of its number: readers see a batch whole. It is several times as slow, and the server does nothing else while a script runs,
    about 10 s for a million rows. A cluster has no such scripts.
    """

    name = "redis"
    options = (
        CONNECTION
        | batching_options(max_records=1000, max_bytes="1MB", max_time="100ms")
        | Options(
            {
                "command": Choice("hset", among=_COMMANDS, meaning="what writes a row"),
                "key": Template(REQUIRED, meaning="the key, or the channel: events:{user_id}"),
                "field": Template(
                    None, only_with="command=hset",
                    meaning="the field that gets the row as JSON: {id}; without it, a field per column",
                ),
                "scoreColumn": Column(
                    None, _NUMBER, only_with="command=zadd", needed_by="command=zadd: the column of the score",
                    meaning="the score, a number",
                ),
                "value.format": Choice("json", among=("json",), meaning="the row as text"),
                "expire": Int(
                    None, at_least=0, excludes="command=publish",
                    meaning="seconds; 0: never; default: 86400 with hset, else never",
                ),
                "maxLen": Int(None, at_least=1, only_with="command=xadd", meaning="entries that the stream keeps, about"),
                "multi": Flag(
                    False, excludes="guarantee=exactly-once: readers see a batch whole",
                    meaning="readers see whole what a request writes to a key, expiry included: MULTI",
                ),
                "stagingRetention": RETENTION,
            }
        )
    )
    promise = Guarantee.EXACTLY_ONCE
    conditions = (
        "guarantee=exactly-once, no cluster, a server that keeps each write (appendfsync=always) and fails over to no replica "
        "without it; else idempotent with hset, set, zadd, at-least-once with the others"
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_connection(values)
        if values["multi"] and is_cluster(values):
            yield Problem("multi", "is not possible: in a cluster the keys of a request lie on several nodes.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        if not is_cluster(values):
            return Guarantee.EXACTLY_ONCE, ""
        if values["command"] in _IDEMPOTENT:
            return Guarantee.IDEMPOTENT, "a script of a cluster has the keys of one slot, and those of a batch have many."
        return Guarantee.AT_LEAST_ONCE, f"with command={values['command']} a replay adds rows again; hset, set and zadd do not."

    def guarantee(self) -> Guarantee:
        by_default = Guarantee.IDEMPOTENT if self.values["command"] in _IDEMPOTENT else Guarantee.AT_LEAST_ONCE
        return Guarantee(self.values["guarantee"] or by_default)

    def target(self) -> str:
        values = self.values
        address = without_login(values["url"]) if values["url"] else f"{values['host']}:{values['port']}"
        return f"{address}/{values['command']}/{values['key']}"

    def datasets(self) -> Sequence[Dataset]:
        return [dataset_of(self.values, self.values["key"])]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> CommandWriter:
        return CommandWriter(self, batch) if self.committer() is None else StagingWriter(self, batch)

    @classmethod
    def ledgers_in(cls, target: str, options: Mapping[str, str]) -> Sequence[LedgerContent] | None:
        if not target.startswith(SCHEMES):
            return None
        values = cls.known_options().parse("connectors.redis", {"url": target, "key": "{any}", **options}, check_connection)
        client = RedisClient("connectors.redis", values)
        try:
            return [] if is_cluster(values) else contents(client)  # a cluster has no ledger
        finally:
            client.close()

    def committer(self) -> ScriptCommitter | None:
        if self.guarantee() is not Guarantee.EXACTLY_ONCE:
            return None
        seconds = max(_SCRIPT_SECONDS, self.values["request.timeout"])
        retention = self.values["stagingRetention"]
        return ScriptCommitter(self.sink_id(), lambda: RedisClient("connectors.redis", self.values, seconds), retention)


class CommandWriter(BatchingWriter):
    """Writes the rows of one task. An entry is a command, its parts as bytes."""

    def __init__(self, sink: RedisSink, batch: Batch) -> None:
        values = self._values = sink.values
        self.client = RedisClient("connectors.redis", values, seconds=values["request.timeout"])
        self._command: str = values["command"]
        expire = values["expire"]
        self._expire = 86_400 if expire is None and self._command == "hset" else expire or 0
        super().__init__(sink, batch)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Command | Poison]:
        values, command = self._values, self._command.upper()
        columns: list[Sequence[Any]] = [filled(values["key"], rows)]
        if self._command == "xadd" or (self._command == "hset" and not values["field"]):
            limit = (b"MAXLEN", b"~", b"%d" % values["maxLen"]) if values["maxLen"] else ()
            head = (*limit, b"*") if self._command == "xadd" else ()
            fields = self._fields(rows)
            entries: list[Any] = [(command, key, *head, *row) for key, row in zip(columns[0], fields, strict=True)]
            columns.append([row or Poison("all columns are null") for row in fields])
            if nested := [field.name for field in rows.schema if types.is_nested(field.type)]:
                columns.append(documents(rows.select(nested)))  # of a NaN in one, which JSON has not
        else:
            if template := values["field"] or (values["scoreColumn"] and f"{{{values['scoreColumn']}}}"):
                columns.append(filled(template, rows))
            columns.append(documents(rows))
            entries = list(zip([command] * rows.num_rows, *columns, strict=True))
        for column in columns:
            if Poison in set(map(type, column)):
                entries = [part if isinstance(part, Poison) else entry for part, entry in zip(column, entries, strict=True)]
        return entries

    def sizes(self, entries: Sequence[Any]) -> list[int]:
        return [sum(map(len, entry)) for entry in entries]

    def keys(self, entries: Sequence[Any]) -> Sequence[Hashable] | None:
        end = 3 if self._command == "hset" and self._values["field"] else 2
        return [entry[1:end] for entry in entries]

    def send(self, entries: list[Command]) -> Iterator[Failure]:
        places = self._commands(entries)
        commands = [entries[first] for (first, *_) in places]
        for number, (_, *others) in enumerate(places):
            if others:
                commands[number] += tuple(chain.from_iterable(entries[place][2:] for place in others))
        if self._expire:
            commands += [("EXPIRE", key, b"%d" % self._expire) for key in dict.fromkeys(entry[1] for entry in entries)]
        answers = self._in_transactions(commands) if self._values["multi"] else self.client.answers(commands)
        for number, answer in enumerate(answers):
            if isinstance(answer, Exception):
                failure = self._failure(answer)
                for place in places[number] if number < len(places) else [len(entries) - 1]:
                    yield place, failure

    def _in_transactions(self, commands: list[Command]) -> list[Any]:
        """The answers to commands, those of a key in one transaction."""
        of_key: dict[bytes, list[int]] = {}
        for place, command in enumerate(commands):
            of_key.setdefault(command[1], []).append(place)
        parts = [[("MULTI",), *(commands[place] for place in places), ("EXEC",)] for places in of_key.values()]
        replies = iter(self.client.answers(list(chain.from_iterable(parts))))
        answers: list[Any] = [None] * len(commands)
        for places in of_key.values():
            _, *queued, done = islice(replies, len(places) + 2)
            results = done if isinstance(done, list) else [done] * len(places)
            for place, is_queued, result in zip(places, queued, results, strict=True):
                answers[place] = is_queued if isinstance(is_queued, Exception) else result
        return answers

    def _commands(self, entries: list[Command]) -> Sequence[Sequence[int]]:
        """The entries of each command: those of a key together where a command can have several."""
        if self._command not in _OF_SEVERAL:
            return [(place,) for place in range(len(entries))]
        of_key: dict[bytes, list[int]] = {}
        for place, entry in enumerate(entries):
            of_key.setdefault(entry[1], []).append(place)
        return list(of_key.values())

    def _failure(self, answer: Exception) -> Exception:
        try:
            with self.client.errors():
                raise answer
        except (Transient, Fatal) as error:
            return Poison(str(answer)) if "WRONGTYPE" in str(answer) else error

    def _fields(self, rows: pa.RecordBatch) -> list[tuple[bytes, ...]]:
        """The names and values of each row's columns, by turns, nulls left out."""
        names = [name.encode() for name in rows.schema.names]
        cells = zip(*(texts(column) for column in rows.columns), strict=True)
        return [
            tuple(part for name, value in zip(names, row, strict=True) if value is not None for part in (name, value))
            for row in cells
        ]


class StagingWriter(CommandWriter):
    """Stages the commands of one task. An entry is the number of a command, and the command as the script reads it."""

    def __init__(self, sink: RedisSink, batch: Batch) -> None:
        self._keys, self._attempt = SinkKeys(sink.sink_id()), batch.attempt()
        self._numbers = 0
        super().__init__(sink, batch)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Any]:
        first = self._numbers
        self._numbers += rows.num_rows
        return [self._staged(number, part) for number, part in enumerate(super().entries(rows), first)]

    def _staged(self, number: int, part: Command | Poison) -> tuple[int, bytes] | Poison:
        if isinstance(part, Poison):
            return part
        if len(part) > MOST_PARTS:  # the script would end there, behind the commands before it
            return Poison(f"the row makes a command of {len(part)} parts, and one of a script has {MOST_PARTS} at most")
        return number, staged(part, self._expire)

    def sizes(self, entries: Sequence[Any]) -> list[int]:
        return [len(command) for _, command in entries]

    def keys(self, entries: Sequence[Any]) -> None:
        return None

    def send(self, entries: list[Any]) -> Iterator[Failure]:
        stage = self._keys.stage(self._attempt)
        seconds = max(LEAST_SECONDS, int(self._values["stagingRetention"]))
        commands = [
            ("ZADD", self._keys.attempts, "NX", machine.time(), self._attempt),
            ("HSET", stage, *chain.from_iterable(entries)),
            ("EXPIRE", stage, seconds),
        ]
        for answer in self.client.answers(commands):
            if isinstance(answer, Exception):
                raise self._failure(answer)
        return iter(())

    def report(self) -> dict[str, Any]:
        return {"attempt": self._attempt, "numbers": self._numbers}
