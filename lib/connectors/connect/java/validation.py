"""The problems of the properties of a Java connector: all at once, in the words of its own classes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError

from ...ground import machine
from ...ground.cache_folder import cache
from ...ground.errors import Misconfigured, Problem
from ...ground.options import masked
from ..common_settings import common_problems, names, note_without_effect
from ..host import ConnectorSettings
from .failures import failure_of
from .jars import connector_classes, plugin_class_path
from .jvm import AmbiguousAlias, Jvm, JvmDied
from .steps import converter_class, converter_settings, with_prefix

_SOURCE: Final = "org.apache.kafka.connect.source.SourceConnector"
_SINK: Final = "org.apache.kafka.connect.sink.SinkConnector"
_SECONDS: Final = 180.0
_VALID_SECONDS: Final = 600.0
"""Spark asks in each of the processes that it starts for a query: what was right a moment ago is not asked for again."""


def validated(settings: ConnectorSettings, *, sink: bool) -> list[Problem]:
    """The problems of ``settings``, from a JVM that lives for this question."""
    note_without_effect(settings.properties, settings.log, sink=sink)
    text = repr((sorted(settings.properties.items()), settings.plugin_path, settings.plugin_packages, sink))
    mark = cache("connect") / hashlib.sha256(text.encode()).hexdigest()[:32]
    if mark.exists() and machine.time() - mark.stat().st_mtime < _VALID_SECONDS:
        return []
    try:
        jars = plugin_class_path(settings.plugin_path, settings.plugin_packages)
        jvm = connector_jvm(settings, jars)
    except Misconfigured as wrong:
        return list(wrong.problems)
    except JvmDied as death:
        return [Problem("java.options", str(death))]
    try:
        with jvm.within(_SECONDS, "validate the properties"):
            problems = property_problems(jvm, jars, settings.properties, sink=sink)
    finally:
        jvm.close()
    if not problems:
        mark.touch()
    return problems


def connector_jvm(settings: ConnectorSettings, jars: Sequence[str]) -> Jvm:
    """A JVM for the connector, with what the property ``java.options`` adds, such as ``-Xmx256m``.

    The connector's name is on its command line, for whoever looks at the processes of the machine.
    """
    name = re.sub(r"[^\w.-]", "_", settings.properties.get("name", ""))
    options = [f"-Dconnectors.connector={name}", *settings.properties.get("java.options", "").split()]
    return Jvm(jars, options, settings.secrets(), settings.log)


def property_problems(jvm: Jvm, jars: Sequence[str], properties: Mapping[str, str], *, sink: bool) -> list[Problem]:
    """Every problem of ``properties``, with secrets hidden."""
    connector, problems = _connector(jvm, jars, properties.get("connector.class", ""), sink=sink)
    problems += common_problems(properties, sink=sink)
    problems += _step_problems(jvm, properties)
    problems += _number_problem(properties)
    problems += _boundary_problem(properties)
    if connector is not None:
        problems += _connector_problems(jvm, connector, properties)
        if not sink:
            problems += _exactly_once_problem(connector, properties)
    return list(dict.fromkeys(Problem(problem.option, jvm.masked(problem.text)) for problem in problems))


def _connector(jvm: Jvm, jars: Sequence[str], name: str, *, sink: bool) -> tuple[Any, list[Problem]]:
    if not name:
        return None, [Problem("connector.class", "missing; give the Java class of the connector.")]
    kind, word = (_SINK, "sink") if sink else (_SOURCE, "source")
    try:
        connector = jvm.instance(name)
        fits = jvm.class_of(kind).isInstance(connector)
    except AmbiguousAlias as several:
        return None, [Problem("connector.class", str(several))]
    except (Py4JJavaError, Py4JError):
        offered = ", ".join(connector_classes(jars)) or "none"
        return None, [Problem("connector.class", f"{name} is in none of the jars; they have: {offered}")]
    return (connector, []) if fits else (None, [Problem("connector.class", f"{name} is no {word} connector.")])


def _number_problem(properties: Mapping[str, str]) -> Iterator[Problem]:
    number = properties.get("tasks.max", "1")
    if not number.isdigit() or int(number) < 1:
        yield Problem("tasks.max", f'must be a number of 1 or more; got "{number}"')


def _boundary_problem(properties: Mapping[str, str]) -> Iterator[Problem]:
    boundary = properties.get("transaction.boundary", "poll")
    if boundary != "poll":
        yield Problem("transaction.boundary", f'must be poll with a Java connector; got "{boundary}"')


def _connector_problems(jvm: Jvm, connector: Any, properties: Mapping[str, str]) -> Iterator[Problem]:
    try:
        values = connector.validate(dict(properties)).configValues()
    except Py4JJavaError as error:
        yield Problem("config", f"cannot be validated: {failure_of(error, jvm.masked)}")
        return
    for value in values:
        for message in value.errorMessages():
            yield Problem(str(value.name()), _without_secret(str(value.name()), str(message), properties))


def _exactly_once_problem(connector: Any, properties: Mapping[str, str]) -> Iterator[Problem]:
    if properties.get("exactly.once.support") == "required":
        support = connector.exactlyOnceSupport(dict(properties))
        if support is None or str(support.name()) != "SUPPORTED":
            text = "is required, and the connector says that it does not support it with these settings."
            yield Problem("exactly.once.support", text)


def _without_secret(name: str, message: str, properties: Mapping[str, str]) -> str:
    """The connector's message, with the value of its property as the library shows it."""
    value = properties.get(name)
    return message.replace(value, masked(name, value)) if value else message


