"""A seeded random workload on real tables of PostgreSQL, with everything that makes a change log hard to follow.

``Workload.work`` runs transactions of several sessions, which overlap, wait for each other, roll back in part and whole.
``Workload.quiet`` returns what the tables hold. The same seed gives the same statements; when they meet the query that
reads the log differs from run to run.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import errors

from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM
from tests.systems.cdc.alterations import Alterations
from tests.systems.cdc.compare import Copy
from tests.systems.cdc.sessions import Plan, Scheduler, Session, Statement
from tests.systems.cdc.statements import Statements
from tests.systems.cdc.switches import DEFAULT
from tests.systems.cdc.tables import POSTGRES, Table, items, orders

SIGNALS: Final = "debezium_signal"
_SESSIONS: Final = 5


class Workload:
    """Tables ``orders`` and ``items`` in a database of their own, the sessions that change them, and a connector's settings.

    ``folder`` keeps ``statements.log``, with each statement, its session and what became of it.
    """

    package: str
    topic_prefix: str
    expected: tuple[type[Exception], ...]

    def __init__(self, folder: Path, seed: int, switches: Collection[str], statements: Statements, alterations: Alterations):
        self.folder, self.seed, self.switches = folder, seed, frozenset(switches)
        self.statements, self.alterations, self.chance = statements, alterations, statements.chance
        self.tables = statements.tables
        self.name = f"workload_{uuid.uuid4().hex[:10]}"
        self._quiets = 0
        folder.mkdir(parents=True, exist_ok=True)
        self._create()
        self._monitor = self.connect()
        sessions = [self._session(number) for number in range(_SESSIONS)]
        self.scheduler = Scheduler(sessions, self.expected, folder / "statements.log", self.chance)
        statements.is_hurried = self.scheduler.is_hurried

    def connect(self, database: str | None = None) -> Any:
        """A connection, by default to the workload's own database."""
        raise NotImplementedError

    def execute(self, connection: Any, statement: Statement) -> int:
        """Runs a statement. Returns how many rows it has changed."""
        raise NotImplementedError

    def config(self, chance: random.Random, **more: str) -> dict[str, str]:
        """The connector's settings: small batches and chunks, as ``chance`` says."""
        raise NotImplementedError

    def work(self, rows: int, round_number: int, seconds: float = 0.0) -> dict[str, int]:
        """Runs plans until so many rows are changed, over about ``seconds``, and ends them. Returns the counts of this time."""
        self.chance.seed(f"workload {self.seed} {round_number}")
        counts = self.scheduler.counts
        counts.clear()
        self.scheduler.note(f"round {round_number}")
        began = time.monotonic()
        for _ in range(20 * rows + 100):
            if counts["rows"] >= rows:
                break
            self.scheduler.step(self._plan)
            time.sleep(max(0.0, min(0.5, began + seconds * counts["rows"] / rows - time.monotonic())))
            self._between_steps()
        self.scheduler.finish()
        return dict(counts)

    def quiet(self) -> list[Copy]:
        """Marks the end of what was done in each table, and returns the tables as they are."""
        self._quiets += 1
        connection = self.connect()
        try:
            for table in self.tables.values():
                self.execute(connection, self.statements.mark(table, self.mark()))
            for table in self.tables.values():
                table.settled = {column.name for column in table.columns}
            return [self._copy(connection, table) for table in self.tables.values()]
        finally:
            connection.close()

    def mark(self) -> str:
        """What :meth:`quiet` has written last into the row with the number 0 of each table: the end of the log."""
        return f"quiet {self._quiets}"

    def partial_snapshot(self, chance: random.Random) -> dict[str, str]:
        """Settings of a run that begins with a snapshot of a part of the rows.

        Debezium goes on from the position of such a snapshot: it skips what has happened since the last run to other rows.
        """
        names = [self._full_name(name) for name in self.tables]
        config = {"snapshot.mode": "always", "snapshot.select.statement.overrides": ",".join(names)}
        for name, table in zip(names, self.tables.values(), strict=True):
            part = f"SELECT * FROM {name} WHERE {table.keys[0]} % 2 = {chance.randrange(2)}"
            config[f"snapshot.select.statement.overrides.{name}"] = part
        return config

    def sinks(self, folder: Path) -> dict[str, dict[str, str]]:
        """The options of the merge of each table, by its name."""
        options = self._merge_options()
        if "late_table" not in self.switches:
            options["onLostLedger"] = "notWritten"
        topics = {name: f"{self.topic_prefix}.{self._full_name(name)}" for name in self.tables}
        fills = {name: {"fill": json.dumps(table.fills)} for name, table in self.tables.items()}
        return {name: {"path": str(folder / name), "topic": topic, **fills[name], **options} for name, topic in topics.items()}

    def database_sink(self, folder: Path) -> dict[str, str]:
        """The options of one merge of all tables."""
        options = self._merge_options()
        fills = {name: table.fills for name, table in self.tables.items()}
        return {"path": str(folder), "exclude": rf".*\.{SIGNALS}", "fill": json.dumps(fills), "optimizeEvery": "20", **options}

    def _merge_options(self) -> dict[str, str]:
        options = {"truncate": "delete"} if "truncate" in self.switches else {}
        if "evolve" in self.switches:
            options |= {"onSchemaChange": "evolve", "database": json.dumps(self.database())}
        return options

    def database(self) -> dict[str, str]:
        """The options of ``connectors.jdbc`` that reach the tables."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the sessions."""
        self.scheduler.close()
        self._monitor.close()

    def _create(self) -> None:
        """Makes the database with its tables and their first rows."""
        raise NotImplementedError

    def _is_waiting(self, session: Session) -> bool:
        """True while the statement of ``session`` waits for another session."""
        raise NotImplementedError

    def _copy(self, connection: Any, table: Table) -> Copy:
        raise NotImplementedError

    def _full_name(self, table: str) -> str:
        """The name of a table for the connector."""
        raise NotImplementedError

    def _between_steps(self) -> None:
        """Does what needs several sessions at once."""

    def _fill(self, connection: Any, rows: int = 300) -> None:
        """Inserts the rows that are there from the beginning."""
        for table in self.tables.values():
            for number in range(1, min(rows, table.hot)):
                with contextlib.suppress(*self.expected):
                    self.execute(connection, self.statements.insert(table, table.key_of(number, self.chance)))

    def _session(self, number: int) -> Session:
        return Session(number, self.connect(), self.execute, self._is_waiting)

    def _plan(self) -> Plan:
        """The next plan of a session: mostly a transaction."""
        drawn = self.chance.random()
        plan: Plan | None = None
        if drawn < 0.06:
            plan = self.alterations.any_plan()
        elif drawn < 0.08:
            plan = self._signal()
        elif drawn < 0.09 and "truncate" in self.switches and not self.alterations.is_running:
            plan = self.alterations.exclusive(self.statements.truncate())
        return plan or self.statements.transaction()

    def _filter(self, name: str, sort: str) -> str:
        """Every other row, as Debezium wants it: a condition, or for a blocking snapshot a whole statement."""
        condition = f"{self.tables[name].keys[0]} % 2 = 0"
        return condition if sort == "incremental" else f"SELECT * FROM {self._full_name(name)} WHERE {condition}"

    def _signal(self) -> Plan | None:
        """Asks Debezium for an ad-hoc snapshot."""
        sorts = [sort for sort in ("incremental", "blocking") if sort in self.switches]
        if not sorts:
            return None
        sort, names = self.chance.choice(sorts), self.chance.choice((["orders"], ["items"], ["orders", "items"]))
        data: dict[str, Any] = {"type": sort, "data-collections": [self._full_name(name) for name in names]}
        if "filtered" in self.switches and self.chance.random() < 0.3:
            data["additional-conditions"] = [
                {"data-collection": self._full_name(name), "filter": self._filter(name, sort)} for name in names
            ]
        values = [f"{sort} {self.chance.getrandbits(60):x}", "execute-snapshot", json.dumps(data)]
        return iter_plan(Statement(f"INSERT INTO {SIGNALS} VALUES (%s, %s, %s)", values, sort=f"{sort} snapshot"))


