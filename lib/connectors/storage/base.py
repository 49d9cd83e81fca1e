"""The interface of a storage: the operations that ledgers, staged files, dead letters and logs stand on."""

from __future__ import annotations

import io
import posixpath
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple, cast

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Fatal, Transient

Content = bytes | BinaryIO
"""The content of a small file as bytes, or of a large one as a file that is open for reading from its beginning."""

SPOOLED = 32 << 20
"""Bytes of a file that are kept in memory; a larger one goes to a temporary file."""
_AHEAD = 4 << 20
"""Bytes of one request for a part of a file, at least."""


class Item(NamedTuple):
    """A file or folder: its ``size`` in bytes, and when it was ``changed`` (nanoseconds since 1970; 0 where nobody knows)."""

    name: str
    is_folder: bool
    size: int
    changed: int


def is_hidden(name: str) -> bool:
    """True for names that readers pass over. A folder of a partition column may begin with ``_``: ``_day=1``."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def temporary_name() -> str:
    """A name for a file that is not finished."""
    return f".{machine.token()}"


_TEMPORARY: Final = re.compile(r"\.[0-9a-f]{32}")


def remove_temporaries(storage: Storage, under: str, older_than: float) -> None:
    """Does :meth:`Storage.sweep_temporaries` where unfinished files have a :func:`temporary_name`."""
    for item in storage.items(under):
        name = f"{under}/{item.name}"
        if item.is_folder:
            remove_temporaries(storage, name, older_than)
        elif _TEMPORARY.fullmatch(item.name) and machine.time() - item.changed / 1e9 > older_than:
            storage.delete(name)


class Storage(ABC):
    """A folder in some storage. Names are relative to it, with ``/`` between their parts.

    Every method may raise :class:`~connectors.ground.errors.Transient` for an outage, and ``OSError`` for what the storage
    refuses. Safe to use from several processes at once; an object belongs to one process and its threads.
    """

    root: str
    """The folder, as a message names it."""

    @abstractmethod
    def put_if_absent(self, name: str, content: Content) -> bool:
        """Creates the file whole and durable, or leaves the one that exists. True if this call created it.

        Atomic among processes: of any number of calls one creates the file.
        """

    @abstractmethod
    def replace(self, name: str, content: Content, *, durable: bool = False) -> None:
        """Creates the file, or replaces the one that exists; a reader sees the old content or the new one.

        After a power failure it may be empty; with ``durable`` it has the old content or the new one.
        """

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a small file. Raises ``FileNotFoundError``."""

    @abstractmethod
    def open(self, name: str) -> pa.NativeFile:
        """The file, open for reading at any position. Raises ``FileNotFoundError``."""

    @abstractmethod
    def create(self, name: str) -> BinaryIO:
        """A new file, open for writing. It exists when it is closed at the latest, and is durable after :meth:`sync`."""

    @abstractmethod
    def items(self, folder: str = "") -> list[Item]:
        """The files and folders directly in ``folder``, hidden or not; empty if there is no such folder."""

    @abstractmethod
    def item(self, name: str) -> Item | None:
        """The file or folder ``name``, or with ``""`` the storage's own; ``None`` if there is none."""

    def size(self, name: str) -> int | None:
        """The bytes of a file; ``None`` if it does not exist."""
        item = self.item(name)
        return None if item is None or item.is_folder else item.size

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """The bytes of those of the files that exist, by one listing for each of their folders."""
        folders: dict[str, set[str]] = {}
        for name in names:
            folder, _, file = name.rpartition("/")
            folders.setdefault(folder, set()).add(file)
        sizes: dict[str, int] = {}
        for folder, files in folders.items():
            listed = ((f"{folder}/{item.name}" if folder else item.name, item) for item in self.items(folder))
            sizes |= {name: item.size for name, item in listed if item.name in files and not item.is_folder}
        return sizes

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes the file, if it exists."""

    @abstractmethod
    def delete_folder(self, name: str) -> None:
        """Removes the folder with everything in it, if it exists."""

    @abstractmethod
    def make_folder(self, name: str) -> None:
        """Makes the folder and those above it, durably, where the storage has folders."""

    @abstractmethod
    def publish(self, name: str, final: str, journal: str) -> bool:
        """Gives a file its final name in one step, never over a file that exists. Durable after :meth:`sync` of its folder.

        The file's time is then that of its publication, where the storage lets it be.

        False if there is no file ``name``: whether it was published before is for the caller to know. Raises
        :class:`~connectors.ground.errors.Fatal` if another file has the final name. Called again after a crash, it carries
        through what it began; ``journal`` is a folder for what it must know then, of the caller's own.
        """

    def name_taken(self, final: str) -> Fatal:
        """What :meth:`publish` raises where another file has the name ``final``."""
        return Fatal(
            f"{final} exists in {self.root}, and it is not the file that is to be published",
            way_out="move that file away; nothing was overwritten, and the next start goes on from here",
        )

    def publish_all(self, files: Sequence[tuple[str, str]], journal: str) -> list[str]:
        """Does :meth:`publish` for the staged and final names of a batch, the same staged ones in each call.

        Returns the names of the staged files that this call has published.
        """
        return [name for name, final in files if self.publish(name, final, journal)]

    def sync(self, files: Iterable[str] = (), folders: Iterable[str] = ()) -> None:  # noqa: B027
        """Makes durable the content of ``files``, and which names are in ``folders``, as far as these exist.

        By default nothing is to be done: object stores and HDFS answer when a write is as durable as it gets.
        """

    def prune(self, folder: str, top: str) -> None:  # noqa: B027
        """Removes ``folder`` and those above it that are empty, below ``top``, where the storage has folders."""

    def abort_orphans(self, older_than: float, journal: str, is_own: Callable[[str], bool]) -> None:  # noqa: B027
        """Ends what dead processes began to publish ``older_than`` seconds ago, and of which ``journal`` knows nothing.

        Only under names for which ``is_own`` is true.
        """

    def sweep_temporaries(self, under: str, older_than: float) -> None:  # noqa: B027
        """Removes below ``under`` what processes have left that died ``older_than`` seconds ago while they created a file.

        By default nothing is to be done: a file that is uploaded has no other name before.
        """

    def check(self) -> None:  # noqa: B027
        """Raises :class:`~connectors.ground.errors.Misconfigured` where :meth:`put_if_absent` cannot be had."""

    def names(self, folder: str = "") -> list[str]:
        """The names of the files directly in ``folder``, without hidden ones."""
        return [item.name for item in self.items(folder) if not item.is_folder and not item.name.startswith(".")]

    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders directly in ``folder``, without hidden ones."""
        return [item.name for item in self.items(folder) if item.is_folder and not item.name.startswith(".")]

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        """The files anywhere below ``under`` that are not hidden in it, and their sizes, in no order."""
        for item in self.items(under):
            if is_hidden(item.name):
                continue
            name = f"{under}/{item.name}" if under else item.name
            if item.is_folder:
                yield from self.files(name)
            else:
                yield name, item.size

    def touched(self, folder: str) -> dict[str, float]:
        """The names directly in ``folder``, with the time when the newest file in each was changed (seconds since 1970)."""
        return {item.name: item.changed / 1e9 for item in self.items(folder)}

    def spark_url(self, name: str) -> str:
        """The file or folder ``name`` as Spark's readers and writers take it."""
        raise NotImplementedError(f"Spark does not write to {self.root} by itself")

    def spark_options(self) -> dict[str, str]:
        """The options that Spark's readers and writers need beside the URL."""
        return {}

    def __str__(self) -> str:
        return self.root


