"""A folder of a local or mounted file system. :class:`Disk` is its seam: the test kit puts a disk there that forgets."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa

from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from . import volumes
from .base import Content, Item, Storage, remove_temporaries, temporary_name

_AT_CWD: Final = -100
_NO_REPLACE: Final = 1
_REFUSED: Final = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EMLINK)
"""The error numbers of a file system that has no hard links, or no rename that leaves what exists."""
_SYNCS: Final = 8


class Disk:
    """What a file system does: each change is one step, and durable only after a ``sync``."""

    def scan(self, path: Path) -> contextlib.AbstractContextManager[Iterator[os.DirEntry[str]]]:
        """The entries of a folder, in any order."""
        return os.scandir(path)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def open(self, path: Path) -> pa.NativeFile:
        return pa.OSFile(str(path))

    def create(self, path: Path) -> BinaryIO:
        return path.open("xb")

    def link(self, path: Path, to: Path) -> None:
        """A second name of a file. Raises ``FileExistsError``."""
        os.link(path, to)

    def rename(self, path: Path, to: Path) -> None:
        """Gives a file another name, whatever has it."""
        path.rename(to)

    def rename_if_absent(self, path: Path, to: Path) -> None:
        """Gives a file another name. Raises ``FileExistsError``, and ``OSError`` where there is no such step."""
        rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        if rename is None:
            raise OSError(errno.ENOSYS, "no renameat2", str(to))
        if rename(_AT_CWD, os.fsencode(path), _AT_CWD, os.fsencode(to), _NO_REPLACE):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(to))

    def touch(self, path: Path) -> None:
        """Says that a file was changed now, by the clock of the file system."""
        os.utime(path)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> None:
        path.mkdir(exist_ok=True)

    def remove_folder(self, path: Path) -> None:
        """Removes an empty folder. Raises ``OSError`` for another one."""
        path.rmdir()

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def sync(self, path: Path) -> None:
        """Makes the content of a file durable, or which names a folder has."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


disk: Disk = Disk()
_checked = machine.PerProcess(set[str])
"""Folders that can create a file only where there is none."""
durable_folders = machine.PerProcess(set[Path])
"""Folders whose names this process has synced."""
_MOST_DURABLE: Final = 10_000