class PostgresWorkload(Workload):
    """A workload on PostgreSQL."""

    package = DEBEZIUM
    topic_prefix = "shop"
    expected = (errors.UniqueViolation, errors.DeadlockDetected, errors.UndefinedColumn, errors.NotNullViolation)

    def __init__(self, server: PostgresServer, folder: Path, seed: int, switches: Collection[str] = DEFAULT) -> None:
        self.server = server
        tables = {"orders": orders(), "items": items()}
        statements = Statements(tables, random.Random(f"workload {seed}"), frozenset(switches))
        super().__init__(folder, seed, switches, statements, Alterations(statements))
        self._slot = 1_000_000
        self._scripts = [self._session(number) for number in range(100, 103)]

    def connect(self, database: str | None = None) -> psycopg.Connection[Any]:
        address = f"host=127.0.0.1 port={self.server.port} user=postgres dbname={database or self.name}"
        options = "-c timezone=UTC -c deadlock_timeout=30ms"
        return psycopg.connect(address, autocommit=True, connect_timeout=10, prepare_threshold=None, options=options)

    def database(self) -> dict[str, str]:
        return {"url": f"postgresql://127.0.0.1:{self.server.port}/{self.name}", "user": self.server.user}

    def execute(self, connection: Any, statement: Statement) -> int:
        cursor = connection.cursor()
        if statement.rows is None:
            cursor.execute(statement.sql, statement.parameters)
        else:
            with cursor.copy(statement.sql) as copy:
                for row in statement.rows:
                    copy.write_row(row)
        return max(0, int(cursor.rowcount))

    def config(self, chance: random.Random, **more: str) -> dict[str, str]:
        return {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "name": self.name,
            "database.hostname": "127.0.0.1",
            "database.port": str(self.server.port),
            "database.user": "postgres",
            "database.password": "sesame",
            "database.dbname": self.name,
            "topic.prefix": self.topic_prefix,
            "plugin.name": "pgoutput",
            "slot.name": self.name,
            "publication.name": self.name,
            "publication.autocreate.mode": "filtered",
            "table.include.list": "public.orders,public.items",
            # Debezium adds the signal table to the tables that it reads, so its changes are a topic of the stream, too.
            "signal.data.collection": f"public.{SIGNALS}",
            "tombstones.on.delete": chance.choice(("false", "true")),
            "skipped.operations": "none" if "truncate" in self.switches else "t",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            **small_batches(chance),
            **more,
        }

    def close(self) -> None:
        super().close()
        for session in self._scripts:
            session.close()
        with self.connect("postgres") as admin:
            for _ in range(50):
                try:
                    admin.execute("SELECT pg_drop_replication_slot(%s)", (self.name,))
                    break
                except errors.ObjectInUse:
                    admin.execute("SELECT pg_sleep(0.2)")
                except errors.UndefinedObject:
                    break

    def _create(self) -> None:
        with self.connect("postgres") as admin:
            admin.execute(f"CREATE DATABASE {self.name}")
        with self.connect() as connection:
            for statement in POSTGRES:
                connection.execute(statement)
            connection.execute(f"CREATE TABLE {SIGNALS} (id varchar(64) PRIMARY KEY, type varchar(32), data text)")
            self._fill(connection)

    def _is_waiting(self, session: Session) -> bool:
        pid = session.connection.info.backend_pid
        row = self._monitor.execute("SELECT cardinality(pg_blocking_pids(%s))", (pid,)).fetchone()
        return bool(row and row[0])

    def _copy(self, connection: psycopg.Connection[Any], table: Table) -> Copy:
        _load_times_as_text(connection)
        rows = connection.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute "
            "WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            (table.name,),
        ).fetchall()
        short = {"timestamp with time zone": "timestamptz", "timestamp without time zone": "timestamp"}
        columns = {name: short.get(kind, kind) for name, kind in rows}
        content = connection.execute(f"SELECT {', '.join(columns)} FROM {table.name}").fetchall()  # type: ignore[call-overload]
        return Copy(table.name, columns, table.keys, content)

    def _full_name(self, table: str) -> str:
        return f"public.{table}"

    def _between_steps(self) -> None:
        if "waiting" in self.switches and self.chance.random() < 0.01 and not self.alterations.is_running:
            self._wait_for_a_rollback()

    def _wait_for_a_rollback(self) -> None:
        """B writes a row and waits at an older unique index for C; A removes the row's key and commits; C rolls back.

        So B commits last, and its record of the log has a lower position than A's.
        """
        a, b, c = self._scripts
        table, run = self.tables["orders"], self.scheduler.run
        first = table.new_block(3)
        key, moved, third = (str(number) for number in range(first, first + 3))
        self._slot += 1
        changes_key, removes = self.chance.random() < 0.4, self.chance.random() < 0.7
        late = self._slotted(key, "late")
        if changes_key:
            late = Statement(f"UPDATE orders SET id = {key}, slot = {self._slot} WHERE id = {moved}", sort="waiting update")
        gone = f"DELETE FROM orders WHERE id = {key}"
        if not removes:
            gone = f"UPDATE orders SET id = {table.new_block(1)} WHERE id = {key}"
        run(a, self._slotted(key, "first", has_slot=False))
        if changes_key:
            run(a, self._slotted(moved, "moves", has_slot=False))
        run(c, Statement("BEGIN"))
        run(c, self._slotted(third, "never"))
        run(b, Statement("BEGIN"))
        assert not b.run(late), "nobody waits"
        run(a, Statement(gone, sort="waited for"))
        run(c, Statement("ROLLBACK"))
        assert b.ends(60.0), "the script waits for ever"
        error = self.scheduler.collect(b)
        run(b, Statement("ROLLBACK" if error else "COMMIT", sort="late rollback" if error else "late commit"))

    def _slotted(self, key: str, name: str, has_slot: bool = True) -> Statement:
        row = {"id": key, **self.statements.needed_values(self.tables["orders"]), "name": name}
        row |= {"slot": str(self._slot)} if has_slot else {}
        places = ", ".join("%s" for _ in row)
        return Statement(f"INSERT INTO orders ({', '.join(row)}) VALUES ({places})", list(row.values()), sort="slotted")


def iter_plan(*statements: Statement) -> Plan:
    """A plan of fixed statements."""
    yield from statements


def small_batches(chance: random.Random) -> dict[str, str]:
    """Settings of Debezium that cut what comes at once."""
    batch = chance.choice((16, 50, 128, 400))
    return {
        "signal.enabled.channels": "source",
        "incremental.snapshot.chunk.size": str(chance.choice((40, 150, 1024))),
        "max.batch.size": str(batch),
        "max.queue.size": str(batch * chance.choice((2, 8))),
        "poll.interval.ms": "50",
        "retriable.restart.connector.wait.ms": "500",
    }


class _TextLoader(psycopg.adapt.Loader):
    """Times as PostgreSQL writes them: Python has no infinite ones."""

    def load(self, data: Any) -> str:
        return bytes(data).decode()


def _load_times_as_text(connection: psycopg.Connection[Any]) -> None:
    for name in ("timestamp", "timestamptz", "json", "jsonb"):
        connection.adapters.register_loader(name, _TextLoader)
