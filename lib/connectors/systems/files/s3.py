"""A target folder in S3: staging, ledger and publication where there is no rename.

A staged object becomes visible by a multipart upload whose only parts are copies of it, made by the server: the upload is
prepared, its id is put beside the ledger, and then it is completed, which is one step. Whoever finds the id later looks for
the upload: the answer ``NoSuchUpload`` says that it was completed before, and then nothing is brought back. Nothing is ever
overwritten. Ledger entries and ids are put by conditional writes (``If-None-Match``).
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, BinaryIO, cast
from urllib.parse import quote, unquote

from ...core import Fatal, Misconfigured, Problem, Transient
from ...core.folder import is_hidden
from ...core.ledger import FileLedger
from ...core.state import digest, dumps
from ...core.store import Store
from .storage import bucket_and_key, s3_client, spark_options
from .uploaded import Uploaded, spooled

_COPIED = 1 << 30
"""Bytes of one copied part; S3 allows five times as many."""
_GONE = ("404", "NoSuchKey", "NotFound")
_TAKEN = ("412", "PreconditionFailed")
_BUSY = ("409", "ConditionalRequestConflict")
_WRONG = {
    "NoSuchBucket": ("path", "names a bucket that is not there"),
    "AccessDenied": ("storageOptions", "may not do that (AccessDenied); give credentials that may read, write and delete"),
    "InvalidAccessKeyId": ("storageOptions", "has a key that S3 does not know"),
    "SignatureDoesNotMatch": ("storageOptions", "has a secret that does not fit the key"),
}


class S3:
    """One bucket."""

    page = 1000
    """How many keys a listing has at a time."""

    def __init__(self, bucket: str, storage: Mapping[str, Any]) -> None:
        self.bucket = bucket
        self._storage = dumps(dict(storage))

    def call(self, operation: str, **arguments: Any) -> Any:
        """One request. Raises ``FileNotFoundError`` for a key that is not there, :class:`Transient` for an outage."""
        key = str(arguments.get("Key", ""))
        return self.told(lambda: getattr(self.client, operation)(Bucket=self.bucket, **arguments), key)

    def upload(self, content: Any, key: str) -> None:
        """Puts a file of any size, in parts if it is large."""
        self.told(lambda: self.client.upload_fileobj(content, self.bucket, key), key)

    def told(self, request: Callable[[], Any], key: str) -> Any:
        """What ``request`` gives; its errors are those of this library."""
        _ = self.client  # tells what is missing, if boto3 is
        errors, more = import_module("botocore.exceptions"), import_module("boto3.exceptions")
        try:
            return request()
        except errors.ClientError as error:
            raise _told(error, self.bucket, key) from None
        except (errors.BotoCoreError, more.Boto3Error) as error:
            raise _told_without_answer(error) from None

    @property
    def client(self) -> Any:
        return _client(self._storage, os.getpid())

    def keys(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The objects whose keys begin with ``prefix``."""
        for page in self._pages(Prefix=prefix):
            yield from page.get("Contents", ())

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        """The names of the objects directly below ``prefix``, and those of the folders."""
        pages = list(self._pages(Prefix=prefix, Delimiter="/"))
        names = [one["Key"].removeprefix(prefix) for page in pages for one in page.get("Contents", ())]
        folders = [one["Prefix"].removeprefix(prefix).rstrip("/") for page in pages for one in page.get("CommonPrefixes", ())]
        return [name for name in names if name], folders

    def delete_all(self, prefix: str) -> None:
        keys = [{"Key": one["Key"]} for one in self.keys(prefix)]
        for first in range(0, len(keys), 1000):
            self.call("delete_objects", Delete={"Objects": keys[first : first + 1000], "Quiet": True})

    def _pages(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        token: dict[str, str] = {}
        while True:
            page = self.call("list_objects_v2", MaxKeys=self.page, **arguments, **token)
            yield page
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}


class _Taken(Exception):
    """A conditional write found something there."""


class _NoUpload(Exception):
    """The multipart upload was completed, or aborted."""


