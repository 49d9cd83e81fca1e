"""The problems of the properties of a connector, all of them in one answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..ground.errors import Problem
from ..ground.options import masker, redacted
from .common_settings import common_problems, names, note_without_effect
from .config import ConfigDef, ConfigValue, between
from .connector import Connector, SinkConnector, SourceConnector
from .converters import converter_problems
from .errors import masking
from .host import ConnectorSettings
from .plugins import connector_class
from .transactions import TRANSACTIONS, transaction_problems

COMMON: Final = (
    ConfigDef()
    .define("name", "STRING", None, "HIGH", "the connector's name, for people and logs")
    .define("connector.class", "STRING", None, "HIGH", "the class: a Python one by its dotted name")
    .define("tasks.max", "INT", 1, "HIGH", "tasks at the most", validator=between(1))
    .define("tasks.max.enforce", "BOOLEAN", True, "LOW", "false: a connector may give more task configurations")
    .define("config.action.reload", "STRING", "restart", "LOW", "without effect; the properties of a query do not change")
    .define("topics", "LIST", None, "HIGH", "sinks: the topics that are read")
    .define("topics.regex", "STRING", None, "HIGH", "sinks: a pattern of the topics that are read")
)
"""Settings of every connector."""
_PREFIXES: Final = (
    "key.converter",
    "value.converter",
    "header.converter",
    "transforms",
    "predicates",
    "errors.",
    "producer.override.",
    "consumer.override.",
    "admin.override.",
    "topic.creation.",
    "offsets.storage.topic",
    "connector.plugin.version",
    "config.providers",
)

_STEPS: Final = (
    "is for Java connectors; change the rows of a Python connector by DataFrame functions, such as df.select(…) and "
    "df.where(…), or take the Java connector (pluginPath or pluginPackages)"
)


def property_problems(settings: ConnectorSettings, *, sink: bool) -> list[Problem]:
    """The problems of a connector's properties. What has no effect is told once."""
    note_without_effect(settings.properties, settings.log, sink=sink)
    mask = masker(settings.secrets())
    with masking(mask):
        problems = list(_problems(settings.properties, sink))
    return sorted({Problem(problem.option, mask(problem.text)) for problem in problems})


def _problems(properties: Mapping[str, str], is_sink: bool) -> Iterator[Problem]:
    base: type[Any] = SinkConnector if is_sink else SourceConnector
    yield from COMMON.problems({key: value for key, value in properties.items() if key in COMMON.keys})
    yield from common_problems(properties, sink=is_sink)
    yield from converter_problems(properties)
    for steps in ("transforms", "predicates"):
        keys = [key for key in properties if key.startswith(f"{steps}.") or (key == steps and names(properties[key]))]
        if keys:  # one answer for all of them
            yield Problem(min(keys), f"{_STEPS}; got {redacted(min(keys), properties[min(keys)])}.")
    try:
        kind = connector_class(properties.get("connector.class", ""), base)
    except ValueError as wrong:
        yield Problem("connector.class", str(wrong))
        return
    connector: Connector = kind()
    own = connector.config()
    yield from _listed(connector.validate(properties), properties)
    for key in properties:
        if (
            not (key in own.keys or key in COMMON.keys or key in TRANSACTIONS.keys or key.startswith(_PREFIXES))
            and own.keys
        ):
            near = own.nearest(key) or COMMON.nearest(key)
            if near and near not in properties:
                yield Problem(key, f'is no setting of this connector; did you mean "{near}"?')
    if isinstance(connector, SourceConnector):
        yield from transaction_problems(properties, connector)


def _listed(answers: list[ConfigValue], properties: Mapping[str, str]) -> Iterator[Problem]:
    for answer in answers:
        for text in answer.error_messages:
            shown = "" if answer.name not in properties else f"; got {redacted(answer.name, properties[answer.name])}"
            yield Problem(answer.name, f"{text.rstrip('.')}{shown}.")
