"""A statement of the user's own: its text, whose placeholders name columns of the rows, and how a database reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from string import Formatter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ...ground.columns import Template
from ...ground.errors import Fatal, Poison, Problem

if TYPE_CHECKING:
    from .connection import Connection
    from .dialects import Dialect

OPTION: Final = "statement"
_VERBS: Final = ("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "WITH", "SELECT")
"""The first words of statements that cannot end a transaction, as those do that define a table."""
_MARK: Final = "\0"


class StatementText(Template):
    """An option for a :class:`Statement`."""

    def parse(self, text: str) -> str:
        if not text.strip():
            raise ValueError("a statement; leave the option out to have one generated")
        if _MARK in text:
            raise ValueError("a statement without zero bytes")
        try:
            return super().parse(text)
        except ValueError:
            raise ValueError("SQL with columns in braces, such as {id}; a brace of its own is doubled, as in '{{}}'") from None


@dataclass(frozen=True)
class Statement:
    """SQL in ``pieces``, with the value of one of ``columns`` behind each but the last. A column may come several times."""

    pieces: tuple[str, ...]
    columns: tuple[str, ...]

    @classmethod
    def of(cls, text: str, dialect: type[Dialect]) -> Statement:
        """Raises ``ValueError`` with a phrase behind the option's name if it is not one statement that changes rows."""
        parsed = list(Formatter().parse(text))
        columns = tuple(name for _, name, _, _ in parsed if name is not None)
        sql = "".join(piece + (_MARK if name is not None else "") for piece, name, _, _ in parsed)
        code = re.sub(dialect.quoted, _masked, sql, flags=re.DOTALL)
        end = len(code.rstrip().rstrip(";").rstrip())
        if code.count(_MARK) != len(columns):
            raise ValueError(
                "has a column inside quotes or in a comment, where it would be text. Bind it: "
                "'user-' || {id} or concat('user-', {id}), not 'user-{id}'; a brace of the text itself is doubled."
            )
        if ";" in code[:end]:
            raise ValueError("has several statements; give one, or put them into a function of the database.")
        verb = (re.match(r"(?:[\s(]|/\*M?!\d*)*(\w*)", code) or [""] * 2)[1].upper()
        if verb not in _VERBS or (verb == "SELECT" and dialect.one_writer):
            got = f"begins with {verb}" if verb else "is empty"
            raise ValueError(
                f"{got}; it must be INSERT, UPDATE, DELETE, MERGE, REPLACE or WITH, or a SELECT of a function on a server: "
                "others may end the transaction that has the rows and the ledger, or change nothing."
            )
        return cls(tuple(sql[:end].split(_MARK)), columns)

    def rendered(self, mark: Callable[[int], str]) -> str:
        """The text; ``mark`` returns the placeholder for the value with a number (from 0)."""
        marks = [mark(number) for number in range(len(self.columns))]
        return "".join(piece + placeholder for piece, placeholder in zip_longest(self.pieces, marks, fillvalue=""))


@dataclass(frozen=True)
class BoundStatement:
    """The ``text`` for a database, and for each of its placeholders an expression over the columns of a stage."""

    text: str
    values: tuple[str, ...]


def bound_statement(connection: Connection, text: str, schema: pa.Schema) -> BoundStatement:
    """The statement for staged rows of ``schema``. Raises ``ValueError`` with a phrase behind the option's name.

    Do not call it inside a transaction.
    """
    dialect = connection.dialect
    statement = Statement.of(text, type(dialect))
    indexes = [schema.get_field_index(name) for name in statement.columns]
    try:
        return dialect.bind(connection, statement, [(f"c{index}", schema.field(index).type) for index in indexes])
    except (Fatal, Poison) as refused:
        raise ValueError(f"cannot be run: {refused.message}") from None


def statement_problems(text: str, dialect: type[Dialect]) -> Iterator[Problem]:
    """The problem of a statement that can be told without the database."""
    try:
        Statement.of(text, dialect)
    except ValueError as wrong:
        yield Problem(OPTION, str(wrong))


def _masked(quoted: re.Match[str]) -> str:
    """What is as long as the quoted text or comment, and holds no sign that counts."""
    return (" " if quoted[0].startswith(("--", "/*", "#")) else "x") * len(quoted[0])


def escaped(pieces: Sequence[str]) -> tuple[str, ...]:
    """``pieces`` for a driver that formats the text with ``%``."""
    return tuple(piece.replace("%", "%%") for piece in pieces)