def _step_problems(jvm: Jvm, properties: Mapping[str, str]) -> Iterator[Problem]:
    for kind in ("transforms", "predicates"):
        aliases = names(properties.get(kind))
        for alias in sorted({alias for alias in aliases if aliases.count(alias) > 1}):
            yield Problem(kind, f'has "{alias}" twice; give each alias once.')
    for alias in names(properties.get("transforms")):
        yield from _part_problems(jvm, properties, f"transforms.{alias}.", ("predicate", "negate"))
        predicate = properties.get(f"transforms.{alias}.predicate")
        if predicate is not None and predicate not in names(properties.get("predicates")):
            yield Problem(f"transforms.{alias}.predicate", f'"{predicate}" is not in predicates.')
    for alias in names(properties.get("predicates")):
        yield from _part_problems(jvm, properties, f"predicates.{alias}.", ())
    for part in ("key", "value", "header"):
        name = converter_class(properties, part)
        try:
            converter, settings = jvm.instance(name), converter_settings(properties, part)
            if part == "header":
                converter.configure({**settings, "converter.type": "header"})
            else:
                converter.configure(settings, part == "key")
        except (Py4JJavaError, Py4JError, AmbiguousAlias) as error:
            yield Problem(f"{part}.converter", _reason(jvm, error, name))


def _part_problems(jvm: Jvm, properties: Mapping[str, str], prefix: str, own: tuple[str, ...]) -> Iterator[Problem]:
    settings = {key: value for key, value in with_prefix(properties, prefix).items() if key not in own}
    name = settings.pop("type", None)
    if name is None:
        yield Problem(f"{prefix}type", "missing; give the Java class.")
        return
    try:
        part = jvm.instance(name)
        for value in part.config().validate(settings):
            for message in value.errorMessages():
                yield Problem(f"{prefix}{value.name()}", str(message))
    except (Py4JJavaError, Py4JError, AmbiguousAlias) as error:
        yield Problem(f"{prefix}type", _reason(jvm, error, name))


def _reason(jvm: Jvm, error: Exception, name: str) -> str:
    if isinstance(error, AmbiguousAlias):
        return str(error)
    if isinstance(error, Py4JJavaError):
        thrown = failure_of(error, jvm.masked)
        if not thrown.kind.endswith("ClassNotFoundException"):
            return str(thrown)
    return f"{name} is in none of the jars; name one that has it in pluginPackages, or put it into pluginPath."
