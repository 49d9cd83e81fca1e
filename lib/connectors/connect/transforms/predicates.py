"""Predicates: for which records a transform is applied. A transform with ``negate`` is applied to the others."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..columns import Records
from ..config import ConfigDef, non_empty
from .routes import _java_groups, _pattern


class Predicate(ABC):
    """Tells for each record whether something is true of it."""

    def config(self) -> ConfigDef:
        return ConfigDef()

    def configure(self, values: Mapping[str, Any]) -> None:  # noqa: B027 - a hook, not a duty
        """Takes the settings, parsed."""

    @abstractmethod
    def test(self, records: Records) -> list[bool]:
        """For each record, whether it is true."""


class RecordPredicate(ABC):
    """A predicate of one's own, one record at a time, named by its dotted name."""

    def config(self) -> ConfigDef:
        return ConfigDef()

    def configure(self, configs: Mapping[str, Any]) -> None:  # noqa: B027
        """Takes its settings."""

    @abstractmethod
    def test(self, record: Any) -> bool:
        """Whether it is true of ``record``."""


class TopicNameMatches(Predicate):
    """The topic matches ``pattern`` as a whole."""

    def config(self) -> ConfigDef:
        return ConfigDef().define(
            "pattern", "STRING", importance="MEDIUM", documentation="a regular expression", validator=_pattern
        )

    def configure(self, values: Mapping[str, Any]) -> None:
        self._regex = re.compile(_java_groups(values["pattern"]))

    def test(self, records: Records) -> list[bool]:
        topics = records.topic.to_pylist()
        known = {topic: self._regex.fullmatch(topic) is not None for topic in set(topics)}
        return [known[topic] for topic in topics]


class HasHeaderKey(Predicate):
    """The record has at least one header ``name``."""

    def config(self) -> ConfigDef:
        return ConfigDef().define(
            "name", "STRING", importance="MEDIUM", documentation="the name of the header", validator=non_empty
        )

    def configure(self, values: Mapping[str, Any]) -> None:
        self._name: str = values["name"]

    def test(self, records: Records) -> list[bool]:
        if records.headers is None:
            return [False] * len(records)
        return [any(header.key == self._name for header in headers) for headers in records.headers]


class RecordIsTombstone(Predicate):
    """The record has no value."""

    def test(self, records: Records) -> list[bool]:
        return records.value.is_null()
