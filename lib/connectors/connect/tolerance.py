"""The treatment of failures in a converter: ``errors.tolerance``, ``errors.retry.*``, ``errors.log.*`` of Connect.

A RetriableException is tried again, from 40 ms on with doubled pauses, until ``errors.retry.timeout``. Then it goes on, unlike
in Connect, where ``errors.tolerance=all`` makes dead letters of all that comes while a schema registry is away. What else fails
ends the task with ``errors.tolerance=none``; with ``all`` the record is set aside as a dead letter, and the others go on. A
batch that fails is divided until the record that fails is alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from ..ground import machine
from ..ground.errors import Problem
from ..ground.options import masker, secrets_in
from .columns import Records
from .config import ConfigDef, valid_string
from .errors import ConnectException, RetriableException, class_name, masked_error, trace

Output = TypeVar("Output")
_FIRST_PAUSE: Final = 0.04

ERRORS: Final = (
    ConfigDef()
    .define(
        "errors.tolerance",
        "STRING",
        "none",
        "MEDIUM",
        "none: a bad record fails the task; all: it is set aside",
        validator=valid_string("none", "all"),
    )
    .define("errors.retry.timeout", "LONG", 0, "MEDIUM", "milliseconds of new tries of an operation; -1: for ever")
    .define("errors.retry.delay.max.ms", "LONG", 60_000, "MEDIUM", "the longest pause between two tries")
    .define("errors.log.enable", "BOOLEAN", False, "MEDIUM", "each failure is a line in the log, also a tolerated one")
    .define("errors.log.include.messages", "BOOLEAN", False, "MEDIUM", "with the record's place in it")
    .define("errors.deadletterqueue.topic.name", "STRING", "", "MEDIUM", "the topic of records that fail (sinks)")
    .define(
        "errors.deadletterqueue.topic.replication.factor",
        "SHORT",
        3,
        "MEDIUM",
        "replicas of that topic, if it is created",
    )
    .define(
        "errors.deadletterqueue.context.headers.enable",
        "BOOLEAN",
        False,
        "MEDIUM",
        "headers that say what failed and why",
    )
)
_log = logging.getLogger("connectors.connect")


@dataclass(frozen=True)
class Failure:
    """A record that failed for good: the records it was in (one), the ``stage``, the class that ran, the error."""

    record: Records
    stage: str
    executing_class: str
    error: BaseException


class Tolerance:
    """Runs operations as the settings of one connector say. ``wait(seconds)`` pauses, and is true if the task was stopped."""

    def __init__(self, properties: Mapping[str, str], wait: Callable[[float], bool]) -> None:
        values = ERRORS.parse({key: value for key, value in properties.items() if key in ERRORS.keys})
        self.tolerates: bool = values["errors.tolerance"] == "all"
        self._timeout = float(values["errors.retry.timeout"]) / 1000
        self._longest = float(values["errors.retry.delay.max.ms"]) / 1000
        self._logs: bool = values["errors.log.enable"]
        self._names_records: bool = values["errors.log.include.messages"]
        self._wait = wait
        self._mask = masker([text for key, value in properties.items() for text in secrets_in(key, value)])
        self.retries = 0
        self.failures: list[Failure] = []

    def take(self) -> list[Failure]:
        """The failures since the last call."""
        failures, self.failures = self.failures, []
        return failures

    def retried(self, work: Callable[[], Output]) -> Output:
        """``work``, tried again while it raises :class:`RetriableException` and the time for it lasts."""
        end = None if self._timeout < 0 else machine.monotonic() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            try:
                return work()
            except RetriableException:
                left = pause if end is None else end - machine.monotonic()
                if left <= 0 or self._wait(min(pause, left)):
                    raise
                self.retries += 1
                pause = min(2 * pause, self._longest)

    def each(
        self, stage: str, kind: type, work: Callable[[Records], Output], records: Records
    ) -> list[tuple[Records, Output]]:
        """``work`` over ``records``, or over parts of them where some fail; the failed ones are in :attr:`failures`.

        Raises :class:`RetriableException` for an outage.
        """
        if not len(records):
            return []
        try:
            return [(records, self.retried(lambda: work(records)))]
        except Exception as error:
            if len(records) == 1 or not self.tolerates or isinstance(error, RetriableException):
                self.failed(stage, kind, records, error)
                return []
        half = len(records) // 2
        first, second = records.slice(0, half), records.slice(half, len(records) - half)
        return [*self.each(stage, kind, work, first), *self.each(stage, kind, work, second)]

    def failed(self, stage: str, kind: type, record: Records, error: Exception) -> None:
        """``record`` fails for good. Raises where that is not tolerated, and :class:`RetriableException` for an outage."""
        error = masked_error(error, self._mask)
        name = f"{kind.__module__}.{kind.__qualname__}"
        if self._logs:
            place = f" of topic {record.topic[0]}" if self._names_records and len(record) else ""
            _log.error("Error encountered in %s (%s)%s: %s", stage, name, place, error)
        if isinstance(error, RetriableException):
            raise RetriableException(f"{stage} by {name} failed: {error}") from error
        if not self.tolerates:
            raise ConnectException(f"Tolerance exceeded in error handler: {stage} by {name} failed: {error}") from error
        self.failures.append(Failure(record, stage, name, error))


def error_problems(properties: Mapping[str, str], *, sink: bool) -> list[Problem]:
    """The problems of the settings of errors."""
    settings = {key: value for key, value in properties.items() if key.startswith("errors.")}
    problems = list(ERRORS.problems({key: value for key, value in settings.items() if key in ERRORS.keys}))
    for key in settings:
        if key not in ERRORS.keys:
            near = ERRORS.nearest(key)
            problems.append(Problem(key, "is no setting of Connect" + (f'; did you mean "{near}"?' if near else ".")))
    if settings.get("errors.deadletterqueue.topic.name") and settings.get("errors.tolerance", "none") != "all":
        problems.append(Problem("errors.deadletterqueue.topic.name", "has no use without errors.tolerance=all."))
    if settings.get("errors.deadletterqueue.topic.name") and not sink:
        text = "is for sinks; the dead letters of a source go to deadLetterPath."
        problems.append(Problem("errors.deadletterqueue.topic.name", text))
    return problems


def error_text(error: BaseException) -> tuple[str, str, str]:
    """Class, message and stack of what was raised, as a dead letter has them."""
    return class_name(error), str(error), trace(error)
