"""The names and defaults of options in the code: each that is looked up is declared, each that is declared is looked up."""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import connectors
from connectors.core import Sink, Source
from connectors.ground.options import REQUIRED, Option, Options
from connectors.ground.relations import Condition
from connectors.systems import own_systems
from connectors_tools.reference import default_text
from tests.systems.test_stored_state import OPTIONS as SINKS
from tests.systems.test_stored_state import sink_class

LIBRARY = Path(connectors.__file__).parent
LAYERS = ("ground", "storage", "core", "formats", "batching", "systems", "async_io", "spark")
OPTIONS = {
    f"{name}-{connector.__name__}": connector.known_options().declared
    for name, pair in own_systems().items()
    for connector in pair
    if connector is not None
}


def declared() -> dict[str, Option]:
    """The options of all modules: of their sources and sinks, and those that they keep in a variable or a table."""
    found = {name: option for options in OPTIONS.values() for name, option in options.items()}
    for layer in LAYERS:
        for module in pkgutil.walk_packages([str(LIBRARY / layer)], f"connectors.{layer}."):
            for value in vars(importlib.import_module(module.name)).values():
                tables = [*vars(value).values(), value] if isinstance(value, type) else [value]
                for table in tables:
                    for options in table.values() if isinstance(table, dict) else [table]:
                        found |= options.declared if isinstance(options, Options) else {}
    return found


@functools.cache
def trees() -> list[tuple[str, ast.AST]]:
    files = [file for layer in LAYERS for file in sorted((LIBRARY / layer).rglob("*.py"))]
    return [(str(file.relative_to(LIBRARY)), ast.parse(file.read_text())) for file in files]


def is_values(node: ast.AST) -> bool:
    """True for ``values``, ``self.values`` and ``sink._values``."""
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name in ("values", "_values")


def look_ups(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_values(node.value):
            yield node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "is_set"):
            yield from node.args[:1] if is_values(node.func.value) else ()


def pattern(name: ast.AST) -> str:
    """An expression for the names that are looked up by ``name``; empty where the code does not tell them."""
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return re.escape(name.value)
    if isinstance(name, ast.JoinedStr):
        return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in name.values)
    return ""


def test_each_option_that_is_looked_up_is_declared() -> None:
    names = "\n".join(declared())
    unknown = [
        f"{file}:{name.lineno} {text}"
        for file, tree in trees()
        for name in look_ups(tree)
        if (text := pattern(name)) and not re.search(f"^(?:{text})$", names, re.MULTILINE)
    ]
    assert unknown == []


def test_each_declared_option_is_looked_up() -> None:
    """By its name, or through a variable that has it: then its name is a text elsewhere than where options are declared."""
    names = set()
    for _, tree in trees():
        nodes = list(ast.walk(tree))
        keys = {id(key) for node in nodes if isinstance(node, ast.Dict) for key in node.keys}
        texts = [node for node in nodes if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in keys]
        names |= {text for text in map(pattern, texts) if re.search(r"\w{4}", text)}
    used = re.compile("|".join(sorted(names)))
    assert [name for name in declared() if len(name) > 3 and not used.fullmatch(name)] == []


@pytest.mark.parametrize("connector", OPTIONS)
def test_each_relation_is_to_an_option_of_the_connector(connector: str) -> None:
    options = OPTIONS[connector]
    for name, option in options.items():
        texts = (option.only_with, option.needed_by, option.excludes)
        others = [condition.option for text in texts for condition in Condition.each(text)]
        others += [*option.alternatives, *filter(None, (option.above, option.not_above))]
        assert [other for other in others if other not in options] == [], name


SOURCES = {
    "sequence": {"end": "5"},
    "files": {"path": "/data/in", "fileFormat": "json"},
    "file_stream": {"path": "/data/in.txt"},
    "kafka": {"kafka.bootstrap.servers": "host:9092", "subscribe": "t"},
    "jdbc": {"url": "jdbc:postgresql://host/db", "dbtable": "items", "user": "u", "password": "p"},
    "redis": {"url": "redis://host:6379/1", "stream": "s", "group": "g", "stateLocation": "/data/state"},
    "dynamodb": {"region": "us-east-1", "table": "t"},
    "elasticsearch": {"hosts": "http://host:9200", "index": "i"},
    "pubsub": {"projectId": "p", "subscriptionId": "s", "stateLocation": "/data/state"},
    "kinesis": {"region": "us-east-1", "streamName": "s"},
    "cassandra": {"contactPoints": "host", "keyspace": "k", "table": "t"},
}


def defaults(connector: type[Source | Sink]) -> dict[str, str]:
    """The default of each option, as a user writes it who lists all of them."""
    options = connector.known_options().declared
    return {name: default_text(option) for name, option in options.items() if option.default is not REQUIRED}


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_takes_its_own_defaults(name: str) -> None:
    sink = sink_class(name)
    given = sink.of({**defaults(sink), **SINKS[name]})
    assert dict(given.values) == dict(sink.of(SINKS[name]).values)
    assert given.guarantee() == sink.of(SINKS[name]).guarantee()


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_takes_its_own_defaults(name: str) -> None:
    source = own_systems()[name][0]
    assert source is not None
    assert dict(source.of({**defaults(source), **SOURCES[name]}).values) == dict(source.of(SOURCES[name]).values)
