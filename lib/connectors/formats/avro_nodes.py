"""The nodes that read Avro records as Arrow columns, one for each part of a schema, and the cursor that they share.

Many records are read side by side: a cursor has one place in each, and numpy takes what stands at all these places at once. A
record that is wrong is noted with its reason, and its place moves to its end: nothing more is read of it, and no other record
is touched. A length that a record claims is compared with the bytes that the record has before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..ground.columns import is_binary, is_text
from .base import fields_of, scattered

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]
_PAD = 16  # so that eight bytes, or a number of ten, can be taken anywhere
_STOPS, _SEVENS = np.uint64(0x8080808080808080), np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE, _SEVEN = np.uint64(1), np.uint64(7)
_SQUEEZE = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


class Records:
    """The bytes of a column of records, and which of them are wrong."""

    def __init__(self, column: pa.Array) -> None:
        count = len(column)
        offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + count + 1]
        self.offsets = offsets.astype(np.int64) - int(offsets[0])
        body = column.buffers()[2]
        self.data = np.zeros(int(self.offsets[-1]) + _PAD, np.uint8)
        if body is not None and body.size:
            self.data[: int(self.offsets[-1])] = np.frombuffer(body, np.uint8)[int(offsets[0]) : int(offsets[-1])]
        self.words = np.ndarray((len(self.data) - 7,), "<u8", buffer=self.data.data, strides=(1,))
        self.failed = np.zeros(count, np.bool_)
        self.errors: dict[int, str] = {}

    def cursor(self) -> Cursor:
        return Cursor(self, self.offsets[:-1].copy(), self.offsets[1:].copy(), np.arange(len(self.failed)))


class Cursor:
    """A place in each of some records; ``row`` says which records."""

    def __init__(self, records: Records, at: Ints, end: Ints, row: Ints) -> None:
        self.records = records
        self.at = at
        self.end = end
        self.row = row

    def __len__(self) -> int:
        return len(self.row)

    def part(self, which: Any) -> Cursor:
        """A cursor for some of the records; :meth:`follow` takes over its places."""
        return Cursor(self.records, self.at[which], self.end[which], self.row[which])

    def follow(self, part: Cursor, which: Any) -> None:
        self.at[which] = part.at

    def fail(self, wrong: Flags, why: str) -> None:
        """Notes that the records at ``wrong`` cannot be read; the first reason counts."""
        if wrong.any():
            for row in self.row[wrong].tolist():
                self.records.errors.setdefault(row, why)
            self.records.failed[self.row[wrong]] = True
            self.at[wrong] = self.end[wrong]

    def skip(self, widths: Any, what: str) -> Ints:
        """Moves on by ``widths`` bytes, and returns where they began."""
        before = self.at
        self.at = before + widths
        self.fail((self.at > self.end) | (self.at < before), f"ends within {what}")
        return np.minimum(before, self.at)

    def bytes(self, what: str) -> npt.NDArray[np.uint8]:
        return self.records.data[self.skip(1, what)]

    def words(self, width: int, what: str) -> Words:
        words: Words = self.records.words[self.skip(width, what)]
        return words

    def numbers(self, what: str) -> Ints:
        """Avro's whole numbers: seven bits a byte, the lowest first, zigzag."""
        before = self.at
        first = self.records.data[before]
        value = first.astype(np.uint64)
        self.at = before + 1
        longer = first > 127
        if longer.any():
            which = np.flatnonzero(longer)
            value[which], self.at[which] = self._longer(before[which], which, what)
        self.fail(self.at > self.end, f"ends within {what}")
        signed: Ints = ((value >> _ONE) ^ (np.uint64(0) - (value & _ONE))).view(np.int64)
        return signed

    def _longer(self, at: Ints, which: Ints, what: str) -> tuple[Words, Ints]:
        word = self.records.words[at]
        stops = ~word & _STOPS
        lowest = stops & (np.uint64(0) - stops)
        word &= (lowest | (lowest - _ONE)) & _SEVENS
        for keep, move, by in _SQUEEZE:
            word = (word & keep) | ((word & move) >> by)
        used = (np.frexp(lowest.astype(np.float64))[1] // 8).astype(np.int64)
        if (endless := lowest == 0).any():
            data, late = self.records.data, at[endless]
            ninth, tenth = data[late + 8].astype(np.uint64), data[late + 9].astype(np.uint64)
            more = ninth > 127
            high = np.where(more, tenth & _ONE, 0).astype(np.uint64)
            word[endless] |= (ninth & np.uint64(127)) << np.uint64(56) | high << np.uint64(63)
            used[endless] = np.where(more, 10, 9)
            wrong = np.zeros(len(self), np.bool_)
            wrong[which[endless]] = more & (tenth > 1)
            self.fail(wrong, f"{what}: a number of more than 64 bits")
        return word, np.minimum(at + used, self.end[which] + 1)

    def lengths(self, what: str) -> Ints:
        """The lengths of what follows, none of them more than the bytes that are left."""
        sizes = self.numbers(what)
        self.fail(
            (sizes < 0) | (sizes > self.end - self.at), f"{what}: longer than the record, or shorter than nothing"
        )
        return np.where(self.records.failed[self.row], 0, sizes)

    def slices(self, sizes: Any, what: str) -> pa.Array:
        """The next ``sizes`` bytes of each, as a binary column."""
        begin = self.skip(sizes, what)
        if not len(begin):
            return pa.nulls(0, pa.binary())
        ends = np.column_stack((begin, np.maximum(self.at, begin))).ravel()
        offsets, data = pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self.records.data)
        whole = pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, offsets, data])
        return whole.take(pa.array(np.arange(0, len(ends), 2)))


