"""The dead letters of a sink that keeps offsets in its target: durable before these move past the letters' rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence, Set
from contextlib import suppress

from ...connect.connector import TopicPartition
from ...connect.dead_letters import letter_fields
from ...connect.host import DeadLetter, LetterBox
from ...core import Batch
from ...core.letter_files import LetterFile, letters_in, open_letters, removed_letters
from ...ground.state import digest
from ...storage.base import Storage


class PlacedLetters(LetterBox):
    """The letters of one batch, as files that are named by partition and put if absent. They need no commit::

        <deadLetterPath>/connect-<batch>-<partition>-<number>.parquet

    A replay finds what any earlier attempt has set aside: such a row is a dead letter, and is not put again.
    """

    def __init__(self, storage: Storage, batch: Batch, connector: str) -> None:
        self._storage, self._batch, self._connector = storage, batch, connector
        self._known: dict[TopicPartition, set[int]] = {}
        self._files: dict[TopicPartition, int] = {}
        self._lock = threading.Lock()  # a task may report from threads of its own

    @property
    def count(self) -> int:  # type: ignore[override]
        return sum(map(len, self._known.values()))

    def offsets(self, place: TopicPartition) -> Set[int]:
        with self._lock, suppress(FileNotFoundError):
            while True:
                self._read_next(place)
        return self._known.setdefault(place, set())

    def put(self, letters: Sequence[DeadLetter]) -> None:
        by_place: dict[TopicPartition, list[DeadLetter]] = {}
        for letter in letters:
            by_place.setdefault(TopicPartition(str(letter.topic), int(letter.partition or 0)), []).append(letter)
        with self._lock:
            for place, own in by_place.items():
                self._put(place, own)

    def _put(self, place: TopicPartition, letters: Sequence[DeadLetter]) -> None:
        known = self._known.setdefault(place, set())
        while letters := [letter for letter in letters if letter.offset not in known]:
            file = self._file(letters)
            if not self._storage.put_if_absent(self._name(place), file.content()):
                self._read_next(place)  # another attempt was faster
                continue
            known.update(letter.offset for letter in letters if letter.offset is not None)
            self._files[place] = self._files.get(place, 0) + 1

    def _read_next(self, place: TopicPartition) -> None:
        """Learns which rows the next file of a partition has. Raises ``FileNotFoundError`` behind the last one."""
        name = self._name(place)
        with open_letters(self._storage, name) as file:
            positions = [letter["position"] for letter in letters_in(file)]
        positions += [position for _, position in removed_letters(self._storage, name)]
        self._known.setdefault(place, set()).update(json.loads(position)["offset"] for position in positions)
        self._files[place] = self._files.get(place, 0) + 1

    def _file(self, letters: Sequence[DeadLetter]) -> LetterFile:
        file, batch = LetterFile(), {"query": self._batch.query, "batch": self._batch.number}
        for letter in letters:
            place = {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset}
            file.add({**letter_fields(letter, self._connector, {**batch, **place}), "source": self._batch.sink_id})
        return file

    def _name(self, place: TopicPartition) -> str:
        return f"connect-{self._batch.file_id()}-{digest(*place)}-{self._files.get(place, 0)}.parquet"
