"""Dead letters: records that cannot be read, and rows that cannot be written, as Parquet files with the same columns.

Those of a source have no commit to hang on: their files are named by source and split and put if absent, so that a replay
adds nothing. Those of a sink appear with the batch's commit, once, also when the batch is replayed::

    <deadLetterPath>/<sink>-<batch>.parquet                           dead letters of a committed batch
    <deadLetterPath>/.connectors/<sink id>/stage/<attempt>.parquet    what a task attempt has set aside
    <deadLetterPath>/.connectors/<sink id>/ready/<query>/<batch>      all of a batch, written before the batch is committed
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa

from .source import Split
from .state import digest, dumps
from .store import LocalStore

if TYPE_CHECKING:
    from .sink import Batch

STAGING_SECONDS = 7 * 86400.0
"""How old staged dead letters must be before they are swept."""

DEAD_LETTERS = pa.schema(
    [
        ("source", pa.string()),
        ("position", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("record", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of dead letters, whichever connector wrote them."""


class SourceLetters:
    """The bad records of one split, as a Parquet file named by source and split, and put only if it is not there yet.

    A replay reads the same splits, so it finds its file there and adds nothing.
    """

    def __init__(self, source: str, path: str) -> None:
        self.source = source
        self.store = LocalStore(path.removeprefix("file://").removeprefix("file:"))
        self._rows: dict[str, dict[str, object]] = {}

    def add(self, position: str, error: str, record: bytes) -> None:
        now = datetime.datetime.now(datetime.timezone.utc)
        cells = (self.source, position, "Poison", error, record, now)
        self._rows[position] = dict(zip(DEAD_LETTERS.names, cells, strict=True))

    def put(self, split: Split) -> None:
        """Writes what was added for ``split``."""
        if self._rows:
            import pyarrow.parquet as pq

            content = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(list(self._rows.values()), DEAD_LETTERS), content)
            name = f"{self.source.removeprefix('connectors.')}-{digest(split, length=24)}.parquet"
            self.store.put_if_absent(name, content.getvalue())
            self._rows = {}


class SinkLetters:
    """The dead letters of one sink, in a local or mounted folder."""

    def __init__(self, path: str, sink: str, sink_id: str) -> None:
        self.root = Path(path.removeprefix("file://").removeprefix("file:"))
        self.sink = sink
        self.sink_id = sink_id
        self.own = self.root / ".connectors" / quote(sink_id, safe="").replace(".", "%2E")

    def stage(self, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> str:
        name = f"{batch.prefix()}-{uuid.uuid4().hex}.parquet"
        self._write(self.own / "stage" / name, batch, rows)
        return name

    def decide(self, batch: Batch, staged: Sequence[str], more: Sequence[Mapping[str, Any]] = ()) -> None:
        """Joins what the tasks have ``staged`` and ``more`` of the driver; replaces what an earlier try left there."""
        ready = self._ready(batch.query, batch.number)
        rows = [row for name in staged if name for row in self._read(self.own / "stage" / name)]
        if rows or more:
            self._write(ready, batch, [*rows, *more])
        else:
            ready.unlink(missing_ok=True)

    def publish(self, batch: Batch, staged: Sequence[str] = ()) -> None:
        """``batch`` is committed: its dead letters appear, if they have not before."""
        with contextlib.suppress(FileNotFoundError):
            self._ready(batch.query, batch.number).rename(self.root / f"{self.sink}-{batch.file_id()}.parquet")
        self.discard(staged)

    def recover(self, last: Callable[[str], int]) -> None:
        """Publishes what an earlier run left ready, if its batch is at most the ``last`` one of its query; else removes it."""
        from .sink import Batch

        for file in sorted((self.own / "ready").glob("*/*")):
            query, number = unquote(file.parent.name), int(file.name)
            if number <= last(query):
                self.publish(Batch(self.sink_id, query, number))
            else:
                file.unlink(missing_ok=True)

    def discard(self, staged: Sequence[str]) -> None:
        for name in filter(None, staged):
            (self.own / "stage" / name).unlink(missing_ok=True)

    def sweep(self, live: frozenset[str]) -> None:
        """Removes what dead attempts set aside long ago."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.own / "stage") as found:
            for entry in found:
                old = time.time() - entry.stat().st_mtime > STAGING_SECONDS
                if old and entry.name.split("-")[0] not in live:
                    Path(entry.path).unlink(missing_ok=True)

    def _ready(self, query: str, number: int) -> Path:
        return self.own / "ready" / quote(query, safe="") / str(number)

    def _write(self, file: Path, batch: Batch, rows: Sequence[Mapping[str, Any]]) -> None:
        import pyarrow.parquet as pq

        now = datetime.datetime.now(datetime.timezone.utc)
        whole = [
            {
                "source": self.sink_id,
                "position": dumps({"query": batch.query, "batch": batch.number, "n": n}),
                "at": row.get("at", now),
                **{name: row[name] for name in ("error_class", "error", "record")},
            }
            for n, row in enumerate(rows)
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        growing = file.with_name(f".{uuid.uuid4().hex}")
        pq.write_table(pa.Table.from_pylist(whole, DEAD_LETTERS), growing)
        growing.replace(file)

    @staticmethod
    def _read(file: Path) -> Iterator[Mapping[str, Any]]:
        import pyarrow.parquet as pq

        yield from pq.ParquetFile(file).read().to_pylist()
