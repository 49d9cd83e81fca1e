"""Rows as commands of Redis, many to a request."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, BatchingWriter, Failure, batching_options
from ...core import REQUIRED, Batch, Choice, Fatal, Guarantee, Int, Options, Poison, Problem, Text, Transient, Values
from ...core.clients import client_library
from ...formats.documents import documents
from ...formats.templates import filled, is_template, template_columns, texts
from .connection import CONNECTION, RedisClient, check_connection

_IDEMPOTENT: Final = ("hset", "set", "zadd")
_COMMANDS: Final = (*_IDEMPOTENT, "lpush", "rpush", "xadd", "publish")

Command = tuple[bytes, ...]


class RedisSink(BatchingSink):
    """Writes each row by one command.

    ``key`` and ``field`` are texts with columns in braces. The value is the row as JSON; ``xadd``, and ``hset`` without
    ``field``, write each column as a field, nulls left out. A row that the server refuses for itself, such as one for a key
    that holds another type, is a bad row.

    Guarantee: idempotent with hset, set and zadd: a replay writes the same again. At-least-once with the others.
    """

    name = "redis"
    options = (
        CONNECTION
        | batching_options(max_records=1000, max_bytes="1MB", max_time="100ms")
        | Options(
            {
                "command": Choice("hset", among=_COMMANDS, meaning="what writes a row"),
                "key": Text(REQUIRED, meaning="the key, or the channel: events:{user_id}"),
                "field": Text(None, meaning="hset: the field that gets the row as JSON: {id}; without it, a field per column"),
                "scoreColumn": Text(None, meaning="zadd: the score, a number"),
                "value.format": Choice("json", among=("json",), meaning="the row as text"),
                "expire": Int(None, at_least=0, meaning="seconds; 0: never; default: 86400 with hset, else never"),
                "maxLen": Int(None, at_least=1, meaning="xadd: entries that the stream keeps, about"),
            }
        )
    )
    promise = Guarantee.IDEMPOTENT
    conditions = "command=hset, set or zadd; at-least-once with lists, streams and channels"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        yield from check_connection(values)
        for option in ("key", "field"):
            if values[option] is not None and not is_template(values[option]):
                yield Problem(option, f'must be text with columns in braces, such as events:{{id}}; got "{values[option]}".')
        for option, command in (("field", "hset"), ("scoreColumn", "zadd"), ("maxLen", "xadd")):
            if values[option] is not None and values["command"] != command:
                yield Problem(option, f"has no use with command={values['command']}; it is of {command}.")
        if values["command"] == "zadd" and values["scoreColumn"] is None:
            yield Problem("scoreColumn", "missing; command=zadd needs the column of the score.")
        if values["command"] == "publish" and values["expire"]:
            yield Problem("expire", "has no use with command=publish.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        if values["command"] in _IDEMPOTENT:
            return Guarantee.IDEMPOTENT, "a replay writes the same again; there are no transactions over batches."
        return Guarantee.AT_LEAST_ONCE, f"with command={values['command']} a replay adds rows again; hset, set and zadd do not."

    def target(self) -> str:
        values = self.values
        address = values["url"] or f"{values['host']}:{values['port']}"
        return f"{address}/{values['command']}/{values['key']}"

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        named = [(option, column) for option in ("key", "field") for column in template_columns(self.values[option] or "")]
        named += [("scoreColumn", self.values["scoreColumn"])] if self.values["scoreColumn"] else []
        for option, column in named:
            if column not in schema.names:
                yield Problem(option, f'names the column "{column}", which the rows do not have: {", ".join(schema.names)}.')
        score = self.values["scoreColumn"]
        if score in schema.names and not (types.is_integer(kind := schema.field(score).type) or types.is_floating(kind)):
            yield Problem("scoreColumn", f'must be a column of numbers; "{score}" is {kind}.')

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> CommandWriter:
        self.refuse_frame(schema, placed=False)
        return CommandWriter(self, batch)


class CommandWriter(BatchingWriter):
    """Writes the rows of one task. An entry is a command, its parts as bytes."""

    def __init__(self, sink: RedisSink, batch: Batch) -> None:
        values = self._values = sink.values
        self._json = client_library("orjson", "orjson", connector="connectors.redis")
        self._client = RedisClient("connectors.redis", values, seconds=values["request.timeout"])
        self._command: str = values["command"]
        expire = values["expire"]
        self._expire = 86_400 if expire is None and self._command == "hset" else expire or 0
        super().__init__(sink, batch)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Command | Poison]:
        values, command = self._values, self._command.upper().encode()
        columns: list[Sequence[Any]] = [filled(values["key"], rows, self._json)]
        if self._command == "xadd" or (self._command == "hset" and not values["field"]):
            limit = (b"MAXLEN", b"~", b"%d" % values["maxLen"]) if values["maxLen"] else ()
            head = (*limit, b"*") if self._command == "xadd" else ()
            fields = self._fields(rows)
            entries: list[Any] = [(command, key, *head, *row) for key, row in zip(columns[0], fields, strict=True)]
            columns.append([row or Poison("all columns are null") for row in fields])
        else:
            if template := values["field"] or (values["scoreColumn"] and f"{{{values['scoreColumn']}}}"):
                columns.append(filled(template, rows, self._json))
            columns.append(documents(rows, self._json))
            entries = list(zip([command] * rows.num_rows, *columns, strict=True))
        for column in columns:
            if Poison in set(map(type, column)):
                entries = [part if isinstance(part, Poison) else entry for part, entry in zip(column, entries, strict=True)]
        return entries

    def sizes(self, entries: Sequence[Command]) -> list[int]:
        return [sum(map(len, entry)) for entry in entries]

    def keys(self, entries: Sequence[Command]) -> Sequence[Hashable]:
        end = 3 if self._command == "hset" and self._values["field"] else 2
        return [entry[1:end] for entry in entries]

    def send(self, entries: list[Command]) -> Iterator[Failure]:
        pipeline = self._client.pipeline()
        for entry in entries:
            pipeline.execute_command(*entry)
        if self._expire:
            for key in dict.fromkeys(entry[1] for entry in entries):
                pipeline.execute_command("EXPIRE", key, self._expire)
        with self._client.errors():
            answers = pipeline.execute(raise_on_error=False)
        for place, answer in enumerate(answers):
            if isinstance(answer, Exception):
                yield min(place, len(entries) - 1), self._failure(answer)

    def _failure(self, answer: Exception) -> Exception:
        try:
            with self._client.errors():
                raise answer
        except (Transient, Fatal) as error:
            return Poison(str(answer)) if "WRONGTYPE" in str(answer) else error

    def _fields(self, rows: pa.RecordBatch) -> list[tuple[bytes, ...]]:
        """The names and values of each row's columns, by turns, nulls left out."""
        names = [name.encode() for name in rows.schema.names]
        cells = zip(*(texts(column, self._json) for column in rows.columns), strict=True)
        return [
            tuple(part for name, value in zip(names, row, strict=True) if value is not None for part in (name, value))
            for row in cells
        ]

    def close(self) -> None:
        super().close()
        self._client.close()

