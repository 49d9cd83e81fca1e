"""Files of the fake workspace: its notebooks and files, and its volumes, which are a folder of this machine."""

from __future__ import annotations

import base64
import json
import posixpath
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final

from .calls import Raw, Refusal, Request, invalid, missing

_NOTEBOOK_HEADER: Final = b"# Databricks notebook source"
_ids = count(1_000_001)


@dataclass
class Entry:
    """A file, notebook or folder; ``suffix`` is what the import has taken from a notebook's name."""

    kind: str
    number: int
    content: bytes = b""
    suffix: str = ""
    changed: int = 0


class Tree:
    """The notebooks and files of a workspace by path, below ``/Workspace``."""

    def __init__(self, *homes: str) -> None:
        self._entries: dict[str, Entry] = {}
        self._lock = threading.RLock()
        for home in ("/Workspace/Users", "/Workspace/Shared", *homes):
            self._make_folders(home)

    def status(self, request: Request) -> dict[str, Any]:
        path = _clean(request.query.get("path", ""))
        with self._lock:
            return self._info(path, self._entry(path))

    def children(self, request: Request) -> dict[str, Any]:
        path = _clean(request.query.get("path", ""))
        with self._lock:
            self._entry(path)
            children = (name for name in sorted(self._entries) if name != path and posixpath.dirname(name) == path)
            return {"objects": [self._info(name, self._entries[name]) for name in children]}

    def make_folders(self, request: Request) -> dict[str, Any]:
        with self._lock:
            self._make_folders(_clean(request.json["path"]))
        return {}

    def write(self, request: Request) -> dict[str, Any]:
        """``workspace/import``, as JSON with base64 or as a form."""
        if request.is_form:
            form = request.form
            texts = {name: value.decode() for name, value in form.items() if name != "content"}
            content = form.get("content", b"")
        else:
            texts = {
                name: str(value).lower() if isinstance(value, bool) else value for name, value in request.json.items()
            }
            content = base64.b64decode(texts.pop("content", ""))
        kind = texts.get("format", "SOURCE")
        if kind not in ("AUTO", "RAW"):
            raise invalid(f"this workspace imports the formats AUTO and RAW, not {kind}.")
        return self.store(texts["path"], content, overwrite=texts.get("overwrite") == "true", raw=kind == "RAW")

    def write_raw(self, request: Request) -> dict[str, Any]:
        """``workspace-files/import-file``, which the Databricks CLI calls."""
        overwrite = request.query.get("overwrite") == "true"
        try:
            return self.store("/" + request.names[0], request.body, overwrite=overwrite)
        except Refusal as refusal:
            if refusal.code == "RESOURCE_ALREADY_EXISTS":
                raise Refusal(409, refusal.code, refusal.message) from None
            raise

    def store(self, path: str, content: bytes, *, overwrite: bool, raw: bool = False) -> dict[str, Any]:
        """Keeps ``content``, as a notebook without its suffix where it is one."""
        path = _clean(path)
        suffix = "" if raw else _notebook_suffix(path, content)
        name = path.removesuffix(suffix) if suffix else path
        with self._lock:
            if posixpath.dirname(name) not in self._entries:
                raise missing(f"The parent folder ({posixpath.dirname(name)}) does not exist.")
            old = self._entries.get(name)
            kind = "NOTEBOOK" if suffix else "FILE"
            if old is not None and (not overwrite or old.kind != kind):
                raise Refusal(400, "RESOURCE_ALREADY_EXISTS", f"{name} already exists. Please pass overwrite as true.")
            number = old.number if old else next(_ids)
            self._entries[name] = Entry(kind, number, content, suffix, int(time.time() * 1000))
        return {}

    def put(self, path: str, content: bytes) -> None:
        """Writes a file as somebody else would, with the folders above it."""
        with self._lock:
            self._make_folders(posixpath.dirname(_clean(path)))
        self.store(path, content, overwrite=True, raw=True)

    def content(self, path: str) -> bytes:
        """The content of a file or notebook."""
        with self._lock:
            return self._entry(_clean(path)).content

    def remove(self, path: str) -> None:
        """Removes a file or notebook as somebody else would."""
        with self._lock:
            del self._entries[_clean(path)]

    def read(self, request: Request) -> dict[str, Any] | Raw:
        path = _clean(request.query.get("path", ""))
        with self._lock:
            entry = self._entry(path)
        if entry.kind == "DIRECTORY":
            raise invalid(f"{path} is a folder.")
        if request.query.get("direct_download") == "true":
            return Raw(entry.content)
        return {"content": base64.b64encode(entry.content).decode(), "file_type": entry.suffix.lstrip(".")}

    def delete(self, request: Request) -> dict[str, Any]:
        body = request.json
        path = _clean(body["path"])
        with self._lock:
            self._entry(path)
            below = [name for name in self._entries if name.startswith(path + "/")]
            if below and not body.get("recursive"):
                raise Refusal(400, "DIRECTORY_NOT_EMPTY", f"Folder ({path}) is not empty.")
            for name in [path, *below]:
                del self._entries[name]
        return {}

    def export_to(self, folder: Path) -> None:
        """Writes the files that anyone has put here below ``folder``, notebooks with their suffixes."""
        with self._lock:
            entries = dict(self._entries)
        for name, entry in entries.items():
            target = folder / (name + entry.suffix).lstrip("/")
            (target if entry.kind == "DIRECTORY" else target.parent).mkdir(parents=True, exist_ok=True)
            if entry.kind != "DIRECTORY":
                target.write_bytes(entry.content)

    def suffix(self, path: str) -> str:
        """The suffix that the name of the notebook ``path`` has lost; raises :class:`Refusal` where there is no notebook."""
        with self._lock:
            entry = self._entries.get(_clean(path))
        if entry is None or entry.kind != "NOTEBOOK":
            raise missing(f"The notebook {path} does not exist.")
        return entry.suffix

    def paths(self) -> list[str]:
        """The files and notebooks."""
        with self._lock:
            return sorted(name for name, entry in self._entries.items() if entry.kind != "DIRECTORY")

    def _entry(self, path: str) -> Entry:
        if path not in self._entries:
            raise missing(f"Path ({path}) doesn't exist.")
        return self._entries[path]

    def _make_folders(self, path: str) -> None:
        while path not in self._entries:
            self._entries[path] = Entry("DIRECTORY", next(_ids))
            path = posixpath.dirname(path)
        if self._entries[path].kind != "DIRECTORY":
            raise Refusal(400, "RESOURCE_ALREADY_EXISTS", f"{path} is a file.")

    def _info(self, path: str, entry: Entry) -> dict[str, Any]:
        info: dict[str, Any] = {"path": path, "object_type": entry.kind, "object_id": entry.number}
        info |= {"resource_id": str(entry.number), "modified_at": entry.changed}
        if entry.kind == "NOTEBOOK":
            info |= {"language": "PYTHON", "repos_export_format": "JUPYTER" if entry.suffix == ".ipynb" else "SOURCE"}
        return info | ({"size": len(entry.content)} if entry.kind == "FILE" else {})


