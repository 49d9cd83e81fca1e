"""JMESPath: the value at a path in an answer, and whether there is one."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...core import Fatal
from ...ground.clients import client_library
from .client import CONNECTOR


@cache
def _library() -> Any:
    return client_library("jmespath", "jmespath", connector=CONNECTOR, option="config")


def searched(path: str, body: Any) -> Any:
    """The value at ``path``, an expression of JMESPath, in ``body``."""
    library = _library()
    try:
        return library.search(path, body)
    except library.exceptions.JMESPathError as wrong:  # a function got an unsuitable value
        raise Fatal(f'"{path}" has no meaning for an answer: {wrong}', way_out="correct the path in config") from None


def is_absent(path: str, body: Any) -> bool:
    """True if ``path`` leads to nothing in ``body``, not even to a null."""
    library = _library()
    interpreter = _nulls_seen()()
    return interpreter.visit(library.compile(path).parsed, body) is None and not interpreter.has_null


@cache
def _nulls_seen() -> Any:
    visitor = client_library("jmespath.visitor", "jmespath", connector=CONNECTOR, option="config")

    class NullsSeen(visitor.TreeInterpreter):  # type: ignore[name-defined,misc]
        """Evaluates an expression and notes whether a field on its way was null: JMESPath also gives null for nothing."""

        has_null = False

        def visit_field(self, node: Any, value: Any) -> Any:
            self.has_null |= isinstance(value, dict) and value.get(node["value"], "") is None
            return super().visit_field(node, value)

    return NullsSeen


def count_at(path: str, body: Any) -> int | None:
    """The number at ``path``; ``None`` if the answer has none."""
    count = searched(path, body)
    try:
        return None if count is None else int(count)
    except (TypeError, ValueError):
        text = f'an answer has {count!r} at "{path}", which must be a number'
        raise Fatal(text, way_out="correct paging in config") from None


def is_path(path: str) -> bool:
    library = _library()
    try:
        library.compile(path)
    except library.exceptions.JMESPathError:
        return False
    return True
