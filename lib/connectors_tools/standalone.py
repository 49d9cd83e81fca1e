"""``python -m connectors connect worker.properties connector.properties …``: a standalone worker of Connect, on Spark.

A source connector is one query from ``connectors.connect`` into the topics of ``bootstrap.servers``, exactly-once; a sink
connector is one query from its topics into ``connectors.connect``. The files are those of a worker today; what has another
meaning here, or none, is said line by line before anything starts.
"""

from __future__ import annotations

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import connectors
from connectors.connect.common_settings import reference_problems
from connectors.connect.connector import Connector, SinkConnector
from connectors.connect.host import ConnectorSettings
from connectors.connect.hosts import sink_host, source_host
from connectors.connect.plugins import connector_class
from connectors.connect.properties import parse_properties
from connectors.ground.errors import ConnectorError, Misconfigured, Problem
from connectors.ground.messages import own_message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SUFFIXES: Final = ("key.converter", "value.converter", "header.converter")
_CLIENT: Final = re.compile(r"(ssl|sasl|security)\.")
_RESET: Final = "auto.offset.reset"
MEANINGS: Final[Mapping[str, str]] = {
    "bootstrap.servers": "the cluster that holds the topics",
    "offset.storage.file.filename": "a folder beside this name holds the state: checkpoints and epoch logs",
    "offset.flush.interval.ms": "the pause between micro-batches, in which offsets are committed",
    "plugin.path": "the folder of jars, for Java connectors",
    "key.converter": "for connectors that name none",
    "value.converter": "for connectors that name none",
    "header.converter": "for connectors that name none",
    f"consumer.{_RESET}": "where a sink starts, and goes on after a loss: earliest (else), latest, or none: a loss ends it",
}
"""Properties of a worker that mean something here."""
WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "listeners": "there is no REST interface; the state of a connector is in its state folder, status.json",
    "rest.": "there is no REST interface; the state of a connector is in its state folder, status.json",
    "group.id": "it belongs to a distributed worker; Spark distributes the tasks",
    "config.storage.": "it belongs to a distributed worker; the files hold the configuration",
    "offset.storage.": "offsets are in Spark's checkpoint, in no topic",
    "status.storage.": "it belongs to a distributed worker; the state is in status.json",
    "offset.flush.timeout.ms": "an epoch is recorded before Spark goes on, however long that takes",
    "plugin.discovery": "classes are found by their names",
    "internal.": "it is obsolete in Connect, too",
    "topic.creation.enable": "topics are created by the brokers",
    "config.providers": "there are none; a secret is {{secrets/scope/key}}",
    "task.shutdown.": "tasks are given ten seconds",
    "metric": "metrics are those of connectors.metrics",
    "producer.": "the sink of Kafka sets its own, but for security; producer.override.* of a connector is for dead letters",
    "consumer.": f"the source of Kafka sets its own, but for security; consumer.{_RESET} is read",
    "admin.": "topics are created by the brokers",
    "connector.client.config.override.policy": "a connector may override nothing but its dead-letter producer",
}
"""Beginnings of properties of a worker that mean nothing here, and why."""


@dataclass(frozen=True)
class Assembly:
    """A connector with what the worker adds: its ``name``, its ``properties``, whether it is a sink, and where that starts."""

    name: str
    properties: Mapping[str, str]
    is_sink: bool
    reset: str = "earliest"
    """``auto.offset.reset`` of a sink, with Connect's default. A topic that goes away ends the sink only with ``none``."""


def read_files(worker_file: Path, connector_files: Sequence[Path]) -> tuple[dict[str, str], list[Assembly]]:
    """The worker and its connectors. Raises :class:`Misconfigured` that lists everything that cannot start."""
    problems: list[Problem] = []
    worker = _read(worker_file, problems)
    providers = (worker or {}).get("config.providers")
    problems += _located(worker_file, reference_problems(worker or {}, providers))
    read = [(file, _read(file, problems)) for file in connector_files]
    for name in ("bootstrap.servers", "offset.storage.file.filename"):
        if worker is not None and not worker.get(name):
            problems.append(Problem(f"{worker_file.name}: {name}", f"missing; it names {MEANINGS[name]}."))
    assemblies: list[Assembly] = []
    for file, properties in read:
        if worker is None or properties is None:
            continue
        name = properties.get("name", "")
        if not name:
            problems.append(Problem(f"{file.name}: name", "missing; it names the connector and its state."))
        elif name in {assembly.name for assembly in assemblies}:
            problems.append(Problem(f"{file.name}: name", f'"{name}" is the name of another connector here.'))
        defaults = _defaults(worker, properties)
        merged = {**defaults, **properties}
        resets = (merged.pop(f"consumer.override.{_RESET}", None), worker.get(f"consumer.{_RESET}"), "earliest")
        assembly = Assembly(name, merged, _is_sink(merged), next(reset for reset in resets if reset))
        assemblies.append(assembly)
        problems += _located(file, reference_problems(properties, providers))
        for problem in _problems(assembly, worker):
            problems += _located(worker_file if problem.option in defaults else file, [problem])
    if problems:
        raise Misconfigured("connectors connect", list(dict.fromkeys(problems)))
    assert worker is not None
    return worker, assemblies


def _located(file: Path, problems: Iterable[Problem]) -> list[Problem]:
    return [Problem(f"{file.name}: {problem.option}", problem.text) for problem in problems]


