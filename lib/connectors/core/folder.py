"""A target folder that others read while a sink writes it; staging, ledger and pending publications are in hidden folders.

::

    <target>/part-…                                     finished files, the only files that a reader sees
    <target>/.connectors/<sink id>/ledger/<query>/…     which batches are committed
    <target>/.connectors/<sink id>/stage/<attempt>/…    the output of task attempts
    <target>/.connectors/<sink id>/parts/…              committed parts that grow into larger files (rolling)
    <target>/.connectors/<sink id>/open/…               marks of folders by time that wait for their success file
    <target>/.connectors/<sink id>/uploads/…            publications to S3 that are prepared but not completed
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from posixpath import dirname
from typing import TYPE_CHECKING, BinaryIO, Final
from urllib.parse import quote, unquote

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Fatal
from ..storage.base import Storage, folders_above
from .ledger import HISTORY, FileLedger, LedgerContent

if TYPE_CHECKING:
    from .batch import Batch

HIDDEN_FOLDER: Final = ".connectors"
_RUNS: Final = 3
"""The number of newest earlier runs whose staged files of a batch are kept: one of them may still be alive."""
_FOLDERS_OF_STATE: Final = ("ledger", "seals", "open", "ready")
"""The folders whose files are written under a temporary name and then renamed; ``ready`` is that of dead letters."""
_ATTEMPT: Final = 4
"""The number of path components in the name of an attempt's staging folder."""
_FILE_ID: Final = re.compile(r"\d{10}-[0-9a-f]{12}")
"""The part of a file name that :meth:`~connectors.core.batch.Batch.file_id` gives."""


