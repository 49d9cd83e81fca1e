"""Protobuf: messages of a descriptor set, alone or in the frame of a schema registry, and their Arrow types."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem
from ..storage.location import is_local, local_path, storage_of, without_user
from .base import Decoded, Format, FormatSettings, decoded_each, fields_of
from .registry import framed_by

INSTALL: Final = "'protobuf>=5.29.5'"
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


class ProtobufMessage:
    """One message of a descriptor set, which ``protoc --include_imports --descriptor_set_out=…`` makes.

    Raises ``ValueError`` when the file is no descriptor set, or does not know the message.
    """

    def __init__(self, content: bytes, name: str) -> None:
        pool = client_library("google.protobuf.descriptor_pool", INSTALL, connector="connectors").DescriptorPool()
        self.factory = client_library("google.protobuf.message_factory", INSTALL, connector="connectors")
        files = client_library("google.protobuf.descriptor_pb2", INSTALL, connector="connectors").FileDescriptorSet()
        try:
            files.ParseFromString(content)
            for file in files.file:
                pool.Add(file)
        except Exception as wrong:  # protobuf's errors share no base with what the pool raises
            raise ValueError(f"no descriptor set: {wrong}") from None
        try:
            self.descriptor = pool.FindMessageTypeByName(name)
        except KeyError:
            known = [f"{file.package}.{kind.name}".lstrip(".") for file in files.file for kind in file.message_type]
            raise ValueError(f'no message "{name}"; there are {", ".join(known) or "none"}') from None
        self.message_class: Any = self.factory.GetMessageClass(self.descriptor)
        self.type = arrow(self.descriptor)

    def registered(self) -> str:
        """The file of the message as a registry takes it."""
        return base64.b64encode(self.descriptor.file.serialized_pb).decode()

    def indexes(self) -> list[int]:
        """The place of this message in its file: its number at each level of nesting."""
        path: list[int] = []
        message = self.descriptor
        while (outer := message.containing_type) is not None:
            path.append([inner.name for inner in outer.nested_types].index(message.name))
            message = outer
        path.append(list(self.descriptor.file.message_types_by_name).index(message.name))
        return path[::-1]


def arrow(descriptor: Any, within: tuple[str, ...] = ()) -> pa.DataType:
    """The Arrow type of a message. Raises ``ValueError`` for one that contains itself."""
    if descriptor.full_name in within:
        raise ValueError(f"{descriptor.full_name} contains itself; columns cannot")
    inner = (*within, descriptor.full_name)
    return pa.struct([(field.name, _field(field, inner)) for field in descriptor.fields])


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _field(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_single(key, within), _single(value, within))
    kind = _single(field, within)
    return pa.list_(kind) if field.is_repeated else kind


def _single(field: Any, within: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        known = {_TIMESTAMP: pa.timestamp("us", "UTC"), _DURATION: pa.duration("us")}
        return known.get(name) or arrow(field.message_type, within)
    kinds = {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_ENUM: pa.string(),
    }
    if field.cpp_type in kinds:
        return kinds[field.cpp_type]
    return pa.binary() if field.type == field.TYPE_BYTES else pa.string()


_Read = Callable[[Any], Any]
_Write = Callable[[Any, Any], None]
_MOST_INDEXES = 64


class ProtobufFormat(Format):
    """One message a record; the message is ``value.messageName`` in the descriptor set ``value.descriptorFile``.

    A field that can tell its absence (``optional``, a message, in a ``oneof``) is null when it is absent; any other has
    its default then, as protobuf says (Spark's ``from_protobuf`` makes null of it). Unknown fields are passed over.
    """

    name = "protobuf"

    def __init__(self, kind: pa.DataType, settings: FormatSettings | None = None) -> None:
        super().__init__(kind, settings)
        self._message = protobuf_message(self.settings)
        if wrong := _unreadable(self._message.type, kind, ""):
            raise Misconfigured(
                "connectors", [Problem("schema", f"does not fit {self.settings.message_name}: {wrong}.")]
            )
        self._framing = framed_by(self.settings)
        self._encode_error = client_library("google.protobuf.message", INSTALL, connector="connectors").EncodeError
        self._read = _message_reader(self._message.descriptor, kind)
        self._write = _message_writer(self._message.descriptor, kind)

    def decode(self, records: pa.Array) -> Decoded:
        if self._framing is None:
            return decoded_each(records, self._value, self.kind)
        return self._framing.decode(records, self._framed, self.kind)

    def check_encode(self) -> None:
        if wrong := _unwritable(self._message.type, self.kind, ""):
            raise ValueError(wrong)

    def encode(self, values: pa.Array) -> pa.Array:
        prefix = b"" if self._framing is None else written_indexes(self._message.indexes())
        rows = values.cast(_in_numbers(values.type)).to_pylist()
        bodies = pa.array([None if row is None else prefix + self._body(row) for row in rows], pa.binary())
        return bodies if self._framing is None else self._framing.encode(bodies, self._message.registered(), "PROTOBUF")

    def _framed(self, number: int, bodies: pa.Array) -> Decoded:
        return decoded_each(bodies, lambda body: self._value(without_indexes(body)), self.kind)

    def _value(self, body: bytes) -> Any:
        try:
            message = self._message.message_class.FromString(body)
        except Exception as wrong:  # DecodeError, which is no ValueError
            raise ValueError(str(wrong)) from None
        value = self._read(message)
        pa.array([value], self.kind)  # whose limits protobuf's values lack
        return value

    def _body(self, row: Any) -> bytes:
        message = self._message.message_class()
        try:
            self._write(message, row)
            return bytes(message.SerializeToString())
        except (TypeError, self._encode_error) as wrong:
            raise ValueError(f"cannot be written as {self._message.descriptor.full_name}: {wrong}") from None


def protobuf_message(settings: FormatSettings, side: str = "value") -> ProtobufMessage:
    """The message that the options name. Raises :class:`Misconfigured` when there is none, :class:`Transient` in an outage."""
    file, name = settings.descriptor_file, settings.message_name
    if file is None or name is None:
        missing = f"{side}.descriptorFile" if file is None else f"{side}.messageName"
        text = "missing; protobuf needs a descriptor set and a message of it."
        raise Misconfigured("connectors", [Problem(missing, text)])
    try:
        return ProtobufMessage(_content(file), name)
    except Misconfigured as wrong:
        text = " ".join(f"{problem.option} {problem.text}" for problem in wrong.problems)
        raise Misconfigured("connectors", [_unread(side, file, text)]) from None
    except OSError as wrong:
        raise Misconfigured("connectors", [_unread(side, file, f"{wrong}.")]) from None
    except ValueError as wrong:
        raise Misconfigured("connectors", [Problem(f"{side}.messageName", f"{file}: {wrong}.")]) from None


def _content(file: str) -> bytes:
    """The descriptor set, from wherever a storage is; an object store is asked with the machine's own credentials."""
    folder, _, name = str(local_path(file).absolute() if is_local(file) else file).rpartition("/")
    return storage_of(folder or "/").read(name)


def _unread(side: str, file: str, why: str) -> Problem:
    return Problem(f"{side}.descriptorFile", f'"{without_user(file)}" cannot be read: {why}')


_WIDER = {
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}


def _unreadable(own: pa.DataType, want: pa.DataType, path: str) -> str:
    """Why values of ``own`` cannot be read as ``want``; empty if they can."""
    if pa.types.is_struct(own) and pa.types.is_struct(want):
        types = {field.name: field.type for field in fields_of(want)}
        both = [field for field in fields_of(own) if field.name in types]
        inner = (_unreadable(field.type, types[field.name], f"{path}.{field.name}".lstrip(".")) for field in both)
        return next(filter(None, inner), "")
    if pa.types.is_list(own) and pa.types.is_list(want):
        return _unreadable(own.value_type, want.value_type, path)
    if pa.types.is_map(own) and pa.types.is_map(want):
        return _unreadable(own.key_type, want.key_type, path) or _unreadable(own.item_type, want.item_type, path)
    fits = own == want or want in _WIDER.get(own, ())
    return "" if fits else f"{path or 'the message'} is {own}, and cannot be read as {want}"


def _unwritable(own: pa.DataType, kind: pa.DataType, path: str) -> str:
    """Why values of ``kind`` would not be the same as ``own``, which can be read as ``kind``; empty if they are."""
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        types = {field.name: field.type for field in fields_of(own)}
        paths = {field.name: f"{path}.{field.name}".lstrip(".") for field in fields_of(kind)}
        if unknown := paths.keys() - types.keys():
            return f"{paths[min(unknown)]} is no field of the message"
        inner = (_unwritable(types[field.name], field.type, paths[field.name]) for field in fields_of(kind))
        return next(filter(None, inner), "")
    if pa.types.is_list(own) and pa.types.is_list(kind):
        return _unwritable(own.value_type, kind.value_type, path)
    if pa.types.is_map(own) and pa.types.is_map(kind):
        return _unwritable(own.item_type, kind.item_type, path)
    return f"{path} is a double, and the message has a float" if own == pa.float32() and kind == pa.float64() else ""


def without_indexes(body: bytes) -> bytes:
    """``body`` after the numbers that say which message of its schema it is. Raises ``ValueError`` for a broken list."""
    count, at = _varint(body, 0)
    if not 0 <= count <= _MOST_INDEXES:
        raise ValueError(f"{count} message indexes")
    for _ in range(count):
        _, at = _varint(body, at)
    return body[at:]


def written_indexes(indexes: list[int]) -> bytes:
    """The first message of a file, which most are, is written as a single zero."""
    return b"\0" if indexes == [0] else b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def _zigzag(value: int) -> bytes:
    rest, out = value << 1, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*out, rest])


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            raise ValueError("ends within its message indexes")
        value |= (body[at] & 127) << shift
        at += 1
        if body[at - 1] < 128:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("a message index of more than 64 bits")