_WIDER = {
    "int": (pa.types.is_int32, pa.types.is_int64, pa.types.is_floating),
    "long": (pa.types.is_int64, pa.types.is_floating),
    "float": (pa.types.is_floating,),
    "double": (pa.types.is_float64,),
}


_LONGEST_DECIMAL = 64  # bytes; 16 hold every decimal that Spark has


class Node:
    """Reads one part of a schema as ``want``; with ``None`` it passes over the values."""

    least = 1
    """The fewest bytes of a value."""

    def __init__(self, want: pa.DataType | None, path: str) -> None:
        self.want = want
        self.path = path or "the record"

    def read(self, at: Cursor) -> Any:
        raise NotImplementedError


def fits(right: bool, kind: str, want: pa.DataType | None, path: str) -> None:
    """Raises ``ValueError`` if what was written as ``kind`` cannot be read as ``want``."""
    if not right:
        raise ValueError(f"{path or 'the record'} was written as {kind} and cannot be read as {want}")


def leaf(kind: str, schema: Any, want: pa.DataType | None, path: str) -> Node:
    """The node of a type that has no parts. Raises ``ValueError`` if it cannot be read as ``want``."""
    logical = schema.get("logicalType", "")
    if kind == "null":
        return NullNode(want, path)
    if kind == "boolean":
        fits(want is None or pa.types.is_boolean(want), kind, want, path)
        return BooleanNode(want, path)
    if kind in ("int", "long"):
        return _number(kind, logical, want, path)
    if kind in ("float", "double"):
        fits(want is None or any(test(want) for test in _WIDER[kind]), kind, want, path)
        return FloatNode(want, path, 4 if kind == "float" else 8)
    if kind == "enum":
        fits(want is None or is_text(want), kind, want, path)
        return EnumNode(want, path, schema["symbols"])
    size = schema["size"] if kind == "fixed" else None
    if want is not None and pa.types.is_decimal(want):
        right = logical == "decimal" and schema.get("scale", 0) == want.scale and schema["precision"] <= want.precision
        fits(right, f"{logical or kind}({schema.get('precision', '')},{schema.get('scale', 0)})", want, path)
        return DecimalNode(want, path, size)
    fits(want is None or ((is_text(want) or is_binary(want)) and logical != "decimal"), logical or kind, want, path)
    return TextNode(want, path, size)


