"""The columns of a table as those of its source evolve: ``onSchemaChange=evolve`` renames and drops them as the database does.

PostgreSQL tells no statements in its log: a column is gone, another one is new, and whether that was a rename only the catalog
of the database says, which keeps the number of a column over its renames. The log may be behind the catalog, so a column goes
only when the log has it no more, and the records of the time before keep their way to the column by its former name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from ...core import Fatal, Misconfigured, Problem
from ...ground.options import Values
from .change_log import NAME, Changes
from .log_state import Alteration, LogState, source_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVOLVE: Final = ("evolve", "try_evolve")
"""The values of onSchemaChange with which columns are renamed and dropped."""
_COLUMNS: Final = (
    "SELECT attname, attrelid || '.' || attnum AS identity FROM pg_attribute "
    "WHERE attrelid = to_regclass('{table}') AND attnum > 0 AND NOT attisdropped"
)


@dataclass(frozen=True)
class Evolution:
    """What becomes of a table in a batch.

    ``renames`` are new names by old ones, one behind the other, ``drops`` columns that go, also those that came in the batch,
    ``replaced`` columns that the source dropped before and whose names others have now, and ``kept`` those that the newest
    record does not have and the database does: the record is older than they are. ``aliases`` and ``identities`` are those of
    the state behind it.
    """

    aliases: Mapping[str, str]
    identities: Mapping[str, str]
    renames: Mapping[str, str] = field(default_factory=dict)
    drops: Sequence[str] = ()
    replaced: Sequence[str] = ()
    kept: Sequence[str] = ()

    def names(self, schema: Sequence[str]) -> list[str | None]:
        """The names that the columns of records of ``schema`` have here; ``None`` for those that are gone."""
        gone = {name.lower() for name in self.drops}
        return [None if name.lower() in gone else name for name in _told(schema, self.aliases)]

    def types(self, types: Mapping[str, Any]) -> dict[str, Any]:
        """The types of the table's columns, by their names in lower case, behind the evolution."""
        names = {old.lower(): new.lower() for old, new in self.renames.items()}
        gone = {name.lower() for name in (*self.drops, *self.replaced)}
        return {names.get(name, name): kind for name, kind in types.items() if name not in gone}

    def steps(self, types: Mapping[str, Any]) -> list[list[str]]:
        """What is to be done in a table that has columns of ``types``: a column that goes, or one and its new name."""
        gone = [[name] for name in (*self.drops, *self.replaced) if name.lower() in types]
        return gone + [[old, new] for old, new in self.renames.items() if old.lower() in types]

    def state(self, state: LogState) -> LogState:
        """The state of the table behind the evolution; what it declares is what it did, by the new names."""
        columns = {self.renames.get(name, name): kind for name, kind in state.columns.items() if name not in self.drops}
        aliases = {alias: name for alias, name in self.aliases.items() if name not in self.drops}
        orphans = tuple(sorted({*state.orphans, *self.drops, *(self.aliases.keys() - aliases.keys())}))
        return replace(state, columns=columns, orphans=orphans, aliases=aliases, identities=self.identities)

    def declared(self, changes: Changes, state: LogState | None) -> dict[str, str]:
        """The columns of the source, also those that the newest of ``changes`` is older than."""
        known = {**(state.columns if state else {}), **{name: kind.simpleString() for name, kind in changes.columns.items()}}
        return {**changes.declared, **{name: known[name] for name in self.kept}}

    def alterations(self, state: LogState) -> list[Alteration]:
        """What the table of ``state`` follows."""
        renames = [Alteration("rename.column", new, old, new) for old, new in self.renames.items() if old in state.columns]
        return renames + [Alteration("drop.column", name, state.columns[name]) for name in self.drops if name in state.columns]


def evolution_problems(values: Values) -> Iterator[Problem]:
    """The problems of options with which a table cannot evolve."""
    policy, url = values["onSchemaChange"], str(values["database"].get("url", ""))
    if policy not in EVOLVE:
        return
    if not url.startswith(("postgresql", "postgres", "jdbc:postgresql")):
        example = '{"url": "jdbc:postgresql://db/shop", "user": …, "password": …}'
        got = f"; got the url {url}" if url else ""
        text = f"must reach the PostgreSQL of the tables, which alone tells renames (onSchemaChange={policy}): {example}{got}."
        yield Problem("database", text)
    if values.get("schema"):
        yield Problem("schema", f"must not be given with onSchemaChange={policy}: values with schemas tell the columns.")
    if values["history"]:
        yield Problem("onSchemaChange", f"must not be {policy} with history=true, which keeps the values of all columns.")


