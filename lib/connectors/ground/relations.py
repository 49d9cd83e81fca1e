"""Relations between options, declared at the option that a problem names: see :class:`~connectors.ground.options.Option`.

A condition is a text: another option, ``partitionKeyColumn``, holds where a user gives that; ``command=hset`` and
``operation=upsert|update`` hold where it has such a value. Words behind ``": "`` end the message: a reason; with ``needed_by``
what is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import Problem


@dataclass(frozen=True)
class Condition:
    """What is true of an ``option``: it is given, or it has one of ``among``."""

    option: str
    among: tuple[str, ...]
    words: str

    @classmethod
    def of(cls, text: str) -> Condition:
        condition, _, words = text.partition(": ")
        option, _, among = condition.partition("=")
        return cls(option, tuple(among.split("|")) if among else (), words)

    @classmethod
    def each(cls, texts: str | tuple[str, ...]) -> list[Condition]:
        """The conditions of one text, or of several."""
        return [cls.of(text) for text in ((texts,) if isinstance(texts, str) else texts)]

    @property
    def reason(self) -> str:
        return f": {self.words}" if self.words else ""

    def __str__(self) -> str:
        return f"{self.option}={' or '.join(self.among)}" if self.among else self.option


def relation_problems(declared: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems that several of the options ``declared`` together show."""
    relations = _Relations(declared, values)
    for name, option in declared.items():
        yield from relations.rivals(name, option)
        yield from relations.misuses(name, option) if relations.is_given(name) else relations.needs(name, option)


class _Relations:
    """Some options and their values."""

    def __init__(self, declared: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self._declared, self._values = declared, values

    def is_given(self, name: str) -> bool:
        """True for an option of another value than its default."""
        value = self._values[name] if name in self._declared else None
        return value not in (None, (), {}) and value is not False and value != self._declared[name].default

    def _holds(self, condition: Condition) -> bool:
        if not condition.among:
            return self.is_given(condition.option)
        return condition.option in self._declared and self._values[condition.option] in condition.among

    def _stated(self, condition: Condition) -> str:
        return f"{condition.option}={self._values[condition.option]}" if condition.among else condition.option

    def rivals(self, name: str, option: Any) -> Iterator[Problem]:
        names = (name, *option.alternatives) if option.alternatives else ()
        rivals = list(filter(self.is_given, names))
        if names and not rivals:
            yield Problem(name, f"missing; give {' or '.join(names)}.")
        for rival in rivals[1:]:
            yield Problem(rival, f"is given beside {rivals[0]}; give one of them.")

    def needs(self, name: str, option: Any) -> Iterator[Problem]:
        if need := next(filter(self._holds, Condition.each(option.needed_by)), None):
            yield Problem(name, f"missing; {self._stated(need)} needs {need.words or 'it'}.")

    def misuses(self, name: str, option: Any) -> Iterator[Problem]:
        for only in Condition.each(option.only_with):
            if not self._holds(only):
                got = f"; got {self._stated(only)}" if only.among and self._values[only.option] is not None else ""
                yield Problem(name, f"has no use without {only}{only.reason}{got}.")
        for other in filter(self._holds, Condition.each(option.excludes)):
            beside = f"is given beside {other}; give one of them."
            use = f"has no use with {self._stated(other)}{other.reason}."
            yield Problem(name, use if other.among or other.words else beside)
        yield from self._bounds(name, option)
        yield from option.problems(name, self._values)

    def _bounds(self, name: str, option: Any) -> Iterator[Problem]:
        value = self._values[name]
        if option.not_above and (most := self._values[option.not_above]) is not None and value > most:
            yield Problem(name, f"must not be above {option.not_above} ({most}); got {value}.")
        if option.above and value <= (least := self._values[option.above]):
            yield Problem(name, f"must be above {option.above} ({least}); got {value}.")