def _number(kind: str, logical: str, want: pa.DataType | None, path: str) -> Node:
    if want is not None and pa.types.is_timestamp(want):
        fits(logical.endswith(("timestamp-millis", "timestamp-micros")), logical or kind, want, path)
        return NumberNode(want, path, kind, 1000 if logical.endswith("millis") else 1)
    if want is not None and pa.types.is_date(want):
        fits(logical == "date", logical or kind, want, path)
        return NumberNode(want, path, kind)
    narrow = want is not None and kind == "int" and (pa.types.is_int8(want) or pa.types.is_int16(want))
    fits(want is None or narrow or any(test(want) for test in _WIDER[kind]), logical or kind, want, path)
    return NumberNode(want, path, kind)


class NullNode(Node):
    least = 0

    def read(self, at: Cursor) -> Any:
        return None if self.want is None else pa.nulls(len(at), self.want)


class BooleanNode(Node):
    def read(self, at: Cursor) -> Any:
        value = at.bytes(self.path)
        at.fail(value > 1, f"{self.path}: neither true nor false")
        return None if self.want is None else pa.array(value != 0)


class NumberNode(Node):
    def __init__(self, want: pa.DataType | None, path: str, kind: str, times: int = 1) -> None:
        super().__init__(want, path)
        bits = 32 if kind == "int" else 64
        if want is not None and pa.types.is_integer(want):
            bits = min(bits, want.bit_width)
        self.most = (2 ** (bits - 1) - 1) // times
        self.bits = bits
        self.times = times

    def read(self, at: Cursor) -> Any:
        value = at.numbers(self.path)
        if self.bits < 64 or self.times > 1:
            over = (value > self.most) | (value < -self.most - 1)
            at.fail(over, f"{self.path}: a number of more than {self.bits} bits")
            value = np.where(over, 0, value) * self.times
        if self.want is None:
            return None
        if pa.types.is_floating(self.want):
            return pa.array(value.astype(self.want.to_pandas_dtype()))
        if pa.types.is_date(self.want):
            return pa.array(value.astype(np.int32)).cast(self.want)
        return pa.array(value).cast(self.want)


class FloatNode(Node):
    def __init__(self, want: pa.DataType | None, path: str, width: int) -> None:
        super().__init__(want, path)
        self.width = self.least = width

    def read(self, at: Cursor) -> Any:
        word = at.words(self.width, self.path)
        if self.want is None:
            return None
        value = word.view(np.float64) if self.width == 8 else word.astype(np.uint32).view(np.float32)
        return pa.array(value).cast(self.want)


class TextNode(Node):
    """Text, bytes, and bytes of a fixed size."""

    def __init__(self, want: pa.DataType | None, path: str, size: int | None = None) -> None:
        super().__init__(want, path)
        self.size = size
        self.least = 1 if size is None else size

    def read(self, at: Cursor) -> Any:
        sizes: Any = at.lengths(self.path) if self.size is None else self.size
        if self.want is None:
            at.skip(sizes, self.path)
            return None
        values = at.slices(sizes, self.path)
        try:
            return values.cast(self.want)
        except pa.ArrowInvalid:
            wrong = np.array([not _is_text(value) for value in values.to_pylist()])
            at.fail(wrong, f"{self.path}: not UTF-8")
            return pc.if_else(pa.array(wrong), pa.scalar(b"", pa.binary()), values).cast(self.want)


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class EnumNode(Node):
    def __init__(self, want: pa.DataType | None, path: str, symbols: list[str]) -> None:
        super().__init__(want, path)
        self.symbols = pa.array(symbols, pa.string() if want is None else want)

    def read(self, at: Cursor) -> Any:
        value = at.numbers(self.path)
        wrong = (value < 0) | (value >= len(self.symbols))
        at.fail(wrong, f"{self.path}: no such symbol")
        return None if self.want is None else self.symbols.take(pa.array(np.where(wrong, 0, value)))


