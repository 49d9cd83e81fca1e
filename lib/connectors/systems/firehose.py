"""``connectors.firehose``: rows as records of a delivery stream of Amazon Data Firehose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from ..batching import Failure, batching_options
from ..core import REQUIRED, Batch, Options, Poison, Text, Transient
from ..core.datasets import Dataset
from ..formats.templates import filled_texts
from ..ground.columns import Template, template_columns
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
            deliveryStream=Template(
                REQUIRED, example="orders_{region}", meaning="the delivery stream, or one by row: orders_{region}"
            ),
            delimiter=Text("", meaning="text behind each record; \\\\n makes lines, as most destinations need them"),
        )
    )
    conditions = "a delivery stream cannot be asked what was put by a batch"
    most_record_bytes = 1000 << 10

    def target(self) -> str:
        return f"{self.values['endpoint'] or self.values['region'] or ''}/{self.values['deliveryStream']}"

    def datasets(self) -> Sequence[Dataset]:
        stream = self.values["deliveryStream"]
        return [] if template_columns(stream) else [aws_dataset("firehose", self.values, stream)]

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> FirehoseWriter:
        return FirehoseWriter(self, batch, "firehose")


class FirehoseWriter(RecordWriter):
    """Puts the rows of one task."""

    def entries(self, rows: pa.RecordBatch) -> Sequence[Any]:
        delimiter = self._values["delimiter"].replace("\\n", "\n").encode()
        streams = filled_texts(self._values["deliveryStream"], rows)
        return [self._entry(stream, body, delimiter) for stream, body in zip(streams, self.bodies(rows), strict=True)]

    @staticmethod
    def _entry(stream: str | Poison, body: bytes | Poison, delimiter: bytes) -> Any:
        if isinstance(stream, Poison) or isinstance(body, Poison):
            return stream if isinstance(stream, Poison) else body
        return stream, body + delimiter

    def sizes(self, entries: Sequence[Any]) -> list[int]:
        return [len(data) for _, data in entries]

    def send(self, entries: list[Any]) -> Iterator[Failure]:
        places: dict[str, list[int]] = {}
        for place, (stream, _) in enumerate(entries):
            places.setdefault(stream, []).append(place)
        for stream, own in places.items():
            request = {"DeliveryStreamName": stream, "Records": [{"Data": entries[place][1]} for place in own]}
            try:
                failures = self.put(f"the delivery stream {stream}", "put_record_batch", "RequestResponses", **request)
                yield from ((own[place], error) for place, error in failures)
            except Transient as outage:
                if len(places) == 1:
                    raise
                yield from ((place, outage) for place in own)  # what the other streams have taken is not put again