def _message_reader(descriptor: Any, kind: pa.DataType) -> _Read:
    types = {field.name: field.type for field in fields_of(kind)}
    fields = [field for field in descriptor.fields if field.name in types]
    readers = {field.name: _field_reader(field, types[field.name]) for field in fields}
    asks = {field.name: field.has_presence for field in fields}

    def read(message: Any) -> dict[str, Any]:
        return {
            name: None if asks[name] and not message.HasField(name) else value(getattr(message, name))
            for name, value in readers.items()
        }

    return read


def _field_reader(field: Any, kind: pa.DataType) -> _Read:
    if is_map(field):
        key, value = (_single_reader(field.message_type.fields_by_name[name]) for name in ("key", "value"))
        item = _nested(field.message_type.fields_by_name["value"], kind.item_type) or value
        return lambda pairs: [(key(name), item(pairs[name])) for name in pairs]
    if field.is_repeated:
        item = _nested(field, kind.value_type) or _single_reader(field)
        return lambda items: [item(value) for value in items]
    return _nested(field, kind) or _single_reader(field)


def _nested(field: Any, kind: pa.DataType) -> _Read | None:
    inner = field.message_type is not None and pa.types.is_struct(kind)
    return _message_reader(field.message_type, kind) if inner else None


def _single_reader(field: Any) -> _Read:
    if field.message_type is not None:  # a time or a duration
        return lambda time: time.seconds * 1_000_000 + time.nanos // 1000
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return _same


