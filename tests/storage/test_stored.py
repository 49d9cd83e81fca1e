"""Checkpoints, targets and pending batches that an earlier version has written go on: each was killed in its second batch.

``stored/<sink>-<point>`` holds the checkpoint, the target and the dead letters of a run that was killed where the batch was
recorded and not published, or staged and not recorded.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core import Sink
from connectors.systems.buffered import BufferedSink
from connectors.systems.file_stream import FileStreamSink
from connectors.systems.files import FilesSink
from connectors.systems.files.rolling import seal_folder
from connectors.systems.sequence import SequenceSource
from connectors.testing import same_records
from connectors.testing.engine import Engine

STORED = Path(__file__).parent / "stored"
NUMBERS = pa.schema([("value", pa.int64())])
ROWS = 20


def text(number: int) -> str:
    return f"line\n{number}" if number % 7 == 0 else f"line {number}"


def lines(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([text(n) for n in rows.column(0).to_pylist()], pa.string())})


def records(rows: pa.RecordBatch) -> pa.RecordBatch:
    numbers = rows.column(0).to_pylist()
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return pa.RecordBatch.from_pydict({"id": numbers, "name": [f"row {n % 2}" for n in numbers]}, schema)


SINKS: dict[str, tuple[type[Sink], dict[str, str], Callable[[pa.RecordBatch], pa.RecordBatch]]] = {
    "lines": (FileStreamSink, {"errors": "deadLetter", "deadLetterPath": "letters"}, lines),
    "files": (FilesSink, {"partitionBy": "name"}, records),
    "rolling": (FilesSink, {"rolling": "policy"}, records),
    "buffered": (BufferedSink, {}, records),
}


@pytest.fixture(params=sorted(folder.name for folder in STORED.iterdir()))
def stored(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    shutil.copytree(STORED / request.param, tmp_path / "stored")
    monkeypatch.chdir(tmp_path / "stored")
    return str(request.param).partition("-")[0]


@pytest.mark.parametrize("carrier", ["foreach_batch", "format"])
def test_what_an_earlier_version_has_left_goes_on_and_nothing_is_lost_or_doubled(stored: str, carrier: str) -> None:
    kind, options, convert = SINKS[stored]
    source = SequenceSource.of({"end": str(ROWS), "numPartitions": "2", "maxRowsPerTrigger": "10"}, streaming=True)
    sink = kind.of({"path": "target", **options})
    assert Engine(Path("checkpoint"), source, sink, NUMBERS, convert, carrier, tasks=2).run() == 1
    _expect(stored)


def _expect(name: str) -> None:
    numbers = range(1, ROWS + 1)
    if name == "lines":
        written = [line for file in Path("target").glob("*.txt") for line in file.read_text().splitlines()]
        assert sorted(written) == sorted(text(n) for n in numbers if n % 7)
        letters = [row for file in Path("letters").glob("*.parquet") for row in pq.ParquetFile(file).read().to_pylist()]
        bad = [json.loads(letter["record"])["value"] for letter in letters]
        assert sorted(bad) == sorted(text(n) for n in numbers if not n % 7)
        return
    if name == "rolling":
        seal_folder("target")
    same_records(({"id": n, "name": f"row {n % 2}"} for n in numbers), _rows(name))


def _rows(name: str) -> list[Any]:
    if name == "buffered":
        return [json.loads(line) for file in Path("target").glob("*.json") for line in file.read_text().splitlines()]
    files = Path("target").glob("name=*/*.parquet" if name == "files" else "*.parquet")
    folders = [(file, {"name": file.parent.name[5:].replace("%20", " ")} if name == "files" else {}) for file in files]
    return [{**row, **more} for file, more in folders for row in pq.ParquetFile(file).read().to_pylist()]
