"""A target that somebody made up, and its connector: what a system adds to the engine, all of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.batching import BatchingSink, BatchingWriter, Failure, Throttled, batching_options
from connectors.core import REQUIRED, Batch, Flag, Guarantee, Options, Poison, Text, Values


class ShelfSink(BatchingSink):
    """Puts each row on a shelf (a folder): under its ``id``, or with ``append`` under a new name."""

    name = "shelf"
    own = Options(path=Text(REQUIRED), append=Flag(False))
    options = batching_options(max_records=7, max_bytes="10KB", max_time="100ms") | own
    promise = Guarantee.IDEMPOTENT
    conditions = "each row has an id of its own"

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        guarantee = Guarantee.AT_LEAST_ONCE if values["append"] else Guarantee.IDEMPOTENT
        return guarantee, "the shelf has no transactions; without append it is idempotent."

    def target(self) -> str:
        return str(self.values["path"])

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> ShelfWriter:
        return ShelfWriter(self, batch)


class ShelfWriter(BatchingWriter):
    def __init__(self, sink: ShelfSink, batch: Batch) -> None:
        super().__init__(sink, batch)
        self.shelf, self.appends = Path(sink.target()), sink.values["append"]
        self.shelf.mkdir(exist_ok=True)

    def entry(self, row: dict[str, Any]) -> tuple[str, bytes]:
        if row["id"] is None:
            raise Poison("a row without id has no place on the shelf")
        return str(row["id"]), json.dumps(row).encode()

    def sizes(self, entries: Iterable[tuple[str, bytes]]) -> list[int]:
        return [len(value) for _, value in entries]

    def send(self, entries: list[tuple[str, bytes]]) -> Iterable[Failure]:
        for place, (name, value) in enumerate(entries):
            if place >= 5:  # the shelf takes five at a time
                yield place, Throttled("five at a time", retry_after=0.001)
            else:
                growing = self.shelf / f".{uuid.uuid4().hex}"
                growing.write_bytes(value)
                growing.rename(self.shelf / (growing.name[1:] if self.appends else name))
