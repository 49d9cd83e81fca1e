"""The reference of options, guarantees and errors, made from the code: for the terminal, and for the pages of ``lib/docs``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import connectors
from connectors.batching.flow import batching_options
from connectors.core.cursor_source import CURSOR_OPTIONS
from connectors.core.dead_letters import ERROR_OPTIONS
from connectors.core.epoch_source import EPOCH_OPTIONS, ID_OPTIONS
from connectors.core.sink import SINK_OPTIONS, Sink
from connectors.core.source import LIMIT_OPTIONS, SOURCE_OPTIONS, Source
from connectors.formats import format_options
from connectors.ground import errors
from connectors.ground.errors import Misconfigured, Problem
from connectors.ground.options import REQUIRED, Choice, Duration, Flag, Int, Json, Option, Options, Size
from connectors.ground.relations import Condition
from connectors.systems import SYSTEMS, System, all_systems, own_systems
from connectors.systems.aws import AWS_OPTIONS

from .pipelines import PIPELINES

_MARKS: Final = ("<!-- reference -->\n", "<!-- /reference -->\n")
HEADINGS: Final = ("option", "values", "default", "meaning")

_GROUPS: Final[Mapping[str, Options]] = {
    "Every source": SOURCE_OPTIONS | LIMIT_OPTIONS["rows"] | LIMIT_OPTIONS["bytes"] | LIMIT_OPTIONS["files"],
    "Sources that keep a log of epochs: queues, Pub/Sub, Redis Streams": EPOCH_OPTIONS | ID_OPTIONS,
    "Sources that keep a log of positions: Kinesis, REST APIs": CURSOR_OPTIONS,
    "Services of AWS": AWS_OPTIONS,
    "Every sink": SINK_OPTIONS,
    "Sources and sinks of bytes": format_options("bytes", key="bytes", infers=True),
    "Connectors that can meet a bad record": ERROR_OPTIONS,
    "Sinks that send requests": batching_options(max_records=1000, max_bytes="5MB", max_time="5s"),
}
"""Options that many connectors share, by heading. A group repeats nothing of the groups after it."""

_PIPELINE_NAMES: Final = {"file_stream": "lines", "sequence": "", "print": "", "buffered": ""}
"""The names that systems have in pipelines, where they are others."""
_PROBES: Final[Mapping[type[Any], str]] = {Int: "1", Json: "{}"}
"""Values that options of a type take; others take any text."""
_NONE: Final = Options({})
_MARKUP: Final = re.compile(r"``|:\w+:`|(?<=\w)`(?=\W)")
_UNITS: Final = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))
_SIZES: Final = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


@dataclass(frozen=True)
class Row:
    """One option, as texts: what a line of the reference shows."""

    option: str
    values: str
    default: str
    meaning: str

    def cells(self) -> tuple[str, ...]:
        return self.option, self.values, self.default, self.meaning


def rows_of(options: Options, without: Sequence[Options] = ()) -> list[Row]:
    """The options in their order; those that one of ``without`` declares in the same way are left out."""
    rows = [
        _row(name, option, [alias for alias, target in options.other_names.items() if target == name])
        for name, option in options.declared.items()
        if not any(shared.declared.get(name) == option for shared in without)
    ]
    prefixes = {} if any(shared.through == options.through for shared in without) else options.through
    return rows + [Row(f"{prefix}*", "text", "", meaning) for prefix, meaning in prefixes.items()]


def _row(name: str, option: Option, aliases: Sequence[str]) -> Row:
    text, _, computed = option.meaning.partition("; default: ")
    parts = [f"with {condition}" for condition in Condition.each(option.only_with)]
    parts += [f"{option.carrier} only"] if option.carrier else []
    meaning = ": ".join([*parts, text]) + "".join(f"; or {other}" for other in option.alternatives)
    return Row(", ".join([name, *aliases]), option.accepts(), computed or default_text(option), meaning)


def connectors_of(system: str, systems: Mapping[str, System] | None = None) -> list[tuple[str, type[Source] | type[Sink]]]:
    """The source and the sink of ``system`` that there are, by their kind. Raises :class:`Misconfigured` for another name."""
    systems = all_systems() if systems is None else systems
    name = system.removeprefix("connectors.")
    if name not in systems:
        close = difflib.get_close_matches(name, systems, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else f". There are: {', '.join(sorted(systems))}."
        raise Misconfigured("connectors options", [Problem("SYSTEM", f'"{system}" is no system{hint}')])
    source, sink = systems[name]
    pairs: list[tuple[str, type[Source] | type[Sink] | None]] = [("source", source), ("sink", sink)]
    return [(kind, connector) for kind, connector in pairs if connector is not None]


def write_pages(folder: Path) -> list[Path]:
    """Writes the reference into the pages of ``folder``, and into the README two folders above, between its marks.

    A README without the marks stays as it is. A system without a page gets one. Returns the files that have changed.
    """
    systems, readme = own_systems(), folder.resolve().parents[1] / "README.md"
    sections = {
        readme: "\n".join(_system_table()),
        folder / "guarantees.md": guarantee_table(SYSTEMS),
        folder / "options.md": "\n".join(_shared_options()),
    }
    sections |= {folder / "systems" / f"{name}.md": "\n".join(_system_page(name, systems)) for name in systems}
    changed = []
    (folder / "systems").mkdir(parents=True, exist_ok=True)
    if not readme.exists() or _MARKS[0] not in readme.read_text():
        del sections[readme]
    for file, section in sections.items():
        before = file.read_text() if file.exists() else f"# {file.stem}\n\n{_MARKS[0]}{_MARKS[1]}"
        head, _, rest = before.partition(_MARKS[0])
        text = f"{head}{_MARKS[0]}{section}\n{_MARKS[1]}{rest.partition(_MARKS[1])[2]}"
        if text != before:
            file.write_text(text)
            changed.append(file)
    return changed


def guarantee_table(systems: Container[str] | None = None) -> str:
    """What each system, or each of ``systems``, promises, and under which conditions, as a table of Markdown."""
    head = [("system", "source", "sink", "conditions"), ("---", "---", "---", "---")]
    guarantees = connectors.guarantees().itertuples(index=False)
    rows = [[cell or "-" for cell in row] for row in guarantees if systems is None or row.system in systems]
    return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *rows))


def _system_table() -> Iterator[str]:
    """What each system promises, with its page and its pipelines."""
    yield "| system | source | sink | pipelines |\n|---|---|---|---|"
    notebooks = Path("notebooks") / "pipelines"
    for row in (row for row in connectors.guarantees().itertuples() if row.system in SYSTEMS):
        names = [name for name in PIPELINES if _PIPELINE_NAMES.get(row.system, row.system) in name.split("_to_")]
        links = ", ".join(f"[{name}]({notebooks / name}.ipynb)" for name in names if row.system != "delta")
        page = f"[{row.system}](lib/docs/systems/{row.system}.md)"
        yield f"| {page} | {row.source or '-'} | {row.sink or '-'} | {links or '-'} |"


def _shared_options() -> Iterator[str]:
    groups = list(_GROUPS.values())
    for heading, options in _GROUPS.items():
        yield from _table(f"## {heading}", rows_of(options, groups[groups.index(options) + 1 :]))
    yield "## Errors\n\n```"
    yield _tree()
    yield "```"


def _system_page(system: str, systems: Mapping[str, System]) -> Iterator[str]:
    for kind, connector in connectors_of(system, systems):
        promise = connector.promise.value if issubclass(connector, Sink) else "exactly-once"
        yield f"## {kind.capitalize()}\n\n{_MARKUP.sub('`', (connector.__doc__ or '').strip().partition(chr(10))[0])}\n"
        yield f"*{promise}*{f': {connector.conditions}' if connector.conditions else ''}\n"
        parent = dict(connectors_of("kafka", systems))[kind].options if system == "event_hubs" else _NONE
        (_, rows), *shared = option_groups(connector, parent)
        yield from _table("", rows)
        for heading, words in word_groups(connector):
            yield from _table(f"**{heading}**", words)
        links = [f"[{heading[0].lower()}{heading[1:]}](../options.md#{_anchor(heading)})" for heading, _ in shared]
        links += ["[kafka](kafka.md)"] if parent.declared else []
        yield f"Besides, the options of {'; '.join(links)}.\n"


def option_groups(connector: type[Source] | type[Sink], parent: Options = _NONE) -> list[tuple[str, list[Row]]]:
    """The options of a connector by their heading: first its own, without one, and of them first what it cannot start without.

    Those that it has from ``parent``, another connector, are left out.
    """
    known = connector.known_options()
    shared = {heading: group for heading, group in _GROUPS.items() if _shares(known.declared, group.declared)}
    own = {row.option for row in rows_of(connector.options)}
    rows = rows_of(known, [parent, *shared.values()])
    needed = needed_options(connector)
    rows.sort(key=lambda row: (row.option.partition(",")[0] not in needed, row.option not in own))
    groups = [("", rows)]
    for heading, group in shared.items():
        names = {name for name in group.declared if known.declared.get(name) == group.declared[name]}
        groups.append((heading, [row for row in rows_of(known) if row.option.partition(",")[0] in names]))
    return groups


def word_groups(connector: type[Source] | type[Sink]) -> list[tuple[str, list[Row]]]:
    """What the JSON of its options may have, by the name of the option and the place."""
    declared = connector.known_options().declared.items()
    words = {name: option.words for name, option in declared if isinstance(option, Json)}
    return [(f"In {name}: {place}", rows_of(group)) for name in words for place, group in words[name].items()]


def example(connector: type[Source] | type[Sink]) -> str:
    """A line of code that uses a connector, with the options without which it does not start."""
    name, options = connector.name, needed_options(connector)
    if issubclass(connector, Sink):
        pairs = ", ".join(f'"{option}": "…"' for option in options)
        options_text = f", {{{pairs}}}" if pairs else ""
        return f'rows.writeStream.foreachBatch(connectors.foreach_batch("{name}"{options_text}))'
    calls = "".join(f'.option("{option}", "…")' for option in options)
    return f'spark.{"read" if connector.batch_only else "readStream"}.format("connectors.{name}"){calls}.load()'


def needed_options(connector: type[Source] | type[Sink]) -> list[str]:
    """The options without which a connector does not start, as its own checks name them; of alternatives the first.

    The checks get placeholders as values, so what depends on a value is not among them.
    """
    declared = connector.known_options().declared
    probe: dict[str, str] = {}
    while missing := [option for option in _missing(connector, probe) if option not in probe]:
        probe |= {option: _PROBES.get(type(declared.get(option)), "…") for option in missing}
    return list(probe)


def _missing(connector: type[Source] | type[Sink], options: Mapping[str, str]) -> list[str]:
    try:
        if issubclass(connector, Source):
            connector.of(options, streaming=not connector.batch_only)
        else:
            connector.of(options)
    except Misconfigured as wrong:
        known = connector.known_options().declared
        return [problem.option for problem in wrong.problems if problem.text.startswith("missing") and problem.option in known]
    except Exception:  # a check of a connector that takes no placeholder for its value
        return []
    return []


def option_schema(connector: type[Source] | type[Sink]) -> dict[str, Any]:
    """A JSON schema of the options of a connector, by which an editor completes and explains them in a file of JSON or YAML.

    It takes names as they are spelled here, while the connector takes them in any case.
    """
    known = connector.known_options()
    aliases, properties = known.other_names, dict[str, Any]()
    for name, option in known.declared.items():
        _, values, default, meaning = _row(name, option, ()).cells()
        properties[name] = {"description": f"{meaning}. Takes {values}."}
        if default not in ("", "required"):
            properties[name]["default"] = default
        if isinstance(option, (Choice, Flag)):
            properties[name]["anyOf"] = [{"enum": values.split(", ")}, {}]  # the names to complete: any case is right
    for alias, name in aliases.items():
        properties[alias] = {"description": f"Another name of {name}."}
    required = [
        {"anyOf": [{"required": [each]} for each in (name, *(alias for alias in aliases if aliases[alias] == name))]}
        for name, option in known.declared.items()
        if option.default is REQUIRED
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"connectors.{connector.name}",
        "type": "object",
        "properties": properties,
        "patternProperties": {f"^{re.escape(prefix)}": {"description": text} for prefix, text in known.through.items()},
        "additionalProperties": False,
        **({"allOf": required} if required else {}),
    }


def _shares(known: Mapping[str, Option], group: Mapping[str, Option]) -> bool:
    """True if most of ``group`` is in ``known``: what a connector has of it in another way stands in its own table."""
    return 2 * sum(known.get(name) == option for name, option in group.items()) > len(group)


def _anchor(heading: str) -> str:
    """The name of a heading in a link."""
    return re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def _tree() -> str:
    """The tree of errors that stands in the docstring of their module."""
    text = (errors.__doc__ or "").partition("::\n\n")[2].partition("\n\n")[0]
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())


def _table(heading: str, rows: Sequence[Row]) -> Iterator[str]:
    if not rows:
        return
    yield f"{heading}\n\n| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}".lstrip()
    for row in rows:
        names = ", ".join(f"`{name}`" for name in row.option.split(", "))
        yield f"| {names} | {' | '.join(_escaped(cell) for cell in row.cells()[1:])} |"
    yield ""


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("*", "\\*")


def default_text(option: Option) -> str:
    """The default as a user writes it; empty for none."""
    value: Any = option.default
    if value is REQUIRED:
        return "required"
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(option, Duration):
        return _duration(value)
    if isinstance(option, Size):
        return next((f"{value // unit}{name}" for unit, name in _SIZES if value % unit == 0), str(value))
    return str(value)


def _duration(seconds: float) -> str:
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    for unit, name in _UNITS:
        if seconds and seconds % unit == 0:
            count = int(seconds // unit)
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{seconds:g}s"
