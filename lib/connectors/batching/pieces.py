"""Runs of entries that wait or are in flight; slicing a run costs no Python work per record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from ..core.dead_letters import row_at


@dataclass(frozen=True, eq=False)
class Chunk:
    """Entries of one record batch, in its order.

    ``index`` holds the row of each entry, ``ends`` the bytes up to its end, ``keys`` the key within which order matters
    (``None``: no order). ``number`` is the place of the record batch in the input.
    """

    number: int
    since: float
    entries: Sequence[Any]
    ends: Sequence[int]
    keys: Sequence[Hashable] | None
    rows: pa.RecordBatch
    index: Sequence[int]

    @classmethod
    def of(
        cls,
        number: int,
        since: float,
        entries: Sequence[Any],
        sizes: Sequence[int],
        keys: Sequence[Hashable] | None,
        rows: pa.RecordBatch,
        index: Sequence[int] | None = None,
    ) -> Chunk:
        return cls(number, since, entries, list(accumulate(sizes)), keys, rows, index or range(len(entries)))

    def pick(self, places: Sequence[int]) -> Chunk:
        """The entries at ``places`` as a new chunk."""
        before = [self.ends[place - 1] if place else 0 for place in places]
        sizes = [self.ends[place] - first for place, first in zip(places, before, strict=True)]
        keys = [self.keys[place] for place in places] if self.keys is not None else None
        index = [self.index[place] for place in places]
        return Chunk.of(self.number, self.since, [self.entries[place] for place in places], sizes, keys, self.rows, index)


@dataclass(frozen=True, eq=False)
class Piece:
    """The entries ``first`` to ``last`` (not included) of a chunk, which have failed ``tries`` times since ``failing_since``.

    ``is_alone``: they come from a refused request and get a request of their own.
    """

    chunk: Chunk
    first: int
    last: int
    tries: int = 0
    failing_since: float = 0.0
    is_alone: bool = False

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def bytes(self) -> int:
        return self.chunk.ends[self.last - 1] - self._before()

    @property
    def order(self) -> tuple[int, int]:
        """The place of the piece in the input: the number of its record batch, and the row of its first entry."""
        return self.chunk.number, self.chunk.index[self.first]

    def entries(self) -> Sequence[Any]:
        return self.chunk.entries[self.first : self.last]

    def keys(self) -> Sequence[Hashable]:
        return self.chunk.keys[self.first : self.last] if self.chunk.keys is not None else ()

    def fitting(self, records: int, size: int) -> int:
        """The number of first entries that fit into ``records`` and ``size`` bytes."""
        last = min(self.last, self.first + records)
        return bisect_right(self.chunk.ends, self._before() + size, self.first, last) - self.first

    def before_any(self, keys: set[Hashable], most: int) -> int:
        """How many of the first ``most`` entries come before the first one whose key is in ``keys``."""
        first_keys = self.keys()[:most]
        if not first_keys or keys.isdisjoint(first_keys):
            return most
        return next(place for place, key in enumerate(first_keys) if key in keys)

    def cut(self, records: int) -> tuple[Piece, Piece]:
        """The first ``records`` entries, and the rest."""
        middle = self.first + records
        return replace(self, last=middle), replace(self, first=middle)

    def pick(self, places: Sequence[int], now: float) -> Piece:
        """The entries at ``places``, which have failed once more."""
        chunk = self.chunk.pick([self.first + place for place in places])
        return Piece(chunk, 0, len(places), self.tries + 1, self.failing_since if self.tries else now, self.is_alone)

    def row(self, place: int) -> dict[str, Any]:
        """The row from which the entry at ``place`` was made."""
        return row_at(self.chunk.rows, self.chunk.index[self.first + place])

    def _before(self) -> int:
        return self.chunk.ends[self.first - 1] if self.first else 0
