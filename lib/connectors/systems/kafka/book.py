"""What a sink remembers: the last batch of each query that has written through it. Small, since it travels with each commit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...core.errors import Fatal
from ...core.ledger import Entry, is_stream
from ...core.state import checked, dumps, loads, versioned

LARGEST: Final = 4000
"""Bytes; brokers keep 4096 with a committed offset (``offset.metadata.max.bytes``)."""


@dataclass(frozen=True)
class Book:
    """The entries by query; ``version`` grows with each change."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    version: int = 0

    def with_entry(self, entry: Entry) -> Book:
        """The book when ``entry`` is committed. A batch write of its own is forgotten with the next change."""
        kept = {query: one for query, one in self.entries.items() if not query.startswith("once-")}
        small = Entry(entry.query, entry.batch, entry.rows, entry.checksum, at=entry.at or time.time())
        return replace(self, entries={**kept, entry.query: small}, version=self.version + 1)

    def streams(self) -> frozenset[str]:
        return frozenset(query for query in self.entries if is_stream(query))

    def text(self) -> str:
        """The book as JSON. Raises ``Fatal`` when it is too large for a broker."""
        rows = {q: [one.batch, one.rows, one.checksum, round(one.at, 3)] for q, one in self.entries.items()}
        told = dumps(versioned(q=rows, n=self.version))
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
        return cls(entries, state["n"])