def _same(value: Any) -> Any:
    return value


def _message_writer(descriptor: Any, kind: pa.DataType) -> _Write:
    fields = descriptor.fields_by_name
    known = [field for field in fields_of(kind) if field.name in fields]
    inner = [(field.name, _field_writer(fields[field.name], field.type)) for field in known]

    def write(message: Any, row: Any) -> None:
        for name, put in inner:
            if row[name] is not None:
                put(message, row[name])

    return write


def _field_writer(field: Any, kind: pa.DataType) -> _Write:
    if is_map(field):
        return _map_writer(field, kind)
    if field.message_type is not None:
        return _message_field_writer(field, kind)
    name, value = field.name, _single_writer(field)
    if field.is_repeated:
        return lambda message, items: getattr(message, name).extend(value(item) for item in items)
    return lambda message, item: setattr(message, name, value(item))


def _message_field_writer(field: Any, kind: pa.DataType) -> _Write:
    put = _inner_writer(field, kind.value_type if field.is_repeated else kind)

    def write(message: Any, row: Any) -> None:
        inner = getattr(message, field.name)
        if field.is_repeated:
            for item in row:
                put(inner.add(), item)
        else:
            inner.SetInParent()
            put(inner, row)

    return write


def _map_writer(field: Any, kind: pa.DataType) -> _Write:
    inner = field.message_type.fields_by_name["value"]
    put = _inner_writer(inner, kind.item_type) if inner.message_type is not None else None
    value = _single_writer(inner)

    def write(message: Any, pairs: Any) -> None:
        entries = getattr(message, field.name)
        for key, row in pairs:
            if put is None:
                entries[key] = value(row)
            else:
                put(entries[key], row)

    return write


def _inner_writer(field: Any, kind: pa.DataType) -> _Write:
    if pa.types.is_struct(kind):
        return _message_writer(field.message_type, kind)

    signed = field.message_type.name == "Duration"  # whose two parts have the same sign; a time's nanoseconds have none

    def write(message: Any, micros: int) -> None:
        size, sign = (abs(micros), -1 if micros < 0 else 1) if signed else (micros, 1)
        message.seconds, message.nanos = sign * (size // 1_000_000), sign * (size % 1_000_000 * 1000)

    return write


def _single_writer(field: Any) -> _Read:
    if field.enum_type is not None:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}
        return lambda name: numbers[name] if name in numbers else int(name)
    return int if field.cpp_type == field.CPPTYPE_UINT64 else _same


def _in_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _in_numbers(field.type)) for field in fields_of(kind)])
    if pa.types.is_list(kind):
        return pa.list_(_in_numbers(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_numbers(kind.item_type))
    return pa.int64() if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) else kind
