"""A target folder that others read while a sink writes: staging, publication and ledger lie in hidden folders.

::

    <target>/part-…                                     finished files, the only thing that a reader sees
    <target>/.connectors/<sink id>/ledger/<query>/…     which batches are committed
    <target>/.connectors/<sink id>/stage/<attempt>/…    what task attempts have written
    <target>/.connectors/<sink id>/parts/…              committed parts that grow into larger files (rolling)
    <target>/.connectors/<sink id>/uploads/…            publications to S3 that are prepared and not completed
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
"""So many earlier runs that died at a batch keep their staged files: one of them may still be alive."""
_FOLDERS_OF_STATE: Final = ("ledger", "seals", "ready")
"""The folders whose files appear at once, by a temporary name; the last one is that of dead letters."""
_ATTEMPT: Final = 4
"""The parts of the name of an attempt's staging folder."""
_FILE_ID: Final = re.compile(r"\d{10}-[0-9a-f]{12}")
"""The part of a file name that :meth:`~connectors.core.sink.Batch.file_id` gives."""


class SinkFolder:
    """One sink's view of its target folder in a storage. Names are relative to the target, so that a mount may move."""

    def __init__(self, storage: Storage, sink_id: str) -> None:
        self.storage = storage
        self.own = f"{HIDDEN_FOLDER}/{quote(sink_id, safe='').replace('.', '%2E')}"

    @property
    def root(self) -> str:
        """The target, as a message names it."""
        return self.storage.root

    @staticmethod
    def sink_ids(storage: Storage) -> list[str]:
        """The sinks that have written to the folder."""
        return sorted(unquote(name) for name in storage.folders(HIDDEN_FOLDER))

    @classmethod
    def contents(cls, storage: Storage, newest: int = HISTORY) -> list[LedgerContent]:
        """The contents of the ledgers of all sinks that have written to the folder; none of a folder that is not there."""
        contents = (cls(storage, sink_id).ledger().content(sink_id, newest) for sink_id in cls.sink_ids(storage))
        return [content for content in contents if content.entries]

    def ledger(self, name: str = "ledger") -> FileLedger:
        """A ledger beside the data: that of the batches, or another one by ``name``."""
        return FileLedger(self.storage, self.hidden(name))

    def hidden(self, *names: str) -> str:
        """A name in the sink's hidden folder."""
        return "/".join((self.own, *names))

    def stage(self, attempt: str) -> str:
        """The staging folder of an attempt."""
        return self.hidden("stage", attempt)

    def begin(self, attempt: str) -> str:
        """Makes the staging folder of an attempt, and names it."""
        stage = self.stage(attempt)
        self.storage.make_folder(stage)
        return stage

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        """The files below the folder ``under`` that are not hidden in it, and their sizes, in no order."""
        return self.storage.files(under)

    def size(self, name: str) -> int | None:
        """The bytes of a file; ``None`` if it does not exist."""
        return self.storage.size(name)

    def open(self, name: str) -> pa.NativeFile:
        """The file ``name``, open for reading."""
        return self.storage.open(name)

    def create(self, name: str) -> BinaryIO:
        """A new file ``name``, open for writing; its folder is made."""
        return self.storage.create(name)

    def sync(self, files: Iterable[str]) -> None:
        """Makes staged files durable, with the folders between them and that of their attempt."""
        names = list(files)
        above = {folder for name in names for folder in folders_above([name], "/".join(name.split("/")[:_ATTEMPT]))}
        self.storage.sync(names, sorted(above))

    def sync_names(self, files: Iterable[str]) -> None:
        """Makes the names of files durable: that they have come to their folders, or have left them."""
        self.storage.sync(folders=sorted({dirname(name) for name in files}))

    def sync_stage(self) -> None:
        """Makes durable that the staging folders of some attempts were removed."""
        self.storage.sync(folders=[self.hidden("stage")])

    def check_staged(self, staged: Iterable[tuple[str, int]]) -> None:
        """Raises :class:`Fatal` for a staged file that does not exist, or has not as many bytes as its task has reported."""
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
        """Gives a complete staged file its final name, in one step. Never overwrites; called again, it does nothing.

        False for a staged file that is gone: it was published before, whatever has happened to it since. Nobody else gives
        a file the same name: it holds the digest of sink, query and batch.
        """
        return bool(self.publish_all([(staged, final)]))

    def publish_all(self, files: Sequence[tuple[str, str]]) -> list[str]:
        """Does :meth:`publish` for the files of a batch, the same ones in each call; returns those that this call published."""
        published = self.storage.publish_all(files, self.hidden("uploads"))
        for staged in published:
            self._prune(staged)
        return published

    def delete(self, names: Iterable[str]) -> None:
        """Removes hidden files, as far as they exist, durably, and those of their folders that are then empty."""
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
        """Removes the staging folder of an attempt, as far as it exists."""
        self.storage.delete_folder(self.stage(attempt))

    def attempts(self) -> Mapping[str, float]:
        """The attempts that have a staging folder, and when these were last touched, in seconds since 1970."""
        return self.storage.touched(self.hidden("stage"))

    def sweep(self, older_than: float, live: frozenset[str]) -> None:
        """Removes staging folders that were last touched ``older_than`` seconds ago, except those of ``live`` prefixes.

        Removes also the unfinished files of processes that died so long ago.
        """
        now = machine.time()
        for attempt, touched in self.attempts().items():
            if now - touched > older_than and attempt.split("-")[0] not in live:
                self.remove(attempt)
        for name in _FOLDERS_OF_STATE:
            self.storage.sweep_temporaries(self.hidden(name), older_than)
        self.storage.abort_orphans(older_than, self.hidden("uploads"), self._is_own)

    def drop_attempts(self, batch: Batch, *, failed: bool = False, runs: int = _RUNS) -> None:
        """Removes what earlier runs have staged for ``batch``; of the newest ``runs`` of them it is left.

        With ``failed`` everything of the batch's own run goes: its tasks are over. A run that seems dead and is not loses
        its files only when some more have come after it.
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