def remarks(worker: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The properties of the worker that do not mean here what they say, each with what it means."""
    for name in sorted(worker):
        if name in MEANINGS or _CLIENT.match(name):
            continue
        if name.startswith(_SUFFIXES) and not name.endswith(".plugin.version"):
            continue
        why = next((text for start, text in WITHOUT_MEANING.items() if name.startswith(start)), None)
        yield name, why or "is no property of a worker that is known here; it has no effect"


def run(
    spark: SparkSession,
    worker: Mapping[str, str],
    assemblies: Sequence[Assembly],
    *,
    once: bool,
    echo: Callable[[str], None],
) -> bool:
    """Runs the connectors until they are told to stop, or with ``once`` until everything is read. False if one failed.

    A connector that fails ends alone; the others go on.
    """
    stop = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    queries = {assembly.name: _start(spark, worker, assembly, once=once) for assembly in assemblies}
    for name, query in queries.items():
        echo(f"{name}  started, query {query.id}")
    failed: set[str] = set()

    def note_failures() -> None:
        for name, query in queries.items():
            if name not in failed and not query.isActive and query.exception() is not None:
                failed.add(name)
                echo(f"{name}  FAILED: {_message(query.exception())}")

    while not stop.wait(0.5) and any(query.isActive for query in queries.values()):
        note_failures()
    for query in queries.values():
        if query.isActive:
            query.stop()
    note_failures()
    for name in (name for name in queries if name not in failed):
        echo(f"{name}  ended")
    return not failed


def _message(error: Any) -> str:
    return own_message(error) or str(error).splitlines()[0]


def _start(spark: SparkSession, worker: Mapping[str, str], assembly: Assembly, *, once: bool) -> Any:
    state = Path(f"{worker['offset.storage.file.filename']}.connectors") / assembly.name
    config = json.dumps(dict(assembly.properties))
    kafka = {"kafka.bootstrap.servers": worker["bootstrap.servers"]}
    kafka |= {f"kafka.{name}": value for name, value in worker.items() if _CLIENT.match(name)}
    plugins = {"pluginPath": worker["plugin.path"]} if _is_java(worker, assembly.properties) else {}
    if assembly.is_sink:
        topics = assembly.properties
        subscription = (
            {"subscribe": topics["topics"]} if topics.get("topics") else {"subscribePattern": topics["topics.regex"]}
        )
        losses = {"startingOffsets": "latest" if assembly.reset == "latest" else "earliest"}
        losses["failOnDataLoss"] = str(assembly.reset == "none").lower()
        source = {**kafka, **subscription, **losses, "includeHeaders": "true"}
        frame = spark.readStream.format("connectors.kafka").options(**source).load()
        sink = connectors.foreach_batch("connect", {"config": config, **plugins})
    else:
        source = {"config": config, "stateLocation": str(state / "epochs"), "drainTimeout": "2s", **plugins}
        frame = spark.readStream.format("connectors.connect").options(**source).load()
        frame = frame.select("topic", "partition", "key", "value", "headers", "timestamp")
        sink = connectors.foreach_batch("kafka", {**kafka, "transactionalIdPrefix": f"connect-{assembly.name}"})
    pause = f"{int(worker.get('offset.flush.interval.ms', '1000'))} milliseconds"
    writer = (
        frame.writeStream.queryName(assembly.name)
        .option("checkpointLocation", str(state / "checkpoint"))
        .foreachBatch(sink)
    )
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=pause)).start()


def _read(file: Path, problems: list[Problem]) -> dict[str, str] | None:
    try:
        return parse_properties(file.read_text())
    except (OSError, ValueError) as wrong:
        problems.append(Problem(file.name, f"cannot be read: {wrong}."))
        return None


def _defaults(worker: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """A connector's properties from its worker: converters that it does not name itself, and the cluster of dead letters."""
    taken: dict[str, str] = {}
    for side in _SUFFIXES:
        if side in worker and side not in properties:
            taken |= {name: value for name, value in worker.items() if name == side or name.startswith(f"{side}.")}
    if properties.get("errors.deadletterqueue.topic.name"):
        taken |= {"bootstrap.servers": worker.get("bootstrap.servers", "")}
        taken |= {f"producer.override.{name}": value for name, value in worker.items() if _CLIENT.match(name)}
    return taken


def _is_sink(properties: Mapping[str, str]) -> bool:
    return "topics" in properties or "topics.regex" in properties or _is_class_here(properties, SinkConnector)


def _is_java(worker: Mapping[str, str], properties: Mapping[str, str]) -> bool:
    """True for a class that Python does not have, where the worker names a folder of jars."""
    return bool(worker.get("plugin.path")) and not _is_class_here(properties, Connector)


def _is_class_here(properties: Mapping[str, str], kind: type[Any]) -> bool:
    """True for a connector whose class Python has, and that is a ``kind``."""
    try:
        connector_class(properties.get("connector.class", ""), kind)
    except ValueError:
        return False
    return True


def _problems(assembly: Assembly, worker: Mapping[str, str]) -> list[Problem]:
    properties = assembly.properties
    path = worker["plugin.path"] if _is_java(worker, properties) else None
    settings = ConnectorSettings(properties, path)
    try:
        problems = (sink_host if assembly.is_sink else source_host)(settings).validate()
    except ConnectorError as wrong:
        return [Problem("connector.class", str(wrong))]
    if assembly.is_sink and not (properties.get("topics") or properties.get("topics.regex")):
        problems.append(Problem("topics", "missing; a sink reads topics, or those that match topics.regex."))
    if assembly.reset not in ("earliest", "latest", "none"):
        problems.append(Problem(_RESET, f'must be earliest, latest or none; got "{assembly.reset}".'))
    return problems
