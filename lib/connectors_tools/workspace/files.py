"""The files that a deployment uploads: those below ``sync.paths`` that git does not ignore."""

from __future__ import annotations

import fnmatch
import hashlib
import posixpath
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import BadRequest, NotFound

from ..bundle import Bundle
from .client import WorkspaceError, refusals, write_file

_AT_ONCE: Final = 8
_NEVER: Final = ("*/__pycache__/*", "*.pyc", "*/.ipynb_checkpoints/*", "*/.*", ".*", "*.egg-info/*")
"""The patterns of what is left out where no git says what is ignored."""


def local_files(bundle: Bundle) -> dict[str, str]:
    """The files to upload, by path relative to the bundle, with a hash of each."""
    sync: Mapping[str, Any] = bundle.config.get("sync") or {}
    paths = [str(path) for path in sync.get("paths") or ["."]]
    files = {path for path in _candidates(bundle.root, paths) if not _matches(path, sync.get("exclude") or [])}
    for pattern in sync.get("include") or []:
        files |= {str(path.relative_to(bundle.root)) for path in bundle.root.glob(str(pattern)) if path.is_file()}
    hashes = {path: hashlib.sha256((bundle.root / path).read_bytes()).hexdigest()[:20] for path in sorted(files)}
    return {path.replace("\\", "/"): text for path, text in hashes.items()}


def upload(client: WorkspaceClient, root: Path, target: str, paths: Iterable[str], done: Callable[[str], None]) -> None:
    """Uploads ``paths`` of ``root`` to the folder ``target``, several at once; ``done`` is called after each."""
    paths = list(paths)
    folders = {posixpath.dirname(posixpath.join(target, path)) for path in paths}
    leaves = [folder for folder in folders if not any(other.startswith(folder + "/") for other in folders)]

    def make(folder: str) -> None:
        with refusals(f"the folder {folder}"):
            client.workspace.mkdirs(folder)

    def send(path: str) -> str:
        with refusals(f"uploading {path}"):
            write_file(client, posixpath.join(target, path), (root / path).read_bytes())
        return path

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(make, sorted(leaves)))
        for path in pool.map(send, paths):
            done(path)


def make_way(client: WorkspaceClient, target: str, removals: Iterable[str], uploads: Iterable[str]) -> list[str]:
    """Removes those of ``removals`` that are in the way of ``uploads``, and returns them.

    A notebook ``load`` is in the way of a folder ``load``, and the files of that folder are in the way of that notebook.
    """
    names, folders = set[str](), set[str]()
    for path in uploads:
        names.update(_names_there(path))
        folders.update(_folders_of(path))
    paths = [
        path for path in removals if (names | folders).intersection(_names_there(path)) or names & _folders_of(path)
    ]
    remove(client, target, paths)
    emptied = {folder for path in paths for folder in _folders_of(path) if names & {folder, *_folders_of(folder)}}
    for folder in sorted(emptied, key=len, reverse=True):
        with suppress(WorkspaceError), refusals(folder):  # of a folder with files of others, the upload tells
            client.workspace.delete(posixpath.join(target, folder))
    return paths


def _folders_of(path: str) -> set[str]:
    return {str(folder) for folder in PurePosixPath(path).parents} - {"."}


def remove(client: WorkspaceClient, target: str, paths: Iterable[str]) -> None:
    """Removes uploaded files that are no longer in the bundle."""
    for path in paths:
        for name in _names_there(path):
            with refusals(f"removing {path}"):
                try:
                    client.workspace.delete(posixpath.join(target, name))
                    break
                except NotFound:  # a notebook has lost its suffix, or somebody else was faster
                    continue
                except BadRequest as refused:
                    if refused.error_code != "DIRECTORY_NOT_EMPTY":  # else a folder has its name by now
                        raise


def _names_there(path: str) -> Iterator[str]:
    """The names under which a file may lie in the workspace: an imported notebook has no suffix."""
    if path.endswith(".ipynb"):
        yield path.removesuffix(".ipynb")
    yield path
    if path.endswith(".py"):
        yield path.removesuffix(".py")


def _candidates(root: Path, paths: list[str]) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *paths]
    try:
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")
        return [path for path in listed if path and (root / path).is_file()]
    except (OSError, subprocess.CalledProcessError):
        files = [file for path in paths for file in _below((root / path).resolve())]
        relative = [str(file.relative_to(root.resolve())) for file in files if file.is_relative_to(root.resolve())]
        return [path for path in relative if not _matches(path, _NEVER)]


def _below(path: Path) -> Iterator[Path]:
    yield from [path] if path.is_file() else (file for file in path.rglob("*") if file.is_file())


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(path, str(pattern).replace("**/", "*")) for pattern in patterns)
