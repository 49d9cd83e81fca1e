"""The MERGE of a batch of changes as SQL: ``old`` are the rows of the table, ``new`` is the newest change of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...formats.base import quoted
from .change_batch import AFTER_DELETION, BEGIN
from .change_log import ATTEMPT, DELETED, POSITION, SNAPSHOT
from .change_target import ChangeTarget
from .holes import is_absent
from .positions import ARRIVAL, FROM_SNAPSHOT, PLACE_LENGTH, place_in
from .sink import same_key

_POSITION: Final = (
    f"concat(new.{POSITION}, if(new.{SNAPSHOT}, concat('{FROM_SNAPSHOT}', coalesce(new.{ATTEMPT}, '')), ''))"
)
"""What the table stores of the position of a change."""


@dataclass(frozen=True)
class MergeStatement:
    """The MERGE of changes that have ``columns`` into ``target``.

    ``holes`` are conditions of values that a change does not tell, and ``orphans`` columns of the table that its source has no
    more: a row that the table has keeps its values of both. ``cut`` is the position of a truncation in the batch, and
    ``has_ghosts`` is true where the initial snapshot ends with it: rows that these delete are gone unless the batch has them.
    """

    target: ChangeTarget
    keys: Sequence[str]
    columns: Sequence[str]
    holes: Mapping[str, str]
    orphans: Sequence[str]
    cut: str | None
    has_ghosts: bool

    def text(self, target: str, source: str) -> str:
        """The statement that merges the view ``source`` into the table ``target``."""
        begins, position = self._begins(), f"{quoted(self.target.position)} = {_POSITION}"
        values = {name: self._new(name, self._kept(name, begins)) for name in self.columns if name not in self.keys}
        sets = [f"{quoted(name)} = {value}" for name, value in values.items()]
        sets += [f"{quoted(name)} = if({begins}, NULL, old.{quoted(name)})" for name in self.orphans]
        names = ", ".join(quoted(name) for name in (*self.columns, self.target.position))
        cells = ", ".join((*(self._new(name, self._unknown(name)) for name in self.columns), _POSITION))
        gone, delete, vanish = self._gone(), "DELETE", "DELETE"
        if self.target.deleted is not None:
            column = quoted(self.target.deleted)
            vanish = f"UPDATE SET {column} = current_timestamp()"
            delete = f"{vanish}, {position}"
            sets.append(f"{column} = NULL")
            gone = gone and f"({gone}) AND old.{column} IS NULL"
        is_newer = f"(new.{SNAPSHOT} OR {_is_of_snapshot(self.target)} OR new.{POSITION} > {_old(self.target)})"
        return (
            f"MERGE INTO {target} AS old USING {source} AS new ON {same_key(self.keys)} "
            f"WHEN MATCHED AND {is_newer} AND new.{DELETED} THEN {delete} "
            f"WHEN MATCHED AND {is_newer} THEN UPDATE SET {', '.join((*sets, position))} "
            f"WHEN NOT MATCHED AND NOT new.{DELETED} THEN INSERT ({names}) VALUES ({cells})"
        ) + (f" WHEN NOT MATCHED BY SOURCE AND ({gone}) THEN {vanish}" if gone else "")

    def _gone(self) -> str:
        """The rows that are deleted unless the batch has them; empty for none."""
        ghosts = [is_ghost(self.target)] if self.has_ghosts else []
        return " OR ".join(ghosts + self._truncated())

    def _truncated(self) -> list[str]:
        return [] if self.cut is None else [f"({_is_of_snapshot(self.target)} OR {_old(self.target)} < '{self.cut}')"]

    def _begins(self) -> str:
        """The row of the table is another one than that of the change, which has begun in the batch or behind a deletion."""
        length = 0 if self.target.known_state.order == ARRIVAL else PLACE_LENGTH  # a repeat of what the table has is no begin
        new, old = (f"left({side}, length({side}) - {length})" for side in (f"new.{BEGIN}", _old(self.target)))
        # only behind a deletion can a row of a snapshot not be the one that the change has begun
        is_other = f"if({_is_of_snapshot(self.target)}, new.{AFTER_DELETION}, {new} > {old})"
        conditions = [f"new.{BEGIN} IS NOT NULL AND {is_other}"]
        if self.target.deleted is not None:
            conditions.append(f"old.{quoted(self.target.deleted)} IS NOT NULL")
        return " OR ".join(conditions + self._truncated())

    def _kept(self, name: str, begins: str) -> str:
        """The value of a row that the table has, where a change does not tell it."""
        return f"CASE WHEN {begins} THEN {self._unknown(name)} ELSE old.{quoted(name)} END"

    def _unknown(self, name: str) -> str:
        """The value of a new row that its record does not tell. Raises an error where the row had another key before."""
        if self.target.values["fill"].get(name, "") is None:
            return "NULL"
        text = (
            f"column {name}: the key of a row has changed, and Debezium does not tell its large value, which has not. Give the "
            f'table REPLICA IDENTITY FULL for the next time, and fill={{"{name}": null}} to leave it empty now.'
        )
        error = f"raise_error(decode(unhex('{text.encode().hex()}'), 'UTF-8'))"
        return f"CASE WHEN {is_absent(name)} THEN new.{quoted(name)} WHEN new.{BEGIN} IS NOT NULL THEN {error} END"

    def _new(self, name: str, untold: str) -> str:
        """The value of a column after a change; ``untold`` is the one of a hole."""
        value = f"new.{quoted(name)}"
        return f"CASE WHEN {self.holes[name]} THEN {untold} ELSE {value} END" if name in self.holes else value


def is_ghost(target: ChangeTarget) -> str:
    """SQL: the row is of an attempt at the initial snapshot that was interrupted."""
    state = target.known_state
    others = f" AND NOT endswith({_old(target)}, '{FROM_SNAPSHOT}{state.attempt}')" if state.attempt else ""
    if target.deleted is not None:
        others += f" AND old.{quoted(target.deleted)} IS NULL"
    return f"({_is_of_snapshot(target)} AND {place_in(_old(target))} < '{state.snapshot}'{others})"


def _old(target: ChangeTarget) -> str:
    return f"old.{quoted(target.position)}"


def _is_of_snapshot(target: ChangeTarget) -> str:
    """SQL: the row is one that a snapshot has read."""
    return f"contains({_old(target)}, '{FROM_SNAPSHOT}')"
