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
    """A transform: its ``alias``, its Java object, and the handle that applies it where its predicate holds."""

    alias: str
    transform: Any
    handle: Any

    def class_name(self) -> str:
        return str(self.transform.getClass().getName())


class Steps:
    """The transforms and converters of one connector's properties."""

    def __init__(self, handles: Handles, properties: Mapping[str, str]) -> None:
        self.handles, self.properties = handles, properties
        self.transforms = [self._step(alias) for alias in names(properties.get("transforms"))]
        self.converters = {part: self._converter(part) for part in ("key", "value")}
        self.header_converter = handles.instance(converter_class(properties, "header"))
        self.header_converter.configure({**converter_settings(properties, "header"), "converter.type": "header"})

    def transformed(self) -> Any:
        """A handle from a record to the transformed one, ``null`` where a transform drops it."""
        whole = self.handles.make.identity(self.handles["Record"])
        for step in self.transforms:
            whole = self.handles.chain(whole, self.handles.unless_null(step.handle, "Record"))
        return whole

    def converted(self, part: str) -> Any:
        """A handle from a record to the bytes of its ``key`` or ``value``."""
        handles = self.handles
        convert = handles.bound(self.converters[part], "Converter", "fromConnectData", "Bytes", "String", "Schema", "Object")
        topic = handles.method("Record", "topic", "String")
        schema = handles.method("Record", f"{part}Schema", "Schema")
        value = handles.method("Record", part, "Object")
        whole = handles.make.filterArguments(convert, 0, handles.handles(topic, schema, value))
        return handles.spread(whole, 3, handles["Record"])

    def header_bytes(self) -> Any:
        """A handle from a header to the bytes of its value."""
        handles = self.handles
        arguments = ("String", "String", "Schema", "Object")
        convert = handles.bound(self.header_converter, "HeaderConverter", "fromConnectHeader", "Bytes", *arguments)
        convert = handles.make.insertArguments(convert, 0, handles.objects("", ""))
        schema, value = handles.method("Header", "schema", "Schema"), handles.method("Header", "value", "Object")
        return handles.spread(handles.make.filterArguments(convert, 0, handles.handles(schema, value)), 2, handles["Header"])

    def close(self) -> None:
        for step in self.transforms:
            step.transform.close()

    def _step(self, alias: str) -> Step:
        handles, prefix = self.handles, f"transforms.{alias}."
        settings = with_prefix(self.properties, prefix)
        transform = handles.instance(settings.pop("type"))
        predicate, negate = settings.pop("predicate", None), settings.pop("negate", "false").lower() == "true"
        transform.configure(settings)
        apply = handles.bound(transform, "Transformation", "apply", "Record", "Record")
        if predicate is None:
            return Step(alias, transform, apply)
        test = handles.bound(self._predicate(predicate), "Predicate", "test", "bool", "Record")
        both = (apply, handles.make.identity(handles["Record"]))
        return Step(alias, transform, handles.make.guardWithTest(test, *(reversed(both) if negate else both)))

    def _predicate(self, alias: str) -> Any:
        settings = with_prefix(self.properties, f"predicates.{alias}.")
        predicate = self.handles.instance(settings.pop("type"))
        predicate.configure(settings)
        return predicate

    def _converter(self, part: str) -> Any:
        converter = self.handles.instance(converter_class(self.properties, part))
        converter.configure(converter_settings(self.properties, part), part == "key")
        return converter
