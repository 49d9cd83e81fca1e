"""What a workload does beside plain transactions: switches, so that one fault does not hide the others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

SWITCHES: Final = {
    "null_defaults": "nulls in columns that have a default",
    "free_numeric": "values in columns of numeric without a precision, and of decimals with 38 digits",
    "late_table": "tables of whose changes the first batch may have none; without it, lost ledgers are tolerated",
    "bulk": "COPY of up to some thousand rows, UPDATE and DELETE of many",
    "key_change": "updates of the primary key, of one row and of many",
    "large_key_change": "those of rows whose large values the log leaves out",
    "waiting": "an INSERT that waits at an older unique index, so that the log's order is not the order of its positions",
    "add_column": "ALTER TABLE ADD COLUMN, with and without a default",
    "typed_defaults": "defaults of added columns that are no plain JSON: numeric, times, bytea, arrays, uuid, jsonb",
    "drop_default": "ADD COLUMN NOT NULL DEFAULT, and then DROP DEFAULT",
    "set_default": "ALTER COLUMN SET DEFAULT and DROP DEFAULT of columns that are there",
    "alter_type": "int becomes bigint, numeric(10,2) becomes numeric(14,4)",
    "widen_key": "the key becomes a bigint, once",
    "drop_column": "ALTER TABLE DROP COLUMN",
    "evolve": "tables evolve: columns are renamed, and as those that are dropped they were there at the last quiet point",
    "readd_column": "ADD COLUMN under the name of a column that was dropped",
    "truncate": "TRUNCATE; the merge must be told how to apply it",
    "incremental": "incremental snapshots by the signal table",
    "blocking": "blocking snapshots by the signal table",
    "restart_snapshot": "runs with another snapshot (snapshot.mode=always) of a part of the rows, while nothing changes",
    "filtered": "snapshots of a part of the rows: a filter of the signal, or snapshot.select.statement.overrides",
    "infinity": "infinite times",
    "ancient": "dates and times before 1583, and the last day that there is",
    "float_specials": "NaN and infinities in float8",
}
OPTIONAL: Final = frozenset({"large_key_change", "truncate", "readd_column", "evolve", "infinity", "ancient", "float_specials"})
"""Off by default: nobody promises them yet, or they stop the query until the user has decided."""
DEFAULT: Final = frozenset(SWITCHES) - OPTIONAL
SNAPSHOTS: Final = frozenset({"incremental", "blocking"})
"""Snapshots that the workload asks for."""
ALTERATIONS: Final = frozenset({"add_column", "drop_column", "readd_column", "drop_default", "alter_type", "widen_key"})
"""Changes of columns."""


def switches_of(text: str) -> frozenset[str]:
    """``"-blocking,+infinity"`` are the default switches with these changes, ``"=bulk,waiting"`` just the named ones."""
    if text.startswith("="):
        return _known(text[1:].split(","))
    names = [name.strip() for name in text.split(",") if name.strip()]
    added, removed = ([name[1:] for name in names if name[0] == sign] for sign in "+-")
    assert len(added) + len(removed) == len(names), f"switches begin with + or -, in {text}"
    return (DEFAULT | _known(added)) - _known(removed)


def environment_switches() -> frozenset[str]:
    """The switches that the environment variable ``SWITCHES`` asks for."""
    return switches_of(os.environ.get("SWITCHES", ""))


def _known(names: Iterable[str]) -> frozenset[str]:
    switches = frozenset(name.strip() for name in names if name.strip())
    assert switches <= SWITCHES.keys(), f"{sorted(switches - SWITCHES.keys())}: there are only {sorted(SWITCHES)}"
    return switches
