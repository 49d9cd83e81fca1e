"""Connections of ADBC to PostgreSQL, kept for the next one who needs one: to make one costs more than a small load."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Sequence
from itertools import count
from typing import Any

from ...core.errors import Transient
from .connection import Connection
from .dialects.postgresql import PostgreSql

_idle: dict[tuple[int, str, bool], Any] = {}
"""What the last one of this process has left, by process, address, and whether each statement is a transaction."""


class AdbcConnection(Connection):
    """A connection whose driver takes and gives Arrow. Each session begins with ``settings``.

    With ``autocommit`` each statement is a transaction, else one is always open, and ends with :meth:`commit`.
    """

    dialect: PostgreSql

    def __init__(self, dialect: PostgreSql, settings: Sequence[str], *, autocommit: bool) -> None:
        self._key = (os.getpid(), dialect.load_url(), autocommit)
        super().__init__(dialect, _idle.pop(self._key, None))
        self.autocommit = autocommit
        self.spoilt = False
        """True while nobody else must be given the connection."""
        kept = self.raw is not None
        try:
            self._begin(settings)
        except Transient:
            if not kept:
                raise
            self.raw = None  # the server was away since the connection was used
            self._begin(settings)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Runs a statement; with ``values`` it must change rows, and is asked for them, as ADBC does not count them."""
        self.spoilt = self.spoilt or not self.autocommit
        return len(self.rows(f"{sql} RETURNING 1", values)) if values else super().execute(sql)

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.spoilt = self.spoilt or not self.autocommit
        return super().rows(_numbered(sql) if values else sql, values)

    def commit(self) -> None:
        with self.judged():
            self.raw.commit()
        self.spoilt = False

    def rollback(self) -> None:
        with contextlib.suppress(Exception):
            self.raw.rollback()
            self.spoilt = False

    def close(self) -> None:
        if self.raw is not None and not self.spoilt and self._key not in _idle:
            _idle[self._key] = self.raw
        else:
            super().close()

    def _begin(self, settings: Sequence[str]) -> None:
        if self.raw is None:
            self.raw = self._opened()
        for setting in settings:
            self.execute(setting)
        if not self.autocommit:
            self.commit()

    def _opened(self) -> Any:
        module = self.dialect.module("adbc_driver_postgresql.dbapi")
        try:
            return module.connect(self._key[1], autocommit=self.autocommit)
        except self.dialect.errors() as error:
            raise self.dialect.refused(error) from None


def _numbered(sql: str) -> str:
    """``sql`` with ADBC's placeholders."""
    first, *rest = sql.split("%s")
    return first + "".join(f"${number}{part}" for number, part in zip(count(1), rest, strict=False))


@atexit.register
def _close_idle() -> None:
    for (process, *_), connection in list(_idle.items()):
        if process == os.getpid():
            with contextlib.suppress(Exception):
                connection.close()
    _idle.clear()
