"""The writes of rows: an item of each is put, or deleted, by its key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ...core import Misconfigured, Poison, Problem, Values
from ..aws import AwsClient
from .items import Attribute, items_of, size_of, text_of

NAME: Final = "connectors.dynamodb"
MOST_ITEM_BYTES: Final = 400 << 10
_LONGEST_KEYS: Final = {"HASH": 2048, "RANGE": 1024}
"""Bytes of a partition key and of a sort key."""


class Write(NamedTuple):
    """The write of a row: ``item`` is put, or deleted where it ``is_deleted``; ``key`` has the attributes of its key."""

    name: tuple[str, ...]
    key: dict[str, Attribute]
    item: dict[str, Attribute]
    is_deleted: bool


class TableKey(NamedTuple):
    """The attributes of a table's key, and the types of these and of the keys of its indexes, such as ``{"id": "N"}``.

    ``longest`` says how many bytes each of them may have.
    """

    names: tuple[str, ...]
    kinds: Mapping[str, str]
    longest: Mapping[str, int]

    @classmethod
    def of(cls, client: AwsClient, table: str, schema: pa.Schema) -> TableKey:
        """The key that the service names. Raises ``Misconfigured`` where rows of ``schema`` lack a column of it."""
        with client.errors(f"the table {table}"):
            description = client.client.describe_table(TableName=table)["Table"]
        names = tuple(part["AttributeName"] for part in description["KeySchema"])
        if missing := [name for name in names if name not in schema.names]:
            text = f"has the key {', '.join(names)}, and the rows have no column {missing[0]}: {', '.join(schema.names)}."
            raise Misconfigured(NAME, [Problem("table", text)])
        indexes = (*description.get("GlobalSecondaryIndexes", ()), *description.get("LocalSecondaryIndexes", ()))
        parts = [part for keyed in (description, *indexes) for part in keyed["KeySchema"]]
        parts.sort(key=lambda part: part["KeyType"])  # of an attribute that is both, the sort key is the shorter one
        longest = {part["AttributeName"]: _LONGEST_KEYS[part["KeyType"]] for part in parts}
        kinds = {part["AttributeName"]: part["AttributeType"] for part in description["AttributeDefinitions"]}
        return cls(names, kinds, longest)

    def problem(self, item: Mapping[str, Attribute]) -> str | None:
        """Why the service would refuse an item for its keys; ``None`` if it would not."""
        for name, kind in self.kinds.items():
            if name not in item:
                continue
            ((actual, value),) = item[name].items()
            if actual != kind:
                return f'the column "{name}" is of the type {actual}, and the key of the table or of an index has {kind}'
            if kind != "N" and not value:
                return f'the column "{name}" is empty, and part of a key'
        for name, most in self.longest.items():
            if name in item and size_of({"": item[name]}) > most:
                return f'the column "{name}" is part of the key of the table or of an index, which has {most} bytes at most'
        return None


class RowWriter:
    """Makes writes of rows by the key with the columns ``key``."""

    def __init__(self, values: Values, key: Sequence[str]) -> None:
        self._key, self._version, self._delete = tuple(key), values["orderColumn"], values["deleteColumn"]
        self._needed = self._key if self._version is None else (*self._key, self._version)

    def writes(self, rows: pa.RecordBatch) -> Sequence[Write | Poison]:
        """The write of each row; a :class:`~connectors.ground.errors.Poison` of a bad one."""
        deletes = [False] * rows.num_rows
        if self._delete is not None:
            deletes = [bool(value) for value in rows.column(self._delete).to_pylist()]
            rows = rows.select([name for name in rows.schema.names if name != self._delete])
        items = items_of(rows)
        if any(deletes):  # of a row that deletes, the service gets no other column, so none can be bad
            keys = items_of(rows.select(list(dict.fromkeys(self._needed))))
            items = [key if delete else item for item, key, delete in zip(items, keys, deletes, strict=True)]
        return [self._write(item, delete) for item, delete in zip(items, deletes, strict=True)]

    def name(self, key: Mapping[str, Attribute]) -> tuple[str, ...]:
        """The parts of a key as text, the same for keys that are the same to the service."""
        return tuple(text_of(key[name]) for name in self._key)

    def condition(self, write: Write) -> dict[str, Any]:
        """The condition that the table has no item of the row's key that is as new; empty without ``orderColumn``."""
        if self._version is None:
            return {}
        return {
            "ConditionExpression": "attribute_not_exists(#key) OR attribute_not_exists(#version) OR #version < :version",
            "ExpressionAttributeNames": {"#key": self._key[0], "#version": self._version},
            "ExpressionAttributeValues": {":version": write.item[self._version]},
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }

    def version_problem(self, write: Write, item: Mapping[str, Attribute]) -> str | None:
        """Why a row is neither older nor newer than the ``item`` that was in its way; ``None`` if it is older."""
        version = write.item[self._version]
        if (kind := next(iter(version))) == (other := next(iter(item.get(self._version, version)))):
            return None
        return (
            f'the row {next(refused_keys([write]))} has a version (orderColumn "{self._version}") of the type {kind}, and '
            f"the item of its key has one of the type {other}: the service cannot say which is newer"
        )

    def _write(self, item: dict[str, Attribute] | Poison, is_deleted: bool) -> Write | Poison:
        if isinstance(item, Poison):
            return item
        if missing := [name for name in self._needed if name not in item]:
            return Poison(f'the column "{missing[0]}" is null')
        key = {name: item[name] for name in self._key}
        return Write(self.name(key), key, item, is_deleted)


def refused_keys(writes: Sequence[Write]) -> Iterator[str]:
    """The keys of writes, as a message names them."""
    for write in writes:
        yield ", ".join(f"{name} {next(iter(value.values()))}" for name, value in write.key.items())
