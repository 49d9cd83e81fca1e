"""A folder in S3: publication where there is no rename.

A staged object becomes visible by a multipart upload whose only parts are copies of it, made by the server: the upload is
prepared, its id is put into the journal, and then it is completed, which is one step. The uploads of a batch are prepared and
completed several at a time, and their ids are one object of the journal. Whoever finds an id later looks for the upload: the
answer ``NoSuchUpload`` says that it was completed, or that somebody has aborted it; the final object tells which. Nothing
is ever overwritten. Small files are put by conditional writes (``If-None-Match``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from posixpath import commonprefix
from typing import Any, BinaryIO, cast

import pyarrow as pa

from ..ground import machine
from ..ground.errors import ConnectorError, Fatal, Misconfigured, Problem
from ..ground.identities import SERVICE_CREDENTIAL
from .base import Content, Item, Storage, Upload, is_hidden, ranged, temporary_name
from .s3_bucket import AT_ONCE, Bucket, NoSuchUpload, PreconditionFailed, bucket_and_key, endpoint, region

_COPIED = 1 << 30
"""Bytes of one copied part; S3 allows five times as many."""

_checked: set[tuple[str, str | None]] = set()
"""Folders, with the addresses of their servers, that can create an object only where there is none."""


class S3Storage(Storage):
    """The objects whose keys begin with a folder's name."""

    def __init__(self, location: str, options: Mapping[str, Any]) -> None:
        bucket, key = bucket_and_key(location)
        self.root = f"s3://{bucket}/{key}".rstrip("/")
        self.options = options
        self.bucket = Bucket(bucket, options)
        self._prefix = f"{key}/" if key else ""

    def put_if_absent(self, name: str, content: Content) -> bool:
        try:
            self.bucket.call("put_object", Key=self._prefix + name, Body=content, IfNoneMatch="*")
        except PreconditionFailed:
            # Ours after all, if an answer was lost and the client asked again.
            with contextlib.suppress(FileNotFoundError):
                return isinstance(content, bytes) and self.read(name) == content
            return False
        return True

    def replace(self, name: str, content: Content, *, durable: bool = False) -> None:
        self.bucket.call("put_object", Key=self._prefix + name, Body=content)

    def read(self, name: str) -> bytes:
        return bytes(self.bucket.call("get_object", Key=self._prefix + name)["Body"].read())

    def open(self, name: str) -> pa.NativeFile:
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(2, "no such object", f"{self.root}/{name}")

        def read(offset: int, length: int) -> bytes:
            part = f"bytes={offset}-{offset + length - 1}"
            return bytes(self.bucket.call("get_object", Key=self._prefix + name, Range=part)["Body"].read())

        return ranged(f"{self.root}/{name}", size, read)

    def create(self, name: str) -> BinaryIO:
        return cast(BinaryIO, Upload(lambda content: self.bucket.upload(content, self._prefix + name)))

    def items(self, folder: str = "") -> list[Item]:
        prefix = self._prefix + (f"{folder}/" if folder else "")
        items = []
        for page in self.bucket.pages(Prefix=prefix, Delimiter="/"):
            objects = ((listed["Key"].removeprefix(prefix), listed) for listed in page.get("Contents", ()))
            items += [Item(name, False, listed["Size"], _nanoseconds(listed)) for name, listed in objects if name]
            folders = (listed["Prefix"].removeprefix(prefix) for listed in page.get("CommonPrefixes", ()))
            items += [Item(name.rstrip("/"), True, 0, 0) for name in folders]
        return items

    def files(self, under: str) -> Iterator[tuple[str, int]]:
        prefix = f"{self._prefix}{under}/" if under else self._prefix
        for listed in self.bucket.keys(prefix):
            below = listed["Key"].removeprefix(prefix)
            if below and not below.endswith("/") and not any(map(is_hidden, below.split("/"))):
                yield f"{under}/{below}" if under else below, listed["Size"]

    def touched(self, folder: str) -> dict[str, float]:
        prefix = f"{self._prefix}{folder}/" if folder else self._prefix
        newest: dict[str, float] = {}
        for listed in self.bucket.keys(prefix):
            name = listed["Key"].removeprefix(prefix).split("/")[0]
            newest[name] = max(newest.get(name, 0.0), listed["LastModified"].timestamp())
        return newest

    def item(self, name: str) -> Item | None:
        key = f"{self._prefix}{name}".rstrip("/")
        with contextlib.suppress(FileNotFoundError):
            if key:
                head = self.bucket.call("head_object", Key=key)
                return Item(name, False, head["ContentLength"], _nanoseconds(head))
        page = self.bucket.call("list_objects_v2", Prefix=f"{key}/" if key else "", MaxKeys=1)
        return Item(name, True, 0, 0) if page.get("KeyCount") else None

    def size(self, name: str) -> int | None:
        try:
            return int(self.bucket.call("head_object", Key=self._prefix + name)["ContentLength"])
        except FileNotFoundError:
            return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """See :meth:`Storage.sizes`. By one listing, in however many folders they are; one file is asked for by itself."""
        keys = {self._prefix + name: name for name in names}
        if len(keys) == 1:
            return {name: size for name in keys.values() if (size := self.size(name)) is not None}
        listing = self.bucket.keys(commonprefix(list(keys))) if keys else ()
        return {keys[listed["Key"]]: listed["Size"] for listed in listing if listed["Key"] in keys}

    def delete(self, name: str) -> None:
        self.bucket.call("delete_object", Key=self._prefix + name)

    def delete_folder(self, name: str) -> None:
        self.bucket.delete_keys(listed["Key"] for listed in self.bucket.keys(f"{self._prefix}{name}/"))

    def make_folder(self, name: str) -> None:
        """A bucket has no folders."""

    def publish(self, name: str, final: str, journal: str) -> bool:
        return bool(self.publish_all([(name, final)], journal))

    def publish_all(self, files: Sequence[tuple[str, str]], journal: str) -> list[str]:
        """See :meth:`Storage.publish_all`. Four requests for each file, and some for all of them.

        Of any number of callers, one puts its uploads into the record. All complete those, and nobody deletes the record
        before the staged files are gone. So the record is read first: who puts one too late finds no staged file after it.
        It is named by the staged files alone: a start with other options goes on with the final names that it holds.
        """
        staged = json.dumps([name for name, _ in files])
        record = f"{journal}/{hashlib.sha256(staged.encode()).hexdigest()[:24]}"
        conflict, is_own = None, False
        while True:
            uploads = self._recorded(record)
            sizes = self.sizes(name for name, _ in files)
            if not sizes:
                if uploads is not None:
                    self._abort_all(uploads.values())
                    self.delete(record)
                return []
            if uploads is not None:
                return self._complete_all({name: uploads[name] for name in sizes}, record, fresh=is_own)
            if conflict is not None:
                raise self.name_taken(conflict)
            conflict, is_own = self._prepare_all([(name, final) for name, final in files if name in sizes], sizes, record)

    def abort_orphans(self, older_than: float, journal: str, is_own: Callable[[str], bool]) -> None:
        records = (self._recorded(f"{journal}/{name}") or {} for name in self.names(journal))
        known = {upload["upload"] for uploads in records for upload in uploads.values()}
        for upload in self.bucket.uploads(self._prefix):
            old = machine.time() - upload["Initiated"].timestamp() > older_than
            if old and upload["UploadId"] not in known and is_own(upload["Key"].removeprefix(self._prefix)):
                self._abort(upload["Key"], upload["UploadId"])

    def check(self) -> None:
        """Tries it in the folder, once in a process: some servers that speak S3's protocol ignore conditions."""
        place = (self.root, endpoint(self.options))
        if place in _checked:
            return
        probe = temporary_name()
        try:
            both = self.put_if_absent(probe, b"first") and self.put_if_absent(probe, b"second")
        finally:
            self.delete(probe)
        if both:
            text = (
                f'"{self.root}" cannot create a file only where there is none: its server ignores If-None-Match, so that two '
                "drivers could both commit. Take a newer version of the server, or another storage."
            )
            raise Misconfigured("connectors.storage", [Problem("path", text)])
        _checked.add(place)

    def spark_url(self, name: str) -> str:
        return f"s3a://{self.bucket.name}/{self._prefix}{name}"

    def spark_options(self) -> dict[str, str]:
        """See :meth:`Storage.spark_options`. They let Spark's client (``s3a://``) reach what the others reach."""
        options = self.options
        if not options:
            return {}
        if SERVICE_CREDENTIAL in options:
            text = f"has {SERVICE_CREDENTIAL}, by which Spark's own writer cannot log in. Write by writeStream.format, or "
            text += "leave it out where an external location of Unity Catalog lets Spark and this process into the bucket."
            raise Misconfigured("connectors.storage", [Problem("storageOptions", text)])
        address, token = endpoint(options), options.get("token")
        provider = "TemporaryAWSCredentialsProvider" if token else "SimpleAWSCredentialsProvider"
        settings = {
            "access.key": options.get("key"),
            "secret.key": options.get("secret"),
            "session.token": token,
            "aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{provider}" if options.get("key") else None,
            "endpoint.region": region(options),
            "endpoint": address,
            "path.style.access": "true" if address else None,
            "connection.ssl.enabled": "false" if address and address.startswith("http:") else None,
        }
        named = {f"fs.s3a.bucket.{self.bucket.name}.{name}": str(value) for name, value in settings.items() if value}
        # Hadoop keeps one client per bucket, whatever options come later: a session's own would be used instead of these.
        return named | {"fs.s3a.impl.disable.cache": "true"}

    def _recorded(self, record: str) -> dict[str, dict[str, Any]] | None:
        """The uploads that a call has prepared, by the names of the staged files."""
        with contextlib.suppress(FileNotFoundError):
            return cast(dict[str, dict[str, Any]], json.loads(self.read(record)))
        return None

    def _prepare_all(
        self, files: Sequence[tuple[str, str]], sizes: Mapping[str, int], record: str
    ) -> tuple[str | None, bool]:
        """Puts uploads of ``files`` into ``record``, if there is none.

        Returns the final name that is taken, if one is, and whether this call has put the record.
        """
        uploads: dict[str, dict[str, Any]] = {}
        conflict, is_prepared = None, False
        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                for final in pool.map(lambda file: self._prepared(file[0], file[1], sizes[file[0]], uploads), files):
                    conflict = conflict or final
            is_prepared = conflict is None
        except FileNotFoundError:  # another process has published them in this very moment
            pass
        except (ConnectorError, OSError):
            with contextlib.suppress(ConnectorError, OSError):
                self._abort_all(uploads.values())  # each holds a copy
            raise
        # Uploads whose record may have been put, where the answer is lost, must live.
        is_own = is_prepared and self.put_if_absent(record, json.dumps(uploads, sort_keys=True).encode())
        if not is_own:
            self._abort_all(uploads.values())
        return conflict, is_own

    def _prepared(self, name: str, final: str, size: int, uploads: dict[str, dict[str, Any]]) -> str | None:
        """Adds to ``uploads`` one that holds a copy of ``name``. Returns ``final`` if an object has that name already."""
        if self.size(final) is not None:
            return final
        key, source = self._prefix + final, {"Bucket": self.bucket.name, "Key": self._prefix + name}
        target = {"Key": key, "UploadId": self.bucket.call("create_multipart_upload", Key=key)["UploadId"]}
        parts: list[dict[str, Any]] = []
        uploads[name] = {"final": final, "upload": target["UploadId"], "parts": parts}
        for number, first in enumerate(range(0, max(1, size), _COPIED), 1):
            if size:
                part = {"CopySource": source, "CopySourceRange": f"bytes={first}-{min(first + _COPIED, size) - 1}"}
                copy = self.bucket.call("upload_part_copy", PartNumber=number, **target, **part)["CopyPartResult"]
            else:
                copy = self.bucket.call("upload_part", PartNumber=number, Body=b"", **target)
            parts.append({"PartNumber": number, "ETag": copy["ETag"]})
        return None

    def _complete_all(self, uploads: Mapping[str, Mapping[str, Any]], record: str, *, fresh: bool) -> list[str]:
        """Completes the ``uploads``, and removes the staged files and the record. ``fresh`` if this call has put it."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            failures = list(pool.map(lambda name: self._failure(uploads[name], name, record, fresh), uploads))
        done = [name for name, failure in zip(uploads, failures, strict=True) if failure is None]
        self.bucket.delete_keys(self._prefix + name for name in done)
        for failure in filter(None, failures):
            raise failure
        self.delete(record)
        return done

    def _failure(self, upload: Mapping[str, Any], name: str, record: str, fresh: bool) -> Exception | None:
        """Completes one upload. Returns what is wrong with it: the others are published, and their staged files removed."""
        final, target = upload["final"], {"Key": self._prefix + upload["final"], "UploadId": upload["upload"]}
        try:
            try:
                if not fresh:
                    self.bucket.call("list_parts", **target)  # for a while S3 answers a second completion as it did the first
                self._try_to_complete(target, upload["parts"])
            except PreconditionFailed:
                return self.name_taken(final)
            except NoSuchUpload:
                if self.size(final) is None and self.size(name) is not None:
                    return self._lost(final, name, record)
        except (ConnectorError, OSError) as failure:
            return failure
        return None

    def _try_to_complete(self, target: Mapping[str, str], parts: Sequence[Mapping[str, Any]]) -> None:
        """Raises :class:`NoSuchUpload` for an upload that is over, :class:`PreconditionFailed` if another object is there."""
        try:
            self.bucket.call("complete_multipart_upload", MultipartUpload={"Parts": parts}, IfNoneMatch="*", **target)
        except PreconditionFailed:
            self.bucket.call("list_parts", **target)  # is over, if it is this upload's own object
            raise

    def _abort_all(self, uploads: Iterable[Mapping[str, Any]]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda upload: self._abort(self._prefix + upload["final"], upload["upload"]), uploads))

    def _abort(self, key: str, upload: str) -> None:
        with contextlib.suppress(NoSuchUpload):
            self.bucket.call("abort_multipart_upload", Key=key, UploadId=upload)

    def _lost(self, final: str, name: str, record: str) -> Fatal:
        return Fatal(
            f"{final} is not in {self.root}, and the upload that was to bring it there is gone: it was completed and a reader "
            "has moved the object since, or a rule of the bucket has aborted the upload; its rows are still staged",
            way_out=f"if a reader has moved it, delete {self.root}/{name}; if it was never there, delete {self.root}/{record}: "
            "the next start publishes it, with every other file that this record names and that is still staged: delete first "
            "what is staged of those that a reader has moved. Either way the start goes on from here",
        )


def _nanoseconds(listed: Mapping[str, Any]) -> int:
    return int(listed["LastModified"].timestamp() * 1_000_000) * 1000
