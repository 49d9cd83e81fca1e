"""What happens to a record between a task and its columns, inside the JVM: transforms with predicates, and converters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from .handles import Handles

_KAFKA: Final = "org.apache.kafka.connect"
_DEFAULTS: Final = {
    "key": f"{_KAFKA}.json.JsonConverter",
    "value": f"{_KAFKA}.json.JsonConverter",
    "header": f"{_KAFKA}.storage.StringConverter",
}
_SHORT: Final = {
    "Json": f"{_KAFKA}.json.JsonConverter",
    "String": f"{_KAFKA}.storage.StringConverter",
    "SimpleHeader": f"{_KAFKA}.storage.SimpleHeaderConverter",
    **{
        name: f"{_KAFKA}.converters.{name}Converter"
        for name in ("ByteArray", "Short", "Integer", "Long", "Float", "Double", "Boolean")
    },
}


def names(text: str | None) -> list[str]:
    """The items of a comma-separated list."""
    return [name for part in (text or "").split(",") if (name := part.strip())]


def with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The properties below ``prefix``, without it."""
    return {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}


def converter_class(properties: Mapping[str, str], part: str) -> str:
    """The Java class that converts ``part``: key, value or header; Connect's own also by their short names."""
    name = properties.get(f"{part}.converter") or _DEFAULTS[part]
    return _SHORT.get(name.removesuffix("Converter"), name)


def converter_settings(properties: Mapping[str, str], part: str) -> dict[str, str]:
    """The settings of that converter. Where none is named, it writes plain JSON, without schemas."""
    settings = with_prefix(properties, f"{part}.converter.")
    return settings if f"{part}.converter" in properties else {"schemas.enable": "false", **settings}


@dataclass(frozen=True)
class Step:
    """A transform as a Java object, for the records where its ``predicate`` holds; with ``negate``, for the others."""

    transform: Any
    predicate: Any
    negate: bool

    def class_name(self) -> str:
        return str(self.transform.getClass().getName())


class Steps:
    """The transforms and converters of one connector's properties. ``java`` runs them (``Steps.java``)."""

    def __init__(self, handles: Handles, properties: Mapping[str, str]) -> None:
        self.handles, self.properties = handles, properties
        self.transforms = [self._step(alias) for alias in names(properties.get("transforms"))]
        self.converters = {part: self._converter(part) for part in ("key", "value")}
        self.header_converter = handles.instance(converter_class(properties, "header"))
        self.header_converter.configure({**converter_settings(properties, "header"), "converter.type": "header"})
        self.java = handles.compiled("Steps", self.converters["key"], self.converters["value"], self.header_converter)
        for step in self.transforms:
            self.java.add(step.transform, step.predicate, step.negate)

    def transformed(self) -> Any:
        """A handle from a record to the transformed one, ``null`` where a transform drops it."""
        whole = self.handles.make.identity(self.handles["Record"])
        for step in self.transforms:
            whole = self.handles.chain(whole, self.handles.unless_null(self._handle(step), "Record"))
        return whole

    def close(self) -> None:
        for step in self.transforms:
            step.transform.close()

    def _step(self, alias: str) -> Step:
        settings = with_prefix(self.properties, f"transforms.{alias}.")
        transform = self.handles.instance(settings.pop("type"))
        predicate, negate = settings.pop("predicate", None), settings.pop("negate", "false").lower() == "true"
        transform.configure(settings)
        return Step(transform, None if predicate is None else self._predicate(predicate), negate)

    def _handle(self, step: Step) -> Any:
        handles = self.handles
        apply = handles.bound(step.transform, "Transformation", "apply", "Record", "Record")
        if step.predicate is None:
            return apply
        test = handles.bound(step.predicate, "Predicate", "test", "bool", "Record")
        both = (apply, handles.make.identity(handles["Record"]))
        return handles.make.guardWithTest(test, *(reversed(both) if step.negate else both))

    def _predicate(self, alias: str) -> Any:
        settings = with_prefix(self.properties, f"predicates.{alias}.")
        predicate = self.handles.instance(settings.pop("type"))
        predicate.configure(settings)
        return predicate

    def _converter(self, part: str) -> Any:
        converter = self.handles.instance(converter_class(self.properties, part))
        converter.configure(converter_settings(self.properties, part), part == "key")
        return converter
