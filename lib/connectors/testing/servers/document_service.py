"""A document store over HTTP, as a vendor's: collections of JSON documents, and transactions over several of them.

``POST /<call>`` takes and answers JSON::

    transaction  {"operations": […]}                                all of them, or none (status 409)
    read         {"collection": "orders", "after": 0, "limit": 9}   {"documents": [{"number", "key", "document"}, …]}
    collections  {"prefix": "staged"}                               {"names": […]}

The operations of a transaction::

    {"insert": "orders", "documents": [{…}, …]}                     new documents; the store numbers them
    {"put": "orders", "key": "7", "document": {…}, "expected": …}   fails unless the old document is the expected one, or null
    {"move": "staged", "to": "orders", "count": 10}                 all documents; fails unless there are so many
    {"drop": "staged"}

The store is an SQLite file, so that it outlives its process.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .. import sqlite_file
from .json_service import Call, Conflict, JsonService, serve

_TABLE: Final = """
CREATE TABLE IF NOT EXISTS documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, collection TEXT NOT NULL, key TEXT, document TEXT NOT NULL,
    UNIQUE (collection, key)
)"""
_READ: Final = "SELECT number, key, document FROM documents WHERE collection = ? AND number > ? ORDER BY number LIMIT ?"
_NAMES: Final = "SELECT DISTINCT collection FROM documents WHERE substr(collection, 1, ?) = ? ORDER BY collection"
_PAGE: Final = 10_000


class DocumentService(JsonService):
    """The service in a process of its own. ``state`` is the folder of its file."""

    def documents(self, collection: str) -> list[dict[str, Any]]:
        """All documents of a collection, in the order in which they came."""
        documents: list[dict[str, Any]] = []
        after = 0
        while page := self.call("read", collection=collection, after=after, limit=_PAGE)["documents"]:
            documents += [row["document"] for row in page]
            after = page[-1]["number"]
        return documents


class _Documents:
    def __init__(self, file: Path) -> None:
        self._file = file
        with sqlite_file.transaction(self._file) as connection:
            connection.execute(_TABLE)

    def calls(self) -> dict[str, Call]:
        return {"transaction": self.transaction, "read": self.read, "collections": self.collections}

    async def transaction(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        with sqlite_file.transaction(self._file) as file:
            for operation in body["operations"]:
                _operate(file, operation)
        return {}

    async def read(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        with sqlite_file.transaction(self._file) as file:
            rows = file.execute(_READ, (body["collection"], body.get("after", 0), body.get("limit", _PAGE))).fetchall()
        return {"documents": [{"number": number, "key": key, "document": json.loads(text)} for number, key, text in rows]}

    async def collections(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        prefix = body.get("prefix", "")
        with sqlite_file.transaction(self._file) as file:
            return {"names": [name for (name,) in file.execute(_NAMES, (len(prefix), prefix))]}


def _operate(file: sqlite3.Connection, operation: Mapping[str, Any]) -> None:
    match operation:
        case {"insert": collection, "documents": documents}:
            rows = [(collection, json.dumps(document)) for document in documents]
            file.executemany("INSERT INTO documents (collection, document) VALUES (?, ?)", rows)
        case {"put": collection, "key": key, "document": document}:
            where = "collection = ? AND key = ?"
            row = file.execute(f"SELECT document FROM documents WHERE {where}", (collection, key)).fetchone()
            if (row and json.loads(row[0])) != operation.get("expected"):
                raise Conflict(f"{key} of {collection} is another document by now")
            file.execute(f"DELETE FROM documents WHERE {where}", (collection, key))
            values = (collection, key, json.dumps(document))
            file.execute("INSERT INTO documents (collection, key, document) VALUES (?, ?, ?)", values)
        case {"move": collection, "to": target, "count": count}:
            moved = file.execute("UPDATE documents SET collection = ? WHERE collection = ?", (target, collection)).rowcount
            if moved != count:
                raise Conflict(f"{collection} has {moved} documents instead of {count}")
        case {"drop": collection}:
            file.execute("DELETE FROM documents WHERE collection = ?", (collection,))
        case _:
            raise ValueError(f"an operation is insert, put, move or drop, not {dict(operation)}")


if __name__ == "__main__":
    serve(int(sys.argv[1]), _Documents(Path(sys.argv[2]) / "documents.db").calls())
