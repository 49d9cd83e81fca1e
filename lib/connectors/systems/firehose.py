"""``connectors.firehose``: rows as records of a delivery stream of Amazon Data Firehose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..batching import Failure, batching_options
from ..core import REQUIRED, Batch, Options, Poison, Text
from ..core.datasets import Dataset
from .aws import AWS_OPTIONS, RECORD_OPTIONS, RecordSink, RecordWriter, aws_dataset


class FirehoseSink(RecordSink):
    """Puts each row as a record: ``dataColumn``, or the whole row as JSON, with ``delimiter`` behind it.

    Guarantee: at-least-once: a replay puts rows again, and the service keeps no order.
    """

    name = "firehose"
    options = (
        AWS_OPTIONS
        | batching_options(max_records=500, max_bytes="4MB", max_time="100ms", most_records=500, most_bytes=4 << 20)
        | RECORD_OPTIONS
        | Options(
            deliveryStream=Text(REQUIRED, meaning="the delivery stream"),
            delimiter=Text("", meaning="text behind each record; \\\\n makes lines, as most destinations need them"),
        )
    )
    conditions = "a delivery stream cannot be asked what was put by a batch"
    most_record_bytes = 1000 << 10

    def target(self) -> str:
        return f"{self.values['endpoint'] or self.values['region'] or ''}/{self.values['deliveryStream']}"

    def datasets(self) -> Sequence[Dataset]:
        return [aws_dataset("firehose", self.values, self.values["deliveryStream"])]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> FirehoseWriter:
        return FirehoseWriter(self, batch, "firehose")


class FirehoseWriter(RecordWriter):
    """Puts the rows of one task."""

    def entries(self, rows: pa.RecordBatch) -> Sequence[Any]:
        delimiter = self._values["delimiter"].replace("\\n", "\n").encode()
        return [body if isinstance(body, Poison) else {"Data": body + delimiter} for body in self.bodies(rows)]

    def sizes(self, entries: Sequence[Any]) -> list[int]:
        return [len(entry["Data"]) for entry in entries]

    def send(self, entries: list[Any]) -> Iterator[Failure]:
        stream = self._values["deliveryStream"]
        name = f"the delivery stream {stream}"
        return self.put(name, "put_record_batch", "RequestResponses", DeliveryStreamName=stream, Records=entries)
