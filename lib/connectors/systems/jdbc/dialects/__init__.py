"""Dialects: the differences between databases, one class each, chosen by the URL.

A JDBC or SQLAlchemy URL becomes an :class:`DatabaseAddress`, which never shows its password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ....ground.options import masker
from ....storage.location import is_local
from .base import Dialect
from .duckdb import DuckDb
from .mariadb import MariaDb
from .mysql import MySql
from .postgresql import PostgreSql
from .sqlite import Sqlite
from .tables import Column, Table

_ALIASES: Final = {"postgres": "postgresql"}
_IGNORED: Final = frozenset(
    {"rewritebatchedinserts", "rewritebatchedstatements", "stringtype", "preparethreshold", "defaultrowfetchsize"}
)
"""Parameters of JDBC drivers that only tune them."""
_BUILT_IN: Final = (PostgreSql, Sqlite, DuckDb, MariaDb, MySql)
DIALECTS: dict[str, type[Dialect]] = {kind.name: kind for kind in _BUILT_IN}
"""Dialects by the first part of a URL."""


@dataclass(frozen=True)
class DatabaseAddress:
    """The address of a database. ``dialect`` names its dialect, such as postgresql; ``database`` is a name or a file's path."""

    dialect: str
    database: str
    host: str = ""
    port: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    more: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        """The address without user and password."""
        return f"{self.dialect}://{self.host}:{self.port}/{self.database}" if self.host else f"{self.dialect}:{self.database}"

    def without_password(self, text: str) -> str:
        """``text`` without the password, in case a driver has put it there."""
        return masker([self.password or ""])(text)


def dialect_of(address: DatabaseAddress, timeout: float = 30.0) -> Dialect:
    """The dialect for ``address``; ``timeout`` in seconds is for connecting and for waiting for locks."""
    return DIALECTS[address.dialect](address, timeout)


def register_dialect(kind: type[Dialect]) -> None:
    """Registers your own dialect for URLs that begin with its ``name``, here and in Spark's tasks.

    It extends one of the built-in dialects, or :class:`Dialect`, and overrides what is different::

        class CockroachDb(PostgreSql):
            name, port = "cockroachdb", 26257

        register_dialect(CockroachDb)
        connectors.register(spark)

    Formats get the dialects that are registered when ``connectors.register`` runs. So call it afterwards, even if the
    session has already registered the formats. ``foreach_batch`` needs no such call. Raises ``TypeError`` for another class
    and ``ValueError`` for a name that no URL can begin with.
    """
    if not (isinstance(kind, type) and issubclass(kind, Dialect)):
        raise TypeError(f"{kind!r} is no subclass of Dialect")
    if not re.fullmatch(r"[a-z][a-z0-9]*", getattr(kind, "name", "")):
        raise ValueError(f"the name of {kind.__name__} must be small letters and digits, as at the beginning of a URL")
    DIALECTS[kind.name] = kind


class OwnDialects:
    """The user's own dialects; unpickling registers them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _register_all, tuple(kind for kind in DIALECTS.values() if kind not in _BUILT_IN)


def _register_all(*kinds: type[Dialect]) -> OwnDialects:
    for kind in kinds:
        register_dialect(kind)
    return OwnDialects()


def parse(url: str, user: str | None = None, password: str | None = None) -> DatabaseAddress:
    """The address of ``url``; ``user`` and ``password`` win over those in it.

    Raises ``ValueError`` with a phrase that says what is wrong, without showing the URL.
    """
    text, is_jdbc = url.strip().removeprefix("jdbc:"), url.strip().startswith("jdbc:")
    scheme, colon, rest = text.partition(":")
    family = scheme.split("+")[0].lower()
    dialect = _ALIASES.get(family, family)
    if not colon or not family:
        raise ValueError("must be a JDBC or SQLAlchemy URL such as jdbc:postgresql://host:5432/database or sqlite:///file.db.")
    kind = DIALECTS.get(dialect)
    if kind is not None:
        return _on_network(kind, rest, user, password) if kind.port else DatabaseAddress(dialect, _file(dialect, rest, is_jdbc))
    raise ValueError(
        f'is for "{family}", and there is no dialect of that name; there are {", ".join(DIALECTS)}. To add one, extend one of '
        f'the classes in connectors.systems.jdbc.dialects by a class with name = "{dialect}", give it to register_dialect(), '
        "and call connectors.register(spark) again."
    )


_MAGIC: Final = (("sqlite", 0, b"SQLite format 3\0"), ("duckdb", 8, b"DUCK"))
"""The databases in files, each with an offset and the bytes that its files hold there."""


def url_of_file(path: str) -> str | None:
    """The URL of a database in a local file, recognized by the file's first bytes; ``None`` for everything else."""
    file = Path(path)
    if not is_local(path) or not file.is_file():
        return None
    with file.open("rb") as content:
        head = content.read(32)
    kinds = (kind for kind, start, magic in _MAGIC if head[start : start + len(magic)] == magic)
    return next((f"jdbc:{kind}:{file}" for kind in kinds), None)


