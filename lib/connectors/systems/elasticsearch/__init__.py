"""``connectors.elasticsearch``: documents of Elasticsearch and OpenSearch, written by ``_bulk`` and read shard by shard."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from ...batching import BatchingSink, batching_options
from ...core import REQUIRED, Batch, Choice, Guarantee, Options, Problem, Text, Values
from .client import CONNECTION, check_connection
from .documents import IndexName
from .source import ElasticsearchSource
from .writer import BulkWriter, wrong_columns

__all__ = ["ElasticsearchSink", "ElasticsearchSource"]

_NEED_ID = ("update", "upsert", "delete")


class ElasticsearchSink(BatchingSink):
    """Writes each row as a document.

    What becomes of an item that the server refuses: 429 and 5xx are sent again; 400 (the document does not fit the mapping)
    is a bad row; create 409: the document is there already, which is no error; delete 404: it is gone already; update 404:
    a bad row.

    Guarantee: idempotent with ``idColumn``: a replay writes the same documents again. At-least-once without. Rows of one id
    arrive in the order in which a task has them; give ``orderColumn``, or repartition by the id, if several tasks do. A
    request that was given up after ``request.timeout`` may still arrive, and put an older row over a newer one; only
    ``orderColumn`` prevents that.
    """

    name = "elasticsearch"
    options = (
        CONNECTION
        | batching_options(max_records=1000, max_bytes="5MB", max_time="5s")
        | Options(
            {
                "index": Text(
                    REQUIRED,
                    meaning="a name; with dates in UTC or columns in it: logs-{timestamp|yyyy-MM-dd}, {column}",
                ),
                "operation": Choice(
                    "index",
                    among=("index", "create", *_NEED_ID),
                    meaning="index replaces a document, create only adds one, update and upsert change its fields",
                ),
                "idColumn": Text(None, meaning="the document's id; makes the sink idempotent"),
                "orderColumn": Text(
                    None, meaning="whole numbers or timestamps; an older row never replaces a newer document"
                ),
                "routingColumn": Text(None, meaning="the routing of a document"),
            },
            alias={"versionColumn": "orderColumn"},
        )
    )
    promise = Guarantee.IDEMPOTENT
    conditions = "idColumn names the document of a row; at-least-once without"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        yield from check_connection(values)
        try:
            IndexName.of(values["index"])
        except ValueError as wrong:
            yield Problem("index", f"must be {wrong}.")
        operation = values["operation"]
        if operation in _NEED_ID and not values["idColumn"]:
            yield Problem("idColumn", f"missing; operation={operation} needs the column that names the document.")
        if values["orderColumn"] and operation not in ("index", "delete"):
            text = f"works with operation=index and delete, not with {operation}: the server keeps versions of whole documents."
            yield Problem("orderColumn", text)
        if values["orderColumn"] and not values["idColumn"]:
            yield Problem("idColumn", "missing; orderColumn compares the versions of one document.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        if values["idColumn"]:
            return Guarantee.IDEMPOTENT, "the server has no transactions; with idColumn a replay changes nothing."
        return Guarantee.AT_LEAST_ONCE, "without idColumn a replay adds documents again; give idColumn."

    def target(self) -> str:
        return f"{','.join(sorted(self.values['hosts']))}/{self.values['index']}"

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        yield from wrong_columns(self.values, schema)

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> BulkWriter:
        self.refuse_frame(schema, placed=False)
        return BulkWriter(self, batch, schema)
