"""A task's writer: rows become actions of ``_bulk``, and the answer is read item by item."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ...batching import BatchingWriter, Failure, Throttled
from ...core import Batch, Fatal, Poison, Transient
from ...formats.documents import documents
from ...formats.text import text_of
from .client import NDJSON, SearchClient
from .documents import IndexName

if TYPE_CHECKING:
    from .sink import ElasticsearchSink

Entry = tuple[bytes, "str | None"]
"""The lines of an action, and the id that it writes to."""

_FILTER: Final = "filter_path=errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
_BODY: Final = {
    "index": (b"", b""),
    "create": (b"", b""),
    "update": (b'{"doc":', b"}"),
    "upsert": (b'{"doc":', b',"doc_as_upsert":true}'),
}
NEED_ID: Final = ("update", "upsert", "delete")
OPERATIONS: Final = ("index", "create", *NEED_ID)
_VERSIONED: Final = ("index", "delete")
_LONGEST_ID: Final = 512
"""Bytes of an id. The server refuses the whole request for a longer one."""
_ACTION: Final = {"upsert": "update"}


class BulkWriter(BatchingWriter):
    """Writes the rows of one task."""

    def __init__(self, sink: ElasticsearchSink, batch: Batch, schema: pa.Schema) -> None:
        values = sink.values
        self.operation: str = values["operation"]
        self.operations, self.deletes = values["operationColumn"], values["deleteColumn"]
        self.index = IndexName.of(values["index"])
        self.id, self.version, self.routing = values["idColumn"], values["orderColumn"], values["routingColumn"]
        self.client = SearchClient("connectors.elasticsearch", values, values["batch.maxInFlight"])
        name = self.index.constant
        self.path = f"/{quote(name, safe='')}/_bulk?{_FILTER}" if name is not None else f"/_bulk?{_FILTER}"
        self.stale = 0
        super().__init__(sink, batch)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Entry | Poison]:
        empty = [None] * rows.num_rows
        ids = _ids(rows.column(self.id)) if self.id else empty
        versions = _versions(rows.column(self.version)) if self.version else empty
        routes = rows.column(self.routing).cast(pa.string()).to_pylist() if self.routing else empty
        indexes = empty if self.index.constant is not None else self.index.of_rows(rows)
        operations = self._operations(rows)
        bodies = empty if self.operation == "delete" else documents(self._fields(rows))
        return [self._entry(*cells) for cells in zip(operations, ids, versions, routes, indexes, bodies, strict=True)]

    def _operations(self, rows: pa.RecordBatch) -> list[str | None]:
        """The operation of each row, in lower case; ``None`` for a null."""
        if self.operations:
            return list(pc.utf8_lower(rows.column(self.operations)).to_pylist())
        if self.deletes:
            return ["delete" if flag else self.operation for flag in rows.column(self.deletes).to_pylist()]
        return [self.operation] * rows.num_rows

    def _fields(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """``rows`` without the columns that say what to do with them."""
        return rows.select([name for name in rows.schema.names if name not in (self.operations, self.deletes)])

    def _entry(self, operation: str | None, id: Any, version: Any, route: Any, index: Any, body: Any) -> Entry | Poison:
        if operation is None or operation not in OPERATIONS:
            cell = "null" if operation is None else f'"{operation:.100}"'
            return Poison(f'the column "{self.operations}" is {cell}, and must be one of {", ".join(OPERATIONS)}')
        body = None if operation == "delete" else body
        if isinstance(body, Poison):
            return body
        if id is None and not self.id and operation in NEED_ID:
            return Poison(f'the operation "{operation}" needs the id of a document; give idColumn')
        if version is not None and operation not in _VERSIONED:
            versioned = " or ".join(_VERSIONED)
            return Poison(f'the operation "{operation}" takes no version; take {versioned}, or leave orderColumn out')
        if missing := self._missing(id, version, index):
            return Poison(f'the column "{missing}" is null')
        if version is not None and version < 0:  # the server refuses the whole request
            return Poison(f'the column "{self.version}" must be 0 or more, or a time from 1970 on; as a number it is {version}')
        if isinstance(id, bytes):
            return Poison(f'the column "{self.id}" must be text in UTF-8; it is {id!r:.300}')
        if id is not None and not 0 < len(id.encode()) <= _LONGEST_ID:
            return Poison(f'the column "{self.id}" must have 1 to {_LONGEST_ID} bytes, as the server has it; it is {id!r:.300}')
        meta: dict[str, Any] = {}
        if id is not None:
            meta["_id"] = id
        if index is not None:
            meta["_index"] = index
        if route is not None:
            meta["routing"] = route
        if version is not None:
            meta.update(version=version, version_type="external")
        if operation in ("update", "upsert"):
            meta["retry_on_conflict"] = 3
        line: bytes = self.client.json.dumps({_ACTION.get(operation, operation): meta})
        if body is None:
            return line + b"\n", id
        before, after = _BODY[operation]
        return b"%b\n%b%b%b\n" % (line, before, body, after), id

    def _missing(self, id: Any, version: Any, index: Any) -> str:
        """The column whose null makes the row a bad one."""
        if self.id and id is None:
            return str(self.id)
        if self.version and version is None:
            return str(self.version)
        if index is None and self.index.constant is None:
            return ", ".join(part.column for part in self.index.columns())
        return ""

    def sizes(self, entries: Sequence[Entry]) -> list[int]:
        return [len(lines) for lines, _ in entries]

    def keys(self, entries: Sequence[Entry]) -> Sequence[Hashable] | None:
        """A version tells the server which is the newest; without one, the order of the rows of an id is kept."""
        return [id for _, id in entries] if self.id and not self.version else None

    def send(self, entries: list[Entry]) -> Iterator[Failure]:
        body = b"".join([lines for lines, _ in entries])
        answer = self.client.loads(self.client.request("POST", self.path, body, NDJSON))
        items = answer.get("items", [])
        if len(items) != len(entries):
            raise Transient(f"the answer has {len(items)} items for {len(entries)} actions")
        for place, item in enumerate(items):
            ((action, result),) = item.items()
            if result["status"] >= 300 and (error := self._failure(action, result)):
                yield place, error

    def _failure(self, action: str, result: dict[str, Any]) -> Exception | None:
        """The error of an item; ``None`` if the target is as the action wants it."""
        status, error = result["status"], result.get("error", {})
        kind, text = error.get("type", ""), _reason(status, error)
        if status == 409 and self.version:
            self.stale += 1
        if (status == 409 and (self.version or action == "create")) or (status == 404 and action == "delete"):
            return None
        if status == 429:
            return Throttled(text)
        if status >= 500 or status == 409 or kind == "cluster_block_exception":
            return Transient(text)
        if status in (401, 403) or kind == "index_not_found_exception":
            return Fatal(text)
        return Poison(text)

    def report(self) -> dict[str, Any]:
        return {"stale": self.stale} if self.stale else {}


def _reason(status: int, error: dict[str, Any]) -> str:
    cause = error.get("caused_by", {}).get("reason")
    return f"{status} {error.get('type', '')}: {error.get('reason', '')}{f' ({cause})' if cause else ''}"[:500]


def _ids(column: pa.Array) -> list[str | bytes | None]:
    """The ids in text; bytes that are no text as they are."""
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return [None if cell is None else _text_if_any(cell) for cell in column.to_pylist()]
    is_time = types.is_timestamp(column.type) or types.is_date(column.type)
    return list((text_of(column) if is_time else column.cast(pa.string())).to_pylist())


def _text_if_any(cell: bytes) -> str | bytes:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell


def _versions(column: pa.Array) -> list[int | None]:
    """Whole numbers as they are, times as microseconds since 1970."""
    if types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return list(column.to_pylist())
