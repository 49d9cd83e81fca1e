"""Protobuf messages from a descriptor set, and their Arrow types."""

from __future__ import annotations

import base64
from typing import Any, Final

import pyarrow as pa

from .base import library

INSTALL: Final = "protobuf>=5"
_TIMESTAMP, _DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"


class Message:
    """One message of a descriptor set, which ``protoc --include_imports --descriptor_set_out=…`` makes.

    Raises ``ValueError`` when the file is no descriptor set, or does not know the message.
    """

    def __init__(self, content: bytes, name: str) -> None:
        pool = library("google.protobuf.descriptor_pool", INSTALL).DescriptorPool()
        self.factory = library("google.protobuf.message_factory", INSTALL)
        files = library("google.protobuf.descriptor_pb2", INSTALL).FileDescriptorSet()
        try:
            files.ParseFromString(content)
            for file in files.file:
                pool.Add(file)
        except Exception as wrong:  # protobuf's errors share no base with what the pool raises
            raise ValueError(f"no descriptor set: {wrong}") from None
        try:
            self.descriptor = pool.FindMessageTypeByName(name)
        except KeyError:
            known = [f"{file.package}.{one.name}".lstrip(".") for file in files.file for one in file.message_type]
            raise ValueError(f'no message "{name}"; there are {", ".join(known) or "none"}') from None
        self.made: Any = self.factory.GetMessageClass(self.descriptor)
        self.type = arrow(self.descriptor)

    def registered(self) -> str:
        """The file of the message as a registry takes it."""
        return base64.b64encode(self.descriptor.file.serialized_pb).decode()

    def indexes(self) -> list[int]:
        """Which message of its file this one is: its number at each level of nesting."""
        path: list[int] = []
        one = self.descriptor
        while one.containing_type is not None:
            path.append([inner.name for inner in one.containing_type.nested_types].index(one.name))
            one = one.containing_type
        path.append(list(self.descriptor.file.message_types_by_name).index(one.name))
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
    one = _single(field, within)
    return pa.list_(one) if field.is_repeated else one


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
