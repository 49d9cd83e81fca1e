"""The columns of a table as those of its source evolve: ``onSchemaChange=evolve`` renames and drops them as the database does.

PostgreSQL tells no statements in its log: a column is gone, another one is new, and whether that was a rename only the catalog
of the database says, which keeps the number of a column over its renames. The log may be behind the catalog, so a column goes
only when the log has it no more, and the records of the time before keep their way to the column by its former name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

    ``renames`` are new names by old ones, ``drops`` columns that go, and ``kept`` those that the newest record does not have
    and the database does: the record is older than they are. ``passing`` are columns that came and went in the batch, in lower
    case. ``aliases`` and ``identities`` are those of the state behind it.
    """

    aliases: Mapping[str, str]
    identities: Mapping[str, str]
    renames: Mapping[str, str] = field(default_factory=dict)
    drops: Sequence[str] = ()
    kept: Sequence[str] = ()
    passing: Sequence[str] = ()

    @property
    def names(self) -> dict[str, str | None]:
        """The names that columns of the records have here, by their own in lower case; ``None`` for those that are gone."""
        return {**self.aliases, **dict.fromkeys((*self.passing, *map(str.lower, self.drops)))}

    def types(self, types: Mapping[str, Any]) -> dict[str, Any]:
        """The types of the table's columns, by their names in lower case, behind the evolution."""
        names = {old.lower(): new.lower() for old, new in self.renames.items()}
        dropped = {name.lower() for name in self.drops}
        return {names.get(name, name): kind for name, kind in types.items() if name not in dropped}

    def state(self, state: LogState) -> LogState:
        """The state of the table behind the evolution; what it declares is what it did, by the new names."""
        columns = {self.renames.get(name, name): kind for name, kind in state.columns.items()}
        orphans = tuple(sorted(self.renames.get(name, name) for name in state.orphans))
        return replace(state, columns=columns, orphans=orphans, aliases=self.aliases, identities=self.identities)

    def declared(self, changes: Changes, state: LogState | None) -> dict[str, str]:
        """The columns of the source, also those that the newest of ``changes`` is older than."""
        known = {**(state.columns if state else {}), **{name: kind.simpleString() for name, kind in changes.columns.items()}}
        return {**changes.declared, **{name: known[name] for name in self.kept}}

    def alterations(self) -> list[Alteration]:
        return [Alteration("rename.column", new, old, new) for old, new in self.renames.items()]


def evolution_problems(values: Values) -> Iterator[Problem]:
    """The problems of options with which a table cannot evolve."""
    policy, url = values["onSchemaChange"], str(reader_options(values["database"]).get("url", ""))
    if policy not in EVOLVE:
        return
    if not url.startswith(("postgresql", "postgres", "jdbc:postgresql")):
        example = '{"url": "jdbc:postgresql://db/shop", "user": …, "password": …}'
        got = f"; got the url {url}" if url else ""
        text = (
            f"must reach the PostgreSQL of the tables, which alone tells renames (onSchemaChange={policy}): {example}, or the "
            f"properties of the connector{got}."
        )
        yield Problem("database", text)
    if values["history"]:
        yield Problem("onSchemaChange", f"must not be {policy} with history=true, which keeps the values of all columns.")