def catalog_of(spark: SparkSession, database: Mapping[str, Any], topic: str) -> dict[str, str]:
    """The identities of the columns that the table behind ``topic`` has in PostgreSQL now, by their names."""
    exact = ".".join('"{}"'.format(part.replace('"', '""')) for part in source_name(topic).split("."))
    query = _COLUMNS.format(table=exact.replace("'", "''"))
    rows = spark.read.format("connectors.jdbc").options(**database).option("query", query).load().collect()
    return {row["attname"]: row["identity"] for row in rows}


def evolution_of(
    state: LogState, schemas: Sequence[Sequence[str]], catalog: Callable[[], Mapping[str, str]], *, is_strict: bool
) -> Evolution:
    """The evolution of a table with ``state`` by records whose ``schemas`` have these columns, the newest one last.

    ``catalog`` tells the identities of the database's columns; it is asked only where records and table differ. What it does
    not explain is an error if ``is_strict``; else columns stay and come as with ``lenient``.
    """
    known, newest = {*map(str.lower, state.columns)}, [*map(str.lower, schemas[-1])]
    is_old = [*map(str.lower, _told(newest, state.aliases))] != newest
    unchanged = Evolution(state.aliases, state.identities)
    if not {*map(str.lower, state.keys)} <= {*newest}:  # the merge refuses another key
        return unchanged
    if state.identities and not is_old and all({*map(str.lower, _told(own, state.aliases))} == known for own in schemas):
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
    if difference.lost and is_strict:
        raise difference.error()
    return difference.evolution()


def _told(schema: Sequence[str], aliases: Mapping[str, str]) -> list[str]:
    """The columns of the table that records of ``schema`` tell."""
    own = {*map(str.lower, schema)}
    return [aliases[name.lower()] if _is_former(name.lower(), own, aliases) else name for name in schema]


def _is_former(name: str, schema: Set[str], aliases: Mapping[str, str]) -> bool:
    """True if ``name`` is a former one in ``schema``; beside the column that had it, it is another column's."""
    passed = set[str]()
    while name in aliases and name not in passed:
        passed.add(name)
        name = aliases[name].lower()
        if name not in schema:
            return True
    return False


