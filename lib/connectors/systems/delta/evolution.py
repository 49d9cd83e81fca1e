"""The columns of a table as those of its source evolve: ``onSchemaChange=evolve`` renames and drops them as the database does.

PostgreSQL tells no statements in its log: a column is gone, another one is new, and whether that was a rename only the catalog
of the database says, which keeps the number of a column over its renames. The log may be behind the catalog, so a column goes
only when the log has it no more, and the records of the time before keep their way to the column by its former name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...core import Fatal, Misconfigured, Problem
from ...ground.options import Choice, Json, Values, masked
from .change_log import NAME, Changes
from .database_table import exact_name, is_postgresql, reader_options
from .log_state import Alteration, LogState, source_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVOLVE: Final = ("evolve", "try_evolve")
"""The values of onSchemaChange with which columns are renamed and dropped."""
_POLICIES: Final = (*EVOLVE, "lenient", "ignore", "exception")
_KINDS: Final = ("add.column", "alter.column.type", "drop.column", "rename.column")
"""The changes of a schema that have a policy, in Flink CDC's words."""
_COLUMNS: Final = (
    "SELECT attname, attrelid || '.' || attnum AS identity FROM pg_attribute "
    "WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped"
)


@dataclass(frozen=True)
class SchemaPolicy:
    """The value of onSchemaChange: what the changes of a schema do, and what some ``kinds`` of them do instead."""

    default: str = "lenient"
    kinds: Mapping[str, str] = field(default_factory=dict)

    def of(self, kind: str) -> str:
        return self.kinds.get(kind, self.default)

    def __str__(self) -> str:
        return json.dumps({"*": self.default, **self.kinds}) if self.kinds else self.default

    @property
    def evolves(self) -> bool:
        """Columns are renamed and dropped."""
        return self.default in EVOLVE


class PolicyOption(Choice):
    """A policy, or those of kinds of changes as JSON: ``{"*": "lenient", "drop.column": "exception"}``."""

    def parse(self, text: str) -> SchemaPolicy:  # type: ignore[override]
        if not text.lstrip().startswith("{"):
            return SchemaPolicy(super().parse(text))
        policies = Json().parse(text)
        kinds = {kind: super(PolicyOption, self).parse(str(policy)) for kind, policy in policies.items()}
        default = kinds.pop("*", SchemaPolicy.default)
        few = ("exception",) if default in EVOLVE else ("lenient", "ignore", "exception")
        for kind, policy in kinds.items():
            if kind not in _KINDS:
                raise ValueError(f"policies of {', '.join(_KINDS)} and * (all others)")
            if policy not in few:
                raise ValueError(f"one whose {kind} is {' or '.join(few)} beside {default}")
        return SchemaPolicy(default, kinds)


POLICY: Final = PolicyOption(
    SchemaPolicy(), among=_POLICIES,
    meaning="evolve: columns come, go and change names as in the database; try_evolve: so, where it is certain; lenient: "
    "new columns and wider types come, others stay; ignore: the table stays as it is; exception: stop. Or by kind, as JSON: "
    '{"*": "lenient", "drop.column": "exception"}',
)  # fmt: skip


