"""Exceptions of Java as values of this process: class, message, stack, and whether a retry may help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JJavaError

_WRAPPERS: Final = (
    "java.util.concurrent.ExecutionException",
    "java.lang.reflect.UndeclaredThrowableException",
    "java.lang.reflect.InvocationTargetException",
)
_RETRIABLE: Final = "org.apache.kafka.connect.errors.RetriableException"
_LOST: Final = f"{__package__}.LostPosition"


@dataclass(frozen=True)
class JavaFailure:
    """An exception of Java: ``kind`` is the full name of its class."""

    kind: str
    message: str
    trace: str
    is_retriable: bool = False
    is_final: bool = False
    """The position is lost: a new start does not help."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def failure_of(error: Py4JJavaError, masked: Callable[[str], str]) -> JavaFailure:
    """The failure behind ``error``; wrappers of Java around the connector's own exception are taken off."""
    thrown = error.java_exception
    while thrown.getClass().getName() in _WRAPPERS and thrown.getCause() is not None:
        thrown = thrown.getCause()
    return failure(thrown, masked)


def failure(thrown: Any, masked: Callable[[str], str]) -> JavaFailure:
    """The failure of the Java exception ``thrown``, with its causes in the message and the stack."""
    kind, message = str(thrown.getClass().getName()), thrown.getMessage()
    texts, cause = [str(message)] if message else [], thrown
    lines: list[str] = []
    for _ in range(8):
        lines.append(f"{'Caused by: ' if lines else ''}{cause.toString()}")
        lines += [f"\tat {frame.toString()}" for frame in list(cause.getStackTrace())[:12]]
        cause = cause.getCause()
        if cause is None:
            break
        if (text := cause.getMessage()) and text not in texts[-1:] and not any(text in earlier for earlier in texts):
            texts.append(str(text))
    return JavaFailure(kind, masked(": ".join(texts)), masked("\n".join(lines)), _is_retriable(thrown), kind == _LOST)


def _is_retriable(thrown: Any) -> bool:
    kind = thrown.getClass()
    while kind is not None:
        if kind.getName() == _RETRIABLE:
            return True
        kind = kind.getSuperclass()
    return False
