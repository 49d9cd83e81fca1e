"""The state of the log that feeds a table, in one property of the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final, NamedTuple

from ...core import StateError
from ...ground.state import dumps, loads, versioned
from .change_log import NAME
from .positions import ARRIVAL, ORDINAL_LENGTH, PLACE_LENGTH

STATE_PROPERTY: Final = "connectors.log"
JSON_TIMES: Final = {"timestampFormat": "yyyy-MM-dd HH:mm:ss.SSSSSS", "timeZone": "UTC"}
"""The options by which the default of a column is kept as JSON: no session's zone alters it."""


@dataclass(frozen=True)
class SnapshotRows:
    """Rows of snapshots in a batch: the last attempt's name, the place of its first row, and whether its last row is there."""

    attempt: str | None
    first: str
    is_complete: bool


class Alteration(NamedTuple):
    """A difference between two schemas of a table; ``kind`` is Flink CDC's word for it."""

    kind: str
    column: str | None = None
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        types = " to ".join(filter(None, (self.before, self.after)))
        return " ".join(filter(None, (self.kind, self.column, types)))


class Origin(NamedTuple):
    """How a column came to a table that was there.

    ``position`` is the first one of the database's log that is known to have it; ``None`` while only snapshots do, which are
    ahead of the log. ``default`` is the value of older rows, as JSON, of the type ``kind``.
    """

    position: str | None
    kind: str
    default: str | None

    def sql(self) -> str:
        """The value of older rows."""
        if self.default is None:
            return "NULL"
        text = f"decode(unhex('{self.default.encode().hex()}'), 'UTF-8')"  # whatever the session says of escapes
        options = ", ".join(f"'{key}', '{value}'" for key, value in JSON_TIMES.items())
        return f"from_json({text}, 'v {self.kind}', map({options})).v"