@dataclass(frozen=True)
class Evolution:
    """What becomes of a table in a batch.

    ``renames`` are new names by old ones, one behind the other, and ``drops`` columns that go, also those that came in the
    batch. ``predecessors`` are columns that the source dropped before, and whose names others have now. ``survivors`` are those
    that the newest record does not have and the database does: the record is older than they are. ``aliases`` and
    ``identities`` are those of the state behind it, and ``present`` the names in a record from now.
    """

    aliases: Mapping[str, str]
    identities: Mapping[str, str]
    renames: Mapping[str, str] = field(default_factory=dict)
    drops: Sequence[str] = ()
    predecessors: Sequence[str] = ()
    survivors: Sequence[str] = ()
    present: Set[str] = frozenset()

    def names(self, schema: Sequence[str]) -> list[str | None]:
        """The names that the columns of records of ``schema`` have here; ``None`` for those that are gone."""
        gone = {name.lower() for name in self.drops}
        return [None if name.lower() in gone else name for name in _columns_of(schema, self.aliases, self.present)]

    def types(self, types: Mapping[str, Any]) -> dict[str, Any]:
        """The ``types``, or other facts, of the table's columns behind the evolution, by their names in lower case."""
        names = {old.lower(): new.lower() for old, new in self.renames.items()}
        gone = {name.lower() for name in (*self.drops, *self.predecessors)}
        return {names.get(name, name): kind for name, kind in types.items() if name not in gone}

    def steps(self, types: Mapping[str, Any]) -> list[list[str]]:
        """What is to be done in a table that has columns of ``types``: a column that goes, or one and its new name."""
        gone = [[name] for name in (*self.drops, *self.predecessors) if name.lower() in types]
        return gone + [[old, new] for old, new in self.renames.items() if old.lower() in types]

    def state(self, state: LogState) -> LogState:
        """The state of the table behind the evolution; what it declares is what it did, by the new names."""
        columns = {self.renames.get(name, name): kind for name, kind in state.columns.items() if name not in self.drops}
        aliases = {alias: name for alias, name in self.aliases.items() if name not in self.drops}
        orphans = tuple(sorted({*state.orphans, *self.drops, *(self.aliases.keys() - aliases.keys())}))
        origins = self.types(state.origins)
        return replace(
            state, columns=columns, orphans=orphans, origins=origins, aliases=aliases, identities=self.identities
        )

    def declared(self, changes: Changes, state: LogState | None) -> dict[str, str]:
        """The columns of the source, also those that the newest of ``changes`` is older than."""
        known = {**(state.columns if state else {}), **{name: kind.simpleString() for name, kind in changes.columns.items()}}
        return {**changes.declared, **{name: known[name] for name in self.survivors}}

    def alterations(self, state: LogState) -> list[Alteration]:
        """What the table of ``state`` follows."""
        renames = [Alteration("rename.column", new, old, new) for old, new in self.renames.items() if old in state.columns]
        return renames + [Alteration("drop.column", name, state.columns[name]) for name in self.drops if name in state.columns]


def evolution_problems(values: Values) -> Iterator[Problem]:
    """The problems of options with which a table cannot evolve."""
    policy, options = values["onSchemaChange"].default, reader_options(values["database"])
    if policy not in EVOLVE:
        return
    if not is_postgresql(options):
        example = '{"url": "jdbc:postgresql://db/shop", "user": …, "password": …}'
        got = f"; got the url {masked('url', options['url'])}" if options.get("url") else ""
        text = (
            f"must reach the PostgreSQL of the tables, which alone tells renames (onSchemaChange={policy}): {example}, or the "
            f"properties of the connector{got}."
        )
        yield Problem("database", text)
    if values.get("schema"):
        yield Problem("schema", f"must not be given with onSchemaChange={policy}: values with schemas tell the columns.")
    if values["history"]:
        yield Problem("onSchemaChange", f"must not be {policy} with history=true, which keeps the values of all columns.")


def catalog_of(spark: SparkSession, database: Mapping[str, Any], topic: str) -> dict[str, str]:
    """The identities of the columns that the table behind ``topic`` has in PostgreSQL now, by their names."""
    query = _COLUMNS.format(table=exact_name(source_name(topic)).replace("'", "''"))
    rows = spark.read.format("connectors.jdbc").options(**reader_options(database)).option("query", query).load().collect()
    return {row["attname"]: row["identity"] for row in rows}


def evolution_of(
    state: LogState, schemas: Sequence[Sequence[str]], catalog: Callable[[], Mapping[str, str]], *, is_strict: bool
) -> Evolution:
    """The evolution of a table with ``state`` by records whose ``schemas`` have these columns, the newest one last.

    ``catalog`` tells the identities of the database's columns; it is asked only where records and table differ. What it does
    not explain is an error if ``is_strict``; else columns stay and come as with ``lenient``.
    """
    known, newest = {*map(str.lower, state.columns)}, [*map(str.lower, schemas[-1])]
    is_old = [*map(str.lower, _columns_of(newest, state.aliases, known))] != newest
    unchanged = Evolution(state.aliases, state.identities, present=known)
    if not {*map(str.lower, state.keys)} <= {*newest}:  # the merge refuses another key
        return unchanged
    layouts = [sorted(map(str.lower, _columns_of(schema, state.aliases, known))) for schema in schemas]
    if state.identities and not is_old and all(layout == sorted(known) for layout in layouts):
        return unchanged
    current = {name.lower(): identity for name, identity in catalog().items()}
    if not current and (state.identities or not is_strict):  # the table was dropped
        return unchanged
    if not current:
        text = (
            f"has no table {source_name(state.topic)}, the source of {state.topic}. If it was dropped, "
            "onSchemaChange=try_evolve merges what the log still has of it."
        )
        raise Misconfigured(NAME, [Problem("database", text)])
    difference = _Difference(state, schemas, current)
    if difference.doubts and is_strict:
        raise difference.error()
    return difference.evolution()