class LocalStorage(Storage):
    """A folder of a local or mounted file system, which all processes that share it see alike."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.path = Path(root)
        self.root = str(root)

    def put_if_absent(self, name: str, content: Content) -> bool:
        target = self.path / name
        created = not target.exists() and self._created(target, content)
        disk.sync(target.parent)  # also where the file exists: whoever created it may have died before this step
        return created

    def _created(self, target: Path, content: Content) -> bool:
        temporary = self._temporary(target, content, durable=True)
        try:
            self._claim(temporary, target)
        except FileExistsError:
            # This very file after all, if a file server was asked again because its answer to the link was lost.
            with contextlib.suppress(FileNotFoundError):
                return temporary.samefile(target)
            return False
        finally:
            disk.remove(temporary)
        return True

    def replace(self, name: str, content: Content, *, durable: bool = False) -> None:
        target = self.path / name
        disk.rename(self._temporary(target, content, durable=durable), target)

    def read(self, name: str) -> bytes:
        return disk.read(self.path / name)

    def open(self, name: str) -> pa.NativeFile:
        return disk.open(self.path / name)

    def create(self, name: str) -> BinaryIO:
        path = self.path / name
        self._make(path.parent)
        return disk.create(path)

    def items(self, folder: str = "") -> list[Item]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), disk.scan(self.path / folder) as entries:
            return [item for item in map(_item, entries) if item is not None]
        return []

    def names(self, folder: str = "") -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), disk.scan(self.path / folder) as entries:
            return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
        return []

    def item(self, name: str) -> Item | None:
        path = self.path / name
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Item(path.name, stat.S_ISDIR(status.st_mode), status.st_size, status.st_mtime_ns)

    def delete(self, name: str) -> None:
        disk.remove(self.path / name)

    def delete_folder(self, name: str) -> None:
        disk.remove_tree(self.path / name)

    def make_folder(self, name: str) -> None:
        self._make(self.path / name)

    def publish(self, name: str, final: str, journal: str) -> bool:
        source, target = self.path / name, self.path / final
        while source.exists():
            self._make(target.parent)
            try:
                self._touch(source)
                self._rename(source, target)
            except FileExistsError:
                if source.exists():
                    raise self.name_taken(final) from None
            except FileNotFoundError:
                continue  # its folder was empty, and another process has removed it; or another one has published it
            else:
                return True
        return False

    def sync(self, files: Iterable[str] = (), folders: Iterable[str] = ()) -> None:
        self._each(disk.sync, files)
        self._each(_sync_folder, folders)

    def _each(self, act: Callable[[Path], None], names: Iterable[str]) -> None:
        """Several at a time: a journal takes them in one write."""
        paths = [self.path / name for name in names]
        if len(paths) <= 1:
            for path in paths:
                act(path)
            return
        machine.each(act, paths, _SYNCS)

    def prune(self, folder: str, top: str) -> None:
        path, end = self.path / folder, self.path / top
        while end in path.parents:
            try:
                disk.remove_folder(path)
            except OSError:  # something is in it
                return
            path = path.parent

    def sweep_temporaries(self, under: str, older_than: float) -> None:
        remove_temporaries(self, under, older_than)

    def check(self) -> None:
        """Tries it in the folder, once in a process. Some mounts of object stores replace what exists all the same."""
        if self.root in _checked():
            return
        probe = self.path / temporary_name() / "probe"
        try:
            created = [self._created(probe, content) for content in (b"first", b"second")]
            content = probe.read_bytes()
        except OSError as error:
            text = f'"{self.root}" cannot be written: {error.strerror} ({error.filename}).'
            raise Misconfigured("connectors.storage", [Problem("path", text)]) from None
        finally:
            disk.remove_tree(probe.parent)
        if created != [True, False] or content != b"first":
            raise self._no_claim("its file system replaces a file where it should leave it")
        _checked().add(self.root)

    def spark_url(self, name: str) -> str:
        return f"file:{(self.path / name).absolute()}"

    def _temporary(self, target: Path, content: Content, *, durable: bool = False) -> Path:
        """A hidden file beside ``target`` that holds ``content``."""
        self._make(target.parent)
        path = target.parent / temporary_name()
        with disk.create(path) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                shutil.copyfileobj(content, file, 1 << 20)
        if durable:
            disk.sync(path)
        return path

    def _claim(self, path: Path, target: Path) -> None:
        """Gives a complete file the name ``target``. Raises ``FileExistsError`` if that is there, whoever came first."""
        for step in (disk.link, disk.rename_if_absent):
            try:
                return step(path, target)
            except FileExistsError:
                raise
            except OSError as refused:
                if refused.errno not in _REFUSED:
                    raise
        if volumes.is_on_volume(target):
            return volumes.upload_if_absent(path, target)
        raise self._no_claim("its file system has neither hard links nor a rename that leaves what exists")

    def _no_claim(self, reason: str) -> Misconfigured:
        text = (
            f'"{self.root}" cannot create a file only where there is none: {reason}. Give the address of the object store '
            "behind it (s3://…, abfss://…, gs://…), or a folder of another file system."
        )
        return Misconfigured("connectors.storage", [Problem("path", text)])

    @staticmethod
    def _touch(path: Path) -> None:
        """A rename keeps the time of a file, which may be hours old: those who follow a folder by times would pass over it."""
        try:
            disk.touch(path)
        except OSError as refused:
            if refused.errno not in (*_REFUSED, errno.EACCES):  # of another user, or on a mount that cannot do it
                raise

    @staticmethod
    def _rename(source: Path, target: Path) -> None:
        try:
            disk.rename_if_absent(source, target)
        except OSError as refused:
            if refused.errno not in _REFUSED:
                raise
            if target.exists():
                raise FileExistsError(errno.EEXIST, "exists", str(target)) from None
            disk.rename(source, target)  # two files of one name do not come at once: each holds the digest of its batch

    def _make(self, folder: Path) -> None:
        """Makes ``folder`` and those above it, durably.

        A process that died may have made one of them and not synced it: the first use in a process syncs it, from the root on,
        and whoever makes the root syncs all that is above it.
        """
        durable = durable_folders()
        if folder in durable and folder.is_dir():
            return
        above = self.path.parents if self.path.is_dir() else ()
        chain = []
        for path in (folder, *folder.parents):
            if path.is_dir() and (path in durable or path in above):
                break
            if path.exists() and not path.is_dir():  # it may have been made in this very moment
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            chain.append(path)
        for path in reversed(chain):
            disk.make_folder(path)
            try:
                disk.sync(path.parent)
            except OSError as refused:  # above the root is another user's folder, or one that its file system never syncs
                if self.path in path.parents or refused.errno not in (*_REFUSED, errno.EACCES, errno.EROFS):
                    raise
        if len(durable) > _MOST_DURABLE:
            durable.clear()
        durable.update(chain)


def _item(entry: os.DirEntry[str]) -> Item | None:
    try:
        status: Any = entry.stat()
    except FileNotFoundError:  # removed since the folder was listed, or a link to nothing
        return None
    return Item(entry.name, entry.is_dir(), status.st_size, status.st_mtime_ns)


def _sync_folder(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # whoever took the last file out of it may have removed it
        disk.sync(path)
