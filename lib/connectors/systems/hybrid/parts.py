"""The parts of a hybrid source, and where each begins."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ...core import REQUIRED, Json, Misconfigured, Options, Problem, Source, Split, Text
from ...formats.schema_text import names_in
from ...ground.options import Option
from ...ground.quantities import duration, moment
from ...ground.retry import RETRY_OPTIONS

NAME: Final = "connectors.hybrid"
_NO_START: Final = ("fallback", "strategy")
"""The ends of options that say more of a start, and are none."""


@dataclass(frozen=True)
class Start:
    """Where a part starts behind another one: at a ``time`` in seconds, or at the last time in ``column`` less ``overlap``."""

    time: float | None = None
    column: str = ""
    overlap: float = 0.0


class StartOption(Option):
    """A :class:`Start`, from a time, or from ``column`` or ``column - 10 minutes``."""

    def parse(self, text: str) -> Start:
        with contextlib.suppress(ValueError):
            return Start(moment(text))
        column, minus, overlap = text.strip().rpartition(" - ")
        try:
            return Start(column=column.strip(), overlap=duration(overlap)) if minus else Start(column=_column(text))
        except ValueError:
            raise ValueError('a time, or a column of times, less an overlap, such as "ts - 10 minutes"') from None

    def accepts(self) -> str:
        return "time, or column - duration"


def _column(text: str) -> str:
    if not re.fullmatch(r"[^\W\d]\w*", text.strip()):
        raise ValueError(text)
    return text.strip()


@dataclass(frozen=True)
class Part:
    """One of the sources: its ``name``, its class and options, and which of its columns is which one of the rows."""

    name: str
    kind: type[Source]
    options: Mapping[str, Any]
    columns: Mapping[str, str]

    def source(self, common: Mapping[str, Any], time: int | None) -> Source:
        """The source. It starts at ``time`` (milliseconds since 1970), else where its options say, or with its first record.

        Raises :class:`Misconfigured` for options that do not fit.
        """
        known = self.kind.known_options()
        names = {known.key(name) for name in self.options}
        common = {name: value for name, value in common.items() if known.knows(name) and known.key(name) not in names}
        typed = {**common, **self.options}
        own = [name for name in typed if name.lower().startswith("starting") and not name.lower().endswith(_NO_START)]
        if own and time is not None:
            text = f"says where {self.name} starts, and so does its {own[0]}. Leave one of the two out."
            raise Misconfigured(NAME, [Problem("startFrom", text)])
        start = {} if own else self.kind.start_options(time)
        try:
            return self.kind.of({**start, **typed}, streaming=True)
        except Misconfigured as wrong:
            problems = [Problem(f"{self.name}: {problem.option}", problem.text) for problem in wrong.problems]
            raise Misconfigured(NAME, problems) from None

    def check(self, rows: pa.Schema) -> None:
        """Raises :class:`Misconfigured` if ``columns`` names what is no column of ``rows``."""
        if unknown := [name for name in self.columns if name not in rows.names]:
            text = f"{self.name}: columns names {', '.join(unknown)}, which the rows do not have: {', '.join(rows.names)}."
            raise Misconfigured(NAME, [Problem("sources", text)])

    def check_source(self, source: Source, rows: pa.Schema) -> None:
        """Raises :class:`Misconfigured` for columns that ``source`` does not have, if it tells them without its system."""
        if not isinstance(text := vars(source).get("schema", vars(self.kind).get("schema")), str):
            return
        for column in rows.names:
            known = names_in(text)
            for name in self._path(column):
                if known and name not in known:
                    path = ".".join(self._path(column))
                    text = f"{self.name} has no {path} for the column {column}: {', '.join(known)}. Name its own by columns."
                    raise Misconfigured(NAME, [Problem("sources", text)])
                known = known.get(name, {})

    def _path(self, column: str) -> list[str]:
        """The part's column that is the rows' ``column``, and the fields in it. Only ``columns`` names fields."""
        return self.columns[column].split(".") if column in self.columns else [column]

    def schema(self, rows: pa.Schema) -> pa.Schema:
        """The columns to read for ``rows``: several of them may be fields of one structure."""
        fields: dict[str, Any] = {}
        for field in rows:
            *outer, last = self._path(field.name)
            place = fields
            for name in outer:
                place = place.setdefault(name, {})
            place[last] = field.type
        return pa.schema(_fields(fields))

    def rows(self, records: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """``records`` as rows of ``schema``."""
        columns = []
        for field in schema:
            first, *inner = self._path(field.name)
            column = records.column(first)
            for name in inner:
                column = pc.struct_field(column, name)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fields(kinds: Mapping[str, Any]) -> list[pa.Field]:
    return [
        pa.field(name, pa.struct(_fields(kind)) if isinstance(kind, Mapping) else kind) for name, kind in kinds.items()
    ]


PART: Final = Options(
    format=Text(REQUIRED, meaning="the source, such as files"),
    options=Json({}, kind=dict, meaning="its options"),
    columns=Json({}, kind=dict, meaning='its columns by that of the rows, also fields of one: {"id": "value.id"}'),
    name=Text(None, meaning="in the checkpoint, in errors and in the query's table; default: the format"),
)
"""What an object in ``sources`` says."""


def parts_of(sources: Sequence[Any]) -> Iterator[Part | str]:
    """The parts that the option ``sources`` describes, or what is wrong with it."""
    from .. import source_class

    names = set[str]()
    for number, item in enumerate(sources, 1):
        try:
            values = PART.parse(NAME, item if isinstance(item, Mapping) else {}, kind="part")
            kind = source_class(values["format"])
        except Misconfigured as wrong:
            yield from (f"number {number}: {problem.option} {problem.text}" for problem in wrong.problems)
            continue
        if kind.batch_only or kind.name == "hybrid":
            yield f"number {number}: format cannot be {kind.name}: {kind.batch_only or 'list its own parts'}."
            continue
        if wrong_names := [name for name in values["columns"].values() if not isinstance(name, str)]:
            yield f"number {number}: columns must be names; got {wrong_names[0]!r}."
            continue
        yield from (
            f"number {number}: {option} holds for all parts; give it as an option of its own, beside sources."
            for option in values["options"]
            if RETRY_OPTIONS.knows(option)
        )
        name = values["name"] or kind.name
        if name in names:
            yield f'has two parts with the name {name}. Give each a name of its own: {{"name": …, "format": …}}.'
        names.add(name)
        yield Part(name, kind, values["options"], values["columns"])


@dataclass(frozen=True)
class PartSplit(Split):
    """A split of a part. ``last`` is the last time of the rows before the part, in microseconds since 1970."""

    part: str
    split: Any
    query: str = ""
    last: int | None = None
