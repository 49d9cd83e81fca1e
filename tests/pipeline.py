"""A pipeline with every way out of it, run by a process that can be killed: ``python -m tests.pipeline FOLDER ROWS``.

Lines of JSON come in. What cannot be read is a dead letter of the source, what is not believable goes to quarantine, what the
target refuses is a dead letter of the sink, and the rest is delivered.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from connectors import quality
from connectors.spark.foreach_batch import ForeachBatch
from connectors.systems.buffered import BufferedSink
from connectors.systems.file_stream import FileStreamSink
from connectors.testing import FailureInjector
from connectors.testing.faults import faulty_sink
from connectors.testing.session import session

BAD_LINES = (
    b'{"id": %d, "name": "cut o',
    b"{'id': %d, 'name': 'quotes'}",
    b'{"id": "%d pieces", "name": "a number that is none"}',
    b'{"id": %d, "name": "\xff\xfe"}',
    b'{"id": %d, "name": "one"} {"id": 0, "name": "two"}',
    b"no JSON at all: %d",
)


def kind_of(number: int) -> str:
    """One in a hundred is unreadable, one in 150 is not believable, one in 170 is refused by the target."""
    return next((kind for kind, each in (("bad", 100), ("quarantined", 150), ("refused", 170)) if number % each == 0), "good")


def line(number: int) -> bytes:
    """The ``number``-th line of the input, without its end."""
    kind = kind_of(number)
    if kind == "bad":
        return BAD_LINES[number // 100 % len(BAD_LINES)] % number
    name = f"two\nlines {number}" if kind == "refused" else f"name {number}"
    return json.dumps({"id": -number if kind == "quarantined" else number, "name": name}).encode()


def main(folder: str, rows: str) -> None:
    """Writes what is missing of the input, then runs until everything is somewhere."""
    root = Path(folder)
    for name, first in (("odd", 1), ("even", 2)):
        content = b"".join(line(number) + b"\n" for number in range(first, int(rows) + 1, 2))
        (root / f"{name}.jsonl").write_bytes(content)
    spark = session("local[2,4]", {})
    injector = FailureInjector(root / "faults")
    injector.set_victims(os.getpid(), spark.sparkContext._gateway.proc.pid)
    quick = {"retry.initialBackoff": "10ms"}
    letters = {"errors": "deadLetter", "deadLetterPath": str(root / "refused")}
    good = ForeachBatch(faulty_sink(FileStreamSink, injector).of({"path": str(root / "good"), **letters, **quick}))
    quarantined = ForeachBatch(faulty_sink(BufferedSink, injector).of({"path": str(root / "quarantined"), **quick}))
    checks = quality.Checks([quality.between("id", 1, 10**9)])
    (
        spark.readStream.format("connectors.file_stream")
        .options(**{"path": str(root / "*.jsonl"), "maxBytesPerTrigger": "40kB", "value.format": "json"})
        .options(schema="id long, name string", errors="deadLetter", deadLetterPath=str(root / "unreadable"), **quick)
        .load()
        .select("value.*")
        .writeStream.foreachBatch(
            checks.foreach_batch(
                good=lambda frame, batch: good(frame.selectExpr("concat(id, ' ', name) AS value"), batch),
                quarantined=lambda frame, batch: quarantined(frame.select("id", "name"), batch),
            )
        )
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
