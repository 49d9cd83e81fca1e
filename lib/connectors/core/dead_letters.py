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
import contextlib
import datetime
import hashlib
import json
import math
import posixpath
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from typing import Any, BinaryIO, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa

from ..ground.errors import ConnectorError, Poison
from ..ground.options import Choice, Json, Options
from ..ground.state import digest, dumps
from ..storage.base import SPOOLED, Storage, spooled
from ..storage.location import Location
from .batch import Batch, Committable
from .folder import SinkFolder
from .source import Split


def to_json(row: Mapping[str, Any]) -> str:
    """One row, as ``to_pylist`` gives it, as a JSON object on one line: the form of dead letters.

    Nulls stay, times keep their microseconds and decimals are text, so that nothing of a row is lost. NaN and infinities
    are strings. A map is an object, unless it is empty: then nothing tells it from a list.
    """
    return json.dumps({name: _finite(value) for name, value in row.items()}, ensure_ascii=False, default=_plain_value)


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
SHOWN: Final = 2000
"""So many characters of an error are kept in a letter: some databases put a whole statement into it."""
_KEY: Final = 16
"""The bytes of a letter's key, which is hexadecimal."""
_REMOVED: Final = ".letters/removed"
"""The folder of the records of removals, where no reader of Parquet looks."""
_REMOVAL: Final = 10_000
"""One record of a removal has so many letters at most."""
_ROWS: Final = 1000
_BYTES: Final = 4 << 20
"""A row group of a letter file has so many rows, or bytes of records, at most: what is kept in memory."""

