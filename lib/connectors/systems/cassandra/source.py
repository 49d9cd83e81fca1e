"""The rows of a table: the ring of tokens in ranges, made one by one, each read page by page."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from ...core import (
    Duration,
    Flag,
    Int,
    Misconfigured,
    Names,
    Options,
    Position,
    Predicate,
    Problem,
    ReadLimit,
    SeekingReader,
    Size,
    Source,
    Split,
    SplitEnumerator,
    Text,
    Values,
)
from ...core.datasets import Dataset
from ...formats.base import quoted as sql_name
from ...formats.base import sql_type
from .connection import (
    CONNECTION,
    NAME,
    CassandraClient,
    check_connection,
    datasets_of,
    give_back,
    shared_client,
    take_client,
)
from .decoding import ColumnDecoder, arrow_type
from .encoding import encoder
from .filters import Partition, Pushed, conditions, partitions, pushed
from .pages import Page
from .ring import MOST_TASKS, SMALLEST_SPLIT, cut, estimate, ring_of
from .tables import Extra, QueryParser, Selection, Table, extras, parsed_query, selection

_log = logging.getLogger("connectors")
_WITHOUT_ESTIMATE: Final = 2
_OF_QUERY: Final = "query: it says that already"
_TIMESTAMP: Final = pa.timestamp("us", "UTC")


class CassandraSource(Source):
    """The rows of a table, as a batch. It is no snapshot: a row that changes meanwhile is read before or after it.

    The ring of tokens is cut into ranges of ``maxSplitMemorySize`` each, by the size that the nodes know of the table
    (``system.size_estimates``). A table that is too new for it is cut into ``numPartitions`` ranges, and a warning says so.
    Tasks make their ranges one by one and read them page by page; after an outage a range goes on after the last page,
    which Cassandra's paging state names by its last partition and clustering key.

    Columns are those of ``.schema(…)``, else ``columns``, else all. Columns of the partition key and static ones alone are
    read once for each partition. ``query`` is a SELECT over the ring, to which the ranges are added.

    Guarantee: exactly-once for a table that does not change while it is read.
    """

    name = "cassandra"
    limits = ()
    batch_only = "Cassandra does not say what is new"
    conditions = "a batch; the table does not change meanwhile, else a row is read before or after its change"
    options = CONNECTION | Options(
        {
            "table": Text(None, alternatives=("query",), meaning="the table, in its own case"),
            "query": Text(None, meaning="in place of table: a SELECT without aggregates, ORDER BY, LIMIT and partition keys"),
            "columns": Names(
                (), excludes=_OF_QUERY, meaning="the columns that are read; default: those of .schema(…), else all"
            ),
            "ttlOf": Names((), excludes=_OF_QUERY, meaning="columns whose seconds to live are columns too, called <name>_ttl"),
            "writetimeOf": Names(
                (), excludes=_OF_QUERY, meaning="columns whose time of writing is a column too, called <name>_writetime"
            ),
            "maxSplitMemorySize": Size(
                64 << 20, at_least=SMALLEST_SPLIT, meaning="a range of tokens has about so many bytes at most"
            ),
            "pushFilters": Flag(
                False,
                excludes=_OF_QUERY,
                meaning="with spark.sql.python.filterPushdown.enabled: filters on keys are Cassandra's. Only for a DataFrame "
                "that is used once: Spark 4.2 keeps what it has pushed for one query for the others on the same DataFrame",
            ),
            "fetchSize": Int(5000, at_least=1, meaning="rows of a page"),
            "speculativeExecution": Duration(
                None, meaning="ask a second node when the first has not answered for so long; default: off"
            ),
        }
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_connection(values)
        if values["query"] is None and values["keyspace"] is None:
            yield Problem("keyspace", "missing; give keyspace, or a query.")
        if values["consistency"] in ("ANY", "EACH_QUORUM"):
            yield Problem("consistency", f"{values['consistency']} is for writing only.")

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        self.pushed: Sequence[Pushed] = ()

    @cached_property
    def schema(self) -> str:  # type: ignore[override]
        with self.client() as client:
            return ", ".join(f"{sql_name(name)} {sql_type(kind)}" for name, kind in self.columns(client))

    def client(self) -> contextlib.AbstractContextManager[CassandraClient]:
        return shared_client(self.values, speculative=self.values["speculativeExecution"])

    def columns(self, client: CassandraClient) -> list[tuple[str, pa.DataType]]:
        """The names and types of the columns that are read unless ``.schema(…)`` says otherwise."""
        prepared = client.prepare(self.selection(client).statement())
        written = {extra.name for extra in self.extras() if extra.is_time}
        try:
            columns = [(name, kind) for _, _, name, kind in prepared.result_metadata]
            return [(name, _times(arrow_type(kind)) if name in written else arrow_type(kind)) for name, kind in columns]
        except ValueError as unknown:
            raise Misconfigured(NAME, [Problem("columns", f"{unknown}; name the others in columns.")]) from None

    def selection(self, client: CassandraClient, names: Sequence[str] | None = None) -> Selection:
        """The selection to read, with the columns ``names``. Raises :class:`Misconfigured` for what is not in the cluster."""
        values = self.values
        if values["query"] is not None:
            return parsed_query(values["query"], values["keyspace"], client)
        table = Table.of(client, values["keyspace"], values["table"])
        own = table.names()
        for option in ("columns", "ttlOf", "writetimeOf"):
            if unknown := [name for name in values[option] if name not in own]:
                text = f'names the column "{unknown[0]}", which {table.name} has not: {", ".join(own)}.'
                raise Misconfigured(NAME, [Problem(option, text)])
        more = self.extras()
        if twice := [extra.name for extra in more if extra.name in own]:
            option = "ttlOf" if twice[0].endswith("_ttl") else "writetimeOf"
            text = f"makes a column {twice[0]}, and {table.name} has one; select it by query, with another name."
            raise Misconfigured(NAME, [Problem(option, text)])
        if names is None:
            names = [*(values["columns"] or own), *(extra.name for extra in more)]
        if unknown := [name for name in names if name not in own and name not in {extra.name for extra in more}]:
            text = f'names the column "{unknown[0]}", which {table.name} has not: {", ".join(own)}.'
            raise Misconfigured(NAME, [Problem("schema", text)])
        return selection(table, names, more)

    def extras(self) -> list[Extra]:
        return extras(self.values["ttlOf"], self.values["writetimeOf"])

    @property
    def pushes_filters(self) -> bool:
        return bool(self.values["pushFilters"]) and self.values["query"] is None

    def push_filters(self, predicates: Sequence[Predicate]) -> Sequence[Predicate]:
        with self.client() as client:
            table = Table.of(client, self.values["keyspace"], self.values["table"])
        self.pushed = pushed(table, predicates)
        return [pushed.predicate for pushed in self.pushed if pushed.is_exact]

    def parallelism(self) -> int:
        return int(self.values["numPartitions"] or MOST_TASKS)

    def datasets(self) -> Sequence[Dataset]:
        values = self.values
        space, table = values["keyspace"], values["table"]
        if values["query"] is not None:
            space, table = QueryParser(values["query"], space).name()
        return datasets_of(values, f"{space}.{table}")

    def enumerator(self) -> RingEnumerator:
        return RingEnumerator(self)

    def reader(self, schema: pa.Schema) -> RowReader:
        return RowReader(self, schema)


def _times(kind: pa.DataType) -> pa.DataType:
    """The type of times of writing: of a collection each element has one."""
    return pa.list_(_TIMESTAMP) if pa.types.is_list(kind) else _TIMESTAMP


@dataclass(frozen=True)
class TableState:
    """The facts that the driver needs before it cuts: the partitioner, and the number of ranges."""

    partitioner: str
    splits: int


class RingEnumerator(SplitEnumerator[Split]):
    """The position says whether the table was read, and how the ring is cut for that."""

    def __init__(self, source: CassandraSource) -> None:
        self.source = source

    def start(self) -> Position:
        return {"read": False}

    def head(self) -> TableState:
        values = self.source.values
        with self.source.client() as client:
            table = self.source.selection(client).table
            (local,) = client.rows("SELECT partitioner FROM system.local")
            partitioner = str(local["partitioner"]).rpartition(".")[2]
            size = estimate(client, ring_of(partitioner), table.keyspace, table.name)
        otherwise = int(values["numPartitions"] or _WITHOUT_ESTIMATE)
        if size.bytes is None:
            text = "connectors.cassandra: the nodes do not know the size of %s.%s yet (they look every few minutes); %s"
            _log.warning(text, table.keyspace, table.name, f"it is cut into numPartitions = {otherwise} ranges")
        splits = size.splits(values["maxSplitMemorySize"], otherwise)
        return TableState(partitioner, max(splits, values["numPartitions"] or 1))

    def advance(self, at: Position, head: TableState, limit: ReadLimit) -> Position:
        return {"read": True, "partitioner": head.partitioner, "splits": head.splits}

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Split]:
        if named := partitions(self.source.pushed):
            return iter(named)
        return cut(ring_of(end["partitioner"]), end["splits"])


class RowReader(SeekingReader[Split]):
    """Reads a range page by page; while one is cut into columns, the next is under way."""

    def __init__(self, source: CassandraSource, schema: pa.Schema) -> None:
        super().__init__()
        self._source, self._schema = source, schema

    def open(self) -> None:
        source = self._source
        self._client, self._key = take_client(source.values, speculative=source.values["speculativeExecution"])
        selection = source.selection(self._client, self._schema.names)
        of_partition = bool(partitions(source.pushed))
        texts, self._values = conditions(source.pushed)
        self._statement = self._client.prepare(selection.statement(texts, of_partition=of_partition))
        self._markers = [encoder(column.type) for column in self._statement.column_metadata]
        self._decoders = self._column_decoders([(name, kind) for _, _, name, kind in self._statement.result_metadata])

    def close(self) -> None:
        if hasattr(self, "_client"):
            give_back(self._client, self._key)

    def read_after(self, split: Split, position: bytes | None) -> Iterator[tuple[pa.RecordBatch, bytes | None]]:
        """A position is the state of a page, which names the last partition and clustering key."""
        client, bound = self._client, self._bound(split)
        request = client.request(bound, paging_state=position)
        while True:
            page = client.page(request)
            if page.state is not None:
                request = client.request(bound, paging_state=page.state)
            if page.count:
                yield self._rows(page), page.state
            if page.state is None:
                return

    def _bound(self, split: Split) -> Any:
        names = split.key if isinstance(split, Partition) else (split.start, split.end)  # type: ignore[attr-defined]
        cells = [write(value) for write, value in zip(self._markers, [*names, *self._values], strict=True)]
        bound = self._client.bound(self._statement, cells)
        bound.fetch_size, bound.is_idempotent = self._source.values["fetchSize"], True
        return bound

    def _rows(self, page: Page) -> pa.RecordBatch:
        cells = page.cells()
        columns = [decode(cells[place]) for place, decode in self._decoders]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column_decoders(self, columns: Sequence[tuple[str, Any]]) -> list[tuple[int, ColumnDecoder]]:
        names = [name for name, _ in columns]
        if unknown := [name for name in self._schema.names if name not in names]:
            text = f'names the column "{unknown[0]}", which the query does not give: {", ".join(names)}.'
            raise Misconfigured(NAME, [Problem("schema", text)])
        places = [(names.index(field.name), field) for field in self._schema]
        return [(place, ColumnDecoder(field.name, columns[place][1], field.type)) for place, field in places]
