"""What databases do differently, one class each, and the dialects of the user's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from .base import Column, Dialect, Table
from .duckdb import DuckDb
from .mariadb import MariaDb
from .postgresql import PostgreSql
from .sqlite import Sqlite

if TYPE_CHECKING:
    from ..url import Address

_BUILT_IN = (PostgreSql, Sqlite, DuckDb, MariaDb)
DIALECTS: dict[str, type[Dialect]] = {kind.name: kind for kind in _BUILT_IN}
"""Dialects by the first part of a URL."""


def register_dialect(kind: type[Dialect]) -> None:
    """Makes a dialect of your own known to URLs that begin with its ``name``, here and in Spark's tasks.

    It extends one of the built-in dialects, or :class:`Dialect`, and says what is different::

        class CockroachDb(PostgreSql):
            name, port = "cockroachdb", 26257

        register_dialect(CockroachDb)
        connectors.register(spark)

    Formats take the dialects along that are registered when ``connectors.register`` runs, so call it afterwards, also if the
    session has registered the formats before. ``foreach_batch`` needs no such call. Raises ``TypeError`` for another class
    and ``ValueError`` for a name that no URL can begin with.
    """
    if not (isinstance(kind, type) and issubclass(kind, Dialect)):
        raise TypeError(f"{kind!r} is no subclass of Dialect")
    if not re.fullmatch(r"[a-z][a-z0-9]*", getattr(kind, "name", "")):
        raise ValueError(f"the name of {kind.__name__} must be small letters and digits, as at the beginning of a URL")
    DIALECTS[kind.name] = kind


class OwnDialects:
    """The dialects of the user's own: whoever unpickles this has them registered."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _register_all, tuple(kind for kind in DIALECTS.values() if kind not in _BUILT_IN)


def _register_all(*kinds: type[Dialect]) -> OwnDialects:
    for kind in kinds:
        register_dialect(kind)
    return OwnDialects()


def dialect_of(address: Address, timeout: float = 30.0) -> Dialect:
    """The dialect for ``address``; ``timeout`` in seconds is for connecting and for waiting for locks."""
    return DIALECTS[address.dialect](address, timeout)


__all__ = [
    "DIALECTS", "Column", "Dialect", "DuckDb", "MariaDb", "OwnDialects", "PostgreSql", "Sqlite", "Table", "dialect_of",
    "register_dialect",
]  # fmt: skip