DEAD_LETTERS = pa.schema(
    [
        ("source", pa.string()),
        ("position", pa.string()),
        ("error_class", pa.string()),
        ("error", pa.string()),
        ("record", pa.binary()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
"""The columns of dead letters, whichever connector wrote them."""

Letter = Mapping[str, Any]


class LetterFile:
    """Letters on their way into a Parquet file, of which a part is in memory and the rest in a temporary file."""

    def __init__(self) -> None:
        self.count = 0
        self._file: BinaryIO = spooled()
        self._sink: Any = None
        self._writer: Any = None
        self._rows: list[Letter] = []
        self._bytes = 0

    def add(self, letter: Letter) -> None:
        """Takes one letter; columns that it lacks are null."""
        error = str(letter.get("error") or "")
        if len(error) > SHOWN:  # a letter whose file is rewritten stays as it is
            end = f" … ({len(error)} characters)"
            error = f"{error[: SHOWN - len(end)]}{end}"
        at = letter.get("at") or datetime.datetime.now(datetime.timezone.utc)
        self._rows.append({**letter, "error": error, "at": at})
        self._bytes += len(letter.get("record") or b"")
        self.count += 1
        if len(self._rows) >= _ROWS or self._bytes >= _BYTES:
            self._flush()

    def content(self) -> BinaryIO:
        """The whole file, at its beginning. Nothing may be added after that; it lives as long as this object."""
        if self._writer is None or self._rows:
            self._flush()
        self._writer.close()  # again, it does nothing
        self._file.seek(0)
        return self._file

    def __del__(self) -> None:
        self._file.close()

    def _flush(self) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._sink = pa.PythonFile(self._file, mode="w")
            self._writer = pq.ParquetWriter(self._sink, DEAD_LETTERS)
        self._writer.write_table(pa.Table.from_pylist(self._rows, DEAD_LETTERS))
        self._rows, self._bytes = [], 0


def open_letters(storage: Storage, name: str) -> pa.NativeFile:
    """A letter file, open for reading. Raises ``FileNotFoundError``.

    An object store reads by ranges, between which a removal may replace the file. So it is read at once, unless it is large.
    """
    size = storage.size(name)
    return storage.open(name) if size is None or size > SPOOLED else pa.BufferReader(storage.read(name))


def letters_in(file: Any) -> Iterator[dict[str, Any]]:
    """The letters of an open file, one by one; the ``timestamp`` of a letter is in :func:`microseconds`."""
    import pyarrow.parquet as pq

    source = file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, mode="r")
    for rows in pq.ParquetFile(source).iter_batches(batch_size=_ROWS):
        index = rows.schema.get_field_index("timestamp")
        if index >= 0:
            rows = rows.set_column(index, "timestamp", microseconds(rows.column(index)))
        yield from rows.to_pylist()


def microseconds(times: pa.Array) -> pa.Array:
    """Timestamps as integers since 1970: a producer may say the year 50000, which ``datetime`` lacks. Other values stay."""
    if not pa.types.is_timestamp(times.type):
        return times
    return times.cast(pa.timestamp("us", times.type.tz), safe=False).cast(pa.int64())


def letter_key(letter: Letter) -> str:
    """A digest by which letters are compared, without time and the words of the error, which may differ in another version."""
    place = dumps([letter["position"], letter["error_class"]]).encode()
    return hashlib.blake2b(b"%b\x00%b" % (place, letter["record"] or b""), digest_size=_KEY).hexdigest()


def letters_left(storage: Storage, name: str) -> Iterator[dict[str, Any]]:
    """The letters of a file that were not removed. Raises ``FileNotFoundError``."""
    removed = {key for key, _ in removed_letters(storage, name)}
    with open_letters(storage, name) as file:
        for letter in letters_in(file):
            if not removed or letter_key(letter) not in removed:
                yield letter


def removed_letters(storage: Storage, name: str) -> Iterator[tuple[str, str]]:
    """The keys and positions of the letters that were removed from a file."""
    folder = f"{_REMOVED}/{name}"
    for removal in storage.names(folder):
        yield from json.loads(storage.read(f"{folder}/{removal}")).items()


def remove_letters(storage: Storage, name: str, keys: Set[str]) -> int:
    """Removes the letters of ``keys`` from a file, as far as it has them, and returns how many.

    What counts are records of the removal, put if absent: a replay, another process that rewrites the file late, and a power
    failure bring nothing back. Then the file is rewritten, for its other readers. It stays, also without letters.
    """
    folder, rest = f"{_REMOVED}/{name}", LetterFile()
    records = set(storage.names(folder))
    removed = {key for key, _ in removed_letters(storage, name)}
    removal: list[tuple[str, str]] = []
    is_late = False
    with open_letters(storage, name) as file:
        for letter in letters_in(file):
            if (key := letter_key(letter)) in removed:
                is_late = True  # who removed it died before the file was rewritten, or another process has put it back
            elif key in keys:
                removal.append((key, letter["position"]))
            else:
                rest.add(letter)
    if not removal and not is_late:
        return 0
    for start in range(0, len(removal), _REMOVAL):
        part = dict(sorted(removal[start : start + _REMOVAL]))
        record = digest(*part, length=24)
        storage.put_if_absent(f"{folder}/{record}", dumps(part).encode())
        records.add(record)
    storage.replace(name, rest.content(), durable=True)
    if not records.issuperset(storage.names(folder)):  # another process has removed letters that this one has put back
        remove_letters(storage, name, keys)
    return len(removal)


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
        _put_new(self.storage, f"{short}-{digest(split, length=24)}", letters)
        self._letters, self._places = None, array("Q")


def _put_new(storage: Storage, name: str, letters: LetterFile) -> None:
    """Puts letters into the file ``name``, or those that it never had into a file of their own."""
    if storage.put_if_absent(f"{name}.parquet", letters.content()):
        return
    rest = _without(letters.content(), _known(storage, f"{name}.parquet"))
    if rest.count:  # other replays put their letters into files whose names begin alike
        others = [other for other in storage.names() if other.startswith(f"{name}-")]
        rest = _without(rest.content(), {key for other in others for key in _known(storage, other)})
    if rest.count:
        own = digest(*sorted(_keys(rest.content())))
        storage.put_if_absent(f"{name}-{own}.parquet", rest.content())


def _known(storage: Storage, name: str) -> set[str]:
    """The keys of the letters that a file has or had; none if there is no such file."""
    with contextlib.suppress(FileNotFoundError), open_letters(storage, name) as file:
        return {*_keys(file), *(key for key, _ in removed_letters(storage, name))}
    return set()


def _keys(file: Any) -> Iterator[str]:
    return map(letter_key, letters_in(file))


def _without(content: Any, known: Set[str]) -> LetterFile:
    """The letters of an open file that are not ``known``."""
    rest = LetterFile()
    for letter in letters_in(content):
        if letter_key(letter) not in known:
            rest.add(letter)
    return rest


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
                    _put_new(self.storage, name, _without(file, set()))
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
