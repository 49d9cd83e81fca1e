"""The Delta table beside the database: every row and every column, with a readable difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.delta_log import delta
from tests.systems.cdc.values import normalised, shown

Rows = dict[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Copy:
    """A table of a database as it was at a quiet point: the columns with their types, the key, and the rows."""

    name: str
    columns: Mapping[str, str]
    keys: Sequence[str]
    rows: list[tuple[Any, ...]]

    def by_key(self) -> Rows:
        found: Rows = {}
        for row in self.rows:
            cells = dict(zip(self.columns, row, strict=True))
            values = {name: normalised(value, self.columns[name]) for name, value in cells.items()}
            found[tuple(values[key] for key in self.keys)] = values
        return found


@dataclass(frozen=True)
class Difference:
    """What is wrong with a row: ``what`` is missing, surplus, doubled, or the name of a column with its two values."""

    table: str
    key: tuple[Any, ...]
    what: str
    expected: Any = None
    actual: Any = None

    def __str__(self) -> str:
        key = ", ".join(map(str, self.key))
        if self.what in ("missing", "surplus", "doubled"):
            return f"{self.table} {key}: {self.what}; {shown(self.actual, 300)}"
        return f"{self.table} {key}: {self.what} is {shown(self.actual)} in Delta and {shown(self.expected)} in the database"


def differences(copy: Copy, path: Path, *, is_exact: bool = False) -> Iterator[Difference]:
    """Where the Delta table at ``path`` differs from ``copy``; columns that only Delta has count if ``is_exact``."""
    expected = copy.by_key()
    table = delta_table(path)
    if table is None:
        yield from (Difference(copy.name, key, "missing", actual="there is no Delta table") for key in expected)
        return
    absent = [name for name in copy.columns if name not in table.column_names]
    if absent and table.column_names:  # a table without files has none either
        yield Difference(copy.name, (), f"column {', '.join(absent)}", list(copy.columns), table.column_names)
    if is_exact and (surplus := {*table.column_names} - {*copy.columns, "_position"}):
        yield Difference(copy.name, (), f"column {', '.join(sorted(surplus))}", list(copy.columns), table.column_names)
    names = [name for name in copy.columns if name in table.column_names]
    actual: Rows = {}
    positions: dict[tuple[Any, ...], Any] = {}
    for row in table.to_pylist():
        values = {name: normalised(row[name], copy.columns[name]) for name in names}
        key = tuple(values.get(key) for key in copy.keys)
        if key in actual:
            yield Difference(copy.name, key, "doubled", actual=[values, actual[key]])
        actual[key] = values
        positions[key] = row.get("_position")
    for key in sorted(expected.keys() | actual.keys(), key=str):
        if key not in actual:
            yield Difference(copy.name, key, "missing", actual=expected[key])
        elif key not in expected:
            yield Difference(copy.name, key, "surplus", actual={"_position": positions[key], **actual[key]})
        else:
            for name in names:
                if not _same(actual[key][name], expected[key][name]):
                    yield Difference(copy.name, key, name, expected[key][name], actual[key][name])


def _same(actual: Any, expected: Any) -> bool:
    """True for equal values of one type: JSON's true is not 1."""
    return bool(actual == expected) and isinstance(actual, bool) == isinstance(expected, bool)


def report(found: Sequence[Difference], limit: int = 25) -> str:
    """The differences as text: how many of each sort, then the first ones of each."""
    sorts: dict[tuple[str, str], list[Difference]] = {}
    for difference in found:
        sorts.setdefault((difference.table, difference.what), []).append(difference)
    lines = [f"{len(found)} differences: " + ", ".join(f"{t} {what} {len(some)}" for (t, what), some in sorts.items())]
    share = max(2, limit // max(1, len(sorts)))
    for some in sorts.values():
        lines += [f"  {difference}" for difference in some[:share]]
        if len(some) > share:
            lines.append(f"  … and {len(some) - share} more")
    return "\n".join(lines)


def delta_table(path: Path) -> pa.Table | None:
    """The rows of a Delta table, read without Spark; ``None`` if there is none."""
    return delta(path) if (path / "_delta_log").exists() else None
