"""``connectors.hybrid``, the source: its options and its guarantee."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...core import REQUIRED, EpochSource, Json, Misconfigured, Names, Options, Problem, Source, StateError, Values
from ...core.datasets import Dataset
from ...storage import storage_of
from ...storage.location import Location
from .enumerator import HybridEnumerator
from .overlap import Overlap, check_columns
from .parts import NAME, PART, Part, Start, StartOption, parts_of
from .reader import HybridReader

_log = logging.getLogger(NAME)


class OwnSources:
    """The user's own sources, which parts may be; unpickling adds those of them that this process can import."""

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark import cloudpickle

        from .. import added_systems

        sources = [source for source, _ in added_systems().values() if source is not None]
        return _add_all, tuple(cloudpickle.dumps(source) for source in sources)  # type: ignore[no-untyped-call]


def _add_all(*sources: bytes) -> OwnSources:
    from .. import add_system

    for source in sources:
        try:
            add_system(pickle.loads(source))
        except Exception as error:  # a part that needs it says so
            _log.info("a source of the user's own is not known here: %s", error)
    return OwnSources()


class HybridSource(Source):
    """Sources one after the other, as one stream: history first, then what comes.

    Each part but the last is read up to the end that its data has when the query, or a later run of it, comes to the part.
    Then the next one follows, in a batch of its own. The columns are those of ``.schema(…)``, else of the first part;
    ``columns`` of a part maps names to the part's own, also to fields: ``{"id": "value.id"}``. Each part is read with
    exactly these columns and their types.

    A part starts with its first record, if its own options do not say more, or where ``startFrom`` says. A checkpoint has
    the name of the present part: earlier ones may be taken out of ``sources``, and new ones may follow the last.

    Guarantee: that of the parts. With a column in ``startFrom`` rows of the overlap come twice, and with ``deduplicateBy``
    once: a row is left out whose key came before it with a time in the overlap.
    """

    name = "hybrid"
    limits = ("rows", "bytes", "files")
    bounded = False
    conditions = (
        "those of its parts; with startFrom, the parts before have all records up to that time, and with an overlap "
        "deduplicateBy identifies a record"
    )
    options = Options(
        sources=Json(REQUIRED, kind=list, meaning="the parts, in their order", words={"Parts": PART}),
        startFrom=StartOption(
            None, meaning="where a later part starts: a time; or a column, at whose last time before it, less an overlap"
        ),
        deduplicateBy=Names(
            (), only_with="startFrom", meaning="columns that identify a record: none of the overlap comes twice"
        ),
        stateLocation=Location(
            None, meaning="with a column in startFrom: a folder of this query alone, for times and keys; any storage"
        ),
        storageOptions=Json({}, kind=dict, meaning="fsspec's keys for stateLocation"),
        through={"": "any option of the parts: it goes to those that know it and do not say otherwise"},
    )
    extensions = OwnSources()

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        self.parts = [part for part in parts_of(values["sources"]) if isinstance(part, Part)]
        self.start: Start | None = values["startFrom"]
        self.common: Mapping[str, Any] = {}
        """Options for all parts that know them and do not say otherwise."""

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, streaming: bool = False) -> Source:
        source: Any = super().of(typed, streaming=streaming)
        own = {name.lower() for name in cls.options.declared}
        source.common = {name: value for name, value in typed.items() if name.lower() not in own}
        for part in source.parts:
            source.member(part, 0)
        return source  # type: ignore[no-any-return]

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        parts = list(parts_of(values["sources"]))
        yield from (Problem("sources", part) for part in parts if isinstance(part, str))
        if not parts:
            yield Problem("sources", "must name a source at least.")
        for part in parts[:-1]:
            if isinstance(part, Part) and issubclass(part.kind, EpochSource):
                text = f"has {part.name} before another part, and a queue has no end: what is late would never be read."
                yield Problem("sources", text)
        known = [part.kind.known_options() for part in parts if isinstance(part, Part)]
        for name in values.extra if len(known) == len(parts) else ():
            if not any(options.knows(name) for options in known):
                text = f"is no option of this source, which has {', '.join(cls.options.declared)}, and of none of its parts."
                yield Problem(name, text)
        start: Start | None = values["startFrom"]
        if start is None:
            return
        if start.column and values["stateLocation"] is None:
            yield Problem("stateLocation", f"missing; startFrom={start.column} needs a folder for the times of rows.")
        if not start.column and values["deduplicateBy"]:
            text = "needs a column in startFrom, such as startFrom=\"ts - 10 minutes\": it says which rows may come twice."
            yield Problem("deduplicateBy", text)

    @property
    def schema(self) -> str:  # type: ignore[override]
        first = self.parts[0]
        if first.columns:
            text = f"missing; columns of {first.name} maps names, so give the types of the rows by .schema(…)."
            raise Misconfigured(NAME, [Problem("schema", text)])
        return self.member(first, None).schema

    def number(self, name: str) -> int:
        """The place of a part in ``sources``. Raises :class:`StateError` for a name that is not there."""
        for number, part in enumerate(self.parts):
            if part.name == name:
                return number
        raise StateError(
            f"the checkpoint is in the part {name}, which sources does not have: {', '.join(part.name for part in self.parts)}",
            way_out="give the part again, under this name; only parts that are read to their end may go",
        )

    def part(self, name: str) -> Part:
        """The part of this name. Raises :class:`StateError` as :meth:`number`."""
        return self.parts[self.number(name)]

    def member(self, part: Part, last: int | None) -> Source:
        """The source of ``part``; ``last`` is the last time of the rows before it, in microseconds since 1970."""
        time = None
        if self.start is not None and part != self.parts[0] and last is not None:
            micros = self.start.time * 1e6 if self.start.time is not None else last - self.start.overlap * 1e6
            time = max(0, int(micros // 1000))
        return part.source(self.common, time)

    @property
    def overlaps(self) -> bool:
        """True if ``startFrom`` asks what the parts have read."""
        return self.start is not None and bool(self.start.column)

    @property
    def record(self) -> list[Any]:
        """What is recorded of rows, for positions: the column of times, the overlap in seconds, and the columns of keys."""
        start = self.start or Start()
        return [start.column, str(start.overlap), *self.values["deduplicateBy"]]

    def overlap(self, query: str) -> Overlap | None:
        """What the parts of ``query`` have read, if :attr:`overlaps`."""
        if self.start is None or not self.overlaps:
            return None
        storage = storage_of(self.values["stateLocation"], self.values["storageOptions"])
        return Overlap(storage, query, self.start.column, self.start.overlap, self.values["deduplicateBy"])

    def datasets(self) -> Sequence[Dataset]:
        return [dataset for part in self.parts for dataset in self.member(part, None).datasets()]

    def enumerator(self) -> HybridEnumerator:
        return HybridEnumerator(self)

    def reader(self, schema: pa.Schema) -> HybridReader:
        if self.start is not None and self.overlaps:
            check_columns(schema, self.start.column, self.values["deduplicateBy"])
        for part in self.parts:
            part.check(schema)
            part.check_source(self.member(part, None), schema)
        return HybridReader(self, schema)
