"""The publication of PostgreSQL that whole schemas need: it sends the changes of those tables alone that it has.

``schema.include.list`` without ``table.include.list`` asks for all tables of the schemas, so the publication must have the
schemas themselves. With another one the rows of a table that is created later would be missing, and nothing would tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError

from ...ground.errors import Fatal, Transient
from .debezium import is_debezium, source_log
from .failures import failure_of
from .jvm import Jvm

_SHOWN: Final = 3
_ALL: Final = "insert, update, delete, truncate"
_LOST: Final = "the rows of a table that is created later would be missing"


class _Gap(NamedTuple):
    """What a publication lacks."""

    text: str
    way_out: str


def refuse_publication(jvm: Jvm, properties: Mapping[str, str], name: str, *, is_first: bool = False) -> None:
    """Raises :class:`Fatal` where whole schemas are followed, and the publication lacks tables that are there or will come.

    The first start has a snapshot, and refuses tables that would stay as they are in it.
    """
    included = properties.get("schema.include.list")
    is_whole = included and not properties.get("table.include.list")
    if not (included and is_whole and is_debezium(properties) and properties.get("plugin.name") == "pgoutput"):
        return
    try:
        schemas, publication = map(json.loads, source_log(jvm, properties).publication())
    except Py4JJavaError as error:
        raise Transient(f"the publication cannot be read: {failure_of(error, jvm.masked)}", connector=name) from None
    followed = sorted(schema for schema in schemas if _matches(included, schema))
    if not followed:
        way_out = f"name schemas by schema.include.list; there are {', '.join(sorted(schemas))}"
        raise Fatal(f"the database has no schema {included}", connector=name, way_out=way_out)
    for gap in _gaps(properties, publication, followed, is_first=is_first):
        raise Fatal(gap.text, connector=name, way_out=gap.way_out)


def _gaps(
    properties: Mapping[str, str], publication: Mapping[str, Any] | None, schemas: Sequence[str], *, is_first: bool
) -> Iterator[_Gap]:
    name = properties.get("publication.name", "dbz_publication")
    mode = properties.get("publication.autocreate.mode", "all_tables").lower()
    create = f'CREATE PUBLICATION "{name}" FOR TABLES IN SCHEMA {_quoted(schemas)}'
    create = f"{create} WITH (publish_via_partition_root = true); before PostgreSQL 15, FOR ALL TABLES"
    if mode == "filtered":
        text = "publication.autocreate.mode=filtered publishes the tables that there are at the start"
        yield _Gap(f"{text}: {_LOST}", f"set it to disabled, and let a superuser make a publication of another name: {create}")
    if publication is None:
        if mode != "all_tables":  # which makes one
            yield _Gap(f"the publication {name} does not exist", f"let a superuser run {create}")
        return
    alter = f'ALTER PUBLICATION "{name}"'
    if not publication["whole"]:
        text = f"the publication {name} leaves out inserts, updates, deletions or truncations"
        yield _Gap(text, f"let its owner run {alter} SET (publish = '{_ALL}')")
    missing = [schema for schema in schemas if schema not in (publication["schemas"] or ())]
    if missing and not publication["all"]:
        way_out = f"let a superuser run {alter} ADD TABLES IN SCHEMA {_quoted(missing)}"
        yield _Gap(f"the publication {name} has no whole schema {', '.join(missing)}: {_LOST}", way_out)
    if is_first:
        yield from _silent(properties, f"the publication {name}", alter, publication, schemas)


def _silent(
    properties: Mapping[str, str], publication: str, alter: str, content: Mapping[str, Any], schemas: Sequence[str]
) -> Iterator[_Gap]:
    """The tables that the snapshot has, and of which the log tells nothing."""
    excluded = properties.get("table.exclude.list", "")
    tables = sorted(f"{schema}.{table}" for schema, table in content["silent"] or () if schema in schemas)
    if silent := [table for table in tables if not _matches(excluded, table)]:
        shown = ", ".join(silent[:_SHOWN]) + (", …" if len(silent) > _SHOWN else "")
        text = f"{publication} tells no change of {shown}, which would stay as the snapshot has them: changes of a partition "
        text += "come under one name, its own or that of the table above it, and of an unlogged table none come"
        root = f"{alter} SET (publish_via_partition_root = true) makes it the table above"
        yield _Gap(text, f"name these tables by table.exclude.list; {root}")


def _matches(patterns: str, name: str) -> bool:
    """True if one of ``patterns``, regular expressions of Debezium with commas between, is for ``name``."""
    return any(re.fullmatch(pattern.strip(), name, re.IGNORECASE) for pattern in patterns.split(","))


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)
