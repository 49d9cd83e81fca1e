"""Shards that can be read again, in a file that all processes share: the system for tests of cursor sources.

A split closes a shard; its two children get the later records. A trim expires records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa

from connectors.core import REQUIRED, Options, Text
from connectors.core.cursor_source import CursorSource, Discovery
from connectors.core.cursors import Cursor, Page
from connectors.core.epoch_source import STOP_OPTIONS
from connectors.ground import machine
from connectors.ground.errors import DataLoss
from connectors.testing.sqlite_file import transaction

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS shards (name TEXT PRIMARY KEY, parent TEXT, is_open INTEGER DEFAULT 1, trimmed INTEGER DEFAULT 0);
CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT, shard TEXT, body INTEGER, published REAL);
CREATE INDEX IF NOT EXISTS by_shard ON records (shard, number);
"""
_RECORDS: Final = """
SELECT number, body, published FROM records WHERE shard = ? AND number > ? AND number <= ? ORDER BY number LIMIT ?
"""


class ShardDouble:
    """The shards in the file ``path``; a position is the number of the last record."""

    def __init__(self, path: Path, shards: Sequence[str] = ("a", "b")) -> None:
        self.path = path
        if not path.exists():
            with transaction(self.path) as file:
                for statement in _TABLES.split(";"):
                    file.execute(statement)
                file.executemany("INSERT INTO shards (name) VALUES (?)", [(name,) for name in shards])

    def write(self, bodies: Sequence[int]) -> list[str]:
        """Adds a record for each number, to the open shards by turns; returns the shard of each."""
        with transaction(self.path) as file:
            names = [name for (name,) in file.execute("SELECT name FROM shards WHERE is_open ORDER BY name")]
            shards = [names[body % len(names)] for body in bodies]
            rows = [(shard, body, machine.time()) for shard, body in zip(shards, bodies, strict=True)]
            file.executemany("INSERT INTO records (shard, body, published) VALUES (?, ?, ?)", rows)
        return shards

    def add(self, shard: str, parent: str | None = None) -> None:
        """Opens one more shard."""
        with transaction(self.path) as file:
            file.execute("INSERT INTO shards (name, parent) VALUES (?, ?)", (shard, parent))

    def split(self, shard: str) -> None:
        """Closes a shard; later records go to its children."""
        with transaction(self.path) as file:
            file.execute("UPDATE shards SET is_open = 0 WHERE name = ?", (shard,))
        for number in (1, 2):
            self.add(f"{shard}{number}", shard)

    def trim(self) -> None:
        """Expires all records."""
        with transaction(self.path) as file:
            file.execute("UPDATE shards SET trimmed = coalesce((SELECT max(number) FROM records), 0)")
            file.execute("DELETE FROM records")

    def now(self) -> float:
        """The time by the clock of the records, in seconds since 1970: never before that of the newest one."""
        with transaction(self.path) as file:
            newest = file.execute("SELECT max(published) FROM records").fetchone()[0]
        return max(machine.time(), newest or 0.0)

    def shards(self) -> dict[str, str | None]:
        """The shards, with their parents."""
        with transaction(self.path) as file:
            return dict(file.execute("SELECT name, parent FROM shards").fetchall())

    def read(self, shard: str, position: int, end: int | None, count: int, fail: bool = True) -> Page:
        with transaction(self.path) as file:
            is_open, trimmed = file.execute("SELECT is_open, trimmed FROM shards WHERE name = ?", (shard,)).fetchone()
            if fail and 0 < position < trimmed:
                raise DataLoss(f"the records of {shard} after {position} have expired", way_out="set failOnDataLoss=false")
            rows = file.execute(_RECORDS, (shard, position, 1 << 62 if end is None else end, count)).fetchall()
        numbers, bodies, published = zip(*rows, strict=True) if rows else ((), (), ())
        batch = pa.RecordBatch.from_pydict({"value": pa.array(bodies, pa.int64()), "shard": pa.array([shard] * len(rows))})
        is_last = len(rows) < count
        return Page(
            batch.cast(SCHEMA),
            numbers[-1] if rows else position,
            pa.array(published, pa.float64()),
            is_last=is_last,
            is_finished=is_last and not is_open,
            lag=0.0 if is_last else machine.time() - published[-1],
        )


SCHEMA: Final = pa.schema([("value", pa.int64()), ("shard", pa.string())])


class ShardCursor(Cursor):
    """Reads from a :class:`ShardDouble`. ``reads`` counts the calls of this process."""

    reads: ClassVar[int] = 0

    def __init__(self, shards: ShardDouble, fail: bool) -> None:
        self._shards = shards
        self._fail = fail

    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        ShardCursor.reads += 1
        return self._shards.read(partition, position, end, rows, self._fail)


class ShardDoubleSource(CursorSource):
    """The numbers in a :class:`ShardDouble`. Columns: ``value long, shard string``."""

    name, schema = "shard_double", "value long, shard string"
    conditions = "records are retained until their epoch is committed"
    options = STOP_OPTIONS | Options(path=Text(REQUIRED, meaning="the file of the shards"))

    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        shards = self._shards().shards()
        ready = [name for name, parent in shards.items() if name not in finished and (parent is None or parent in finished)]
        return Discovery({name: positions.get(name, 0) for name in ready})

    def cursor(self, schema: pa.Schema) -> Cursor:
        return ShardCursor(self._shards(), self.values["failOnDataLoss"])

    def now(self) -> float:
        return self._shards().now()

    def _shards(self) -> ShardDouble:
        return ShardDouble(Path(self.values["path"]))
