"""How a person's rows are known, and how they are erased from the library's own folders: letters, epoch logs, staging."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from connectors.core.batch import Batch
from connectors.core.epochs import EpochLog
from connectors.core.folder import SinkFolder
from connectors.ground import machine
from connectors.ground.errors import StateError
from connectors.metrics.words import count

from .erasure_epochs import recorded_files, recorded_letters, remove_rows
from .letters import Letters, decoded_texts

if TYPE_CHECKING:
    from connectors.core.letter_files import Letter
    from connectors.storage.base import Storage

_STAGED_SECONDS: Final = 7 * 86400.0
"""What no attempt has touched for so long is of a run that died: the default of ``stagingRetention``."""
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?", re.ASCII)
_DAMAGED: Final = re.compile(r'\s*(\{\s*"|\[\s*[\[{])')
"""The beginning of an object in JSON, or of a list of them. Other texts may begin with a bracket, too."""
_NO_TEXT: Final = re.compile(r"[\x00-\x08\x0e-\x1f]")
"""A character that a binary format has beside its texts, and no text."""
_NO_ROWS: Final = ("ledger", "seals", "uploads")
"""The hidden folders of a sink that hold names and numbers only."""


@dataclass
class Report:
    """The result for one place: the number of rows, letters or files ``found`` and ``erased``, and what is ``left``, and why.

    ``found`` is ``None`` where nobody can tell.
    """

    place: str
    found: int | None = 0
    erased: int = 0
    left: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Erasure:
    """Erases the rows in which each column of ``key`` has its value; with ``dry_run`` counts them.

    Delta tables keep files of earlier versions for ``retention`` seconds, by default as long as each table says.
    """

    key: Mapping[str, str] = field(repr=False)
    retention: float | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    dry_run: bool = False

    def has(self, row: Mapping[str, Any]) -> bool:
        """True for a row of the person."""
        return all(name in row and is_same(row[name], text) for name, text in self.key.items())

    def without_values(self, text: str) -> str:
        """An error's text for the report, which may be kept longer than the rows: some systems repeat the values in it."""
        for value in filter(None, self.key.values()):
            text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
        return text

    def judge(self, value: Any) -> bool | None:
        """True if ``value`` is a row of the person, or has one at any depth; ``None`` for bytes that nobody can judge.

        Text and bytes are read as JSON. In damaged JSON the name of each column must stand before its value, of several in
        one object. Other bytes are judged only as text without a word like a value.
        """
        if isinstance(value, bytes):
            return self._judge_bytes(value)
        if isinstance(value, str):
            return self._judge_text(value) if value.lstrip()[:1] in ("{", "[") else False
        if isinstance(value, Mapping):
            return self.has(value) or _any(map(self.judge, value.values()))
        if isinstance(value, (list, tuple)):
            pairs = [item for item in value if isinstance(item, tuple) and len(item) == 2]  # of a map, in Arrow
            names = {name: item for name, item in pairs if isinstance(name, str)}
            return (bool(names) and self.has(names)) or _any(map(self.judge, value))
        return False

    def judge_letter(self, letter: Letter) -> bool | None:
        """As :meth:`judge`, for a letter whose record or key has the person, or whose headers name it."""
        headers = {header["key"]: header["value"] for header in letter["headers"] or ()}
        return self.has(headers) or _any(self.judge(letter[name] or b"") for name in ("record", "key"))

    def _judge_bytes(self, value: bytes) -> bool | None:
        texts = list(decoded_texts(value))
        try:
            if True in (verdicts := [self.judge(item) for text in texts for item in _json(text)]):
                return True
            if whole := _json(texts[0]):  # a value alone may be the person's, under a name that is elsewhere
                return None if verdicts[0] is None or self._is_named(whole[0]) else False
        except RecursionError:
            return None
        if any(map(self._has_fields, texts)):
            return True
        # In a binary format the length or the tag beside a text may be a letter or a digit.
        edges = ("", "") if _NO_TEXT.search(texts[0]) else (r"(?<!\w)", r"(?!\w)")
        words = [re.escape(word).join(edges) for word in self.key.values()]
        is_named = any(re.search(word, text) for word in words for text in texts)
        return None if is_named or "\ufffd" in texts[0] else False

    def _judge_text(self, text: str) -> bool | None:
        try:
            for value in _json(text):
                return self.judge(value)
        except RecursionError:
            return None
        if _DAMAGED.match(text):
            return self._has_fields(text) or (None if any(word in text for word in self.key.values()) else False)
        return False

    def _is_named(self, value: Any) -> bool:
        """True for one of the values of the key."""
        return any(is_same(value, text) for text in self.key.values())

    def _has_fields(self, text: str) -> bool:
        """True if damaged JSON has each column with its value, of several columns between the same braces."""
        fields = [
            rf'"{re.escape(name)}"\s*:\s*"?{re.escape(value)}"?\s*([,}}\]]|$)' for name, value in self.key.items()
        ]
        parts = [text] if len(fields) == 1 else re.split("[{}]", text)
        return any(all(re.search(field, part) for field in fields) for part in parts)