class DecimalNode(Node):
    def __init__(self, want: pa.DataType, path: str, size: int | None) -> None:
        super().__init__(want, path)
        self.size = size
        self.least = 1 if size is None else size
        digits = 10**want.precision - 1
        self.most, self.smallest = (pa.scalar(bound, pa.decimal128(38, 0)) for bound in (digits, -digits))

    def read(self, at: Cursor) -> Any:
        sizes = at.lengths(self.path) if self.size is None else np.full(len(at), self.size)
        begin = at.skip(sizes, self.path)
        data = at.records.data
        values = np.empty((len(at), 16), np.uint8)
        sizes = np.where(at.at - begin == sizes, sizes, 0)
        sign = np.where((sizes > 0) & (data[begin] > 127), 255, 0).astype(np.uint8)
        for place in range(16):  # Arrow has the lowest byte first, Avro the highest
            values[:, place] = np.where(place < sizes, data[np.maximum(begin + sizes - 1 - place, 0)], sign)
        unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(at), [None, pa.py_buffer(values)])
        wrong = self._overflows(unscaled) | self._longer(data, begin, sizes, sign)
        at.fail(wrong, f"{self.path}: more digits than {self.want}")
        values[wrong] = 0
        return pa.Array.from_buffers(self.want, len(at), [None, pa.py_buffer(values)])

    def _overflows(self, unscaled: pa.Array) -> Flags:
        over = pc.or_(pc.greater(unscaled, self.most), pc.less(unscaled, self.smallest))
        return np.asarray(over.to_numpy(zero_copy_only=False), np.bool_)

    @staticmethod
    def _longer(data: Any, begin: Ints, sizes: Ints, sign: Any) -> Flags:
        """True where bytes beyond the sixteenth say more than the sign."""
        longer = sizes > _LONGEST_DECIMAL
        for place in range(16, int(min(sizes.max(initial=0), _LONGEST_DECIMAL))):
            longer |= (place < sizes) & (data[np.maximum(begin + sizes - 1 - place, 0)] != sign)
        return np.asarray(longer, np.bool_)


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
                default = pa.array([self.defaults.get(field.name)], field.type)
                columns[field.name] = default.take(pa.array(np.zeros(len(at), np.int64)))
        if not fields:
            return pa.array([{}] * len(at), self.want)
        return pa.StructArray.from_arrays([columns[field.name] for field in fields], fields=fields)


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
        return scattered(pieces, places, len(at), self.want)

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
                members.append(scattered(pieces, [which] if len(which) else [], len(at), node.want))
        nothing = [number for number, node in enumerate(self.nodes) if node is None]
        mask = pa.array(np.isin(branch, [*nothing, -1]))
        return pa.StructArray.from_arrays(members, fields=fields_of(self.want), mask=mask)


def _through(node: Node, at: Cursor, which: Ints) -> Any:
    """Reads ``node`` from some of the records: those with the numbers ``which``."""
    if len(which) == len(at):
        return node.read(at)
    part = at.part(which)
    values = node.read(part)
    at.follow(part, which)
    return values


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
            pa.concat_arrays(blocks).take(order) if blocks else pa.nulls(0, want)
            for blocks, want in zip(pieces, wants, strict=True)
        ]
        return self._column(pa.array(offsets), columns)

    def _counts(self, at: Cursor) -> Ints:
        counts = at.numbers(self.path)
        sized = (counts < 0) & ~at.records.failed[at.row]
        if sized.any():  # the size of the block in bytes follows
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
            for item, blocks in zip(self.items, pieces, strict=True):
                values = item.read(part)
                if values is not None:
                    blocks.append(values)
            owners.append(rows)
            at.follow(part, rows)
            done += 1
            more = (counts > done) & ~at.records.failed[at.row[rows]]
            if not more.all():
                rows, counts, part = rows[more], counts[more], part.part(more)

    def _column(self, offsets: pa.Array, columns: list[pa.Array]) -> pa.Array:
        kind = pa.ListArray if pa.types.is_list(self.want) else pa.LargeListArray
        return kind.from_arrays(offsets, columns[0]).cast(self.want)


class MapNode(ListNode):
    def _column(self, offsets: pa.Array, columns: list[pa.Array]) -> pa.Array:
        return pa.MapArray.from_arrays(offsets, *columns).cast(self.want)
