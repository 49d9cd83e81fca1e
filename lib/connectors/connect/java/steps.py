"""The steps of a record between a task and its columns, inside the JVM: transforms with predicates, and converters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..common_settings import names
from .jvm import Jvm

_KAFKA: Final = "org.apache.kafka.connect"
_DEFAULTS: Final = {
    "key": f"{_KAFKA}.json.JsonConverter",
    "value": f"{_KAFKA}.json.JsonConverter",
    "header": f"{_KAFKA}.storage.SimpleHeaderConverter",
}


def with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The properties below ``prefix``, without it."""
    return {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}


def converter_class(properties: Mapping[str, str], part: str) -> str:
    """The Java class that converts ``part``: key, value or header."""
    return properties.get(f"{part}.converter") or _DEFAULTS[part]


def converter_settings(properties: Mapping[str, str], part: str) -> dict[str, str]:
    """The settings of that converter. Where none is named, it writes plain JSON, without schemas."""
    settings = with_prefix(properties, f"{part}.converter.")
    return settings if f"{part}.converter" in properties else {"schemas.enable": "false", **settings}


class Steps:
    """The transforms and converters of one connector's properties."""

    def __init__(self, jvm: Jvm, properties: Mapping[str, str]) -> None:
        self.jvm, self.properties = jvm, properties
        self.transforms = [self._transform(alias) for alias in names(properties.get("transforms"))]
        self.converters = {part: self._converter(part) for part in ("key", "value")}
        self.header_converter = jvm.instance(converter_class(properties, "header"))
        self.header_converter.configure({**converter_settings(properties, "header"), "converter.type": "header"})

    def java(self, key_converter: Any = None, value_converter: Any = None) -> Any:
        """The object that runs the steps inside the JVM (``Steps.java``), perhaps with other converters."""
        converters = (key_converter or self.converters["key"], value_converter or self.converters["value"])
        steps = self.jvm.compiled("Steps", *converters, self.header_converter)
        for transform, predicate, negate in self.transforms:
            steps.add(transform, predicate, negate)
        return steps

    def close(self) -> None:
        for transform, _, _ in self.transforms:
            transform.close()

    def _transform(self, alias: str) -> tuple[Any, Any, bool]:
        """A transform, its predicate, if it has one, and whether that is negated."""
        settings = with_prefix(self.properties, f"transforms.{alias}.")
        transform = self.jvm.instance(settings.pop("type"))
        predicate, negate = settings.pop("predicate", None), settings.pop("negate", "false").lower() == "true"
        transform.configure(settings)
        return transform, None if predicate is None else self._predicate(predicate), negate

    def _predicate(self, alias: str) -> Any:
        settings = with_prefix(self.properties, f"predicates.{alias}.")
        predicate = self.jvm.instance(settings.pop("type"))
        predicate.configure(settings)
        return predicate

    def _converter(self, part: str) -> Any:
        converter = self.jvm.instance(converter_class(self.properties, part))
        converter.configure(converter_settings(self.properties, part), part == "key")
        return converter
