"""Rows into a table by its key: statements of one partition together, many under way."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as types

from ...batching import BatchingSink, BatchingWriter, Failure, FlowLimits, Throttled, batching_options
from ...core import (
    REQUIRED,
    Batch,
    Duration,
    Flag,
    Guarantee,
    Int,
    Options,
    Poison,
    Text,
    Transient,
    Values,
)
from ...core.datasets import Dataset
from ...ground.columns import BOOLEAN, Column, ColumnType
from ...ground.retry import Contact, RetrySettings
from .connection import CONNECTION, check_connection, datasets_of, give_back, shared_client, take_client
from .writing import Group, Statements, Write

_TIME: Final = ColumnType("a timestamp, or microseconds as a long", types.is_timestamp, types.is_int64)
_INSERTS: Final = "ifNotExists: a lightweight transaction has a time of its own, and only inserts"
_TASK_TIME: Final = 100
"""Microseconds between the first rows of two tasks. Spark starts a task in more time than that, and a row takes a task more
than a microsecond: the times of a batch are over before it ends, and so before the next one begins."""
_BUSY: Final = ("WriteTimeout", "OverloadedErrorMessage", "Unavailable")
_OF_ROW: Final = ("key may not be empty", "key length", "oversized", "too large", "too big", "longer than", "guardrail")
"""Parts of the error messages about one row. Others are about the table, and no row could be written."""


class CassandraSink(BatchingSink):
    """Writes each row in the place of the one with its primary key; columns that the rows do not have stay as they are.

    Rows of one partition go together, in an unlogged batch, which Cassandra applies at once. A null deletes the value of its
    column, unless ``ignoreNulls`` is set.

    Cassandra keeps what has the newest time of writing. With ``orderColumn`` that is a row's own time, so a late older row
    never wins. Without it, it is the time at which the driver began the batch, and the place of the row in its task: the last
    row of a key wins, and a late task of an older batch changes nothing. The clocks of the executors have no part in it; those
    of drivers that run a query one after another must agree, and must not be set back between two batches (``foreach_batch``
    stands that).

    Of rows of one key and one time the last one of a record batch is written. Of those in different record batches, tasks or
    batches Cassandra takes the larger value of each column, which mixes them, and a deletion before any value. Without
    ``orderColumn`` two tasks of a batch seldom meet in a time, and rows of a key do where a task is tried again with its
    rows in another order; repartition by the key and sort within partitions where the last one must win.

    Counters are added to, not set, and a list that is not frozen has its elements twice after a second write. So both are
    refused unless ``guarantee=at-least-once`` says that this may be, and such a list with ``orderColumn`` in any case. A null
    leaves a counter as it is.

    Guarantee: idempotent by the primary key: a replay writes the same values into the same rows.
    """

    name = "cassandra"
    options = (
        CONNECTION
        | batching_options(max_records=100, max_bytes="1MB", max_time="100ms")
        | Options(
            {
                "keyspace": Text(REQUIRED, meaning="the keyspace"),
                "table": Text(REQUIRED, meaning="the table, in its own case"),
                "batch.maxInFlight": Int(8, at_least=1, meaning="requests of a task, of batch.maxRecords rows each, under way"),
                "ttl": Duration(
                    None, at_least="1s", at_most="7300 days", meaning="rows expire after so long; default: as the table says"
                ),
                "orderColumn": Column(
                    None,
                    _TIME,
                    excludes=_INSERTS,
                    meaning="the time of writing, a timestamp or microseconds: a row of an older time never wins; default: "
                    "the time at which the driver began the batch",
                ),
                "deleteColumn": Column(
                    None, BOOLEAN, excludes=_INSERTS, meaning="a boolean column: true deletes the row of the key, null does not"
                ),
                "ignoreNulls": Flag(False, meaning="a null leaves the value as it is, in place of deleting it"),
                "ifNotExists": Flag(False, meaning="write only rows whose key is not there, by lightweight transactions: slow"),
            },
            alias={"timestampColumn": "orderColumn"},
        )
    )
    promise = Guarantee.IDEMPOTENT
    conditions = (
        "rows are written by the primary key, as of orderColumn or else of the driver's clock; an older row never wins; of "
        "rows of one key and one time in different tasks or batches the larger value of each column wins; counters and lists "
        "that are not frozen are at-least-once"
    )

    check = staticmethod(check_connection)

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        text = (
            "Cassandra has no transaction over the rows of a batch and a ledger. It is enough: a replay writes the same values "
            "under the same keys, which leaves every row as it is."
        )
        return Guarantee.IDEMPOTENT, text

    def target(self) -> str:
        values = self.values
        place = ",".join(values["contactPoints"]) or values["secureConnectBundle"]
        return f"{place}/{values['keyspace']}.{values['table']}"

    def datasets(self) -> Sequence[Dataset]:
        return datasets_of(self.values, f"{self.values['keyspace']}.{self.values['table']}")

    def check_target(self, schema: pa.Schema) -> None:
        with shared_client(self.values, knows_replicas=True) as client:
            Statements.of(client, self.values, schema)

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> RowWriter:
        return RowWriter(self, batch, schema, batch.time + _TASK_TIME * subtask)


class RowWriter(BatchingWriter):
    """Writes the rows of one task. ``time`` is that of writing of its first row, in microseconds since 1970."""

    def __init__(self, sink: CassandraSink, batch: Batch, schema: pa.Schema, time: int) -> None:
        self._time = time
        contact = Contact(RetrySettings.of(sink.values), reached=batch.number > 0)
        self._client, self._pool_key = contact.call(lambda: take_client(sink.values, knows_replicas=True))
        try:
            self._statements = contact.call(lambda: Statements.of(self._client, sink.values, schema))
        except BaseException:
            give_back(self._client, self._pool_key)
            raise
        self._existing, self._lock = 0, threading.Lock()
        super().__init__(sink, batch)

    def limits_of(self, values: Values) -> FlowLimits:
        limits = super().limits_of(values)
        return replace(limits, timeout=limits.timeout + 1.0)  # the driver gives up first, and knows more

    def entries(self, rows: pa.RecordBatch) -> Sequence[Write | Poison]:
        writes = self._statements.writes(rows, self._time)
        self._time += rows.num_rows
        return writes

    def sizes(self, entries: Sequence[Write]) -> list[int]:
        return [entry.size for entry in entries]

    def keys(self, entries: Sequence[Write]) -> Sequence[Hashable] | None:
        """Rows with a time may overtake each other; of lightweight transactions on one key the first one must stay it."""
        statements = self._statements
        if not statements.is_conditional:
            return None
        return [entry.partition if statements.static else entry.key for entry in entries]

    def send(self, entries: list[Write]) -> Iterator[Failure]:
        """The rows of a request, all under way at once, ordered by their replicas."""
        statements = [(group, self._statements.statement(group)) for group in self._statements.groups(entries)]
        statements.sort(key=lambda pair: self._client.replica(pair[1]))
        requests = [(group, self._client.request(statement)) for group, statement in statements]
        failures: dict[int, BaseException] = {}
        for group, request in requests:
            failures.update(self._failures(group, request))
        return iter(failures.items())

    def _failures(self, group: Group, request: Any) -> Iterator[Failure]:
        error = self._outcome(request)
        if isinstance(error, Poison) and len(group.writes) > 1:  # which of them is bad, only single ones say
            for write, places in group.parts():
                alone = self._outcome(self._client.request(self._statements.statement(Group([write], [places]))))
                if alone is not None:
                    yield from ((place, alone) for place in places)
        elif error is not None:
            yield from ((place, error) for place in group.done())
        elif self._statements.is_conditional:
            with self._lock:  # of several rows of a key the first one is written
                self._existing += len(group.done()) - 1

    def _outcome(self, request: Any) -> Exception | None:
        """Why a request was refused; ``None`` if it was not."""
        try:
            result = request.result()
        except Exception as error:
            return self._failure(error)
        if self._statements.is_conditional and result.current_rows:
            applied = result.current_rows[0].cells()[0][0]
            with self._lock:
                self._existing += applied != b"\x01"
        return None

    def _failure(self, error: Exception) -> Exception:
        known = self._client.error_of(error, "a row")
        text = str(error).lower()
        if isinstance(error, self._client.driver.InvalidRequest) and any(part in text for part in _OF_ROW):
            return Poison(f"Cassandra refuses the row: {' '.join(str(error).split())}")
        if isinstance(known, Transient) and type(error).__name__ in _BUSY:
            return Throttled(known.message)
        return known or error

    def report(self) -> dict[str, Any]:
        return {"existing": self._existing} if self._existing else {}

    def close(self) -> None:
        super().close()
        give_back(self._client, self._pool_key)