@dataclass(frozen=True)
class LogState:
    """The log of one table.

    ``topic`` feeds the table, and ``keys`` are its columns that identify a row. ``order`` names the order of positions, and
    ``log`` whose positions they are; ``generation`` counts how often they began anew, and stands in front of them. ``life``
    counts the queries, of which ``query`` is the last, as their batches count from 0. ``truncated`` is the position of the last
    truncation.

    ``snapshot`` is the place at which the initial snapshot began, or began again; ``None`` when changes of the log follow.
    ``attempt`` is where the database's log stood then, and ``is_read`` says that the last row of the table has come. The batch
    ``ends`` has that row or, as ``streams`` says, changes of the log: the snapshot goes on or is over once it is committed.

    ``columns`` are the types, by name, that the log has declared last, and ``orphans`` the columns that it has declared before.
    ``schema_position`` is the last position of the batch that altered them last; empty where none is to be compared.
    ``origins`` are those of columns that came later than the table, by their names in lower case.
    A table that evolves knows the ``identities`` that the database has for its columns, by their names, and by ``aliases``,
    which records may still have for columns, their names now; both in lower case.
    ``deleted`` is the column that tells which rows are deleted, where these stay. ``history`` is ``incomplete``, then
    ``complete``, for a table with a history.
    """

    topic: str
    keys: tuple[str, ...] = ()
    order: str = ""
    log: str | None = None
    generation: int = 0
    life: int = 0
    query: str = ""
    truncated: str | None = None
    snapshot: str | None = None
    attempt: str | None = None
    is_read: bool = False
    ends: int | None = None
    streams: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)
    schema_position: str = ""
    orphans: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict)
    identities: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    deleted: str | None = None
    history: str = ""

    def text(self) -> str:
        """The state as hexadecimal digits: Spark hides properties that have words such as token or url in them."""
        return dumps(versioned(**{**asdict(self), "keys": list(self.keys), "orphans": list(self.orphans)})).encode().hex()

    @classmethod
    def of(cls, text: str, table: str) -> LogState:
        what = f"the property {STATE_PROPERTY} of {table}"
        try:
            state = loads(bytes.fromhex(text), what)
        except ValueError:
            raise StateError(f"{what} is not readable", connector=NAME, way_out="start a new table") from None
        known = {name: state[name] for name in cls.__annotations__ if name in state}
        origins = {name: Origin(*origin) for name, origin in state["origins"].items()}
        return cls(**{**known, "keys": tuple(state["keys"]), "orphans": tuple(state["orphans"]), "origins": origins})

    def declaring(self, columns: Mapping[str, str], seen: Iterable[str], position: str = "") -> LogState:
        """The state behind a batch that has ``seen`` columns, and whose last change declares ``columns``.

        A batch that alters the schema has a last ``position``; a snapshot's is not known, so nothing is compared with it.
        """
        orphans = {name.lower(): name for name in (*self.orphans, *self.columns, *seen)}  # Delta takes Id and id for one
        names = orphans.keys() - {name.lower() for name in columns}
        place = max(self.schema_position, position) if position or columns == self.columns else ""
        return replace(self, columns=columns, schema_position=place, orphans=tuple(sorted(orphans[name] for name in names)))

    def alterations(self, columns: Mapping[str, str]) -> list[Alteration]:
        """The differences between the columns that were declared last and these ``columns``."""
        if not self.columns:
            return [Alteration("create.table")]
        types = [(name, self.columns.get(name), columns.get(name)) for name in {**self.columns, **columns}]
        kinds = {True: "add.column", False: "alter.column.type"}
        return [
            Alteration("drop.column" if after is None else kinds[before is None], name, before, after)
            for name, before, after in types
            if before != after
        ]

    def ordered(self, order: str, logs: list[str]) -> LogState:
        """The state behind changes in ``order``, with positions of ``logs``.

        Raises :class:`StateError` where positions cannot be compared with those of the table.
        """
        if order != ARRIVAL:
            known = self.log or (logs[0] if logs else None)
            if strange := [log for log in logs if log != known]:
                raise _other_log(strange[0], str(known))
            if self.order not in ("", order):
                raise _other_log(f'the order "{order}"', f'the order "{self.order}"')
            return replace(self, order=order, log=known)
        return replace(self, order=order, log=None, generation=self.generation + (self.order not in ("", ARRIVAL)))

    def of_query(self, query: str) -> LogState:
        """The state for a batch of ``query``."""
        if query == self.query:
            return self
        return replace(self, query=query, life=self.life + bool(self.query), ends=None, streams=False)

    def with_keys(self, keys: tuple[str, ...]) -> LogState:
        """The state of a table with ``keys``. Raises :class:`StateError` where its rows have others."""
        if self.keys and sorted(self.keys) != sorted(keys):
            raise StateError(
                f"the key of {self.topic} is ({', '.join(keys)}) now, and was ({', '.join(self.keys)}): changes of the one do "
                "not name rows of the other",
                connector=NAME,
                way_out="name the columns that identify a row by keyColumns, or start a new table with a new snapshot",
            )
        return replace(self, keys=keys)

    def log_part(self, position: str) -> str:
        """``position`` without its place in the stream, unless the arrival is the order."""
        return position if self.order == ARRIVAL else position[:-PLACE_LENGTH]

    def repeats_truncation(self, position: str) -> bool:
        """True for a truncation that an earlier batch has had. A batch that is done again has its own one to do."""
        if self.truncated is None or position[:-ORDINAL_LENGTH] == self.truncated[:-ORDINAL_LENGTH]:
            return False
        return self.log_part(position) <= self.log_part(self.truncated)

    def with_snapshot(self, again: str | None, rows: SnapshotRows | None) -> LogState:
        """The state behind a batch in which the initial snapshot begins ``again``, or has ``rows``."""
        if self.snapshot is None:
            return self
        state = self
        if again is not None and again > (state.snapshot or ""):
            state = replace(state, snapshot=again, attempt=None, is_read=False)
        if rows is not None and rows.attempt is not None and not state.is_read:
            is_another = state.attempt not in (None, rows.attempt)
            begin = max(state.snapshot or "", rows.first) if is_another else state.snapshot
            state = replace(state, snapshot=begin, attempt=rows.attempt)
        return state

    def behind(self, committed: int) -> LogState:
        """The state when batches of its query up to ``committed`` are."""
        if self.ends is None or self.ends > committed:
            return self
        over = replace(self, ends=None, streams=False)
        return replace(over, snapshot=None, attempt=None) if self.streams else replace(over, is_read=True)


def source_name(topic: str) -> str:
    """The ``schema.table`` or ``database.table`` of a topic, which has a prefix in front of it."""
    return ".".join(topic.split(".")[-2:])


def _other_log(new: str, old: str) -> StateError:
    return StateError(
        f"these changes have positions of {new}, and those before them of {old}: nobody can say which are newer",
        connector=NAME,
        way_out="give order=arrival, by which changes count as they come, or start a new table with a new snapshot",
    )
