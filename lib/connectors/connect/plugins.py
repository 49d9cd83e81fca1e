"""The classes that properties name: Python's by their dotted names, and Connect's own file pair by its."""

from __future__ import annotations

import importlib
from typing import Any, Final

OWN: dict[str, type] = {}
"""Connectors that a user has registered (``connectors.register(spark, MyConnector)``), by their name and dotted name."""

KNOWN: Final = {
    "org.apache.kafka.connect.file.FileStreamSourceConnector": "connectors.connect.files.FileStreamSourceConnector",
    "org.apache.kafka.connect.file.FileStreamSinkConnector": "connectors.connect.files.FileStreamSinkConnector",
}
"""Classes of Connect that the library has in Python."""


def short_names() -> dict[str, str]:
    """The dotted names by the short ones that Connect accepts."""
    names: dict[str, str] = {}
    for full, own in KNOWN.items():
        last = full.rpartition(".")[2]
        names |= {full: own, last: own, last.removesuffix("Connector"): own}
    return names


def connector_class(name: str, base: type[Any]) -> type[Any]:
    """The class ``name``. Raises ``ValueError`` with a sentence where it is none, or no ``base``."""
    if not name:
        raise ValueError("missing; it names the connector's class.")
    kind = OWN.get(name) or _imported(short_names().get(name, name))
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ValueError(f'"{name}" is no {base.__name__}.')
    return kind


def _imported(name: str) -> Any:
    module, _, inner = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), inner)
    except (ImportError, AttributeError, ValueError) as missing:
        raise ValueError(
            f'"{name}" is no Python class that can be imported here ({missing}). A class of a notebook is known after '
            "connectors.register(spark, TheClass); a Java class needs pluginPath or pluginPackages."
        ) from None