def spooled() -> BinaryIO:
    """A file of this process, empty, open for writing and reading."""
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(SPOOLED))


class Upload:
    """A file that is open for writing: ``upload`` gets everything when it is closed, and nothing after an error."""

    def __init__(self, upload: Callable[[BinaryIO], None]) -> None:
        self._upload = upload
        self._content = spooled()
        self.closed = False

    def write(self, data: Any) -> int:
        return self._content.write(bytes(data))

    def tell(self) -> int:
        return self._content.tell()

    def flush(self) -> None:
        """The content goes out when the file is closed."""

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._content.seek(0)
            self._upload(self._content)
            self._content.close()

    def __enter__(self) -> Upload:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.closed = True
            self._content.close()


def ranged(name: str, size: int, read: Callable[[int, int], bytes]) -> pa.NativeFile:
    """A file of ``size`` bytes that ``read(offset, length)`` brings piece by piece."""
    return pa.PythonFile(io.BufferedReader(_Ranged(name, size, read), _AHEAD), mode="r")


class _Ranged(io.RawIOBase):
    """A file that is read from any position, as long as it was when it was opened."""

    def __init__(self, name: str, size: int, read: Callable[[int, int], bytes]) -> None:
        self._name = name
        self._size = size
        self._read = read
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, into: Any) -> int:
        length = min(len(into), self._size - self._position)
        if length <= 0:
            return 0
        data = self._read(self._position, length)
        if len(data) != length:
            raise Transient(f"{self._name} came incompletely: {len(data)} bytes of {length} at {self._position}")
        into[:length] = data
        self._position += length
        return length


def folders_above(names: Iterable[str], top: str) -> set[str]:
    """The folders of ``names`` from their own up to ``top``, which is one of them."""
    folders: set[str] = set()
    for name in names:
        folder = posixpath.dirname(name)
        while folder not in folders and (folder == top or folder.startswith(f"{top}/" if top else "")):
            folders.add(folder)
            if folder == top:
                break
            folder = posixpath.dirname(folder)
    return folders