class Volumes:
    """Volumes and the files in them: ``/Volumes/catalog/schema/name/…`` is that path below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def exists(self, full_name: str) -> bool:
        """True for ``catalog.schema.volume`` that somebody has made."""
        return self._file("/Volumes/" + full_name.replace(".", "/")).is_dir()

    def make(self, full_name: str) -> Path:
        """Makes ``catalog.schema.volume`` and returns its folder here."""
        folder = self._file("/Volumes/" + full_name.replace(".", "/"))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def read(self, request: Request) -> Raw:
        file = self._existing(request)
        stamp = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(file.stat().st_mtime))
        headers = {"content-type": "application/octet-stream", "last-modified": stamp}
        return Raw(
            file.read_bytes() if request.method == "GET" else b"", {**headers, "x-size": str(file.stat().st_size)}
        )

    def write(self, request: Request) -> Raw:
        file = self._file("/" + request.names[0])
        if not self.exists(".".join(request.names[0].split("/")[1:4])):
            raise missing(f"The volume of /{request.names[0]} does not exist.")
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock:
            if file.exists() and request.query.get("overwrite") != "true":
                raise Refusal(409, "ALREADY_EXISTS", f"The file /{request.names[0]} already exists.")
            file.write_bytes(request.body)
        return Raw()

    def delete(self, request: Request) -> Raw:
        self._existing(request).unlink()
        return Raw()

    def children(self, request: Request) -> dict[str, Any] | Raw:
        folder = self._file("/" + request.names[0])
        if not folder.is_dir():
            raise missing(f"The directory /{request.names[0]} does not exist.")
        return Raw() if request.method == "HEAD" else {"contents": [*self._contents(folder)]}

    def make_folder(self, request: Request) -> Raw:
        self._file("/" + request.names[0]).mkdir(parents=True, exist_ok=True)
        return Raw()

    def delete_folder(self, request: Request) -> Raw:
        shutil.rmtree(self._file("/" + request.names[0]), ignore_errors=True)
        return Raw()

    def _contents(self, folder: Path) -> Iterator[dict[str, Any]]:
        for child in sorted(folder.iterdir()):
            name = "/" + str(child.relative_to(self.folder))
            entry: dict[str, Any] = {"name": child.name, "path": name, "is_directory": child.is_dir()}
            more = {} if child.is_dir() else {"file_size": child.stat().st_size}
            yield {**entry, **more, "last_modified": int(child.stat().st_mtime * 1000)}

    def _existing(self, request: Request) -> Path:
        file = self._file("/" + request.names[0])
        if not file.is_file():
            raise missing(f"The file /{request.names[0]} does not exist.")
        return file

    def _file(self, path: str) -> Path:
        return self.folder / _clean(path).lstrip("/")


def _clean(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _notebook_suffix(path: str, content: bytes) -> str:
    if path.endswith(".py") and content.startswith(_NOTEBOOK_HEADER):
        return ".py"
    if not path.endswith(".ipynb"):
        return ""
    try:
        return ".ipynb" if "cells" in json.loads(content) else ""
    except ValueError:
        return ""