def _told(error: Any, bucket: str, key: str) -> Exception:
    code = error.response["Error"]["Code"]
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    if code in _GONE:
        return FileNotFoundError(2, "no such object", f"s3://{bucket}/{key}")
    if code in _TAKEN:
        return _Taken()
    if code == "NoSuchUpload":
        return _NoUpload()
    if code in _WRONG:
        option, text = _WRONG[code]
        return Misconfigured("connectors.files", [Problem(option, f"{text} (bucket {bucket}).")])
    if status >= 500 or status == 429 or code in (*_BUSY, "SlowDown", "RequestTimeout"):
        return Transient(f"S3 answered {code} ({status}) for s3://{bucket}/{key}")
    return cast(Exception, error)


def _told_without_answer(error: Exception) -> Exception:
    if "Credentials" in type(error).__name__:
        text = "missing, and this machine has no credentials of its own; give key and secret."
        return Misconfigured("connectors.files", [Problem("storageOptions", text)])
    if "Region" in type(error).__name__:
        return Misconfigured("connectors.files", [Problem("storageOptions", 'has no client_kwargs.region_name.')])
    return Transient(f"S3 cannot be reached: {error}")


@lru_cache(maxsize=8)
def _client(storage: str, process: int) -> Any:
    """One client for each process: connections do not survive a fork."""
    return s3_client(json.loads(storage))


class S3Store(Store):
    """Small objects under one prefix."""

    def __init__(self, s3: S3, prefix: str) -> None:
        self.s3 = s3
        self.prefix = prefix

    def put_if_absent(self, name: str, content: bytes) -> bool:
        try:
            self.s3.call("put_object", Key=self.prefix + name, Body=content, IfNoneMatch="*")
        except _Taken:
            return self.get(name) == content  # ours after all, if an answer was lost and the client asked again
        return True

    def get(self, name: str) -> bytes:
        return bytes(self.s3.call("get_object", Key=self.prefix + name)["Body"].read())

    def names(self, folder: str = "") -> list[str]:
        names, _ = self.s3.level(self.prefix + (f"{folder}/" if folder else ""))
        return [name for name in names if not name.startswith(".")]

    def folders(self) -> list[str]:
        return self.s3.level(self.prefix)[1]

    def delete(self, name: str) -> None:
        self.s3.call("delete_object", Key=self.prefix + name)


