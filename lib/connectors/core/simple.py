"""A function as a source. The names of its parameters say how Spark can read it:

====================  =================================================================================================
parameters            meaning
====================  =================================================================================================
none                  bounded and not parallel: one task calls it once; ``numPartitions`` above 1 is an error
subtask, subtasks     bounded and parallel: each task calls it with its index (from 0) and the number of tasks
start, end            rows ``start`` up to, not including, ``end``; ``latest()`` returns the number of rows there are now. The
                      source can be unbounded, takes ``maxRowsPerTrigger``, and resumes after the last row
====================  =================================================================================================

A parameter ``options`` receives the user's options, a mapping of text by lower-case name. The function returns or yields
rows: a value (or a tuple of one) if there is one column, else a tuple, a list or a dict. It must return the same rows at
each call, since a replay calls it again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from ..ground.errors import Fatal, Problem
from ..ground.options import Options, Values
from .planning import even_ranges
from .source import Position, ReadLimit, Source, Split, SplitEnumerator, SplitReader

_ROWS_PER_BATCH = 10_000

DECLARED: dict[str, type[Source]] = {}
"""Sources made by :func:`source`, by name; ``connectors.register(spark)`` takes them along."""


def source(
    name: str,
    schema: str,
    *,
    latest: Callable[..., int] | None = None,
    max_parallelism: int | None = None,
) -> Callable[[Callable[..., Iterable[Any]]], type[Source]]:
    """A decorator that makes a function or generator the format ``connectors.<name>``; see the module's table.

    ``schema`` is the columns as SQL text (``"value long"``). ``latest`` is for a function of ``start, end``.
    ``max_parallelism`` is the number of connections that the system allows. Raises ``TypeError`` for other parameters.
    """

    def declare(function: Callable[..., Iterable[Any]]) -> type[Source]:
        shape = tuple(p for p in inspect.signature(function).parameters if p != "options")
        if shape not in _SHAPES or (shape == ("start", "end")) != (latest is not None):
            raise TypeError(
                f"{function.__name__}{inspect.signature(function)} is no source: its parameters must be none, "
                "(subtask, subtasks), or (start, end) together with latest=…; each may be followed by options"
            )
        parallel = shape != ()
        kind = type(
            function.__name__,
            (FunctionSource,),
            {
                "__doc__": function.__doc__,
                "__module__": function.__module__,
                "name": name,
                "schema": schema,
                "shape": shape,
                "function": staticmethod(function),
                "latest": staticmethod(latest) if latest else None,
                "max_parallelism": max_parallelism if parallel else 1,
                "bounded": latest is None,
                "limits": ("rows",) if latest else (),
            },
        )
        DECLARED[name] = kind
        return kind

    return declare


_SHAPES = ((), ("subtask", "subtasks"), ("start", "end"))


@dataclass(frozen=True)
class Share(Split):
    """The arguments of one call of the function: subtask and number of subtasks, or start and end."""

    first: int
    last: int


class FunctionSource(Source):
    """A source that :func:`source` made of a function. Options: ``numPartitions``, and those that the function reads."""

    shape: tuple[str, ...] = ()
    function: Callable[..., Iterable[Any]]
    latest: Callable[..., int] | None = None
    options = Options(through={"": "what the function takes"})
    conditions = "the function gives the same rows at each call"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        readers, most = values["numPartitions"], cls.max_parallelism
        if readers and most and readers > most:
            text = f"must be {most} or less; got {readers}. The source allows no more parallel readers."
            yield Problem("numPartitions", text)

    def call(self, function: Callable[..., Any], *arguments: int) -> Any:
        """Calls the user's function, with the options if it takes them."""
        if "options" in inspect.signature(function).parameters:
            return function(*arguments, options=dict(self.values.extra))
        return function(*arguments)

    def enumerator(self) -> SplitEnumerator[Share]:
        return RowEnumerator(self) if self.latest else OnceEnumerator()

    def reader(self, schema: pa.Schema) -> SplitReader[Share]:
        return FunctionReader(self, schema)


class OnceEnumerator(SplitEnumerator[Share]):
    """Plans a bounded function: the position says whether it has been read."""

    def start(self) -> Position:
        return {"read": False}

    def head(self) -> bool:
        return True

    def advance(self, at: Position, head: bool, limit: ReadLimit) -> Position:
        return {"read": True}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Share]:
        for subtask in range(parallelism):
            yield Share(subtask, parallelism)


class RowEnumerator(SplitEnumerator[Share]):
    """Plans a function of row numbers: the position is the number of rows read."""

    def __init__(self, source: FunctionSource) -> None:
        self.source = source

    def start(self) -> Position:
        return {"rows": 0}

    def head(self) -> int:
        if self.source.latest is None:
            raise TypeError("a function of start and end has latest")
        return int(self.source.call(self.source.latest))

    def advance(self, at: Position, head: int, limit: ReadLimit) -> Position:
        end = head if limit.rows is None else min(head, at["rows"] + limit.rows)
        return {"rows": max(at["rows"], end)}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Share]:
        for first, last in even_ranges(start["rows"], end["rows"] - 1, parallelism):
            yield Share(first, last + 1)


class FunctionReader(SplitReader[Share]):
    """Calls the function and gathers its rows into record batches."""

    def __init__(self, source: FunctionSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source = source
        self.schema = schema

    def read(self, split: Share) -> Iterator[pa.RecordBatch]:
        arguments = (split.first, split.last) if self.source.shape else ()
        rows = iter(self.source.call(self.source.function, *arguments))
        while block := list(islice(rows, _ROWS_PER_BATCH)):
            yield pa.RecordBatch.from_pylist([self._row(row) for row in block], schema=self.schema)

    def _row(self, row: Any) -> Mapping[str, Any]:
        names = self.schema.names
        if isinstance(row, Mapping):
            return row
        if len(names) == 1 and not (isinstance(row, tuple) and len(row) == 1):
            return {names[0]: row}
        cells = row if isinstance(row, (tuple, list)) else (row,)
        if len(cells) != len(names):
            raise Fatal(f"the schema has {len(names)} columns ({', '.join(names)}), but the function gave {row!r}")
        return dict(zip(names, cells, strict=True))