class SinkFolder:
    """One sink's view of its target folder in a storage. Names are relative to the target, so its mount point may change."""

    def __init__(self, storage: Storage, sink_id: str) -> None:
        self.storage = storage
        self.own = f"{HIDDEN_FOLDER}/{quote(sink_id, safe='').replace('.', '%2E')}"

    @property
    def root(self) -> str:
        """The target, as messages name it."""
        return self.storage.root

    @staticmethod
    def sink_ids(storage: Storage) -> list[str]:
        """The sinks that have written to the folder."""
        return sorted(unquote(name) for name in storage.folders(HIDDEN_FOLDER))

    @classmethod
    def contents(cls, storage: Storage, newest: int = HISTORY) -> list[LedgerContent]:
        """The ledgers of all sinks that have written to the folder; none if the folder does not exist."""
        contents = (cls(storage, sink_id).ledger().content(sink_id, newest) for sink_id in cls.sink_ids(storage))
        return [content for content in contents if content.entries]

    def ledger(self, name: str = "ledger") -> FileLedger:
        """A ledger in the hidden folder: that of the batches, or another one by ``name``."""
        return FileLedger(self.storage, self.hidden(name))

    def hidden(self, *names: str) -> str:
        """A name in the sink's hidden folder."""
        return "/".join((self.own, *names))

    def stage(self, attempt: str) -> str:
        """The staging folder of an attempt."""
        return self.hidden("stage", attempt)

    def begin(self, attempt: str) -> str:
        """Makes the staging folder of an attempt and returns its name."""
        stage = self.stage(attempt)
        self.storage.make_folder(stage)
        return stage

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        """The names and sizes of files below the folder ``under``, without those hidden in it, in no order."""
        return self.storage.files(under)

    def size(self, name: str) -> int | None:
        """The bytes of a file; ``None`` if it does not exist."""
        return self.storage.size(name)

    def open(self, name: str) -> pa.NativeFile:
        """The file ``name``, open for reading."""
        return self.storage.open(name)

    def create(self, name: str) -> BinaryIO:
        """A new file ``name``, open for writing. Makes its folder."""
        return self.storage.create(name)

    def sync(self, files: Iterable[str]) -> None:
        """Makes staged files durable, and the folders from them up to the staging folder of their attempt."""
        names = list(files)
        above = {folder for name in names for folder in folders_above([name], "/".join(name.split("/")[:_ATTEMPT]))}
        self.storage.sync(names, sorted(above))

    def sync_names(self, files: Iterable[str]) -> None:
        """Makes durable that files were added to their folders or removed from them."""
        self.storage.sync(folders=sorted({dirname(name) for name in files}))

    def sync_stage(self) -> None:
        """Makes the removal of attempts' staging folders durable."""
        self.storage.sync(folders=[self.hidden("stage")])

    def check_staged(self, staged: Iterable[tuple[str, int]]) -> None:
        """Raises :class:`Fatal` if a staged file does not exist, or its size is not the one that its task has reported."""
        reported = dict(staged)
        sizes = self.storage.sizes(reported)
        for name, size in reported.items():
            if (actual := sizes.get(name)) is None or actual != size:
                what = "is gone" if actual is None else f"has {actual} bytes"
                raise Fatal(
                    f"a task has staged {name} with {size} bytes, and on the driver it {what}: {self.root} is not the same "
                    "folder for the driver and for all executors, or another program has removed what was staged",
                    way_out="give a folder that all of them share (a mount, s3://…, hdfs://…); nothing was recorded, and the "
                    "next start writes the batch again",
                )

    def publish(self, staged: str, final: str) -> bool:
        """Gives a complete staged file its final name, in one step. Never overwrites; a second call does nothing.

        False if the staged file is gone: it was published before, even if somebody has since moved or deleted it. No other
        writer uses the same name, since it holds the digest of sink, query and batch.
        """
        return bool(self.publish_all([(staged, final)]))

    def publish_all(self, files: Sequence[tuple[str, str]]) -> list[str]:
        """As :meth:`publish`, for all files of a batch, the same in each call. Returns those that this call published."""
        published = self.storage.publish_all(files, self.hidden("uploads"))
        for staged in published:
            self._prune(staged)
        return published

    def delete(self, names: Iterable[str]) -> None:
        """Removes hidden files that exist, durably, and then folders of ``parts`` that have become empty."""
        removed = list(names)
        for name in removed:
            self.storage.delete(name)
        self.sync_names(removed)
        for name in removed:
            self._prune(name)

    def _prune(self, name: str) -> None:
        parts = self.hidden("parts")
        if name.startswith(f"{parts}/"):
            self.storage.prune(dirname(name), parts)

    def remove(self, attempt: str) -> None:
        """Removes the staging folder of an attempt, if it exists."""
        self.storage.delete_folder(self.stage(attempt))

    def attempts(self) -> Mapping[str, float]:
        """The attempts that have a staging folder, and the folder's last change in seconds since 1970."""
        return self.storage.touched(self.hidden("stage"))

    def sweep(self, older_than: float, live: frozenset[str]) -> None:
        """Removes staging folders unchanged for ``older_than`` seconds, except those with a prefix in ``live``.

        Also removes unfinished files and uploads of the same age, which dead processes have left.
        """
        now = machine.time()
        for attempt, touched in self.attempts().items():
            if now - touched > older_than and attempt.split("-")[0] not in live:
                self.remove(attempt)
        for name in _FOLDERS_OF_STATE:
            self.storage.sweep_temporaries(self.hidden(name), older_than)
        self.storage.abort_orphans(older_than, self.hidden("uploads"), self._is_own)

    def drop_attempts(self, batch: Batch, *, failed: bool = False, runs: int = _RUNS) -> None:
        """Removes the staging of earlier runs for ``batch``, except of the newest ``runs`` of them.

        With ``failed`` also removes all staging of the batch's own run, whose tasks are over. A run that is still alive
        loses its files only after ``runs`` others have followed it.
        """
        run, begin = batch.run_id(), f"{batch.prefix()}-"
        newest: dict[str, float] = {}
        attempts: dict[str, str] = {}
        for attempt, touched in self.attempts().items():
            if attempt.startswith(begin):
                attempts[attempt] = run_of_attempt = attempt.split("-")[1]
                newest[run_of_attempt] = max(newest.get(run_of_attempt, 0.0), touched)
        earlier = sorted(newest.keys() - {run}, key=lambda earlier_run: newest[earlier_run], reverse=True)
        dropped = {*earlier[runs:], *([run] if failed else [])}
        for attempt, staged_by in attempts.items():
            if staged_by in dropped:
                self.remove(attempt)

    def _is_own(self, name: str) -> bool:
        return name.startswith(f"{self.own}/") or _FILE_ID.search(name) is not None
