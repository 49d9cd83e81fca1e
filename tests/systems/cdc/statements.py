"""Random transactions on the rows of tables, as SQL of PostgreSQL."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from psycopg import errors

from tests.systems.cdc.sessions import Plan, Statement
from tests.systems.cdc.tables import Column, Table

MOST_BLOCKS = 6


class Statements:
    """Draws statements on ``tables`` from ``chance``, as far as ``switches`` allow.

    ``is_hurried`` is true while somebody waits for the end of transactions. The SQL is PostgreSQL's; a subclass for another
    database changes what that one says differently.
    """

    ending_errors: tuple[type[Exception], ...] = (errors.DeadlockDetected,)
    """Errors that no savepoint outlives."""
    most_rows = 3000
    """So many rows are loaded at once."""

    def __init__(
        self,
        tables: Mapping[str, Table],
        chance: random.Random,
        switches: Set[str],
        is_hurried: Callable[[], bool] = lambda: False,
    ) -> None:
        self.tables, self.chance, self.switches, self.is_hurried = tables, chance, switches, is_hurried

    def transaction(self) -> Plan:
        """One to six statements, with savepoints, which commits mostly; or a single statement."""
        if self.chance.random() < 0.3:
            yield self.any_statement()
            return
        yield Statement("BEGIN")
        savepoints: list[str] = []
        for number in range(self.chance.randrange(1, 7)):
            if self.chance.random() < 0.2:
                savepoints.append(f"s{number}")
                yield Statement(f"SAVEPOINT s{number}")
            error = yield self.any_statement()
            if error is not None and (not savepoints or isinstance(error, self.ending_errors)):
                yield Statement("ROLLBACK", sort="rollback")
                return
            if error is not None:
                chosen = self.chance.randrange(len(savepoints))
                del savepoints[chosen + 1 :]
                yield Statement(f"ROLLBACK TO SAVEPOINT {savepoints[chosen]}", sort="rollback to savepoint")
            elif savepoints and self.chance.random() < 0.3:
                sort = self.chance.choice(("ROLLBACK TO SAVEPOINT", "RELEASE SAVEPOINT"))
                yield Statement(f"{sort} {savepoints.pop()}", sort=sort.lower())
            if self.is_hurried():
                break
        sort = "COMMIT" if self.chance.random() < 0.85 else "ROLLBACK"
        yield Statement(sort, sort=sort.lower())

    def any_statement(self) -> Statement:
        """A change of rows of some table."""
        table = self.tables[self.chance.choices(("orders", "items"), (3, 1))[0]]
        weights: dict[Callable[[Table], Statement], float] = {
            self.insert: 5.0, self.upsert: 6.0, self.update: 9.0, self.delete: 4.0, self.insert_rows: 1.0,
        }  # fmt: skip
        if "key_change" in self.switches:
            weights |= {self.change_key: 2.0, self.shift_keys: 0.3}
        if "bulk" in self.switches:
            weights |= {self.bulk_load: 0.7, self.update_many: 0.5, self.delete_many: 0.3}
        (method,) = self.chance.choices(list(weights), list(weights.values()))
        return method(table)

    def insert(self, table: Table, key: tuple[str, ...] | None = None) -> Statement:
        """A key that was used, often one that is deleted, or else a new one."""
        row = dict(zip(table.keys, key or self._some_key(table), strict=True)) | self._row(table)
        names, places = ", ".join(row), ", ".join("%s" for _ in row)
        return Statement(f"INSERT INTO {table.name} ({names}) VALUES ({places})", list(row.values()), sort="insert")

    def upsert(self, table: Table) -> Statement:
        insert = self.insert(table)
        conflict = "ON CONFLICT DO NOTHING"
        if self.chance.random() < 0.8:
            conflict = self.on_conflict(table, table.updatable(self.chance))
        if table.name == "orders" and self.chance.random() < 0.5:
            conflict = conflict.replace("(id)", "(slot)")
        return Statement(f"{insert.sql} {conflict}", insert.parameters, sort="upsert")

    def mark(self, table: Table, text: str) -> Statement:
        """Writes ``text`` into the row with the number 0, which nothing else touches."""
        column = table.columns[0]
        row = dict(zip(table.keys, ("0", "z"), strict=False)) | self.needed_values(table) | {column.name: text}
        places = ", ".join("%s" for _ in row)
        conflict = self.on_conflict(table, [column])
        insert = f"INSERT INTO {table.name} ({', '.join(row)}) VALUES ({places}) {conflict}"
        return Statement(insert, list(row.values()))

    def on_conflict(self, table: Table, columns: Sequence[Column]) -> str:
        """The end of an upsert, which updates ``columns`` of a row that is there."""
        update = ", ".join(f"{column.name} = excluded.{column.name}" for column in columns)
        return f"ON CONFLICT ({', '.join(table.keys)}) DO UPDATE SET {update}"

    def insert_rows(self, table: Table) -> Statement:
        """Several rows in one statement, each a record of the log of its own."""
        columns = table.insertable(self.chance)
        count = self.chance.randrange(2, 30)
        rows = self.new_rows(table, columns, count)
        names = ", ".join((*table.keys, *(column.name for column in columns)))
        places = ", ".join(f"({', '.join('%s' for _ in row)})" for row in rows)
        values = [value for row in rows for value in row]
        return Statement(f"INSERT INTO {table.name} ({names}) VALUES {places}", values, sort="multi-row insert")

    def update(self, table: Table) -> Statement:
        row = table.row(self.chance, self.switches, table.updatable(self.chance))
        sets = ", ".join(f"{name} = %s" for name in row)
        values = [*row.values(), *table.key(self.chance)]
        return Statement(f"UPDATE {table.name} SET {sets} WHERE {_key_is(table)}", values, sort="update")

    def delete(self, table: Table) -> Statement:
        return Statement(f"DELETE FROM {table.name} WHERE {_key_is(table)}", table.key(self.chance), sort="delete")

    def change_key(self, table: Table) -> Statement:
        new, old = self._some_key(table), table.key(self.chance)
        sets = ", ".join(f"{key} = %s" for key in table.keys)
        values: list[str | None] = [*new]
        if self.chance.random() < 0.4:
            row = table.row(self.chance, self.switches, table.updatable(self.chance))
            sets += "".join(f", {name} = %s" for name in row)
            values += row.values()
        where = f"{_key_is(table)}{self._without_large_values(table)}"
        return Statement(f"UPDATE {table.name} SET {sets} WHERE {where}", [*values, *old], sort="key change")

    def shift_keys(self, table: Table) -> Statement:
        """Moves some rows of a block behind all others."""
        if not table.blocks:
            return self.change_key(table)
        first, count = self.chance.choice(table.blocks)
        some = min(count, self.chance.randrange(1, 60))
        target = table.new_block(some)
        number = table.keys[0]
        where = f"{between(number, first, some)}{self._without_large_values(table)}"
        move = f"UPDATE {table.name} SET {number} = {number} + {target - first} WHERE {where}"
        return Statement(move, sort="keys shifted")

    def bulk_load(self, table: Table) -> Statement:
        """COPY: rows that stand on one page of the table share a record of the log, and its position."""
        count = min(self.most_rows, self.chance.choice((20, 90, 150, 400, 800, self.chance.randrange(400, 3000))))
        columns = table.insertable(self.chance, self.chance.choice((0.15, 0.5, 0.9)))
        is_small = self.chance.random() < 0.7  # small values let many rows share a page
        rows = self.new_rows(table, columns, count, is_small)
        names = ", ".join((*table.keys, *(column.name for column in columns)))
        return Statement(f"COPY {table.name} ({names}) FROM STDIN", rows=rows, sort="copy")

    def update_many(self, table: Table) -> Statement:
        row = table.row(self.chance, self.switches, table.updatable(self.chance)[:2])
        sets = ", ".join(f"{name} = %s" for name in row)
        modulus = self.chance.choice((7, 13, 29))
        where = f"{table.keys[0]} %% {modulus} = {self.chance.randrange(modulus)} AND {table.keys[0]} > 0"
        return Statement(f"UPDATE {table.name} SET {sets} WHERE {where}", list(row.values()), sort="update of many")

    def delete_many(self, table: Table) -> Statement:
        if len(table.blocks) < 2:
            return self.delete(table)
        first, count = self.chance.choice(table.blocks)
        where = f"{between(table.keys[0], first, count)} AND {table.keys[0]} % 3 > 0"
        return Statement(f"DELETE FROM {table.name} WHERE {where}", sort="delete of many")

    def prune(self) -> Plan:
        """Deletes the oldest blocks, so that the tables do not grow for ever."""
        for table in self.tables.values():
            while len(table.blocks) > MOST_BLOCKS:
                first, count = table.blocks.pop(0)
                yield Statement(f"DELETE FROM {table.name} WHERE {between(table.keys[0], first, count)}", sort="pruned")

    def truncate(self) -> Plan:
        """TRUNCATE between two other changes of the table."""
        table = self.tables[self.chance.choice(("orders", "items"))]
        truncate = Statement(f"TRUNCATE {table.name}", sort="truncate", is_ddl=True)
        yield Statement("BEGIN")
        for statement in (self.insert(table), truncate, self.insert(table)):
            if (yield statement) is not None:
                yield Statement("ROLLBACK")
                return
        yield Statement(self.chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))

    def needed_values(self, table: Table) -> dict[str, str | None]:
        """Values of the columns that no INSERT can leave out."""
        columns = [column for column in table.columns if column.is_needed]
        return table.row(self.chance, (), columns)

    def _some_key(self, table: Table) -> tuple[str, ...]:
        return table.key(self.chance) if self.chance.random() < 0.7 else table.key_of(table.new_keys(1), self.chance)

    def _row(self, table: Table) -> dict[str, str | None]:
        row = table.row(self.chance, self.switches)
        if table.name == "orders" and self.chance.random() < 0.3:
            row["slot"] = str(self.chance.randrange(60))
        return row

    def new_rows(self, table: Table, columns: list[Column], count: int, is_small: bool = False) -> list[list[Any]]:
        """Rows of a new block of keys."""
        first = table.new_block(count)
        chosen = [column.without_large_values() for column in columns] if is_small else columns
        return [
            [*table.key_of(number, self.chance), *table.row(self.chance, self.switches, chosen).values()]
            for number in range(first, first + count)
        ]

    def _without_large_values(self, table: Table) -> str:
        """A condition that leaves out rows whose large values a change of the key does not log."""
        if "large_key_change" in self.switches or table.logs_whole_rows:
            return ""
        large = [column.name for column in table.columns if column.kind.large is not None]
        return "".join(f" AND coalesce(octet_length({name}::text), 0) < 500" for name in large)


def _key_is(table: Table) -> str:
    return " AND ".join(f"{key} = %s" for key in table.keys)


def between(column: str, first: int, count: int) -> str:
    return f"{column} BETWEEN {first} AND {first + count - 1}"
