"""The disk of a history: a folder of the machine's own, each of whose steps the adversary sees, and which forgets.

:class:`RemoteStorage` is one that lies behind a network.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa

from ...storage.base import Content, Item
from ...storage.local import LocalStorage
from ..forgetful_disk import Change, ForgetfulDisk
from .adversary import Adversary, Move


class RemoteStorage(LocalStorage):
    """A folder behind a network: a request for it, or the answer, may be lost."""

    def __init__(self, root: Path, adversary: Adversary) -> None:
        super().__init__(root)
        self._adversary = adversary

    def put_if_absent(self, name: str, content: Content) -> bool:
        return self._adversary.request(f"create {name}", partial(super().put_if_absent, name, content))

    def read(self, name: str) -> bytes:
        return self._adversary.request(f"read {name}", partial(super().read, name))

    def open(self, name: str) -> pa.NativeFile:
        return self._adversary.request(f"open {name}", partial(super().open, name))

    def items(self, folder: str = "") -> list[Item]:
        return self._adversary.request(f"list {folder}", partial(super().items, folder))

    def names(self, folder: str = "") -> list[str]:
        return self._adversary.request(f"list {folder}", partial(super().names, folder))

    def delete(self, name: str) -> None:
        self._adversary.request(f"delete {name}", partial(super().delete, name))

    def delete_folder(self, name: str) -> None:
        self._adversary.request(f"delete {name}", partial(super().delete_folder, name))


class SimulatedDisk(ForgetfulDisk):
    """The files below ``folder``, whose order in a listing is by chance."""

    def __init__(self, folder: Path, journal: Path, adversary: Adversary) -> None:
        super().__init__(folder, journal)
        self._adversary = adversary
        self._order = random.Random(f"listings {adversary.scheduler.seed}")
        self._journal: list[Change] = []
        self.is_dark = False

    def start(self) -> None:
        self._journal = []
        super().start()

    @contextlib.contextmanager
    def scan(self, path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        self._step(path)
        with super().scan(path) as entries:
            listing = sorted(entries, key=lambda entry: entry.name)
        self._order.shuffle(listing)
        yield iter(listing)

    def read(self, path: Path) -> bytes:
        self._step(path)
        return super().read(path)

    def open(self, path: Path) -> pa.NativeFile:
        self._step(path)
        return pa.BufferReader(super().read(path))

    def _step(self, path: Path) -> None:
        if self._adversary.strikes(Move.POWER, self._name(path)):
            self.is_dark = True
            self._adversary.scheduler.kill_all()
        self._adversary.disturb(self._name(path))

    def light(self) -> None:
        """The power is back, after all processes have ended: what was not synced may be gone."""
        self.fail(self._order)
        self.start()
        self.is_dark = False

    def _write(self, change: Change) -> None:
        self._journal.append(change)

    def _changes(self) -> list[Change]:
        return self._journal