def _json(text: str) -> list[Any]:
    """The value that ``text`` is as JSON; none if it is no JSON."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []


def is_same(value: Any, text: str) -> bool:
    """True if ``text`` is how a person writes ``value``: 42, "42" and 42.0 are all the same."""
    if isinstance(value, bool):
        return str(value).lower() == text.lower()
    if isinstance(value, (int, float, Decimal)):
        return str(value) == text or (is_number(text) and Decimal(str(value)) == Decimal(text))
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return value is not None and text in (str(value), value.isoformat() if hasattr(value, "isoformat") else None)


def is_number(text: str) -> bool:
    """True for a number as a person writes it: 007, 12e4 and 4_2 are names that are no numbers."""
    return _NUMBER.fullmatch(text) is not None


def _any(verdicts: Iterable[bool | None]) -> bool | None:
    """True if one of them is, else ``None`` if one of them is."""
    is_known = True
    for verdict in verdicts:
        if verdict:
            return True
        is_known = is_known and verdict is not None
    return False if is_known else None


def count_same(erasure: Erasure, rows: Sequence[Sequence[Any]]) -> int:
    """The number of ``rows``, each the values of the key's columns, and last how many have them.

    Raises :class:`StateError` for values that the system takes for equal, and that are not as the user has written them.
    """
    for row in rows:
        if not all(map(is_same, row, erasure.key.values())):
            raise StateError(
                f"the system takes other values of {', '.join(erasure.key)} for equal too, and nothing was erased",
                way_out="write each value as it is stored, of the type of its column",
            )
    return sum(row[-1] for row in rows)


def letters(erasure: Erasure, storage: Storage, location: str) -> Iterator[Report]:
    """The letters of the person."""
    verdict, folder = erasure.judge_letter, Letters(location, erasure.storage_options)
    report, unknown = Report(f"letters:{location}"), 0
    for _, letter in folder.letters(lambda letter: verdict(letter) is not False):
        report.found, unknown = (report.found or 0) + bool(verdict(letter)), unknown + (not verdict(letter))
    if not erasure.dry_run:  # also where none is found: a death may have left a file that still has what was removed
        report.erased = folder.drop(lambda letter: verdict(letter) is True)
    if unknown:
        report.left.append(
            f"{count(unknown, 'letter')} that nobody can judge: binary, or no JSON and with a word like a value. Look at them "
            "by letters show --plain, and drop them by letters drop"
        )
    yield report
    yield from staged(erasure, storage, location)


def state(erasure: Erasure, storage: Storage, location: str) -> Iterator[Report]:
    """The rows of the epoch log, and dead letters that wait beside them.

    Letters of an acknowledged epoch are published: there people look at those that nobody can judge, and here these go, too.
    """
    log, report, unknown, newest = EpochLog(storage, "erase"), Report(f"state:{location}"), 0, 0

    def is_own(letter: Letter) -> bool:
        return erasure.judge_letter(letter) is True

    def is_spare(letter: Letter) -> bool:
        return erasure.judge_letter(letter) is not False

    for epoch in log.epochs():
        is_over = log.is_acknowledged(epoch)
        rows = [erasure.judge(row) for file in recorded_files(log, epoch) for row in file.rows()]
        letters = [erasure.judge_letter(letter) for _, waiting in recorded_letters(log, epoch) for letter in waiting]
        total = letters.count(True) + (rows.count(True) if is_over else 0)
        newest += 0 if is_over else rows.count(True)
        report.found = (report.found or 0) + letters.count(True) + rows.count(True)
        unknown += rows.count(None) + (0 if is_over else letters.count(None))
        if not erasure.dry_run:
            remove_rows(log, epoch, lambda row: erasure.judge(row) is True, is_spare if is_over else is_own)
            report.erased += total
    if newest:
        report.left.append(
            f"{count(newest, 'row')} of the last batch, which the query may write again with the same number of rows. Call "
            "this again when the query has begun its next batch"
        )
    if unknown:
        report.left.append(f"{count(unknown, 'row')} that nobody can judge: bytes that are no JSON")
    yield report


def staged(erasure: Erasure, storage: Storage, location: str) -> Iterator[Report]:
    """The files in the hidden folders of sinks: those of dead attempts go, those that a sink may publish stay.

    An attempt at a batch that is published is dead, and so is one that nobody has touched for a week, unless its batch is
    decided. Where the ledger is elsewhere, nobody knows here.
    """
    report, waiting = Report(f"staging:{location}"), 0
    for sink_id in SinkFolder.sink_ids(storage):
        folder = SinkFolder(storage, sink_id)
        ledger = folder.ledger().content(sink_id)
        decided = {Batch(sink_id, query, batch).prefix() for query, batch in ledger.pending}
        published = {Batch(sink_id, entry.query, entry.batch).prefix() for entry in ledger.entries} - decided
        attempts = folder.attempts()
        for part in storage.folders(folder.own):
            names = [name for name, _ in storage.files(folder.hidden(part))] if part not in _NO_ROWS else []
            for name in names:
                if _judge_file(erasure, storage, name) is False:
                    continue
                report.found = (report.found or 0) + 1
                attempt = name.removeprefix(folder.hidden("stage", "")).split("/")[0] if part == "stage" else ""
                prefix, age = attempt.split("-")[0], machine.time() - attempts.get(attempt, math.inf)
                is_dead = prefix in published or (ledger.entries and age > _STAGED_SECONDS and prefix not in decided)
                if not is_dead:
                    waiting += 1
                elif not erasure.dry_run:
                    storage.delete(name)
                    report.erased += 1
    if waiting:
        report.left.append(
            f"{count(waiting, 'file')} that a sink may still publish. Let its query run for a batch (files seal PATH, with "
            "rolling), and call this again; erase what it has published there"
        )
    if report.found:
        yield report


def _judge_file(erasure: Erasure, storage: Storage, name: str) -> bool | None:
    """Whether a staged file has a row of the person; ``None`` if its format does not tell."""
    import pyarrow.parquet as pq

    try:
        content = storage.read(name)
        if content.startswith(b"PAR1"):
            tables = pq.ParquetFile(pa.BufferReader(content)).iter_batches()
            return _any(erasure.judge(row) for batch in tables for row in batch.to_pylist())
        if content.startswith(b"ARROW1"):
            return _any(map(erasure.judge, pa.ipc.open_file(content).read_all().to_pylist()))
        return _any(map(erasure.judge, content.splitlines()))
    except FileNotFoundError:  # it was published or swept just now
        return False
    except pa.ArrowInvalid:  # it is not finished
        return None
