"""Random changes of tables: ALTER TABLE in transactions that also change rows, and that roll back now and then."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tests.systems.cdc import values as v
from tests.systems.cdc.sessions import Plan, Statement
from tests.systems.cdc.statements import MOST_BLOCKS, Statements
from tests.systems.cdc.tables import Column, Table

_MOST_ADDED: Final = 9
_ADDED_KINDS: Final = (
    v.INT, v.PRICE, v.NUMERIC, v.DATE, v.TIMESTAMP, v.ZONED, v.BYTES, v.ARRAY, v.TEXT, v.BOOLEAN, v.DOUBLE, v.JSONB, v.UUID,
)  # fmt: skip
_PLAIN_KINDS: Final = (v.INT, v.TEXT, v.BOOLEAN, v.DOUBLE)
_WIDER: Final[Mapping[v.Kind, v.Kind]] = {v.INT: v.BIGINT, v.PRICE: v.WIDE_PRICE}


class Alterations:
    """Draws changes of the tables of ``statements``; at most one of them runs at a time."""

    added_kinds: Sequence[v.Kind] = _ADDED_KINDS
    plain_kinds: Sequence[v.Kind] = _PLAIN_KINDS
    wider: Mapping[v.Kind, v.Kind] = _WIDER
    untold_kinds: Collection[v.Kind] = v.UNTOLD

    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.chance, self.switches = statements.chance, statements.switches
        self.is_running = False

    def any_plan(self) -> Plan | None:
        """A change of some table, or a clean-up; ``None`` if no switch allows one, or another one runs."""
        if self.is_running:
            return None
        tables = self.statements.tables
        table = tables[self.chance.choices(("orders", "items"), (2, 1))[0]]
        plans = self._plans(table)
        if any(len(table.blocks) > MOST_BLOCKS for table in tables.values()):
            plans += [self.statements.prune()] * 3
        return self.exclusive(self.chance.choice(plans)) if plans else None

    def exclusive(self, plan: Plan) -> Plan:
        """``plan``, while no other change of a table runs."""
        self.is_running = True
        try:
            yield from plan
        finally:
            self.is_running = False

    def _plans(self, table: Table) -> list[Plan]:
        added = [column for column in table.columns if not column.is_base]
        evolves = "evolve" in self.switches
        old = [column for column in added if column.name in table.settled] if evolves else added
        widenable = [column for column in table.columns if column.kind in self.wider]
        has_room = len(added) < _MOST_ADDED
        plans: list[Plan] = []
        if "add_column" in self.switches and has_room:
            plans += [self._add_column(table) for _ in range(3)]
        if "drop_default" in self.switches and has_room:
            plans.append(self._add_and_drop_default(table))
        if "alter_type" in self.switches and widenable:
            plans.append(self._widen(table, self.chance.choice(widenable)))
        if "widen_key" in self.switches and not table.has_wide_key and self.chance.random() < 0.2:
            plans.append(self._widen_key(table))
        if "drop_column" in self.switches and old:
            plans.append(self._drop_column(table, self.chance.choice(old)))
        if evolves and old:
            plans += [self._rename_column(table, self.chance.choice(old)) for _ in range(2)]
        if {"set_default", "null_defaults"} <= self.switches:
            plans.append(self._set_default(table))
        return plans

    def alteration(self, table: Table, *actions: str) -> Plan:
        """``actions``, mostly with updates before and behind them in the same transaction. Returns true if it commits."""
        updates = self.chance.random() < 0.5
        yield Statement("BEGIN")
        if updates:
            yield from self._update_or_not(table)
        for action in actions:
            statement = Statement(f"ALTER TABLE {table.name} {action}", sort="alter", is_ddl=True)
            if (yield statement) is not None:
                yield Statement("ROLLBACK")
                return False
        if updates:
            yield from self._update_or_not(table)
        commits = self.chance.random() < 0.85
        yield Statement("COMMIT" if commits else "ROLLBACK")
        return commits

    def _update_or_not(self, table: Table) -> Plan:
        yield Statement("SAVEPOINT before")
        if (yield self.statements.update(table)) is not None:
            yield Statement("ROLLBACK TO SAVEPOINT before")

    def _add_column(self, table: Table) -> Plan:
        kind = self._added_kind()
        has_default = self.chance.random() < 0.6 and (kind in self.plain_kinds or "typed_defaults" in self.switches)
        nullable = not has_default or self.chance.random() < 0.6
        column = Column(self._column_name(table), kind, nullable, has_default)
        default = f" DEFAULT {kind.default}" if has_default else ""
        constraint = "" if nullable else " NOT NULL"
        if (yield from self.alteration(table, f"ADD COLUMN {column.name} {kind.sql}{constraint}{default}")):
            table.columns.append(column)
            if kind in self.untold_kinds:
                table.fills[column.name] = v.FILLS[kind.name] if has_default else None

    def _add_and_drop_default(self, table: Table) -> Plan:
        """A column that old rows have a value of, and whose default is gone, at once or a little later."""
        kind, name = self._added_kind(has_default=True), self._column_name(table)
        add, drop = f"ADD COLUMN {name} {kind.sql} NOT NULL DEFAULT {kind.default}", f"ALTER COLUMN {name} DROP DEFAULT"
        needed = Column(name, kind, nullable=False)
        table.fills[name] = v.FILLS[kind.name]
        if self.chance.random() < 0.5:
            if (yield from self.alteration(table, add, drop)):
                table.columns.append(needed)
        elif (yield from self.alteration(table, add)):
            table.columns.append(needed)
            if not (yield from self.alteration(table, drop)):
                table.replace(needed, replace(needed, has_default=True))

    def _set_default(self, table: Table) -> Plan:
        """A default for later rows, or none; the rows that are there keep what they have.

        Of a column that is new, Debezium would tell this one: it asks the database when it comes to the column in the log.
        """
        column = self.chance.choice([column for column in table.columns if column.is_base])
        drops = column.has_default and column.nullable and self.chance.random() < 0.4
        literal = self.literal(column.kind)
        action = f"ALTER COLUMN {column.name} " + ("DROP DEFAULT" if drops else f"SET DEFAULT {literal}")
        if (yield from self.alteration(table, action)):
            table.replace(column, replace(column, has_default=not drops))

    def literal(self, kind: v.Kind) -> str:
        """A value as SQL."""
        return "'" + str(kind.draw(self.chance)).replace("'", "''") + "'"

    def _widen(self, table: Table, column: Column) -> Plan:
        wider = replace(column, kind=self.wider[column.kind])
        if (yield from self.alteration(table, self.new_type(wider))):
            table.replace(column, wider)

    def _widen_key(self, table: Table) -> Plan:
        if (yield from self.alteration(table, self.new_type(Column(table.keys[0], v.BIGINT, nullable=False)))):
            table.has_wide_key = True

    def new_type(self, column: Column) -> str:
        return f"ALTER COLUMN {column.name} TYPE {column.kind.sql}"

    def _drop_column(self, table: Table, column: Column) -> Plan:
        if (yield from self.alteration(table, f"DROP COLUMN {column.name}")):
            table.columns.remove(column)
            table.dropped.append(column.name)

    def _rename_column(self, table: Table, column: Column) -> Plan:
        name = self._column_name(table)
        table.fills |= {name: table.fills[column.name]} if column.name in table.fills else {}
        if (yield from self.alteration(table, f"RENAME COLUMN {column.name} TO {name}")):
            table.replace(column, replace(column, name=name))
            table.settled.add(name)

    def _added_kind(self, has_default: bool = False) -> v.Kind:
        kinds = self.plain_kinds if has_default and "typed_defaults" not in self.switches else self.added_kinds
        return self.chance.choice([kind for kind in kinds if not kind.switch or kind.switch in self.switches])

    def _column_name(self, table: Table) -> str:
        if "readd_column" in self.switches and table.dropped and self.chance.random() < 0.3:
            return table.dropped.pop()
        table.next_column += 1
        return f"c{table.next_column}"
