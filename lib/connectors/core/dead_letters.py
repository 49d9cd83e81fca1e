"""Dead letters: records that cannot be read, and rows that cannot be written, as Parquet files with the same columns.

A source has no commit: its files are named by source and split and put if absent, so that a replay adds nothing. The letters
of a sink appear with the commit of their batch, once, also when the batch is replayed::

    <deadLetterPath>/<sink>-<batch>.parquet                           dead letters of a committed batch
    <deadLetterPath>/.connectors/<sink id>/stage/<attempt>/letters    dead letters of a task attempt
    <deadLetterPath>/.connectors/<sink id>/ready/<query>/<batch>      all of a batch, written before the batch is committed
    <deadLetterPath>/.letters/removed/<file>/<digest>                 letters of a file that were removed, by their keys

A row of a sink is *bad* when it can never be written: a value that breaks a constraint, a record that is too large. An outage
is not the fault of a row and never ends here.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import posixpath
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from ..ground.columns import in_numbers
from ..ground.errors import ConnectorError, Poison
from ..ground.options import Choice, Json, Options
from ..ground.state import digest, dumps
from ..storage.base import Storage
from ..storage.location import Location
from .batch import Batch, Committable
from .folder import SinkFolder
from .letter_files import SHOWN, Letter, LetterFile, letter_key, letters_in, letters_without, put_new_letters
from .source import Split


def to_json(row: Mapping[str, Any]) -> str:
    """One row, as ``to_pylist`` gives it, as a JSON object on one line: the form of dead letters.

    Nulls stay, times keep their microseconds and decimals are text, so that nothing of a row is lost. NaN and infinities
    are strings. A map is an object, unless it is empty: then nothing tells it from a list.
    """
    return json.dumps({name: _finite(value) for name, value in row.items()}, ensure_ascii=False, default=_plain_value)


def row_at(rows: pa.RecordBatch, place: int) -> dict[str, Any]:
    """One row for a dead letter. Where it has a time that Python lacks, its times are numbers."""
    row = rows.slice(place, 1)
    try:
        return dict(row.to_pylist()[0])
    except (OverflowError, ValueError):
        numbers = pa.schema([(field.name, in_numbers(field.type)) for field in row.schema])
        return dict(row.cast(numbers).to_pylist()[0])


def _finite(value: Any) -> Any:
    """``value`` without what ``json`` would write wrongly: numbers that are none, and the pairs of a map."""
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_key_text(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {_key_text(key): _finite(item) for key, item in value}
        return [_finite(item) for item in value]
    return value


def _key_text(key: Any) -> str:
    plain = key if isinstance(key, (str, bool, int, float)) else _finite(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=_plain_value).strip('"')


def _plain_value(value: Any) -> Any:
    """The form in JSON of a value that JSON lacks; raises ``TypeError`` for one without such a form.

    Times are ISO 8601, durations seconds, binary is base64, and decimals are numbers in text.
    """
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


STAGING_SECONDS: Final = 7 * 86400.0
"""The seconds that staged dead letters must be old before they are swept."""
class SourceLetters:
    """The bad records of one split, as a Parquet file named by source and split, and put only if it is not there yet.

    A replay reads the same splits, so it finds its file there and adds nothing. Where the name is taken by other letters
    (of a topic that was made anew, or by a replay with another schema), those that differ get a file of their own.
    """

    def __init__(self, source: str, storage: Storage) -> None:
        self.source = source
        self.storage = storage
        self._letters: LetterFile | None = None
        self._places = array("Q")

    def add(self, position: str, error_class: str, error: str, record: bytes | None, **original: Any) -> None:
        """Takes a bad record; ``original`` are its ``key``, ``headers`` and ``timestamp``, where it has them."""
        if self._letters is None:
            self._letters = LetterFile()
        letter = {"source": self.source, "position": position, "error_class": error_class, "error": error, "record": record}
        self._letters.add({**letter, **original})
        self._places.append(hash(position) & 0xFFFFFFFFFFFFFFFF)

    def put(self, split: Split) -> None:
        """Writes what was added for ``split``."""
        if self._letters is None:
            return
        letters, places = self._letters, np.asarray(self._places)
        _, first = np.unique(places, return_index=True)
        if len(first) < len(places):  # the emitter saw some records twice
            letters = _only(letters, set(first.tolist()))
        short = self.source.removeprefix("connectors.")
        put_new_letters(self.storage, f"{short}-{digest(split, length=24)}", letters)
        self._letters, self._places = None, array("Q")


def _only(letters: LetterFile, numbers: set[int]) -> LetterFile:
    """The letters with these numbers."""
    rest = LetterFile()
    for number, letter in enumerate(letters_in(letters.content())):
        if number in numbers:
            rest.add(letter)
    return rest


class SinkLetters:
    """The dead letters of one sink.

    ``repeats`` where its batches are not recorded, so that a replay writes them again: it adds the letters that are new.
    """

    def __init__(self, storage: Storage, sink: str, sink_id: str, *, repeats: bool = False) -> None:
        self.storage = storage
        self.sink = sink
        self.sink_id = sink_id
        self.repeats = repeats
        self.folder = SinkFolder(storage, sink_id)

    def stage(self, batch: Batch, letters: LetterFile) -> str:
        """Stages the letters of one task attempt and returns their name."""
        attempt = batch.attempt()
        self.folder.begin(attempt)
        self.storage.put_if_absent(self._staged(attempt), letters.content())
        return attempt

    def decide(self, batch: Batch, staged: Sequence[str]) -> None:
        """Joins the ``staged`` letters of tasks and driver; they replace those of an earlier try."""
        ready, letters = self._ready(batch.query, batch.number), LetterFile()
        equal: Counter[str] = Counter()
        for name in filter(None, staged):
            with self.storage.open(self._staged(name)) as file:
                for letter in letters_in(file):
                    number = letters.count
                    if self.repeats:  # a replay may have other letters too, and in another order
                        content = letter_key({**letter, "position": None})
                        number = equal[content]
                        equal[content] += 1
                    position = {"query": batch.query, "batch": batch.number, "n": number}
                    letters.add({**letter, "source": batch.sink_id, "position": dumps(position)})
        if letters.count:
            self.storage.replace(ready, letters.content())
            self.storage.sync([ready], [posixpath.dirname(ready)])
        else:
            self.storage.delete(ready)

    def publish(self, batch: Batch, staged: Sequence[str] = ()) -> None:
        """``batch`` is committed: its dead letters appear, if they have not before."""
        ready, name = self._ready(batch.query, batch.number), f"{self.sink}-{batch.file_id()}"
        final = f"{name}.parquet"
        if self.storage.size(ready) is not None:
            if self.repeats:
                with self.storage.open(ready) as file:
                    put_new_letters(self.storage, name, letters_without(file, set()))
            if self.storage.size(final) is not None:  # perhaps another run of the query was faster with the batch
                self.storage.delete(ready)
            elif self.folder.publish(ready, final):
                self.folder.sync_names([final])
        self.discard(staged)

    def recover(self, last: Callable[[str], int]) -> None:
        """Publishes the letters that an earlier run left ready, if their batch is at most the ``last`` of its query.

        Other letters stay: another query of the same sink id may be between its decision and its record, and this query
        replaces its own letters when it decides.
        """
        for query, number in self._all_ready():
            if number <= last(query):
                self.publish(Batch(self.sink_id, query, number))

    def discard(self, staged: Sequence[str]) -> None:
        """Removes what was staged."""
        for name in filter(None, staged):
            self.folder.remove(name)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        """As :meth:`~connectors.core.sink.Committer.drop_attempts`."""
        self.folder.drop_attempts(batch, failed=failed)

    def sweep(self, live: frozenset[str]) -> None:
        """Removes what dead attempts set aside long ago."""
        self.folder.sweep(STAGING_SECONDS, live)

    def _staged(self, attempt: str) -> str:
        return f"{self.folder.stage(attempt)}/letters"

    def _ready(self, query: str, number: int) -> str:
        return self.folder.hidden("ready", quote(query, safe=""), str(number))

    def _all_ready(self) -> list[tuple[str, int]]:
        """The batches whose letters are ready; what is still being written has a hidden name."""
        top = self.folder.hidden("ready")
        files = [(query, name) for query in self.storage.folders(top) for name in self.storage.names(f"{top}/{query}")]
        return sorted((unquote(query), int(name)) for query, name in files if name.isdigit())


ERROR_OPTIONS = Options(
    errors=Choice(
        "fail",
        among=("fail", "skip", "deadLetter"),
        meaning="a bad record ends the query, is counted, or goes to deadLetterPath",
    ),
    deadLetterPath=Location(
        None, only_with="errors=deadLetter", needed_by="errors=deadLetter: a folder for what cannot be read or written",
        meaning="the folder of bad records, Parquet",
    ),
    storageOptions=Json(
        {}, kind=dict, meaning="fsspec's keys for the folders of other options; or objects of them by location"
    ),
)
"""The options for bad records and rows; common to every connector that can meet one."""


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

    def set_aside(self, letter: Letter) -> None:
        """Takes a dead letter as it is; the columns are those of :data:`DEAD_LETTERS`."""
        self.count += 1
        if self._letters:
            self._file = self._file or LetterFile()
            self._file.add(letter)

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
