"""``${...}``: the references that are resolved before a bundle is used."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from .findings import Findings, did_you_mean

_NAME: Final = r"[^\W\d_](?:[-\w]*[^\W_])?"
_REFERENCE: Final = re.compile(rf"\$\{{({_NAME}(?:\.{_NAME})*)\}}")
_LATER: Final = "resources"
"""References known only after the deployment (``${resources.jobs.k.id}``); they stay as they are."""


class Unresolved(Exception):
    """A reference without a value; the message says why."""


class Interpolation:
    """Resolves ``${var.x}``, ``${bundle.…}`` and ``${workspace.…}`` in ``config``, nested ones too.

    Variables are looked up as ``variables.x.value``. Problems are added to ``findings``.
    """

    def __init__(self, config: Mapping[str, Any], findings: Findings) -> None:
        self._config = config
        self._findings = findings

    def resolved(self, value: Any, where: str, under: tuple[str, ...] = ()) -> Any:
        """``value`` with every reference in it replaced; ``where`` names it in messages."""
        if isinstance(value, dict):
            return {key: self.resolved(item, f"{where}.{key}" if where else key, under) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolved(item, f"{where}[{n}]", under) for n, item in enumerate(value)]
        return self._text(value, where, under) if isinstance(value, str) else value

    def _text(self, text: str, where: str, under: tuple[str, ...]) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole:  # alone, a reference keeps the type of what it names
            return self._looked_up(whole, where, under)
        return _REFERENCE.sub(lambda match: as_text(self._looked_up(match, where, under)), text)

    def _looked_up(self, match: re.Match[str], where: str, under: tuple[str, ...]) -> Any:
        path = match[1]
        if path.startswith(_LATER + "."):
            return match[0]
        try:
            if path in under:
                raise Unresolved("refers to itself: " + " -> ".join([*under[under.index(path) :], path]))
            return self.resolved(self._value(path), where, (*under, path))
        except Unresolved as why:
            self._findings.problem(where, f"{match[0]} {why}")
            return match[0]

    def _value(self, path: str) -> Any:
        head, *rest = path.split(".")
        if head not in ("var", "variables", "bundle", "workspace"):
            raise Unresolved("is no reference; known are var, bundle, workspace and resources.")
        if head == "var":
            if rest and rest[0] not in self._config["variables"]:
                raise Unresolved(f"names no variable{did_you_mean(rest[0], self._config['variables'])}")
            head, rest = "variables", [*rest[:1], "value", *rest[1:]]
        return _walk(self._config[head], rest)


def resource_references(text: str) -> Iterator[tuple[str, str]]:
    """Kind and key of each resource that ``text`` refers to, such as ``("jobs", "k")`` for ``${resources.jobs.k.id}``."""
    for match in _REFERENCE.finditer(text):
        head, *rest = match[1].split(".")
        if head == _LATER and len(rest) > 1:
            yield rest[0], rest[1]


def as_text(value: Any) -> str:
    """A YAML value inside a text: ``true``, ``12``; null is empty."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _walk(value: Any, path: list[str]) -> Any:
    for key in path:
        if not isinstance(value, Mapping) or key not in value:
            known = list(value) if isinstance(value, Mapping) else []
            raise Unresolved(f'has no value: there is no "{key}"{did_you_mean(key, known)}')
        value = value[key]
    return value
