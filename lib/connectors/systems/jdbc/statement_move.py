"""Runs the user's own statement for the rows of a stage: each row once, in the order in which its task had it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .connection import Connection
from .dialects import Table
from .stage import PLACE, RejectedRows, StageMove, StageRange
from .statement import BoundStatement
from .target import WritePlan

_NUMBERED = Table("connectors_numbered")


def move_of(connection: Connection, plan: WritePlan, stage: Table, attempts: Sequence[int] = (), **more: Any) -> StageMove:
    """The move that ``plan`` asks for, of the rows of a stage."""
    if plan.statement is None:
        return StageMove(connection, plan, stage, attempts, **more)
    return StatementMove(connection, plan, stage, attempts, statement=plan.statement, **more)


class StatementMove(StageMove):
    """Runs ``statement`` for each row of a stage, by their positions or by their :data:`~.stage.PLACE`."""

    def __init__(self, *arguments: Any, statement: BoundStatement, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.statement = statement

    def move_all_but(self, rejects: RejectedRows) -> None:
        """As in the base class. The halves are of a copy whose places have no gaps, and an index."""
        if not self.dialect.keeps_order:
            numbered = self.dialect.table(_NUMBERED)
            columns = ", ".join([*self._all_columns(), f"row_number() OVER (ORDER BY {PLACE}) AS {PLACE}"])
            select = f"SELECT {columns} FROM {self._source()}"
            self.connection.execute(f"CREATE TEMPORARY TABLE {numbered} ON COMMIT DROP AS {select}")
            self.connection.execute(f"CREATE INDEX ON {numbered} ({PLACE})")
            self.stage, self._chosen = _NUMBERED, ""
        super().move_all_but(rejects)

    def _move(self, rows: StageRange | None) -> None:
        values = [f"{value} AS v{number}" for number, value in enumerate(self.statement.values)]
        for part in self._parts(rows):
            inside = self._between(part) if part is not None else ""
            source = self._source(inside, self._not_excluded(self._position()))
            select = f"SELECT {', '.join(values or ['1 AS v0'])} FROM {source} ORDER BY {self._position()}"
            self.dialect.run_for_rows(self.connection, self.statement.text, select, len(values))

    def _parts(self, rows: StageRange | None) -> Iterator[StageRange | None]:
        """The rows in pieces that fit into memory, if they pass through this process."""
        step = self.dialect.rows_at_once
        if not step:
            yield rows
            return
        first, last = self._positions()
        first, last = (max(first, rows.first), min(last, rows.last)) if rows is not None else (first, last)
        for begin in range(first, last + 1, step):
            yield StageRange(begin, min(begin + step - 1, last))

    def _positions(self) -> tuple[int, int]:
        if self.dialect.keeps_order:
            return super()._positions()
        ((first, last),) = self.connection.rows(f"SELECT min({PLACE}), max({PLACE}) FROM {self._source()}")
        return (first, last) if first is not None else (0, -1)

    def _position(self) -> str:
        return super()._position() if self.dialect.keeps_order else PLACE

    def _between(self, rows: StageRange) -> str:
        return super()._between(rows) if self.dialect.keeps_order else f"{PLACE} BETWEEN {rows.first} AND {rows.last}"
