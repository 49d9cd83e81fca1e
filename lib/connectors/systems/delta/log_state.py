"""What a table remembers of the log that feeds it, in one property of the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

from ...core import StateError
from ...core.state import dumps, loads, versioned
from .change_log import NAME
from .positions import ARRIVAL

STATE_PROPERTY: Final = "connectors.log"


@dataclass(frozen=True)
class SnapshotRows:
    """Rows of snapshots in a batch: the last attempt's name, the place of its first row, and whether its last row is there."""

    attempt: str | None
    first: str
    is_complete: bool


@dataclass(frozen=True)
class LogState:
    """The log of one table.

    ``topic`` feeds the table. ``order`` names the order of positions, and ``log`` whose positions they are; ``generation``
    counts how often they began anew, and stands in front of them. ``query`` has the places of arrival. Changes up to
    ``truncated`` were before a truncation.

    ``snapshot`` is the place at which the initial snapshot began, or began again; ``None`` when changes of the log follow.
    ``attempt`` is where the database's log stood then, and ``is_read`` says that the last row of the table has come.
    """

    topic: str
    order: str = ""
    log: str | None = None
    generation: int = 0
    query: str = ""
    truncated: str | None = None
    snapshot: str | None = None
    attempt: str | None = None
    is_read: bool = False

    def text(self) -> str:
        return dumps(versioned(**asdict(self)))

    @classmethod
    def of(cls, text: str, table: str) -> LogState:
        state = loads(text, f"the property {STATE_PROPERTY} of {table}")
        return cls(**{name: state[name] for name in cls.__annotations__ if name in state})

    def ordered(self, order: str, logs: list[str], query: str) -> LogState:
        """The state behind changes of ``query`` in ``order``, with positions of ``logs``.

        Raises :class:`StateError` where positions cannot be compared with those of the table.
        """
        if order != ARRIVAL:
            known = self.log or (logs[0] if logs else None)
            if strange := [log for log in logs if log != known]:
                raise _other_log(strange[0], str(known))
            if self.order not in ("", order):
                raise _other_log(f'the order "{order}"', f'the order "{self.order}"')
            return replace(self, order=order, log=known, query=query)
        is_new = self.order not in ("", ARRIVAL) or self.query not in ("", query)
        return replace(self, order=order, log=None, query=query, generation=self.generation + is_new)

    def with_snapshot(self, again: str | None, rows: SnapshotRows | None) -> LogState:
        """The state behind a batch in which the initial snapshot begins ``again``, or has ``rows``."""
        if self.snapshot is None:
            return self
        state = self
        if again is not None and again > (state.snapshot or ""):
            state = replace(state, snapshot=again, attempt=None, is_read=False)
        if rows is not None and rows.attempt is not None:
            is_another = state.attempt not in (None, rows.attempt) and not state.is_read
            state = replace(state, snapshot=max(state.snapshot or "", rows.first) if is_another else state.snapshot)
            state = state if state.is_read else replace(state, attempt=rows.attempt)
        return state


def _other_log(new: str, old: str) -> StateError:
    return StateError(
        f"these changes have positions of {new}, and those before them of {old}: nobody can say which are newer",
        connector=NAME,
        way_out="give order=arrival, by which changes count as they come, or start a new table with a new snapshot",
    )