def _columns_of(schema: Sequence[str], aliases: Mapping[str, str], present: Set[str]) -> list[str]:
    """The columns of the table that records of ``schema`` tell; where that is ``present``, no name is a former one."""
    names = {*map(str.lower, schema)}
    if names == present:
        return list(schema)
    return [aliases[name.lower()] if _is_former(name.lower(), names, aliases) else name for name in schema]


def _is_former(name: str, schema: Set[str], aliases: Mapping[str, str]) -> bool:
    """True if ``name`` is a former one in ``schema``; beside the column that had it, it is another column's."""
    new = aliases.get(name, "").lower()
    return name in aliases and (new not in schema or _is_former(new, schema - {name}, aliases))


class _Difference:
    """What becomes of columns whose names in the records, in the table and in the database differ.

    ``renames``, ``drops`` and ``survivors`` are those of :class:`Evolution`. ``doubts`` are columns of which nobody can know
    what they are now, ``new`` those of the newest record that are no column's new name, and ``relics`` those that the source
    had before.
    """

    def __init__(self, state: LogState, schemas: Sequence[Sequence[str]], current: Mapping[str, str]) -> None:
        self.state, self.schemas, self.current = state, schemas, current
        self.names = {identity: name for name, identity in current.items()}
        tables = {identity.partition(".")[0] for identity in self.names}  # another one than before if it was made anew
        self.identities = self._first_identities() | {
            name: known for name, known in state.identities.items() if known.partition(".")[0] in tables
        }
        self.known = {name.lower(): name for name in state.columns or schemas[0]}
        self.relics = {*map(str.lower, state.orphans)} - current.keys()
        self.renames: dict[str, str] = {}
        self.drops: list[str] = []
        self.survivors: list[str] = []
        self.doubts: list[str] = []
        self.aliases = dict(state.aliases)
        self._look_at_aliases({*map(str.lower, schemas[-1])})
        while self._rename_one():
            pass
        self.new = {lower: name for lower, name in self._layouts()[-1].items() if lower not in self.known}
        self._look_at_rest()
        self._look_at_records()

    def evolution(self) -> Evolution:
        if self.doubts:
            columns = _columns_of(self.schemas[-1], self.state.aliases, self.current.keys())
            identities = self._identities_of(columns, self.identities)
            return Evolution(self.state.aliases, identities, present=self.current.keys())
        others = {*map(str.lower, self.renames.values()), *(self.new.keys() & self.current.keys())}
        predecessors = [name for name in self.state.orphans if name.lower() in others]
        identities = self._identities_of([*self._layouts()[-1].values(), *self.survivors], self.identities)
        return Evolution(self.aliases, identities, self.renames, self.drops, predecessors, self.survivors, self.current.keys())

    def error(self) -> Fatal:
        """The error of a table that cannot follow."""
        new = [name for name in (*self.new.values(), *self.renames.values()) if name not in self.doubts]
        names = f"{' or '.join(new) or 'another column'} was {' or '.join(dict.fromkeys(self.doubts))} before"
        return Fatal(
            f"the columns of the table behind {self.state.topic} are others now, and nobody can say whether {names}",
            connector=NAME,
            way_out="give onSchemaChange=try_evolve, which keeps columns and adds new ones, and take a new snapshot then",
        )

    def _layouts(self) -> list[dict[str, str]]:
        """The columns of the table that the records of each schema tell, by their names in lower case."""
        columns = [_columns_of(schema, self.aliases, self.current.keys()) for schema in self.schemas]
        return [{name.lower(): name for name in names} for names in columns]

    def _identities_of(self, columns: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
        """The identities of ``columns``. The catalog tells those that are not ``known``, unless it is ahead of the log."""
        names = [name.lower() for name in columns]
        current = self.current if self.current.keys() >= {*names} else {}
        return {name: identity for name in names if (identity := known.get(name) or current.get(name, ""))}

    def _first_identities(self) -> dict[str, str]:
        """The identities of columns of a new table that have the numbers of their places: none went before them."""
        names = [] if self.state.columns else self.schemas[0]
        found = {name.lower(): (self.current.get(name.lower(), ""), place) for place, name in enumerate(names, 1)}
        return {name: identity for name, (identity, place) in found.items() if number_of(identity) == place}

    def _look_at_aliases(self, newest: Set[str]) -> None:
        """Looks at former names in the newest record: a column may have it again, or another one, if the former is gone."""
        for alias, name in self.state.aliases.items():
            identity, other = self.identities.get(name.lower()), self.current.get(alias)
            if alias not in newest or newest == self.current.keys() or not _is_former(alias, newest, self.state.aliases):
                continue
            if other == identity:
                del self.aliases[alias]
            elif other and identity not in self.names:
                self.doubts.append(name)

    def _rename_one(self) -> bool:
        """Renames a column whose present name the records tell. False if there is none."""
        layouts = self._layouts()
        for lower, name in self.known.items():
            present = self.names.get(self.identities.get(lower, ""), lower)
            new = next((layout[present] for layout in reversed(layouts) if present in layout), None)
            if new is None or present in self.known or name in self.state.keys:
                continue
            if any({lower, present} <= layout.keys() for layout in layouts) and lower not in self.current:
                self.doubts.append(name)  # a column of an earlier time had that name
            self._rename(lower, new)
            return True
        return False

    def _rename(self, lower: str, new: str) -> None:
        self.renames[self.known.pop(lower)] = new
        self.known[new.lower()] = new
        self.identities[new.lower()] = self.identities.pop(lower)
        aliases = {alias: new if name.lower() == lower else name for alias, name in self.aliases.items()}
        self.aliases = {alias: name for alias, name in (aliases | {lower: new}).items() if alias != name.lower()}

    def _look_at_rest(self) -> None:
        """Looks at the columns that keep their names, or that the newest record does not have."""
        layouts = self._layouts()
        newest, unknown = layouts[-1], list[str]()
        for lower, name in {lower: name for layout in (*layouts, self.known) for lower, name in layout.items()}.items():
            identity = self.identities.get(lower)
            present, is_anew = self.names.get(identity or ""), identity not in (None, self.current.get(lower, identity))
            is_there = [lower in layout for layout in layouts]
            is_anew |= bool(identity) and not present and is_there != sorted(is_there, reverse=True)
            if is_anew and any(is_there):
                self.doubts.append(name)  # another column has its name, or had: nobody knows of which a record tells
            elif lower in newest:
                continue
            elif present:
                self.survivors.append(name)
            elif identity:
                self.drops.append(name)
            elif lower in self.current:
                (self.survivors if newest.keys() <= self.current.keys() else self.doubts).append(name)
            else:
                unknown.append(name)
        guesses = (newest.keys() & self.known.keys() & self.current.keys()) - self.identities.keys()
        (self.doubts if self.new.keys() - self.relics or self.renames or guesses else self.drops).extend(unknown)

    def _look_at_records(self) -> None:
        """Looks whether records can have the columns that their names stand for."""
        alive = {lower for lower in self.known if self.identities.get(lower) in self.names}
        for schema, layout in zip(self.schemas, self._layouts(), strict=True):
            if len(layout) < len(schema):  # two of its names were one column's, one behind the other
                self.doubts += layout.values()
            if alive - layout.keys():  # the other names may be those that these columns had for a time
                self.doubts += [name for lower, name in layout.items() if lower not in alive | self.relics]
            identities = filter(None, (self.identities.get(lower) or self.current.get(lower) for lower in layout))
            numbers = [*map(number_of, identities)]
            if numbers != sorted(numbers):  # records have columns in the order of their numbers
                self.doubts += layout.values()


def number_of(identity: str) -> int:
    """The number of a column in its table; 0 for one that nobody knows."""
    return int(identity.rpartition(".")[2] or 0)
