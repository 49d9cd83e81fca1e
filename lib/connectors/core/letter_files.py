"""Files of dead letters: how a letter is written, read, compared and removed.

A file is rewritten without the letters that were removed, for readers of Parquet that know nothing of this library. The records
of removals beside it decide: a replay, a process that rewrites the file late and a power failure bring no letter back.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from typing import Any, BinaryIO, Final

import pyarrow as pa

from ..ground.state import digest, dumps
from ..storage.base import SPOOLED, Storage, spooled

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
    """The keys of the letters that were removed from a file, and of each position the offset, if it has one."""
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
                removal.append((key, _offset_of(letter["position"])))
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


def _offset_of(position: str | None) -> str:
    """What a record of a removal has of a position: names in it may be those of a person who was erased."""
    try:
        return dumps({"offset": json.loads(position or "")["offset"]})
    except (LookupError, TypeError, ValueError):
        return ""


def put_new_letters(storage: Storage, name: str, letters: LetterFile) -> None:
    """Puts letters into the file ``name``, or those that it never had into a file of their own."""
    if storage.put_if_absent(f"{name}.parquet", letters.content()):
        return
    rest = letters_without(letters.content(), _known(storage, f"{name}.parquet"))
    if rest.count:  # other replays put their letters into files whose names begin alike
        others = [other for other in storage.names() if other.startswith(f"{name}-")]
        rest = letters_without(rest.content(), {key for other in others for key in _known(storage, other)})
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


def letters_without(content: Any, known: Set[str]) -> LetterFile:
    """The letters of an open file that are not ``known``."""
    rest = LetterFile()
    for letter in letters_in(content):
        if letter_key(letter) not in known:
            rest.add(letter)
    return rest
