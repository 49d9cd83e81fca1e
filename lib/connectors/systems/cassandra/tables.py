"""Tables, and the statements that read them: a SELECT of columns, or the user's own with the token restriction put in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...core import Misconfigured, Problem
from .connection import NAME, CassandraClient

_COLUMNS: Final = (
    "SELECT column_name, kind, position, type, clustering_order FROM system_schema.columns "
    "WHERE keyspace_name = ? AND table_name = ?"
)
_TABLES: Final = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?"
_AGGREGATES: Final = "SELECT aggregate_name FROM system_schema.aggregates WHERE keyspace_name = ?"
_BUILT_IN: Final = ("count", "min", "max", "sum", "avg")


def quoted(name: str) -> str:
    """``name`` in double quotes, so that its case is kept."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class Column:
    """A column of a table. ``kind`` is partition_key, clustering, static or regular; ``type`` is its CQL."""

    name: str
    kind: str
    type: str


@dataclass(frozen=True)
class Table:
    """A table as the cluster describes it."""

    keyspace: str
    name: str
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, client: CassandraClient, keyspace: str, name: str) -> Table:
        """Raises :class:`Misconfigured` where there is no such table."""
        rows = client.rows(_COLUMNS, keyspace, name)
        if not rows:
            raise Misconfigured(NAME, [Problem("table", _missing(client, keyspace, name))])
        order = {"partition_key": 0, "clustering": 1, "static": 2, "regular": 3}
        rows.sort(key=lambda row: (order[row["kind"]], row["position"], row["column_name"]))
        return cls(keyspace, name, tuple(Column(row["column_name"], row["kind"], row["type"]) for row in rows))

    def names(self, *kinds: str) -> list[str]:
        """The columns of these kinds, in the order of the key; all where none is given."""
        return [column.name for column in self.columns if not kinds or column.kind in kinds]

    @property
    def key(self) -> list[str]:
        return self.names("partition_key", "clustering")

    @property
    def token(self) -> str:
        return f"token({', '.join(map(quoted, self.names('partition_key')))})"

    @property
    def full_name(self) -> str:
        return f"{quoted(self.keyspace)}.{quoted(self.name)}"

    @property
    def has_counters(self) -> bool:
        return any(column.type == "counter" for column in self.columns)


def _missing(client: CassandraClient, keyspace: str, name: str) -> str:
    tables = [row["table_name"] for row in client.rows(_TABLES, keyspace)]
    if not tables:
        return f'the keyspace "{keyspace}" is not there, or has no tables; names keep their case.'
    close = ", ".join(sorted(tables)[:10])
    return f'there is no table "{name}" in the keyspace "{keyspace}", which has {close}; names keep their case.'


@dataclass(frozen=True)
class Selection:
    """The parts of a SELECT: the text before the restriction, the conditions that follow it, and the text after them."""

    table: Table
    head: str
    conditions: tuple[str, ...] = ()
    tail: str = ""

    def statement(self, more: Sequence[str] = (), *, of_partition: bool = False) -> str:
        """The statement for one range of tokens, which are its first two values, or for one partition, by its key.

        ``more`` are further conditions on clustering keys.
        """
        token = self.table.token
        first = [f"{token} > ?", f"{token} <= ?"]
        if of_partition:
            first = [f"{quoted(name)} = ?" for name in self.table.names("partition_key")]
        filtering = " ALLOW FILTERING" if more else ""
        return f"{self.head} WHERE {' AND '.join([*first, *self.conditions, *more])}{self.tail}{filtering}"


@dataclass(frozen=True)
class Extra:
    """A column that is not in the table: the time to live, or of writing, of one that is."""

    name: str
    text: str
    is_time: bool = False


def extras(time_to_live: Sequence[str], write_time: Sequence[str]) -> list[Extra]:
    of_life = [Extra(f"{name}_ttl", f"ttl({quoted(name)})") for name in time_to_live]
    return of_life + [Extra(f"{name}_writetime", f"writetime({quoted(name)})", True) for name in write_time]


