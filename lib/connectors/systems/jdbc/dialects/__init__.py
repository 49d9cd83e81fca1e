"""What databases do differently, one class each. A dialect of your own goes into :data:`DIALECTS` before it is used."""

from __future__ import annotations

from ..url import Address
from .base import Column, Dialect, Table
from .duckdb import DuckDb
from .mariadb import MariaDb
from .postgresql import PostgreSql
from .sqlite import Sqlite

DIALECTS: dict[str, type[Dialect]] = {kind.name: kind for kind in (PostgreSql, Sqlite, DuckDb, MariaDb)}
"""Dialects by the first part of a URL."""


def dialect_of(address: Address, timeout: float = 30.0) -> Dialect:
    """The dialect for ``address``; ``timeout`` in seconds is for connecting and for waiting for locks."""
    return DIALECTS[address.dialect](address, timeout)


__all__ = ["DIALECTS", "Column", "Dialect", "Table", "dialect_of"]
