"""What a sink remembers: the last batch of each query that has written through it. Small, since it travels with each commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final

from ...core.errors import Fatal
from ...core.ledger import Entry, is_stream
from ...core.state import checked, dumps, loads, versioned

LARGEST: Final = 4000
"""Bytes; brokers keep 4096 with a committed offset (``offset.metadata.max.bytes``)."""


@dataclass(frozen=True)
class Layout:
    """The batches of ``query`` that are not in the book yet are written in so many ``slots``, by the tasks of ``run`` alone.

    In the book of a slot it tells how its last batch was written.
    """

    query: str
    slots: int
    run: str


@dataclass(frozen=True)
class Book:
    """The entries by query; ``version`` grows with each change. Without a ``layout`` a batch is one transaction."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    version: int = 0
    layout: Layout | None = None

    def with_layout(self, layout: Layout) -> Book:
        """The book while ``layout`` is in force."""
        return replace(self, layout=layout, version=self.version + 1)

    def with_entry(self, entry: Entry, layout: Layout | None = None) -> Book:
        """The book when ``entry`` is committed. A batch write of its own is forgotten with the next change."""
        kept = {query: one for query, one in self.entries.items() if not query.startswith("once-")}
        small = Entry(entry.query, entry.batch, entry.rows, entry.checksum, at=entry.at or time.time())
        return replace(self, entries={**kept, entry.query: small}, version=self.version + 1, layout=layout)

    def streams(self) -> frozenset[str]:
        return frozenset(query for query in self.entries if is_stream(query))

    def text(self) -> str:
        """The book as JSON. Raises ``Fatal`` when it is too large for a broker."""
        rows = {q: [one.batch, one.rows, one.checksum, round(one.at, 3)] for q, one in self.entries.items()}
        layout = {"l": list(astuple(self.layout))} if self.layout else {}
        told = dumps(versioned(q=rows, n=self.version, **layout))
        if len(told.encode()) > LARGEST:
            raise Fatal(
                f"{len(rows)} queries have written under one sink id, more than Kafka can remember with an offset",
                way_out="give each query a transactionalIdPrefix (or sinkId) of its own",
            )
        return told

    @classmethod
    def of(cls, text: str) -> Book:
        state: dict[str, Any] = checked(loads(text, "the ledger of a Kafka sink"), "the ledger of a Kafka sink")
        entries = {q: Entry(q, batch, rows, checksum, at=at) for q, (batch, rows, checksum, at) in state["q"].items()}
        return cls(entries, state["n"], Layout(*state["l"]) if "l" in state else None)