def selection(table: Table, columns: Sequence[str], more: Sequence[Extra] = ()) -> Selection:
    """The SELECT of columns; of each partition once where they are of the partition alone."""
    texts = {extra.name: f"{extra.text} AS {quoted(extra.name)}" for extra in more}
    columns_text = ", ".join(texts.get(name, quoted(name)) for name in columns)
    whole = set(table.names("partition_key", "static"))
    distinct = "DISTINCT " if table.names("clustering") and set(table.names("partition_key")) <= set(columns) <= whole else ""
    return Selection(table, f"SELECT {distinct}{columns_text} FROM {table.full_name}")


_TOKEN: Final = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|//[^\n]*|/\*.*?\*/)
  | (?P<quoted>"(?:[^"]|"")*")
  | (?P<text>'(?:[^']|'')*'|\$\$.*?\$\$)
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<number>[0-9][0-9A-Za-z_.\-]*)
  | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Word:
    """A piece of a statement: its ``kind``, its text, where it begins, and how deep in parentheses it is."""

    kind: str
    text: str
    place: int
    depth: int

    def is_one_of(self, *words: str) -> bool:
        return self.kind == "word" and self.depth == 0 and self.text.upper() in words


def words_of(query: str) -> list[Word]:
    """The pieces of a statement, without spaces and comments."""
    words, depth = [], 0
    for match in _TOKEN.finditer(query):
        kind, text = str(match.lastgroup), match[0]
        depth -= text in ")]}" and kind == "sign"
        if kind != "space":
            words.append(Word(kind, text, match.start(), depth))
        depth += text in "([{" and kind == "sign"
    return words


def _without_comments(query: str) -> str:
    """A statement with a space in place of each comment: what comes after one must not be a part of it."""
    matches = _TOKEN.finditer(query)
    return "".join(" " if match.lastgroup == "space" and not match[0].isspace() else match[0] for match in matches)


