"""The options that source and sink of ``connectors.connect`` have in common, and the settings of a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...connect.host import ConnectorSettings
from ...core import REQUIRED, Int, Json, Names, Options, Problem, Text
from ...core.datasets import Dataset
from ...ground.options import Duration, Values

CONNECT_OPTIONS: Final = Options(
    {
        "config": Json(REQUIRED, kind=dict, meaning="the properties of the connector, under Connect's own names"),
        "pluginPath": Text(None, meaning="Java connectors: a folder of jars"),
        "pluginPackages": Names((), meaning="Java connectors: Maven coordinates"),
        "restart.maxRetries": Int(
            5, at_least=0, meaning="how often a failed task starts again without progress between"
        ),
        "restart.initialBackoff": Duration(1.0, meaning="the pause before the first new start; it doubles"),
        "restart.maxBackoff": Duration(60.0, meaning="the longest pause"),
    }
)


def settings_of(values: Values, connector: str = "connectors.connect") -> ConnectorSettings:
    """The settings of the host of these options."""
    properties = {str(key): _text(value) for key, value in values["config"].items()}
    return ConnectorSettings(
        properties,
        values["pluginPath"],
        tuple(values["pluginPackages"]),
        values["restart.maxRetries"],
        values["restart.initialBackoff"],
        values["restart.maxBackoff"],
        values["outageTimeout"],
        connector,
        values.get("offsets") != "sink",
    )


def config_problems(values: Values) -> Iterator[Problem]:
    """The problems of ``config`` that show without a look at the connector."""
    if not values["config"].get("connector.class"):
        yield Problem("connector.class", "missing in config; it names the connector's class.")


def letter_problems(values: Values) -> Iterator[Problem]:
    """The problems of ``deadLetterPath``."""
    if values["deadLetterPath"] and values["config"].get("errors.tolerance", "none") != "all":
        yield Problem("deadLetterPath", "has no use without errors.tolerance=all in config.")


def topic_problems(values: Values) -> Iterator[Problem]:
    """The problems of a dead-letter topic: without a cluster, or beside a folder."""
    config = values["config"]
    if config.get("errors.deadletterqueue.topic.name") and values["deadLetterPath"]:
        text = "has no use beside errors.deadletterqueue.topic.name in config, which takes the letters; give one of the two."
        yield Problem("deadLetterPath", text)
    if config.get("errors.deadletterqueue.topic.name") and not config.get("bootstrap.servers"):
        yield Problem("bootstrap.servers", "missing in config; it names the cluster of the dead-letter topic.")


def _text(value: Any) -> str:
    """A property as text: JSON numbers and booleans stand for what a properties file would have."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return "" if value is None else str(value)


def dataset_of(properties: Mapping[str, str]) -> Dataset:
    """The dataset of a connector, which alone knows its system: its class and its name."""
    return Dataset(f"connect://{properties['connector.class']}", properties.get("name", ""))