class _Difference:
    """What becomes of columns whose names in the records, in the table and in the database differ.

    ``renames``, ``drops`` and ``kept`` are those of :class:`Evolution`. ``lost`` are columns of which nobody can know what they
    are now, and ``new`` those of the newest record that are no column's new name.
    """

    def __init__(self, state: LogState, schemas: Sequence[Sequence[str]], current: Mapping[str, str]) -> None:
        self.state, self.schemas, self.current = state, schemas, current
        self.names = {identity: name for name, identity in current.items()}
        tables = {identity.partition(".")[0] for identity in self.names}  # another one than before if it was made anew
        self.identities = self._first_identities() | {
            name: known for name, known in state.identities.items() if known.partition(".")[0] in tables
        }
        self.known = {name.lower(): name for name in state.columns or schemas[0]}
        self.renames: dict[str, str] = {}
        self.drops: list[str] = []
        self.kept: list[str] = []
        self.lost: list[str] = []
        newest = {*map(str.lower, schemas[-1])}
        self.aliases = {
            alias: name
            for alias, name in state.aliases.items()
            if not (alias in newest and _is_former(alias, newest, state.aliases) and self._is_present(alias, name, newest))
        }
        while self._rename_one():
            pass
        self.new = {lower: name for lower, name in self._columns()[-1].items() if lower not in self.known}
        self._look_at_rest()

    def evolution(self) -> Evolution:
        if self.lost:
            columns = _told(self.schemas[-1], self.state.aliases)
            return Evolution(self.state.aliases, self._identities_of(columns, self.identities))
        others = {*map(str.lower, self.renames.values()), *(self.new.keys() & self.current.keys())}
        replaced = [name for name in self.state.orphans if name.lower() in others]
        identities = self._identities_of([*self._columns()[-1].values(), *self.kept], self.identities)
        return Evolution(self.aliases, identities, self.renames, self.drops, replaced, self.kept)

    def error(self) -> Fatal:
        """The error of a table that cannot follow."""
        new = [name for name in (*self.new.values(), *self.renames.values()) if name not in self.lost]
        names = f"{' or '.join(new) or 'another column'} was {' or '.join(dict.fromkeys(self.lost))} before"
        return Fatal(
            f"the columns of the table behind {self.state.topic} are others now, and nobody can say whether {names}",
            connector=NAME,
            way_out="give onSchemaChange=try_evolve, which keeps columns and adds new ones, and take a new snapshot then",
        )

    def _columns(self) -> list[dict[str, str]]:
        """The columns of the table that the records of each schema tell, by their names in lower case."""
        return [{name.lower(): name for name in _told(schema, self.aliases)} for schema in self.schemas]

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

    def _is_present(self, alias: str, name: str, newest: Set[str]) -> bool:
        """True if ``alias``, a former name of the column ``name``, is that of another column now, or its own again."""
        present = self.names.get(self.identities.get(name.lower(), ""), alias)
        return newest == self.current.keys() or (alias in self.current and present == alias)

    def _rename_one(self) -> bool:
        """Renames a column whose present name the records tell. False if there is none."""
        told = self._columns()
        for lower, name in self.known.items():
            present = self.names.get(self.identities.get(lower, ""), lower)
            new = next((own[present] for own in reversed(told) if present in own), None)
            if new is None or present in self.known or name in self.state.keys:
                continue
            both = [[*own] for own in told if {lower, present} <= own.keys()]
            is_first = number_of(self.current.get(lower, "")) < self._number(lower)
            if any(lower not in self.current or (own.index(lower) < own.index(present)) != is_first for own in both):
                self.lost.append(name)  # a column of an earlier time had that name
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
        told = self._columns()
        newest, unknown, there = told[-1], list[str](), dict[str, str]()
        columns = {lower: name for part in (*told, self.known) for lower, name in part.items()}
        gone = {name.lower() for name in self.state.orphans}
        for_a_time = columns.keys() - self.known.keys() - self.current.keys() - gone
        alive = {lower for lower in self.known if self.identities.get(lower) in self.names}
        is_behind = not newest.keys() <= self.current.keys()
        first = min((number_of(self.current[lower]) for lower in self.new if lower in self.current), default=None)
        for lower, name in columns.items():
            identity, is_here, is_told = self.identities.get(lower), lower in self.current, [lower in own for own in told]
            present, is_known = self.names.get(identity or ""), lower in self.known
            if name in self.state.keys:
                continue
            if is_here and is_known and not present and any(is_told) and not all(is_told):
                self.lost.append(name)  # made anew, and some of the records may be older
            elif any(lower in own and alive - own.keys() for own in told[:-1] if lower in for_a_time):
                self.lost.append(name)  # it may be a name of a column that the record does not have
            elif lower in newest:
                is_other = present not in (None, lower) and present in newest
                is_anew = identity and not present and (alive - newest.keys() or (is_here and for_a_time))
                number = number_of(identity or self.current.get(lower, ""))
                is_later = is_known and first is not None and number > first  # a new column has a higher number
                self.lost += [name] if is_other or is_anew or is_later else []
            elif present and (present != lower or for_a_time & newest.keys()):
                there[lower] = name
            elif is_here and (present or not is_known):
                self.kept.append(name)
            elif is_here and not identity:
                (self.lost if self.new or is_behind else self.kept).append(name)
            elif not identity:
                unknown.append(name)
            else:
                self.drops.append(name)
        self.lost += [name for lower, name in there.items() if self.names[self.identities[lower]] in newest]
        sure = [lower for lower in newest if self.identities.get(lower) in (None, self.current.get(lower))]
        numbers = [number_of(self.current[lower]) for lower in sure if lower in self.current]
        if self.new and numbers != sorted(numbers):
            self.lost += self.new.values()
        if there and self.new:
            self._rename_in_order(there)
        else:
            self.kept += there.values()
        guesses = (newest.keys() & self.known.keys() & self.current.keys()) - self.identities.keys()  # the catalog may be ahead
        if self.new.keys() - (gone - self.current.keys()) or there or guesses:
            self.lost += unknown
        else:
            self.drops += unknown

    def _rename_in_order(self, there: Mapping[str, str]) -> None:
        """Renames columns that had names only for a time. Records have columns by their numbers: later ones stand behind."""
        new = [name for lower, name in self.new.items() if lower not in self.current]
        if self.drops or self.lost or len(there) > len(new):
            self.lost += there.values()
            return
        for lower, name in zip(sorted(there, key=self._number), new, strict=False):
            self._rename(lower, name)
            del self.new[name.lower()]
        numbers = [self._number(lower) for lower in self._columns()[-1] if lower in self.identities]
        if numbers != sorted(numbers):
            self.lost += there.values()

    def _number(self, lower: str) -> int:
        return number_of(self.identities[lower])


def number_of(identity: str) -> int:
    """The number of a column in its table; 0 for one that nobody knows."""
    return int(identity.rpartition(".")[2] or 0)
