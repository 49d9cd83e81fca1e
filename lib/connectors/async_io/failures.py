"""Rows whose call came to nothing: their fallback, or an error that names the row and the cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..core.errors import ConnectorError, Fatal, Poison, Transient
from ..core.options import is_secret
from .counters import Counters
from .function import AsyncFunction, NoFallback, Row

_LONGEST: Final = 300
_WAY_OUT: Final = "give the function a timeout(row) that returns a fallback, or more retries or time."


class Fallbacks:
    """The engine's fallback. ``identity`` are the columns that name a row in an error (none: all of them)."""

    def __init__(self, function: AsyncFunction, identity: Sequence[str], operator: str, counters: Counters) -> None:
        self._function, self._identity, self._operator, self._counters = function, identity, operator, counters

    def __call__(self, row: Row, cause: BaseException) -> Any:
        self._counters.failures += 1
        try:
            result = self._function.timeout(row)
        except NoFallback:
            raise self._error(row, cause) from cause
        except Exception as error:
            raise self._error(row, error) from cause
        self._counters.fallbacks += 1
        return result

    def _error(self, row: Row, cause: BaseException) -> ConnectorError:
        where = f"row {named(row, self._identity)}"
        told = cause.message if isinstance(cause, ConnectorError) else str(cause)
        kind = type(cause).__name__
        message = f"the call failed: {kind}: {told}" if told else f"the call failed: {kind}"
        context: dict[str, Any] = {"connector": self._operator, "where": where}
        if isinstance(cause, Fatal):
            return Fatal(message, **context, way_out=cause.way_out)
        if isinstance(cause, (Transient, OSError, TimeoutError)) or kind in ("TimeoutError", "CancelledError"):
            return Transient(message, **context, way_out=_WAY_OUT)
        return Poison(message, record=where, **context, way_out=_WAY_OUT)


def named(row: Row, identity: Sequence[str]) -> str:
    """``row`` by its ``identity``, short enough for a message and without what only its owner may see."""
    shown = {name: "***" if is_secret(name) else row[name] for name in (identity or row)}
    text = repr(shown)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