class S3Folder:
    """One sink's view of its target in S3; see :class:`~connectors.core.folder.TargetFolder` for what each method does."""

    def __init__(self, path: str, sink_id: str, storage: Mapping[str, Any]) -> None:
        bucket, key = bucket_and_key(path)
        self.root = f"s3://{bucket}/{key}"
        self.storage = storage
        self.s3 = S3(bucket, storage)
        self._key = f"{key}/" if key else ""
        self._own = f".connectors/{quote(sink_id, safe='').replace('.', '%2E')}"

    @classmethod
    def sink_ids(cls, path: str, storage: Mapping[str, Any]) -> list[str]:
        folder = cls(path, "", storage)
        return sorted(unquote(name) for name in folder.s3.level(f"{folder._key}.connectors/")[1])

    def ledger(self, name: str = "ledger") -> FileLedger:
        return FileLedger(self._store(name))

    def begin(self, attempt: str) -> str:
        return self.hidden("stage", attempt)

    def hidden(self, *names: str) -> str:
        return "/".join((self._own, *names))

    def spark_url(self, name: str) -> str:
        return f"s3a://{self.s3.bucket}/{self._key}{name}"

    def spark_options(self) -> dict[str, str]:
        return spark_options(self.root, self.storage)

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        prefix = f"{self._key}{under}/"
        for one in self.s3.keys(prefix):
            below = one["Key"].removeprefix(prefix)
            if below and not below.endswith("/") and not any(map(is_hidden, below.split("/"))):
                yield f"{under}/{below}", one["Size"]

    def listed(self, under: str) -> Iterator[str]:
        return (name for name, _ in self.files(under))

    def size(self, name: str) -> int | None:
        try:
            return int(self.s3.call("head_object", Key=self._key + name)["ContentLength"])
        except FileNotFoundError:
            return None

    def reading(self, name: str) -> BinaryIO:
        content = spooled()
        body = self.s3.call("get_object", Key=self._key + name)["Body"]
        for block in body.iter_chunks(1 << 20):
            content.write(block)
        content.seek(0)
        return content

    def writing(self, name: str) -> BinaryIO:
        return cast(BinaryIO, Uploaded(lambda content: self.s3.upload(content, self._key + name)))

    def publish(self, staged: str, final: str) -> None:
        size = self.size(staged)
        uploads, name = self._store("uploads"), digest(staged, length=24)
        if size is None:
            uploads.delete(name)
            return
        try:
            told = json.loads(uploads.get(name))
        except FileNotFoundError:
            told = self._prepared(staged, final, size)
            if told is None:
                return
            if not uploads.put_if_absent(name, dumps(told).encode()):
                self._forget(told)
                with contextlib.suppress(FileNotFoundError):  # whoever put the other one is through with it by now
                    told = json.loads(uploads.get(name))
        self._complete(told)
        self.delete(staged)
        uploads.delete(name)

    def delete(self, name: str) -> None:
        self.s3.call("delete_object", Key=self._key + name)

    def remove(self, attempt: str) -> None:
        self.s3.delete_all(f"{self._key}{self.hidden('stage', attempt)}/")

    def sweep(self, older_than: float, live: frozenset[str]) -> None:
        prefix = f"{self._key}{self.hidden('stage')}/"
        young: dict[str, float] = {}
        for one in self.s3.keys(prefix):
            attempt = one["Key"].removeprefix(prefix).split("/")[0]
            young[attempt] = max(young.get(attempt, 0.0), one["LastModified"].timestamp())
        for attempt, touched in young.items():
            if time.time() - touched > older_than and attempt.split("-")[0] not in live:
                self.remove(attempt)

    def _store(self, name: str) -> S3Store:
        return S3Store(self.s3, f"{self._key}{self.hidden(name)}/")

    def _prepared(self, staged: str, final: str, size: int) -> dict[str, Any] | None:
        """An upload that holds a copy of ``staged``; ``None`` if somebody has published it in this very moment."""
        key, source = self._key + final, {"Bucket": self.s3.bucket, "Key": self._key + staged}
        if self.size(final) is not None:
            if self.size(staged) is None:
                return None
            raise self._exists(final)
        told = {"key": key, "final": final, "upload": self.s3.call("create_multipart_upload", Key=key)["UploadId"]}
        upload = {"Key": key, "UploadId": told["upload"]}
        parts = []
        try:
            for number, first in enumerate(range(0, max(1, size), _COPIED), 1):
                if size:
                    part = {"CopySource": source, "CopySourceRange": f"bytes={first}-{min(first + _COPIED, size) - 1}"}
                    made = self.s3.call("upload_part_copy", PartNumber=number, **upload, **part)["CopyPartResult"]
                else:
                    made = self.s3.call("upload_part", PartNumber=number, Body=b"", **upload)
                parts.append({"PartNumber": number, "ETag": made["ETag"]})
        except FileNotFoundError:
            self._forget(told)
            return None
        return {**told, "parts": parts}

    def _complete(self, told: Mapping[str, Any]) -> None:
        upload = {"Key": told["key"], "UploadId": told["upload"]}
        try:
            self.s3.call("list_parts", **upload)  # for a while S3 answers a second completion as it did the first
            self.s3.call("complete_multipart_upload", MultipartUpload={"Parts": told["parts"]}, IfNoneMatch="*", **upload)
        except _Taken:
            raise self._exists(told["final"]) from None
        except _NoUpload:
            return  # it was completed before

    def _forget(self, told: Mapping[str, Any]) -> None:
        with contextlib.suppress(_NoUpload):
            self.s3.call("abort_multipart_upload", Key=told["key"], UploadId=told["upload"])

    def _exists(self, final: str) -> Fatal:
        return Fatal(
            f"{final} exists in {self.root}, and it is not the file that is to be published",
            way_out="move that object away; nothing was overwritten, and the next start goes on from here",
        )
