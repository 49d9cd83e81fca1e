"""The sink: its options, and what it promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, batching_options
from ...core import REQUIRED, Batch, Choice, Guarantee, Options, Problem, Values
from ...core.datasets import Dataset, of_server
from ...ground.columns import BOOLEAN, TEXT, Column, ColumnType
from .client import CONNECTION, check_connection
from .documents import IndexName, IndexTemplate
from .writer import NEED_ID, OPERATIONS, BulkWriter

_VERSION = ColumnType("a column of whole numbers or timestamps", types.is_integer, types.is_timestamp)


class ElasticsearchSink(BatchingSink):
    """Writes each row as a document.

    What becomes of an item that the server refuses: 429 and 5xx are sent again; 400 (the document does not fit the mapping)
    is a bad row; create 409: the document is there already, which is no error; delete 404: it is gone already; update 404:
    a bad row. With ``operationColumn`` so is, in a replay, the update of a document that the same batch deletes later: upsert
    it instead. Rows of ``create``, ``update`` and ``upsert`` are bad rows beside ``orderColumn``, as the server has no versions
    for them.

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
                "index": IndexTemplate(
                    REQUIRED, meaning="a name; with dates in UTC or columns in it: logs-{timestamp|yyyy-MM-dd}, {column}"
                ),
                "operation": Choice(
                    "index",
                    among=OPERATIONS,
                    meaning="index replaces a document, create only adds one, update and upsert change its fields",
                ),
                "operationColumn": Column(
                    None, TEXT,
                    excludes=(f"operation={'|'.join(OPERATIONS[1:])}: each row has its own", "deleteColumn"),
                    meaning=f"the operation of each row ({', '.join(OPERATIONS)}), not written; another one or null is a bad "
                    f"row, as {', '.join(NEED_ID)} without idColumn",
                ),
                "deleteColumn": Column(
                    None, BOOLEAN, only_with="idColumn", excludes="operation=delete: it deletes each row's document",
                    meaning="a boolean column, not written: true deletes the document of the row's id, null does not",
                ),
                "idColumn": Column(
                    None,
                    needed_by=(
                        f"operation={'|'.join(NEED_ID)}: the column that names the document",
                        "orderColumn: the document whose versions it compares",
                    ),
                    meaning="the document's id; makes the sink idempotent",
                ),
                "orderColumn": Column(
                    None, _VERSION, only_with="operation=index|delete: the server keeps versions of whole documents",
                    meaning="whole numbers from 0, or timestamps from 1970, on; a row replaces a document only if it is newer",
                ),
                "routingColumn": Column(None, meaning="the routing of a document"),
            },
            alias={"versionColumn": "orderColumn"},
        )
    )
    promise = Guarantee.IDEMPOTENT
    conditions = (
        "idColumn names the document of a row; at-least-once without; with operationColumn, no update of a document that its "
        "batch deletes later"
    )

    check = staticmethod(check_connection)

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        if values["idColumn"]:
            return Guarantee.IDEMPOTENT, "the server has no transactions; with idColumn a replay changes nothing."
        return Guarantee.AT_LEAST_ONCE, "without idColumn a replay adds documents again; give idColumn."

    def target(self) -> str:
        return f"{','.join(sorted(self.values['hosts']))}/{self.values['index']}"

    def datasets(self) -> Sequence[Dataset]:
        return [of_server("elasticsearch", self.values["hosts"][0], self.values["index"])]

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        for part in IndexName.of(self.values["index"]).columns():
            kind = schema.field(part.column).type if part.pattern and schema.names.count(part.column) == 1 else pa.date32()
            if not (types.is_timestamp(kind) or types.is_date(kind)):
                yield Problem("index", f'has a date pattern for "{part.column}", which is {kind}, not a timestamp or date.')

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> BulkWriter:
        return BulkWriter(self, batch, schema)