def _file(dialect: str, rest: str, is_jdbc: bool) -> str:
    path, _, parameters = rest.partition("?")
    if parameters:
        named = ", ".join(name for name, _ in parse_qsl(parameters))
        raise ValueError(f"has parameters ({named}); a {dialect} file takes none.")
    if path.startswith("//") and not is_jdbc:  # sqlite:///relative, sqlite:////absolute
        path = path[3:]
    path = unquote(path)
    if not is_local(path):
        raise ValueError(f"must name a local or mounted file: no driver opens a {dialect} file in an object store.")
    path = path.removeprefix("file:")  # otherwise as spelled: the sink id is derived from it
    if path in ("", ":memory:"):
        raise ValueError(f"must name a file: tasks and driver are processes of their own, and share no {dialect} in memory.")
    return path


def _on_network(kind: type[Dialect], rest: str, user: str | None, password: str | None) -> DatabaseAddress:
    if not rest.startswith("//"):  # jdbc:postgresql:database
        rest = f"//localhost/{rest}"
    try:
        parts = urlsplit(f"x:{rest}")
        port = parts.port or kind.port
    except ValueError:
        raise ValueError("must name one host and its port, as in jdbc:postgresql://host:5432/database.") from None
    if "," in parts.netloc:
        raise ValueError("names several hosts; give the one that is written to.")
    query = {name.lower(): value for name, value in parse_qsl(parts.query, keep_blank_values=True)}
    user = user or query.pop("user", "") or unquote(parts.username or "") or None
    password = password or query.pop("password", "") or unquote(parts.password or "") or None
    database = unquote(parts.path.lstrip("/")) or user or ""
    if not database:
        raise ValueError("names no database; it must end in /database.")
    query = {name: value for name, value in query.items() if name not in ("user", "password")}
    return DatabaseAddress(kind.name, database, parts.hostname or "localhost", port, user, password, _parameters(kind, query))


def _parameters(kind: type[Dialect], query: dict[str, str]) -> dict[str, str]:
    """The parameters of a URL by the driver's names for them. ``ssl`` has the same meaning as for the JDBC drivers."""
    known = kind.url_parameters
    for name in ("ssl", "usessl"):
        value = query.pop(name, "false").lower()
        if value not in ("", "true", "false"):
            raise ValueError(f"has {name}={value}, which must be true or false.")
        if value != "false":
            query.setdefault("sslmode", "verify-full")
    if "sslmode" in known and query.get("sslmode", kind.ssl_modes[0]) not in kind.ssl_modes:
        raise ValueError(f"has sslmode={query['sslmode']}, which must be one of {', '.join(kind.ssl_modes)}.")
    if unknown := sorted(name for name in query if name not in known and name not in _IGNORED):
        names = ", ".join(("user", "password", "ssl", *known))
        raise ValueError(f"has the parameter {', '.join(unknown)}, which is not supported; there are {names}.")
    return {known[name]: value for name, value in query.items() if name in known}


__all__ = [
    "DIALECTS",
    "Column",
    "DatabaseAddress",
    "Dialect",
    "DuckDb",
    "MariaDb",
    "MySql",
    "OwnDialects",
    "PostgreSql",
    "Sqlite",
    "Table",
    "dialect_of",
    "parse",
    "register_dialect",
]  # fmt: skip
