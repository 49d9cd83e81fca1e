"""Files of Java properties, as Connect's workers and connectors are configured by."""

from __future__ import annotations

import re
from typing import Final

_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY: Final = re.compile(r"((?:\\.|[^\\\s:=])+)\s*[:=]?\s*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """The properties of a file. Raises ``ValueError``, which names the line, for one that cannot be read."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match is None:
            raise ValueError(f'line {number} is no property: "{line[:60]}"')
        try:
            properties[_plain(match[1])] = _plain(match[2])
        except ValueError as wrong:
            raise ValueError(f"line {number}: {wrong}") from None
    return properties


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with those that continue them, without comments and blank lines, each with the number of its first one."""
    lines: list[tuple[int, str]] = []
    pending: tuple[int, str] | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.lstrip()
        if pending is None and (not line or line[0] in "#!"):
            continue
        first, before = pending if pending is not None else (number, "")
        slashes = len(line) - len(line.rstrip("\\"))
        if slashes % 2:
            pending = first, before + line[:-1]
        else:
            lines.append((first, before + line))
            pending = None
    return [*lines, pending] if pending is not None else lines


def _plain(text: str) -> str:
    def unescaped(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[0].startswith("\\u"):
            raise ValueError(f"{match[0]} is no character")
        return _ESCAPES.get(match[2], match[2])

    return re.sub(r"\\u([0-9A-Fa-f]{4})|\\(.)", unescaped, text)
