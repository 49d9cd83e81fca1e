"""The classes that properties name: a user's own that are registered, and others by their dotted names."""

from __future__ import annotations

import importlib
from typing import Any

OWN: dict[str, type] = {}
"""Classes that a user has registered (``connectors.register(spark, MyConnector)``), by name and by dotted name."""


def connector_class(name: str, base: type[Any]) -> type[Any]:
    """The class ``name``. Raises ``ValueError`` with a sentence where it is none, or no ``base``."""
    if not name:
        raise ValueError("missing; it names the connector's class.")
    try:
        kind = named_class(name)
    except ImportError as missing:
        raise ValueError(
            f'"{name}" is no Python class that can be imported here ({missing}). A class of a notebook is known after '
            "connectors.register(spark, TheClass); a Java class needs pluginPath or pluginPackages, of a worker plugin.path."
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise ValueError(f'"{name}" is no {base.__name__}.')
    return kind


def named_class(name: str) -> Any:
    """The object called ``name``: a class of the user's own, else by its dotted name. Raises ``ImportError``."""
    if name in OWN:
        return OWN[name]
    module, _, inner = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), inner)
    except (AttributeError, ValueError) as missing:
        raise ImportError(str(missing)) from None


def register_class(kind: type) -> None:
    """Makes a class of the user's own known by its name and by its dotted name, in this process."""
    OWN[kind.__name__] = OWN[f"{kind.__module__}.{kind.__qualname__}"] = kind


class OwnClasses:
    """The classes of the user's own: unpickling this registers them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _register_all, tuple(dict.fromkeys(OWN.values()))


def _register_all(*kinds: type) -> OwnClasses:
    for kind in kinds:
        register_class(kind)
    return OwnClasses()
