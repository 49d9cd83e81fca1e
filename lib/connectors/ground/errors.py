"""The errors of the library, grouped by what to do next.

::

    ConnectorError           every error that this library raises on purpose
    ├── Misconfigured        options that cannot work, all of them listed: correct the options
    ├── MissingFeature       the running Spark lacks what this needs: take a Spark that has it
    ├── Transient            an outage or throttling: the same call may work later
    ├── Poison               one record that can never succeed: skip it or set it aside
    └── Fatal                going on would lose or double data: a person must decide
        ├── DataLoss         promised data no longer exists
        ├── StateError       a checkpoint or ledger that cannot be read, or of a newer version
        └── CommitRefused    the ledger contradicts this batch (replay, unknown query, lost ledger)

Every error survives pickling with all its attributes, because workers raise most errors and other processes show them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final


class ConnectorError(Exception):
    """The root. Its message adds ``connector``, ``where`` (a split, batch or file) and ``way_out`` if they are given."""

    def __init__(self, message: str, *, connector: str = "", where: str = "", way_out: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.connector = connector
        self.where = where
        self.way_out = way_out

    def located(self, connector: str, where: str = "") -> ConnectorError:
        """This error with the place where it happened. A place that an inner layer has set stays."""
        self.connector = self.connector or connector
        self.where = self.where or where
        return self

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.connector, self.where) if part)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text}\n  Way out: {self.way_out}" if self.way_out else text

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows in place of a traceback."""
        from .messages import cell_lines, own_message

        return cell_lines(own_message(self), self.__traceback__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[ConnectorError], args: tuple[Any, ...], state: dict[str, Any]) -> ConnectorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


@dataclass(frozen=True, order=True)
class Problem:
    """One problem of a configuration: the ``option`` as the user knows it, and what to do about it."""

    option: str
    text: str


class Misconfigured(ConnectorError):
    """Options that are wrong, missing, unknown or contradictory; ``problems`` lists all of them."""

    def __init__(self, connector: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(_listed(connector, self.problems), connector=connector)

    def __str__(self) -> str:
        return self.message


def _listed(connector: str, problems: Sequence[Problem]) -> str:
    width = max((len(problem.option) for problem in problems), default=0)
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"  {problem.option:<{width}}   {problem.text}" for problem in problems]
    return "\n".join([f"{connector} cannot start; {count}:", *lines])


class MissingFeature(ConnectorError):
    """The running Spark lacks what a feature needs; the message names the Spark version or runtime that has it."""


class Transient(ConnectorError):
    """An outage, a timeout or throttling. ``retry_after`` is in seconds, if the system said how long to wait.

    ``is_waited_for``: an inner layer has already waited ``outageTimeout``, so outer layers do not.
    """

    def __init__(
        self, message: str, *, retry_after: float | None = None, is_waited_for: bool = False, **context: str
    ) -> None:
        super().__init__(message, **context)
        self.retry_after = retry_after
        self.is_waited_for = is_waited_for

    def state(self) -> dict[str, Any]:
        """The error as JSON, for a process that reads it as a value; :meth:`of` restores it."""
        names = ("message", "connector", "where", "way_out", "retry_after", "is_waited_for")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Transient:
        return cls(**state)


class Poison(ConnectorError):
    """A record that can never succeed; ``record`` is the record itself, as bytes or text, for the dead letters."""

    def __init__(self, message: str, *, record: bytes | str = b"", **context: str) -> None:
        super().__init__(message, **context)
        self.record = record


class Fatal(ConnectorError):
    """Going on would lose or double data, so the run stops with everything as it was."""


class DataLoss(Fatal):
    """Promised positions no longer exist: a truncated file, expired records, a recreated topic."""

    def report(self, log: logging.Logger, *, fails: bool) -> None:
        """Raises this error; only warns in ``log`` if the user accepts the loss (``fails`` is ``failOnDataLoss``)."""
        if fails:
            raise self from None
        self.way_out = ""  # the user has taken it
        log.warning("%s", self)


class StateError(Fatal):
    """An offset or ledger entry that cannot be read: damaged, or written by a newer version of this library."""


class CommitRefused(Fatal):
    """The ledger of a target contradicts the batch to be written; the message names the option that decides."""


PERMANENT: Final = (Misconfigured, MissingFeature, DataLoss, StateError, CommitRefused)
"""Errors that no retry cures: a person must first correct or decide something. A plain :class:`Fatal` may end with its run."""