class QueryParser:
    """Takes a SELECT apart. :meth:`refuse` makes the error of one that cannot be read by token ranges."""

    def __init__(self, query: str, keyspace: str | None) -> None:
        self.query, self.keyspace = _without_comments(query), keyspace
        self.words = words_of(self.query)
        while self.words and self.words[-1].text == ";":
            self.query = self.query[: self.words.pop().place]

    def refuse(self, text: str) -> Misconfigured:
        return Misconfigured(NAME, [Problem("query", text)])

    def name(self) -> tuple[str, str]:
        """The keyspace and the table of the query, which it names in full from now on.

        Raises :class:`Misconfigured` for what is no plain SELECT.
        """
        if not self.words or not self.words[0].is_one_of("SELECT"):
            raise self.refuse("must be a SELECT.")
        if any(word.text == ";" for word in self.words):
            raise self.refuse("must be one statement.")
        if any(word.text == "?" or (word.text == ":" and word.kind == "sign" and word.depth == 0) for word in self.words):
            raise self.refuse("must have values in place of ? and :names.")
        place = self._place("FROM")
        if place is None or place + 1 >= len(self.words):
            raise self.refuse("must be a SELECT … FROM a table.")
        names = [self._identifier(place + 1)]
        if place + 3 < len(self.words) and self.words[place + 2].text == ".":
            return names[0], self._identifier(place + 3)
        if self.keyspace is None:
            raise Misconfigured(NAME, [Problem("keyspace", "missing; give it, or name it in the query: FROM keyspace.table.")])
        begin = self.words[place + 1].place
        self.query = f"{self.query[:begin]}{quoted(self.keyspace)}.{self.query[begin:]}"
        self.words = words_of(self.query)
        return self.keyspace, names[0]

    def selection(self, table: Table, aggregates: Sequence[str]) -> Selection:
        """The query with a place for the restriction. Raises :class:`Misconfigured` for one that cannot be restricted."""
        self._refuse_what_spans_partitions(aggregates)
        where = self._place("WHERE")
        tails = (self._pair("PER", "PARTITION"), self._pair("ALLOW", "FILTERING"))
        tail = min((place for place in tails if place is not None), default=None)
        end = len(self.query) if tail is None else self.words[tail].place
        rest = "" if tail is None else " " + self.query[end:].strip()
        if where is None:
            return Selection(table, self.query[:end].strip(), (), rest)
        self._refuse_key_restrictions(self.words[where + 1 : tail], table)
        begin = self.words[where].place
        condition = self.query[begin + len("WHERE") : end].strip()
        return Selection(table, self.query[:begin].strip(), (condition,), rest)

    def calls(self) -> Iterator[str]:
        """The functions that the query calls for its columns."""
        place = self._place("FROM") or 0
        for word, following in zip(self.words[:place], self.words[1:place], strict=False):
            if word.kind in ("word", "quoted") and following.text == "(":
                yield _unquoted(word)

    def _refuse_what_spans_partitions(self, aggregates: Sequence[str]) -> None:
        known = {*_BUILT_IN, *aggregates}
        if aggregate := next((name for name in self.calls() if name in known), None):
            raise self.refuse(f"has the aggregate {aggregate}(), of which each range would have its own; aggregate in Spark.")
        for first, second, reason in (
            ("GROUP", "BY", "groups rows, of which each range would have its own; group in Spark."),
            ("ORDER", "BY", "orders rows, and token ranges have no order across partitions; order in Spark."),
        ):
            if self._pair(first, second) is not None:
                raise self.refuse(reason)
        for place, word in enumerate(self.words):
            if word.is_one_of("LIMIT") and not self.words[place - 1].is_one_of("PARTITION"):
                raise self.refuse("has a LIMIT, which would hold for each range of tokens; use limit() in Spark.")

    def _refuse_key_restrictions(self, words: Sequence[Word], table: Table) -> None:
        keys = set(table.names("partition_key"))
        for word, following in zip(words, [*words[1:], None], strict=False):
            if word.kind == "word" and word.text.upper() == "TOKEN" and following is not None and following.text == "(":
                raise self.refuse("restricts token(), as the source does itself; leave it away.")
            if word.kind in ("word", "quoted") and _unquoted(word) in keys and (following is None or following.text != "("):
                text = f"restricts the partition key ({_unquoted(word)}), and CQL takes no token range beside that"
                raise self.refuse(f"{text}; ask Cassandra for single partitions, or filter in Spark.")

    def _place(self, word: str) -> int | None:
        return next((place for place, candidate in enumerate(self.words) if candidate.is_one_of(word)), None)

    def _pair(self, first: str, second: str) -> int | None:
        """The place of the first of two words that follow each other; ``None`` where there are none."""
        pairs = enumerate(zip(self.words, self.words[1:], strict=False))
        return next((place for place, (word, after) in pairs if word.is_one_of(first) and after.is_one_of(second)), None)

    def _identifier(self, place: int) -> str:
        word = self.words[place]
        if word.kind not in ("word", "quoted"):
            raise self.refuse(f'must name a table after FROM; got "{word.text}".')
        return _unquoted(word)


def _unquoted(word: Word) -> str:
    return word.text[1:-1].replace('""', '"') if word.kind == "quoted" else word.text.lower()


def parsed_query(query: str, keyspace: str | None, client: CassandraClient) -> Selection:
    """The user's SELECT with a place for the restriction. Raises :class:`Misconfigured` for one that has none."""
    parser = QueryParser(query, keyspace)
    space, name = parser.name()
    table = Table.of(client, space, name)
    aggregates: list[Any] = []
    if any(True for _ in parser.calls()):
        aggregates = [row["aggregate_name"] for row in client.rows(_AGGREGATES, space)]
    return parser.selection(table, aggregates)
