"""The items of a table, by a parallel scan: each segment of the table is a split."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...core import REQUIRED, Fatal, Flag, Int, Misconfigured, Options, Problem, SeekingReader, Source, Text
from ...core.datasets import Dataset
from ...core.simple import OnceEnumerator, Share
from ...formats.json import columns_of, reader
from ..aws import AWS_OPTIONS, AwsClient, aws_dataset
from .items import Attribute, value_of

_NAME: Final = "connectors.dynamodb"
_SAMPLE: Final = 1000
_SECONDS: Final = 30.0


class DynamoDbSource(Source):
    """The items of a table, as a batch. A scan is no snapshot: an item that changes meanwhile is read before or after it.

    Columns are those of ``.schema(…)``, else of the attributes of a thousand items: whole numbers are ``bigint``, others
    ``decimal(38,18)``, maps structs, lists and sets arrays. A ``string`` column takes numbers too, with their digits; columns
    of times and dates read ISO 8601.

    Guarantee: exactly-once for a table that does not change while it is read.
    """

    name = "dynamodb"
    limits = ()
    batch_only = "a scan does not say what is new"
    conditions = "a batch; the table does not change meanwhile, else an item is read before or after its change"
    options = AWS_OPTIONS | Options(
        table=Text(REQUIRED, meaning="the table"),
        segments=Int(None, 1, 1_000_000, excludes="numPartitions", meaning="the same as numPartitions: segments of the scan"),
        consistentRead=Flag(False, meaning="read what was written just before, at twice the price"),
    )

    @cached_property
    def schema(self) -> str:  # type: ignore[override]
        with contextlib.closing(ItemReader(self, pa.schema([]))) as items:
            items.open()
            records = [_plain(item) for item in items.sample()]
        if not records:
            text = f'missing, and the table "{self.values["table"]}" has no items that would show it; give .schema(…).'
            raise Misconfigured(_NAME, [Problem("schema", text)])
        return columns_of(records)

    def parallelism(self) -> int:
        return int(self.values["segments"] or super().parallelism())

    def datasets(self) -> Sequence[Dataset]:
        return [aws_dataset("dynamodb", self.values, self.values["table"])]

    def enumerator(self) -> OnceEnumerator:
        return OnceEnumerator()

    def reader(self, schema: pa.Schema) -> ItemReader:
        return ItemReader(self, schema)


class ItemReader(SeekingReader[Share]):
    """Reads the pages of a segment."""

    def __init__(self, source: DynamoDbSource, schema: pa.Schema) -> None:
        super().__init__()
        self._values, self._schema = source.values, schema
        self._table: str = source.values["table"]
        self._readers = [(field, reader(field.type, field.name)) for field in schema]

    def open(self) -> None:
        self._client = AwsClient(_NAME, "dynamodb", self._values, _SECONDS)

    def close(self) -> None:
        if hasattr(self, "_client"):
            self._client.close()

    def resume(self, split: Share, records: int) -> Iterator[pa.RecordBatch]:
        """Goes on with the page after the last record, which a scan from the beginning might not give in the same place."""
        if records and (split != self._split or records != self._mark[0]):
            raise Fatal(f"the scan of {self._table} has lost its place after {records} items", way_out="read the table again")
        return super().resume(split, records)

    def sample(self) -> Sequence[Mapping[str, Attribute]]:
        """Items at the beginning of the table; not none where there are any."""
        key = None
        while True:
            items, key = self._page({"Limit": _SAMPLE}, key)
            if items or key is None:
                return items

    def read_after(self, split: Share, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        """A position is the key that the service names behind a page."""
        segment: dict[str, Any] = {"Segment": split.first, "TotalSegments": split.last}
        if names := {f"#{number}": name for number, name in enumerate(self._schema.names)}:
            segment |= {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
        while True:
            items, position = self._page(segment, position)
            if items:
                yield self._rows(items), position
            if position is None:
                return

    def _page(self, request: Mapping[str, Any], key: Any) -> tuple[Sequence[Mapping[str, Attribute]], Any]:
        start = {} if key is None else {"ExclusiveStartKey": key}
        consistent = self._values["consistentRead"]
        with self._client.errors(f"the table {self._table}"):
            answer = self._client.client.scan(TableName=self._table, ConsistentRead=consistent, **request, **start)
        return answer["Items"], answer.get("LastEvaluatedKey")

    def _rows(self, items: Sequence[Mapping[str, Attribute]]) -> pa.RecordBatch:
        try:
            columns = [
                pa.array([read(_cell(item.get(field.name), field.type)) for item in items], field.type)
                for field, read in self._readers
            ]
        except ValueError as wrong:
            text = f"an item of {self._table} does not fit the columns: {wrong}"
            raise Fatal(text, way_out="give .schema(…) that fits it; string takes text and numbers") from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _cell(attribute: Attribute | None, kind: pa.DataType) -> Any:
    if attribute is None:
        return None
    return attribute["N"] if "N" in attribute and types.is_string(kind) else value_of(attribute)


def _plain(item: Mapping[str, Attribute]) -> dict[str, Any]:
    """An item for the inference of columns, where binary is binary."""
    return {name: attribute.get("B", value_of(attribute)) for name, attribute in item.items()}
