"""ConfigDef: the settings of a connector, declared once, read with every problem in one answer."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ..ground.errors import Problem
from ..ground.options import redacted
from .errors import ConfigException

NO_DEFAULT_VALUE: Final = object()
"""The default of a setting that the user must give."""


class ConfigType(str, Enum):
    """The types of settings, under Connect's names."""

    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    SHORT = "SHORT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"
    CLASS = "CLASS"
    PASSWORD = "PASSWORD"


class Importance(str, Enum):
    """The importance of a setting to most users."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


Validator = Callable[[str, Any], None]
"""Raises :class:`ConfigException` with a sentence about a value of the setting with this name."""


def between(low: float | None, high: float | None = None) -> Validator:
    """A number of at least ``low`` and at most ``high``, both included; ``None`` is no bound."""

    def check(name: str, value: Any) -> None:
        if value is not None and ((low is not None and value < low) or (high is not None and value > high)):
            bounds = [f"{word} {bound}" for word, bound in (("at least", low), ("at most", high)) if bound is not None]
            raise ConfigException(f"must be {' and '.join(bounds)}")

    return check


def valid_string(*allowed: str) -> Validator:
    """One of ``allowed``, or each element of a list one of them."""

    def check(name: str, value: Any) -> None:
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(item is not None and item not in allowed for item in values):
            raise ConfigException(f"must be one of {', '.join(allowed)}")

    return check


def non_empty(name: str, value: Any) -> None:
    """Refuses an empty text or list."""
    if value is not None and len(value) == 0:
        raise ConfigException("must not be empty")


@dataclass(frozen=True)
class ConfigKey:
    """One setting. ``recommended`` gives the values that are possible beside the others that were set."""

    name: str
    type: ConfigType
    default: Any
    importance: Importance
    documentation: str = ""
    validator: Validator | None = None
    dependents: Sequence[str] = ()
    recommended: Callable[[str, Mapping[str, Any]], Sequence[Any]] | None = None


@dataclass
class ConfigValue:
    """The answer of :meth:`ConfigDef.validate` about one setting: its value, and what is wrong with it."""

    name: str
    value: Any = None
    recommended_values: Sequence[Any] = ()
    error_messages: list[str] = field(default_factory=list)

    def add_error_message(self, text: str) -> None:
        self.error_messages.append(text)


class ConfigDef:
    """The settings that a connector, task or converter knows.

    ::

        ConfigDef().define("file", ConfigType.STRING, None, Importance.HIGH, "the file to read")
    """

    def __init__(self) -> None:
        self.keys: dict[str, ConfigKey] = {}

    def define(
        self,
        name: str,
        type: ConfigType | str,
        default: Any = NO_DEFAULT_VALUE,
        importance: Importance | str = Importance.MEDIUM,
        documentation: str = "",
        *,
        validator: Validator | None = None,
        dependents: Sequence[str] = (),
        recommended: Callable[[str, Mapping[str, Any]], Sequence[Any]] | None = None,
    ) -> ConfigDef:
        """Declares a setting; a default is text, as a user would write it, or a value of the type."""
        if name in self.keys:
            raise ConfigException(f"Configuration {name} is defined twice.")
        kind = ConfigType(type)
        if default is not NO_DEFAULT_VALUE and default is not None:
            default = _parsed(kind, default)
        self.keys[name] = ConfigKey(
            name, kind, default, Importance(importance), documentation, validator, dependents, recommended
        )
        return self

    def parse(self, properties: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each setting. Raises :class:`ConfigException` that lists every problem."""
        answers = self.validate(properties)
        problems = [f"{answer.name}: {text}" for answer in answers for text in answer.error_messages]
        if problems:
            raise ConfigException("; ".join(problems))
        return {answer.name: answer.value for answer in answers}

    def validate(self, properties: Mapping[str, Any]) -> list[ConfigValue]:
        """Each setting with its value and its problems, in the order of their declaration."""
        answers = {name: self._read(key, properties) for name, key in self.keys.items()}
        values = {name: answer.value for name, answer in answers.items()}
        for name, key in self.keys.items():
            if key.recommended is not None:
                answer = answers[name]
                answer.recommended_values = list(key.recommended(name, values))
                if (
                    answer.value is not None
                    and answer.recommended_values
                    and answer.value not in answer.recommended_values
                ):
                    answer.add_error_message(f"must be one of {', '.join(map(str, answer.recommended_values))}")
        return list(answers.values())

    def problems(self, properties: Mapping[str, Any], prefix: str = "") -> Iterator[Problem]:
        """The findings of :meth:`validate`, as problems of an error of this library; ``prefix`` stands before each name."""
        for answer in self.validate(properties):
            for text in answer.error_messages:
                value_text = f"; got {redacted(answer.name, properties[answer.name])}" if answer.name in properties else ""
                yield Problem(prefix + answer.name, f"{text}{value_text}." if not text.endswith(".") else text)

    def nearest(self, name: str) -> str | None:
        """The setting that somebody who typed ``name`` may have meant."""
        return next(iter(difflib.get_close_matches(name, list(self.keys), n=1, cutoff=0.75)), None)

    def _read(self, key: ConfigKey, properties: Mapping[str, Any]) -> ConfigValue:
        answer = ConfigValue(key.name, None if key.default is NO_DEFAULT_VALUE else key.default)
        if key.name in properties and properties[key.name] is not None:
            try:
                answer.value = _parsed(key.type, properties[key.name])
            except ValueError as wrong:
                answer.add_error_message(f"must be {wrong}")
                return answer
        elif key.default is NO_DEFAULT_VALUE:
            answer.add_error_message("missing; it has no default")
            return answer
        if key.validator is not None:
            try:
                key.validator(key.name, answer.value)
            except ConfigException as wrong:
                answer.add_error_message(str(wrong))
        return answer


_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}


def _parsed(kind: ConfigType, raw: Any) -> Any:
    """The value of what a user wrote. Raises ``ValueError`` with a phrase after "must be"."""
    text = raw.strip() if isinstance(raw, str) else raw
    if kind is ConfigType.BOOLEAN:
        if isinstance(text, bool):
            return text
        if str(text).lower() in ("true", "false"):
            return str(text).lower() == "true"
        raise ValueError("true or false")
    if kind in _BITS:
        bits = _BITS[kind]
        try:
            number = int(text)
        except (TypeError, ValueError):
            raise ValueError("a whole number") from None
        if not -(1 << bits - 1) <= number < 1 << bits - 1:
            raise ValueError(f"a number of {bits} bits")
        return number
    if kind is ConfigType.DOUBLE:
        try:
            return float(text)
        except (TypeError, ValueError):
            raise ValueError("a number") from None
    if kind is ConfigType.LIST:
        if isinstance(text, str):
            return [part for part in re.split(r"\s*,\s*", text) if part] if text else []
        return list(text)
    return text if kind is not ConfigType.STRING or text is None else str(raw)
