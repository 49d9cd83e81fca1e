"""The exceptions of Connect's API, under its names, and the full names of their Java counterparts for headers.

::

    ConnectException             something that a connector or a converter reports
    ├── RetriableException       the same call may work later
    ├── DataException            data that does not fit its schema
    │   └── SchemaException
    ├── SchemaBuilderException   a schema that cannot be built
    └── ConfigException          a wrong value of a configuration
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ConnectException(Exception):
    """The root of what the parts of a connector raise on purpose."""


class RetriableException(ConnectException):
    """An outage of the system: the runtime calls again, with the same records."""


class DataException(ConnectException):
    """Data that does not fit its schema, or that a converter cannot read."""


class SchemaException(DataException):
    """A schema that cannot be used for what it is wanted for."""


class SchemaBuilderException(ConnectException):
    """A schema that cannot be built."""


class ConfigException(ConnectException):
    """A value of a configuration that is wrong."""


_JAVA = {
    "ConnectException": "org.apache.kafka.connect.errors.ConnectException",
    "RetriableException": "org.apache.kafka.connect.errors.RetriableException",
    "DataException": "org.apache.kafka.connect.errors.DataException",
    "SchemaException": "org.apache.kafka.connect.errors.SchemaProjectorException",
    "SchemaBuilderException": "org.apache.kafka.connect.errors.SchemaBuilderException",
    "ConfigException": "org.apache.kafka.common.config.ConfigException",
}


def class_name(error: BaseException) -> str:
    """The full name of an exception's class: Connect's own for those of this module."""
    kind = type(error)
    if kind.__module__ == __name__:
        return _JAVA[kind.__name__]
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def masked_error(error: Exception, mask: Callable[[str], str]) -> Exception:
    """``error`` without secrets, in its causes and traceback, too: itself, or where its text cannot be changed another one."""
    if mask is str:  # there are none
        return error
    for part in _chain(error):
        part.args = tuple(mask(value) if isinstance(value, str) else value for value in part.args)
        vars(part).update({name: mask(value) for name, value in vars(part).items() if isinstance(value, str)})
        if notes := vars(part).get("__notes__"):
            notes[:] = map(mask, notes)
    if mask(text := trace(error)) == text:
        return error
    error.__cause__ = error.__context__ = error.__traceback__ = None
    if mask(text := trace(error)) == text:
        return error
    kind = RetriableException if isinstance(error, RetriableException) else ConnectException
    return kind(mask(f"{class_name(error)}: {error}"))


@contextmanager
def masking(mask: Callable[[str], str]) -> Iterator[None]:
    """Hides the secrets in the exceptions that leave its block."""
    try:
        yield
    except Exception as error:
        masked = masked_error(error, mask)
        if masked is error:
            raise
        raise masked from None


def _chain(error: BaseException) -> list[BaseException]:
    """An error with all of its causes, and what a group of errors holds."""
    parts: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        part = left.pop()
        if part is not None and not any(part is known for known in parts):
            parts.append(part)
            left += [part.__cause__, part.__context__, *getattr(part, "exceptions", ())]
    return parts


def trace(error: BaseException) -> str:
    """The stack of an exception as text."""
    return "".join(traceback.format_exception(error))
