"""The list of the library's systems. Each system is a module or a package.

A system is imported on demand: Spark starts a process for each plan and each commit, and that needs only one system.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, TypeVar

from ..core.ledger import LedgerContent
from ..core.simple import DECLARED
from ..core.sink import Sink
from ..core.source import Source
from ..ground.errors import Misconfigured, Problem

Kind = TypeVar("Kind")
System = tuple["type[Source] | None", "type[Sink] | None"]

SYSTEMS: Final[Mapping[str, tuple[str, str | None, str | None]]] = {
    "sequence": ("sequence", "SequenceSource", None),
    "print": ("print_rows", None, "PrintSink"),
    "buffered": ("buffered", None, "BufferedSink"),
    "cassandra": ("cassandra", "CassandraSource", "CassandraSink"),
    "connect": ("connect", "ConnectSource", "ConnectSink"),
    "delta": ("delta", None, "DeltaSink"),
    "dynamodb": ("dynamodb", "DynamoDbSource", "DynamoDbSink"),
    "elasticsearch": ("elasticsearch", "ElasticsearchSource", "ElasticsearchSink"),
    "event_hubs": ("event_hubs", "EventHubsSource", "EventHubsSink"),
    "file_stream": ("file_stream", "FileStreamSource", "FileStreamSink"),
    "files": ("files", "FilesSource", "FilesSink"),
    "firehose": ("firehose", None, "FirehoseSink"),
    "hybrid": ("hybrid", "HybridSource", None),
    "http": ("http", "HttpSource", "HttpSink"),
    "jdbc": ("jdbc", "JdbcSource", "JdbcSink"),
    "kafka": ("kafka", "KafkaSource", "KafkaSink"),
    "kinesis": ("kinesis", "KinesisSource", "KinesisSink"),
    "pubsub": ("pubsub", "PubSubSource", "PubSubSink"),
    "redis": ("redis", "RedisSource", "RedisSink"),
}
"""The module, the source and the sink of each system, by name."""


ENTRY_POINTS: Final = "connectors.systems"
"""The entry point group in which an installed package declares its sources and sinks."""
_ADDED: dict[str, System] = {}
_log = logging.getLogger("connectors.systems")


def add_system(kind: type) -> None:
    """Adds the user's own source or sink by its ``name``; it joins a system of that name, if there is one."""
    if issubclass(kind, (Source, Sink)):
        _ADDED[kind.name] = _joined(all_systems().get(kind.name, (None, None)), kind)
    else:
        _add_plugin(kind)


def added_systems() -> Mapping[str, System]:
    """The user's own systems, declared with ``@source`` or added by :func:`add_system`."""
    return {**{name: (kind, None) for name, kind in DECLARED.items()}, **_ADDED}


def _joined(system: System, kind: type[Source] | type[Sink]) -> System:
    """``system`` with ``kind`` instead of its source or sink."""
    source, sink = system
    return (kind, sink) if issubclass(kind, Source) else (source, kind)


def _add_plugin(kind: type) -> None:
    """Adds a part of Connect's model: a connector or a converter."""
    from ..connect.connector import Connector
    from ..connect.converters import Converter
    from ..connect.plugins import register_class

    if not issubclass(kind, (Connector, Converter)):
        raise TypeError(f"{kind.__name__} is neither a Source nor a Sink, nor a part of connectors.connect")
    register_class(kind)


def own_systems() -> Mapping[str, System]:
    """The library's systems."""
    return {name: _imported(name) for name in SYSTEMS}


def all_systems() -> Mapping[str, System]:
    """Every system: the library's, those of installed packages, declared with ``@source``, or added by :func:`add_system`."""
    return {**own_systems(), **installed_systems(), **added_systems()}


@lru_cache
def installed_systems() -> Mapping[str, System]:
    """The systems of other packages, from their entry points. Logs and leaves out those that cannot be loaded."""
    systems: dict[str, System] = {}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: (entry.name, entry.value)):
        try:
            kind = entry.load()
        except Exception as error:
            _log.warning("%s = %s cannot be loaded and is left out: %r", entry.name, entry.value, error)
            continue
        name = getattr(kind, "name", "")
        if not (isinstance(kind, type) and issubclass(kind, (Source, Sink))):
            reason = "it is neither a Source nor a Sink"
        elif name in SYSTEMS:
            reason = f"connectors.{name} is the library's own"
        elif (other := systems.get(name, (None, None))[issubclass(kind, Sink)]) not in (None, kind):
            reason = f"connectors.{name} is that of {other}"
        else:
            systems[name] = _joined(systems.get(name, (None, None)), kind)
            continue
        _log.warning("%s = %s is left out: %s", entry.name, entry.value, reason)
    return systems


def _imported(name: str) -> System:
    module, *both = SYSTEMS[name]
    source, sink = (getattr(import_module(f"{__name__}.{module}"), kind) if kind else None for kind in both)
    return source, sink


def ledgers_in(target: str, options: Mapping[str, str] | None = None) -> list[LedgerContent] | None:
    """The content of the sinks' ledgers in ``target``, a path or URL; ``None`` if no system can look there.

    ``options`` are those that the sink needs to reach the target. Raises the error of a system that cannot be reached.
    """
    ledgers: dict[str, LedgerContent] = {}
    known, wrong = False, None
    for sink in dict.fromkeys(_recording(sink) for _, sink in all_systems().values() if sink is not None):
        try:
            contents = sink.ledgers_in(target, options or {})
        except Misconfigured as refused:  # a path may be a folder or a database, with other options
            wrong = refused
            continue
        known |= contents is not None
        ledgers.update({content.sink_id: content for content in contents or ()})
    if wrong is not None and not known:
        raise wrong
    return list(ledgers.values()) if known else None


def _recording(sink: type[Sink]) -> type[Sink]:
    """The class from which ``sink`` has its ``ledgers_in``: a subclass may need options of its own."""
    return next(kind for kind in sink.__mro__ if "ledgers_in" in vars(kind))


def source_class(name: str) -> type[Source]:
    """The source of a system, by ``"files"`` or ``"connectors.files"``. Raises ``Misconfigured`` for another name."""
    short = name.removeprefix("connectors.")
    if short in SYSTEMS and short not in added_systems() and (known := _imported(short)[0]):
        return known  # the others are not imported for it
    sources = {system: source for system, (source, _) in all_systems().items() if source is not None}
    return _named(name, "source", sources)


def sink_class(name: str) -> type[Sink]:
    """The sink of a system, by ``"files"`` or ``"connectors.files"``. Raises ``Misconfigured`` for another name."""
    return _named(name, "sink", {system: sink for system, (_, sink) in all_systems().items() if sink is not None})


def _named(name: str, role: str, kinds: Mapping[str, Kind]) -> Kind:
    short = name.removeprefix("connectors.")
    if short not in kinds:
        close = difflib.get_close_matches(short, kinds, n=1)
        hint = f'; did you mean "{close[0]}"?' if close else f". There are: {', '.join(sorted(kinds))}."
        own = f"A {role} of your own is known after connectors.register(spark, Your{role.title()}), or give the class itself."
        raise Misconfigured("connectors", [Problem(role, f'"{name}" is no {role}{hint} {own}')])
    return kinds[short]