def reader_options(database: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``connectors.jdbc`` that reach ``database``: these, or the properties of a Debezium connector."""
    if "database.hostname" not in database:
        return dict(database)
    scheme = "postgresql" if ".postgresql." in database.get("connector.class", "") else "mysql"
    host, name = database["database.hostname"], database.get("database.dbname", "")
    port = f":{database['database.port']}" if "database.port" in database else ""
    user = {name: database[f"database.{name}"] for name in ("user", "password") if f"database.{name}" in database}
    return {"url": f"{scheme}://{host}{port}/{name}", **user}


def catalog_of(spark: SparkSession, database: Mapping[str, Any], topic: str) -> dict[str, str]:
    """The identities of the columns that the table behind ``topic`` has in PostgreSQL now, by their names."""
    exact = ".".join('"{}"'.format(part.replace('"', '""')) for part in source_name(topic).split("."))
    query = _COLUMNS.format(table=exact.replace("'", "''"))
    rows = spark.read.format("connectors.jdbc").options(**reader_options(database)).option("query", query).load().collect()
    return {row["attname"]: row["identity"] for row in rows}


def evolution_of(
    state: LogState, schemas: Sequence[Sequence[str]], catalog: Callable[[], Mapping[str, str]], *, is_strict: bool
) -> Evolution:
    """The evolution of a table with ``state`` by records whose ``schemas`` have these columns, the newest one last.

    ``catalog`` tells the identities of the database's columns; it is asked only where records and table differ. What it does
    not explain is an error if ``is_strict``; else columns stay and come as with ``lenient``.
    """
    names = [{*map(str.lower, schema)} for schema in schemas]
    aliases = {
        alias: name for alias, name in state.aliases.items() if not any({alias, name.lower()} <= own for own in names)
    }
    known = {name.lower(): name for name in state.columns}
    is_old = bool(names[-1] & aliases.keys())
    if state.identities and not is_old and all(_told(schema, aliases).keys() == known.keys() for schema in schemas):
        return Evolution(aliases, state.identities)
    current = {name.lower(): identity for name, identity in catalog().items()}
    if not current and state.identities:  # the table was dropped
        return Evolution(aliases, state.identities)
    if not current:
        text = f"has no table {source_name(state.topic)}, the source of {state.topic}."
        raise Misconfigured(NAME, [Problem("database", text)])
    aliases = {alias: name for alias, name in aliases.items() if alias not in names[-1] or alias not in current}
    told = [_told(schema, aliases) for schema in schemas]
    change = _Difference(known or told[0], told, state, current)
    if change.lost:
        if is_strict:
            raise change.error(state.topic)
        return Evolution(aliases, _identities(told[-1], state.identities, current))
    aliases = {alias: change.renames.get(name, name) for alias, name in aliases.items() if name not in change.drops}
    aliases |= {old.lower(): new for old, new in change.renames.items()}
    aliases = {alias: name for alias, name in aliases.items() if alias not in told[-1]}
    identities = {change.renames.get(name, name).lower(): state.identities.get(name.lower(), "") for name in known.values()}
    columns = [name.lower() for name in (*told[-1].values(), *change.kept)]
    passing = [name.lower() for name in change.drops if name.lower() not in known]
    drops = [name for name in change.drops if name.lower() in known]
    return Evolution(
        aliases, _identities(columns, identities, current), change.renames, drops, change.kept, passing
    )


def _told(schema: Sequence[str], aliases: Mapping[str, str]) -> dict[str, str]:
    """The columns of the table that records of ``schema`` tell, by their names in lower case."""
    columns = (aliases.get(name.lower(), name) for name in schema)
    return {name.lower(): name for name in columns}


def _identities(columns: Iterable[str], known: Mapping[str, str], current: Mapping[str, str]) -> dict[str, str]:
    """The identities of ``columns``: those that are ``known`` already, since the catalog may be ahead of the log."""
    return {name: identity for name in columns if (identity := known.get(name) or current.get(name, ""))}


class _Difference:
    """What becomes of the columns that the newest record does not have.

    ``renames``, ``drops`` and ``kept`` are those of :class:`Evolution`. ``lost`` are columns of which nobody can know what they
    are now, and ``new`` those of the newest record that are no column's new name.
    """

    def __init__(
        self, known: Mapping[str, str], told: Sequence[Mapping[str, str]], state: LogState, current: Mapping[str, str]
    ) -> None:
        newest, names = told[-1], {identity: name for name, identity in current.items()}
        self.new = {lower: name for lower, name in newest.items() if lower not in known}
        self.drops: list[str] = []
        self.kept: list[str] = []
        unknown: list[str] = []
        there: dict[str, str] = {}
        columns = {lower: name for part in (known, *told) for lower, name in part.items()}
        for lower, name in columns.items():
            identity = state.identities.get(lower)
            if lower in newest or name in state.keys:
                continue
            if lower in current and identity in (None, current[lower]):
                self.kept.append(name)
            elif identity is None:
                unknown.append(name)
            elif identity in names:
                there[name] = identity
            else:
                self.drops.append(name)
        self.renames = self._renames(there, names)
        new = {name.lower() for name in self.renames.values()}
        wrong = [
            name
            for name, identity in there.items()
            if names[identity] in newest and self.renames.get(name, "").lower() != names[identity]
        ]
        for name in new:
            del self.new[name]
        self.lost = wrong or ([name for name in there if name not in self.renames] if self.new else [])
        if self.new or self.renames:
            self.lost += unknown
        elif not self.lost:
            self.drops += unknown

    def _renames(self, there: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
        """The new names of columns that are ``there`` with these identities: the present one, or one that they had for a time.

        Then only the order tells: records have the columns by their numbers, and those that were added later behind them.
        """
        present = {name: self.new[names[identity]] for name, identity in there.items() if names[identity] in self.new}
        if len(present) == len(there) or self.drops or len(there) > len(self.new):
            return present
        return dict(zip(sorted(there, key=lambda name: int(there[name].rpartition(".")[2])), self.new.values(), strict=False))

    def error(self, topic: str) -> Fatal:
        """The error of a table that cannot follow."""
        new = " or ".join((*self.new.values(), *self.renames.values())) or "another column"
        return Fatal(
            f"the table behind {topic} has no {', '.join(self.lost)} any more, and nobody can say whether {new} was it before",
            connector=NAME,
            way_out="give onSchemaChange=try_evolve, which keeps columns and adds new ones, and take a new snapshot then",
        )
