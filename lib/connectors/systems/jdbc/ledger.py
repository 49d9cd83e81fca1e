"""The ledger in the database: one row per sink and query, written first in the transaction of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...core.batch import Committable
from ...core.ledger import OWNER, Entry, LedgerContent, already_committed, belongs_to, check_claim, is_once, is_stream
from ...core.sink import GlobalCommitter
from ...ground.errors import ConnectorError, Poison
from ...ground.state import dumps, loads
from .connection import Connection, pooled_connection
from .dialects import Dialect, Table, dialect_of, parse

LEDGER = "connectors_ledger"


class DatabaseCommitter(GlobalCommitter):
    """Commits rows and ledger row in one transaction: the committer for your own sink whose target is a database.

    The sink's writer stages rows and names their place in its committable. Its committer is one call::

        def committer(self):
            return DatabaseCommitter("jdbc:sqlite:/data/store.db", self.sink_id(), publish, discard)

        def publish(connection, staged):
            connection.execute("INSERT INTO items SELECT id, name FROM staged WHERE attempt = ?", [staged.data["attempt"]])
            discard(connection, staged)

        def discard(connection, staged):
            connection.execute("DELETE FROM staged WHERE attempt = ?", [staged.data["attempt"]])

    ``publish`` runs for each committable inside the batch's transaction, and must not end it; ``discard`` runs for those of an
    uncommitted batch. Both use a :class:`~connectors.systems.jdbc.connection.Connection` and the placeholders of the
    database's driver. ``url`` is JDBC's or SQLAlchemy's; :func:`~connectors.systems.jdbc.register_dialect` adds a database.
    The ledger is the table ``connectors_ledger`` in the default schema. Raises ``ValueError`` for a wrong ``url``.
    """

    records_claims = True

    def __init__(
        self, url: str, sink_id: str, publish: Callable[[Connection, Committable], Any],
        discard: Callable[[Connection, Committable], Any], *, user: str | None = None, password: str | None = None,
        timeout: float = 30.0,
    ) -> None:  # fmt: skip
        self._dialect = dialect_of(parse(url, user, password), timeout)
        self._ledger = TableLedger(self._dialect, Table(LEDGER), sink_id)
        self._publish = publish
        self._discard = discard

    def last(self, query: str) -> Entry | None:
        with pooled_connection(self._dialect) as connection:
            return self._ledger.last(connection, query)

    def queries(self) -> frozenset[str]:
        with pooled_connection(self._dialect) as connection:
            return self._ledger.queries(connection)

    def commit(self, entry: Entry, committables: Sequence[Committable]) -> None:
        with pooled_connection(self._dialect) as connection:
            self._ledger.make(connection)
            with connection.transaction():
                self._ledger.record(connection, replace(entry, committables=()))
                for committable in committables:
                    self._publish(connection, committable)
            self._ledger.forget_once(connection, entry.query)

    def discard(self, committable: Committable) -> None:
        with pooled_connection(self._dialect) as connection, connection.transaction():
            self._discard(connection, committable)


class TableLedger:
    """The rows of ``sink_id`` in ``table``, which :meth:`make` creates."""

    def __init__(self, dialect: Dialect, table: Table, sink_id: str) -> None:
        self.dialect = dialect
        self.table = table
        self.sink_id = sink_id
        self._is_ready = False

    def make(self, connection: Connection) -> None:
        """Creates the table unless it exists. Do not call it inside a transaction."""
        if not self._exists(connection):
            name = self.dialect.identifier
            kinds = {"sink_id": name, "query": name, "batch": "BIGINT", "entry": self.dialect.types["string"]}
            columns = [f"{name} {kind} NOT NULL" for name, kind in kinds.items()]
            make_table(connection, self.table, ", ".join((*columns, "PRIMARY KEY (sink_id, query)")))
            self._is_ready = True

    def last(self, connection: Connection, query: str) -> Entry | None:
        """The newest batch of ``query``."""
        rows = self._rows(connection, "entry", "AND query = ?", [query])
        return _entry(rows[0][0]) if rows else None

    def queries(self, connection: Connection) -> frozenset[str]:
        return frozenset(query for (query,) in self._rows(connection, "query") if is_stream(query))

    def unfinished(self, connection: Connection) -> list[Entry]:
        """The decided batches that still name prepared transactions."""
        return [_entry(text) for (text,) in self._rows(connection, "entry", "AND entry LIKE ?", ['%"prepared"%'])]

    def contents(self, connection: Connection) -> list[LedgerContent]:
        """The content of every sink's ledger in the table, the newest query first."""
        entries: dict[str, list[Entry]] = {}
        if self._exists(connection):
            for sink_id, text in connection.rows(self._sql("SELECT sink_id, entry FROM {} WHERE query <> ?"), [OWNER]):
                entries.setdefault(sink_id, []).append(_entry(text))
        return [
            LedgerContent(
                sink_id,
                tuple(sorted(sink_entries, key=lambda entry: -entry.at)),
                frozenset((entry.query, entry.batch) for entry in sink_entries if pending(entry)),
            )
            for sink_id, sink_entries in sorted(entries.items())
        ]

    def record(self, connection: Connection, entry: Entry) -> None:
        """Writes the row, first in a batch's transaction. Raises :class:`CommitRefused` if the batch is already recorded.

        The row is locked until the transaction ends, so of two runs with the same batch only one commits. A batch that
        replaces the target also removes the ledger rows of other queries: their data is gone, so none of them may continue or
        count as written.
        """
        is_known = self._update(connection, entry, "batch < ?")
        if not is_known and not self._insert(connection, entry):
            raise already_committed(entry)
        if claim := entry.ownership():
            check_claim(self.sink_id, entry, self.last(connection, OWNER))
            if not self._update(connection, claim, "batch < ?") and not self._insert(connection, claim):
                raise belongs_to(self.sink_id, ["(another one, which began at the same moment)"], entry.query)
            if entry.replace:  # a live driver of another query waits for its row and finds it gone
                sql = self._sql("DELETE FROM {} WHERE sink_id = ? AND query NOT IN (?, ?)")
                connection.execute(sql, [self.sink_id, OWNER, entry.query])
        elif not is_known and is_stream(entry.query):
            owner = self.last(connection, OWNER)
            if owner is not None and owner.owner != entry.query:
                raise belongs_to(self.sink_id, [str(owner.owner)], entry.query)

    def _insert(self, connection: Connection, entry: Entry) -> bool:
        """Writes the first row of ``entry``'s query, unless there is one."""
        sql = f"INSERT INTO {self.dialect.table(self.table)} (sink_id, query, batch, entry) VALUES ({self.dialect.slots(4)})"
        try:
            connection.execute(sql, [self.sink_id, entry.query, entry.batch, dumps(entry.state())])
        except Poison:
            return False
        return True

    def amend(self, connection: Connection, entry: Entry) -> None:
        """Replaces the row of ``entry``'s batch."""
        self._update(connection, entry, "batch = ?")

    def forget_once(self, connection: Connection, query: str) -> None:
        """Removes the row of a batch write that nobody repeats."""
        if is_once(query):
            connection.execute(self._sql("DELETE FROM {} WHERE sink_id = ? AND query = ?"), [self.sink_id, query])

    def _update(self, connection: Connection, entry: Entry, condition: str) -> int:
        sql = self._sql("UPDATE {} SET batch = ?, entry = ? WHERE sink_id = ? AND query = ? AND " + condition)
        values = [entry.batch, dumps(entry.state()), self.sink_id, entry.query, entry.batch]
        return connection.dialect.count(connection, sql, values)

    def _rows(self, connection: Connection, column: str, where: str = "", values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        if not self._exists(connection):
            return []
        return connection.rows(self._sql(f"SELECT {column} FROM {{}} WHERE sink_id = ? {where}"), [self.sink_id, *values])

    def _exists(self, connection: Connection) -> bool:
        self._is_ready = self._is_ready or exists(connection, self.table)
        return self._is_ready

    def _sql(self, text: str) -> str:
        """``text`` with the table instead of ``{}`` and the driver's placeholders instead of ``?``."""
        return text.replace("?", self.dialect.placeholder).replace("{}", self.dialect.table(self.table))


def exists(connection: Connection, table: Table) -> bool:
    """True if ``table`` exists."""
    return bool(connection.dialect.columns(connection, table))


def make_table(connection: Connection, table: Table, body: str) -> None:
    """Creates one of the sink's own tables unless it exists. Do not call it inside a transaction."""
    if exists(connection, table):
        return
    try:
        connection.execute(f"CREATE TABLE IF NOT EXISTS {connection.dialect.table(table)} ({body})")
    except ConnectorError:
        if not exists(connection, table):  # else another session was faster
            raise


def pending(entry: Entry) -> list[str]:
    """The prepared transactions of a decided batch that are perhaps not committed yet."""
    return [committable["prepared"] for committable in entry.committables]


def with_pending(entry: Entry, names: Sequence[str]) -> Entry:
    """``entry`` for the ledger: of the staged output it names only the transactions still to be committed."""
    return replace(entry, committables=tuple({"prepared": name} for name in names))


def _entry(text: str) -> Entry:
    return Entry.of(loads(text, "a ledger row"))
