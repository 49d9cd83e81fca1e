"""Records in which Amazon's producer library has packed many: https://github.com/awslabs/kinesis-aggregation.

Such a record is four magic bytes, a message of Protocol Buffers, and the message's MD5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from ...ground.clients import client_library

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST: Final = 16
_FIELDS: Final = {
    "Record": (("partition_key_index", 1, "uint64"), ("explicit_hash_key_index", 2, "uint64"), ("data", 3, "bytes")),
    "Aggregate": (("keys", 1, "strings"), ("hash_keys", 2, "strings"), ("records", 3, "Records")),
}


def unpacked(record: dict[str, Any], hash_keys: tuple[int, int] | None) -> Iterator[dict[str, Any]]:
    """The user's records in ``record``, each with its number in ``Sub``, and ``IsLast`` on the last one.

    The record itself, if it holds no others. Where the producer packed records for a shard that was split meanwhile, it sends
    those again that are not of this shard: records whose hash key is not within ``hash_keys`` are left out.
    """
    data = record["Data"]
    body, digest = data[len(MAGIC) : -_DIGEST], data[-_DIGEST:]
    if hashlib.md5(body, usedforsecurity=False).digest() != digest:
        yield record
        return
    aggregate = _message().FromString(body)
    parts = []
    for number, part in enumerate(aggregate.records):
        key = aggregate.keys[part.partition_key_index]
        has_hash_key = part.HasField("explicit_hash_key_index")
        hash_key = int(aggregate.hash_keys[part.explicit_hash_key_index]) if has_hash_key else hash_of(key)
        if hash_keys is None or hash_keys[0] <= hash_key <= hash_keys[1]:
            parts.append({**record, "Data": part.data, "PartitionKey": key, "Sub": number, "IsLast": False})
    if parts:
        parts[-1]["IsLast"] = True
    yield from parts


def hash_of(key: str) -> int:
    """The hash by which the service finds the shard of a partition key."""
    return int.from_bytes(hashlib.md5(key.encode(), usedforsecurity=False).digest(), "big")


@cache
def _message() -> Any:
    """The class of the message, made from its published definition."""
    library = {
        name: client_library(f"google.protobuf.{name}", "protobuf", connector="connectors.kinesis")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    }
    field = library["descriptor_pb2"].FieldDescriptorProto
    file = library["descriptor_pb2"].FileDescriptorProto(name="aggregate.proto", package="connectors.kinesis", syntax="proto2")
    kinds = {
        "uint64": {"type": field.TYPE_UINT64, "label": field.LABEL_OPTIONAL},
        "bytes": {"type": field.TYPE_BYTES, "label": field.LABEL_OPTIONAL},
        "strings": {"type": field.TYPE_STRING, "label": field.LABEL_REPEATED},
        "Records": {"type": field.TYPE_MESSAGE, "label": field.LABEL_REPEATED, "type_name": ".connectors.kinesis.Record"},
    }
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            message.field.add(name=field_name, number=number, **kinds[kind])
    pool = library["descriptor_pool"].DescriptorPool()
    pool.Add(file)
    return library["message_factory"].GetMessageClass(pool.FindMessageTypeByName("connectors.kinesis.Aggregate"))
