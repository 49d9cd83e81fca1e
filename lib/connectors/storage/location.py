"""From what a user gives as a location, with ``storageOptions``, to its storage."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse, urlunparse

from ..ground.errors import Misconfigured, Problem
from ..ground.identities import SERVICE_CREDENTIAL
from ..ground.options import Text
from .base import Storage
from .hdfs import HDFS, ClientOf, HdfsStorage
from .local import LocalStorage
from .object_store import PROVEN, WRITABLE, ObjectStore

S3: Final = ("s3://", "s3a://")
_PROTOCOL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
_S3_KEYS: Final = (SERVICE_CREDENTIAL, "key", "secret", "token", "endpoint_url", "client_kwargs")
_S3_CLIENT_KEYS: Final = ("endpoint_url", "region_name")
_WEB_HDFS_KEYS: Final = ("host", "port", "user", "token", "use_https")


def storage_of(location: str, options: Mapping[str, Any] | None = None, client_of: ClientOf | None = None) -> Storage:
    """The storage of a folder: a local or mounted path, ``file:``, ``s3://``, ``hdfs://``, or a protocol of fsspec.

    ``options`` are fsspec's keys, or an object of them by location; ``client_of`` gives Spark's own client for ``hdfs://``.
    """
    keys = options_for(location, options or {})
    if location.startswith(S3):
        from .s3 import S3Storage

        return S3Storage(location, keys)
    if location.startswith(HDFS):
        return HdfsStorage(location, keys, client_of)
    if is_local(location):
        return LocalStorage(local_path(location))
    return ObjectStore(location, keys)


def is_local(location: str) -> bool:
    """True for a path and for ``file:``; a name of two letters or more before a colon is a protocol (``dbfs:/``)."""
    return location.startswith("file:") or not _PROTOCOL.match(location)


def local_path(location: str) -> Path:
    """The path of a local location, which may begin with ``file:``."""
    return Path(location.removeprefix("file://").removeprefix("file:"))


def alternatives(pattern: str) -> list[str]:
    """The globs of Python for one of Hadoop: ``a.json`` and ``b.json`` for ``{a,b}.json``, ``[!a]`` for ``[^a]``."""
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern.replace("[^", "[!")]
    begin, end = pattern[: braces.start()], pattern[braces.end() :]
    return [whole for choice in braces[1].split(",") for whole in alternatives(begin + choice + end)]


def options_for(location: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys for ``location``: those of the longest location in ``options`` that it begins with, or all of them."""
    if not any("://" in key for key in options):
        return options
    fitting = [key for key in options if location == key.rstrip("/") or location.startswith(key.rstrip("/") + "/")]
    return dict(options[max(fitting, key=len)]) if fitting else {}


@dataclass(frozen=True)
class Location(Text):
    """A folder or file, which ``storageOptions`` reach; ``write`` and ``sole`` are those of :func:`check_location`."""

    write: bool = True
    sole: bool = False

    def problems(self, name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
        return check_location(name, values[name], values.get("storageOptions", {}), write=self.write, sole=self.sole)


def check_location(
    option: str, location: str, options: Mapping[str, Any], *, write: bool = True, sole: bool = False
) -> Iterator[Problem]:
    """The problems of the location of ``option`` and its ``storageOptions``.

    ``write`` where files are to be created, ``sole`` where no other location takes the same ``storageOptions``.
    """
    keys = options_for(location, options)
    if not isinstance(keys, Mapping):
        yield Problem("storageOptions", "must hold an object of keys for each location.")
    elif location.startswith(S3):
        yield from _check_s3(option, location, keys)
    elif location.startswith(HDFS):
        if unknown := [key for key in keys if key not in _WEB_HDFS_KEYS]:
            text = f"has {', '.join(sorted(unknown))}, which WebHDFS cannot use here; known: {', '.join(_WEB_HDFS_KEYS)}."
            yield Problem("storageOptions", text + " With Kerberos give a delegation token, or write by foreach_batch.")
        if "token" in keys and "user" in keys:
            yield Problem("storageOptions", "has a token and a user; the token names its user, so leave user out.")
        if "token" in keys and "use_https" not in keys:
            text = "has a token, which WebHDFS sends in each URL. Give use_https: true, or false where nobody else can listen."
            yield Problem("storageOptions", text)
    elif not is_local(location):
        yield from _check_protocol(option, location, write)
        if SERVICE_CREDENTIAL in keys:
            yield Problem("storageOptions", f"has {SERVICE_CREDENTIAL}, which logs in to s3:// only; give the keys of fsspec.")
    elif keys and sole:
        yield Problem("storageOptions", "mean nothing for a local or mounted folder.")


def _check_s3(option: str, location: str, keys: Mapping[str, Any]) -> Iterator[Problem]:
    client = keys.get("client_kwargs", {})
    unknown = [key for key in keys if key not in _S3_KEYS]
    unknown += [f"client_kwargs.{key}" for key in client if key not in _S3_CLIENT_KEYS]
    if unknown:
        known = ", ".join((*_S3_KEYS[:-1], *(f"client_kwargs.{key}" for key in _S3_CLIENT_KEYS)))
        yield Problem("storageOptions", f"has {', '.join(sorted(unknown))}, which cannot be translated; known: {known}.")
    if ("key" in keys) != ("secret" in keys):
        yield Problem("storageOptions", "has one of key and secret; give both, or none to use the machine's own.")
    if SERVICE_CREDENTIAL in keys and (others := [key for key in ("key", "secret", "token") if key in keys]):
        yield Problem("storageOptions", f"has {SERVICE_CREDENTIAL} and {' and '.join(others)}; give one login.")
    if not urlparse(location).netloc:
        yield Problem(option, f"must name a bucket, as s3://bucket/folder; got {without_user(location)!r}.")


def _check_protocol(option: str, location: str, write: bool) -> Iterator[Problem]:
    protocol = location.split(":")[0]
    if write and protocol not in PROVEN:
        yield Problem(
            option,
            f"cannot be {without_user(location)!r}: {protocol}:// has no proven way to create a file only where there is none. "
            f"Give a local or mounted folder, or one of {WRITABLE}.",
        )


def without_user(location: str) -> str:
    """The location as it may be shown: without the user and password of a URL."""
    parsed = urlparse(location)
    return urlunparse(parsed._replace(netloc=parsed.netloc.rpartition("@")[2])) if "@" in parsed.netloc else location


def checked_storage(
    connector: str, option: str, location: str, options: Mapping[str, Any], client_of: ClientOf | None = None
) -> Storage:
    """:func:`storage_of` a location that was not checked before. Raises :class:`Misconfigured`."""
    if problems := list(check_location(option, location, options)):
        raise Misconfigured(connector, problems)
    return storage_of(location, options, client_of)
