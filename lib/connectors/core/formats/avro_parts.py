"""What an Avro schema is put together of: records, unions, lists and maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from .avro_cursor import Cursor, Ints
from .avro_leaves import Node
from .base import fields_of


class RecordNode(Node):
    def __init__(
        self, want: pa.DataType | None, path: str, inner: list[tuple[str, Node]], defaults: dict[str, Any]
    ) -> None:
        super().__init__(want, path)
        self.inner = inner
        self.defaults = defaults
        self.least = sum(node.least for _, node in inner)

    def read(self, at: Cursor) -> Any:
        columns = {name: node.read(at) for name, node in self.inner}
        if self.want is None:
            return None
        fields = fields_of(self.want)
        for field in fields:
            if columns.get(field.name) is None:
                default = pa.array([_default(self.defaults.get(field.name), field.type)], field.type)
                columns[field.name] = default.take(pa.array(np.zeros(len(at), np.int64)))
        if not fields:
            return pa.array([{}] * len(at), self.want)
        return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)


def _default(value: Any, kind: pa.DataType) -> Any:
    """A default as JSON has it, as Arrow takes it: bytes are text of the same code points there."""
    if isinstance(value, str) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        return value.encode("latin-1")
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {field.name: _default(value.get(field.name), field.type) for field in fields_of(kind)}
    return list(value.items()) if isinstance(value, dict) else value


class UnionNode(Node):
    """A value of one of some types, all read as the same one; ``None`` is the branch that holds null."""

    def __init__(self, want: pa.DataType | None, path: str, nodes: list[Node | None]) -> None:
        super().__init__(want, path)
        self.nodes = nodes

    def read(self, at: Cursor) -> Any:
        branch = self._branch(at)
        pieces, places = [], []
        for number, node in enumerate(self.nodes):
            which = np.flatnonzero(branch == number)
            if node is not None and len(which):
                pieces.append(_through(node, at, which))
                places.append(which)
        if self.want is None:
            return None
        if len(pieces) == 1 and len(places[0]) == len(at):
            return pieces[0]
        return _scattered(pieces, places, len(at), self.want)

    def _branch(self, at: Cursor) -> Ints:
        branch = at.numbers(self.path)
        wrong = (branch < 0) | (branch >= len(self.nodes))
        at.fail(wrong, f"{self.path}: no such branch of its union")
        return np.where(at.records.failed[at.row], -1, branch)


class MembersNode(UnionNode):
    """A union of several types, as Spark has it: a struct of ``member0``, ``member1`` …, of which one is not null."""

    def read(self, at: Cursor) -> Any:
        assert self.want is not None
        branch = self._branch(at)
        members = []
        for number, node in enumerate(self.nodes):
            if node is not None:
                assert node.want is not None
                which = np.flatnonzero(branch == number)
                pieces = [_through(node, at, which)] if len(which) else []
                members.append(_scattered(pieces, [which] if len(which) else [], len(at), node.want))
        nothing = [number for number, node in enumerate(self.nodes) if node is None]
        mask = pa.array(np.isin(branch, [*nothing, -1]))
        return pa.StructArray.from_arrays(members, fields=fields_of(self.want), mask=mask)


def _through(node: Node, at: Cursor, which: Ints) -> Any:
    """What ``node`` reads of some of the records."""
    if len(which) == len(at):
        return node.read(at)
    part = at.part(which)
    values = node.read(part)
    at.follow(part, which)
    return values


def _scattered(pieces: list[pa.Array], places: list[Ints], count: int, kind: pa.DataType) -> pa.Array:
    if not pieces:
        return pa.nulls(count, kind)
    source = np.full(count, -1, np.int64)
    where = np.concatenate(places)
    source[where] = np.arange(len(where))
    values = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
    return values.take(pa.array(source, mask=source < 0))


class ListNode(Node):
    """A list: blocks of items, each with their count, and no block at the end.

    The first items of all records are read together, then all the second ones …
    """

    def __init__(self, want: pa.DataType | None, path: str, *items: Node) -> None:
        super().__init__(want, path)
        self.items = items
        self.size = sum(item.least for item in items)
        if not self.size:
            raise ValueError(f"{self.path}: a list of values that have no bytes has no bounds")

    def read(self, at: Cursor) -> Any:
        owners: list[Ints] = []
        pieces: list[list[pa.Array]] = [[] for _ in self.items]
        rows = np.arange(len(at))
        while len(rows):
            part = at.part(rows)
            counts = self._counts(part)
            at.follow(part, rows)
            rows = rows[counts > 0]
            self._block(at, rows, counts[counts > 0], owners, pieces)
            rows = rows[~at.records.failed[at.row[rows]]]
        if self.want is None:
            return None
        owner = np.concatenate(owners) if owners else np.zeros(0, np.int64)
        offsets = np.concatenate(([0], np.cumsum(np.bincount(owner, minlength=len(at))))).astype(np.int32)
        order = pa.array(np.argsort(owner, kind="stable"))
        wants = [item.want for item in self.items]
        columns = [
            pa.concat_arrays(made).take(order) if made else pa.nulls(0, want)
            for made, want in zip(pieces, wants, strict=True)
        ]
        return self._made(pa.array(offsets), columns)

    def _counts(self, at: Cursor) -> Ints:
        counts = at.numbers(self.path)
        sized = (counts < 0) & ~at.records.failed[at.row]
        if sized.any():  # the size of the block in bytes follows, for those who want to skip it
            which = np.flatnonzero(sized)
            part = at.part(which)
            part.lengths(self.path)
            at.follow(part, which)
        wide = counts == np.iinfo(np.int64).min
        counts = np.abs(np.where(wide, 0, counts))
        at.fail(wide | (counts > (at.end - at.at) // self.size), f"{self.path}: more items than the record has bytes")
        return np.where(at.records.failed[at.row], 0, counts)

    def _block(self, at: Cursor, rows: Ints, counts: Ints, owners: list[Ints], pieces: list[list[pa.Array]]) -> None:
        part = at.part(rows)
        done = 0
        while len(rows):
            for item, made in zip(self.items, pieces, strict=True):
                values = item.read(part)
                if values is not None:
                    made.append(values)
            owners.append(rows)
            at.follow(part, rows)
            done += 1
            more = (counts > done) & ~at.records.failed[at.row[rows]]
            if not more.all():
                rows, counts, part = rows[more], counts[more], part.part(more)

    def _made(self, offsets: pa.Array, columns: list[pa.Array]) -> pa.Array:
        kind = pa.ListArray if pa.types.is_list(self.want) else pa.LargeListArray
        return kind.from_arrays(offsets, columns[0]).cast(self.want)


class MapNode(ListNode):
    def _made(self, offsets: pa.Array, columns: list[pa.Array]) -> pa.Array:
        return pa.MapArray.from_arrays(offsets, *columns).cast(self.want)
