"""Rows that a target refuses, and what becomes of them: the ``errors`` option of sinks.

A row is *bad* when it can never be written: a value that breaks a constraint, a record that is too large. An outage is not
the row's fault and never ends here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..storage.location import check_location
from .dead_letters import SHOWN, LetterFile, SinkLetters
from .errors import ConnectorError, Poison, Problem
from .options import Choice, Json, Options, Text, Values
from .serde import to_json

if TYPE_CHECKING:
    from .sink import Batch, Committable

ERROR_OPTIONS = Options(
    errors=Choice("fail", among=("fail", "skip", "deadLetter")),
    deadLetterPath=Text(None),
    storageOptions=Json({}, kind=dict),
)
"""What to do with a bad record or row; common to every connector that can meet one."""


def check_errors(values: Values) -> Iterator[Problem]:
    """The problems of :data:`ERROR_OPTIONS` taken together."""
    if values["errors"] == "deadLetter" and not values["deadLetterPath"]:
        yield Problem("deadLetterPath", "missing; errors=deadLetter needs a folder for what cannot be read or written.")
    if values["deadLetterPath"] and values["errors"] != "deadLetter":
        yield Problem("deadLetterPath", f'has no use with errors={values["errors"]}; set errors=deadLetter.')
    if values["deadLetterPath"]:
        yield from check_location("deadLetterPath", values["deadLetterPath"], values["storageOptions"])


class Rejects:
    """The bad rows of one task attempt, or of a whole batch on the driver.

    A writer makes it by ``sink.rejects(batch)``, keeps it as its attribute ``rejects`` and calls :meth:`add`; everything else
    happens by itself. A :class:`~connectors.core.sink.GlobalCommitter` finds it as its attribute ``rejects`` while
    :meth:`~connectors.core.sink.GlobalCommitter.commit` runs; it calls :meth:`decide` when the last bad row is known and
    before the target commits.
    """

    def __init__(
        self, connector: str, policy: str, letters: SinkLetters | None, batch: Batch, staged: Sequence[str] = ()
    ) -> None:
        self.connector = connector
        self.policy = policy
        self.batch = batch
        self.count = 0
        self._letters = letters
        self._staged = tuple(staged)
        self._file: LetterFile | None = None

    def add(self, row: Mapping[str, Any], error: BaseException | str) -> None:
        """``row`` can never be written, because of ``error``. Raises :class:`Poison` with ``errors=fail``."""
        text = error.message if isinstance(error, ConnectorError) else str(error)
        record = to_json(row)
        if self.policy == "fail":
            raise Poison(
                f"a row cannot be written: {text[:SHOWN]}; it is {record[:200]}",
                record=record,
                connector=self.connector,
                where=str(self.batch),
                way_out="set errors=deadLetter with a deadLetterPath, or errors=skip",
            )
        self.count += 1
        if self._letters:
            self._file = self._file or LetterFile()
            kind = type(error).__name__ if isinstance(error, BaseException) else "Poison"
            self._file.add({"error_class": kind, "error": text, "record": record.encode()})

    def stage(self) -> str:
        """Sets the rows of a task attempt aside and returns their name; empty when there are none."""
        letters, self._file = self._file, None
        return self._letters.stage(self.batch, letters) if self._letters and letters else ""

    def decide(self) -> None:
        """Makes all bad rows of the batch durable, where no reader sees them: they appear when the batch is committed."""
        if self._letters:
            own = self.stage()
            self._letters.decide(self.batch, [*self._staged, own])
            self._letters.discard([own])


def staged_letters(committables: Sequence[Committable | None]) -> list[str]:
    """The names that :meth:`Rejects.stage` gave to the tasks of a batch."""
    return [committable.letters for committable in committables if committable is not None and committable.letters]
