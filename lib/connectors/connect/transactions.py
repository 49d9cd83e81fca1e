"""The ends of a source's transactions: ``transaction.boundary`` of KIP-618, ``poll``, ``interval`` or ``connector``.

A transaction is what one epoch holds whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..ground.errors import Problem
from .config import ConfigDef, between, valid_string
from .connector import ConnectorTransactionBoundaries, ExactlyOnceSupport, SourceConnector, TransactionContext
from .records import SourceRecord

TRANSACTIONS: Final = (
    ConfigDef()
    .define(
        "exactly.once.support",
        "STRING",
        "requested",
        "MEDIUM",
        "required: start only if the connector says that it can",
        validator=valid_string("requested", "required"),
    )
    .define(
        "transaction.boundary",
        "STRING",
        "poll",
        "MEDIUM",
        "where transactions end",
        validator=valid_string("poll", "interval", "connector"),
    )
    .define(
        "transaction.boundary.interval.ms", "LONG", None, "LOW", "for interval: how long one is", validator=between(1)
    )
)
_INTERVAL: Final = 60.0


@dataclass(frozen=True)
class Boundaries:
    """The ends of transactions: with each poll, after an ``interval`` of seconds, or where the connector says."""

    each_poll: bool = True
    interval: float | None = None
    by_connector: bool = False

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Boundaries:
        boundary = str(properties.get("transaction.boundary", "poll")).lower()
        if boundary == "interval":
            milliseconds = properties.get("transaction.boundary.interval.ms")
            return cls(False, float(milliseconds) / 1000 if milliseconds else _INTERVAL)
        return cls(False, None, True) if boundary == "connector" else cls()


def transaction_problems(properties: Mapping[str, str], connector: SourceConnector) -> Iterator[Problem]:
    """The problems of the settings of transactions, and what of them the connector cannot do."""
    settings = {key: str(value).lower() for key, value in properties.items() if key in TRANSACTIONS.keys}
    problems = list(TRANSACTIONS.problems(settings))
    yield from problems
    if problems:
        return
    if settings.get("exactly.once.support") == "required":
        answer = connector.exactly_once_support(properties)
        if answer is not ExactlyOnceSupport.SUPPORTED:
            text = "does not" if answer is ExactlyOnceSupport.UNSUPPORTED else "does not say whether it can"
            yield Problem(
                "exactly.once.support", f"is required, and the connector {text} support it with these settings."
            )
    if (
        settings.get("transaction.boundary") == "connector"
        and connector.can_define_transaction_boundaries(properties) is not ConnectorTransactionBoundaries.SUPPORTED
    ):
        yield Problem("transaction.boundary", "is connector, and the connector does not define transaction boundaries.")
    if "transaction.boundary.interval.ms" in settings and settings.get("transaction.boundary") != "interval":
        yield Problem("transaction.boundary.interval.ms", "has no use without transaction.boundary=interval.")


class TaskTransactions(TransactionContext):
    """The ends of transactions that a task has named; used in the thread of the task alone."""

    def __init__(self) -> None:
        self._ends: dict[int, bool] = {}
        self._batch: bool | None = None

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        self._note(record, True)

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        self._note(record, False)

    def _note(self, record: SourceRecord | None, commits: bool) -> None:
        if record is None:
            self._batch = commits
        else:
            self._ends[id(record)] = commits

    def batch_end(self) -> bool | None:
        """True if the transaction is committed with the last batch of ``poll``, False if aborted, ``None`` if it goes on."""
        commits, self._batch = self._batch, None
        return commits

    def cut(self, records: Sequence[SourceRecord]) -> Iterator[tuple[Sequence[SourceRecord], bool | None]]:
        """Parts of a poll, each with how the transaction ends there, as :meth:`batch_end` has it."""
        first = 0
        for place, record in enumerate(records):
            commits = self._ends.pop(id(record), None)
            if commits is None and place == len(records) - 1:
                commits = self.batch_end()
            if commits is not None:
                yield records[first : place + 1], commits
                first = place + 1
        if first < len(records):
            yield records[first:], None
