"""The client of a bucket of S3, whose errors are those of this library."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, Final
from urllib.parse import urlparse

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem, Transient
from ..ground.identities import SERVICE_CREDENTIAL, service_credential

AT_ONCE: Final = 16
"""Requests of a publication that are under way at a time."""
_GONE = ("404", "NoSuchKey", "NotFound")
_TAKEN = ("412", "PreconditionFailed")
_BUSY = ("409", "ConditionalRequestConflict")
_WRONG = {
    "NoSuchBucket": ("path", "names a bucket that is not there"),
    "AccessDenied": ("storageOptions", "may not do that (AccessDenied); give credentials that may read, write and delete"),
    "InvalidAccessKeyId": ("storageOptions", "has a key that S3 does not know"),
    "SignatureDoesNotMatch": ("storageOptions", "has a secret that does not fit the key"),
    "ExpiredToken": ("storageOptions", "has a token that has expired; give a new one with its key and secret"),
    "NotImplemented": ("path", "is on a server that lacks what this takes, such as conditional writes; take a newer version"),
    "InvalidToken": ("storageOptions", "has a token that S3 does not know"),
    "PermanentRedirect": ("storageOptions", "has another region than the bucket; correct client_kwargs.region_name"),
    "403": ("storageOptions", "may not do that (403); give credentials that may read, write and delete, or correct them"),
    "400": ("storageOptions", "is not what S3 expects (400): correct token and client_kwargs.region_name"),
    "301": ("storageOptions", "has another region than the bucket (301); correct client_kwargs.region_name"),
}
"""Codes of refusals, with the option to blame. The answer to a HEAD has no body: its code is the status."""
_RETRIES: Final = {"mode": "standard", "total_max_attempts": 2}
"""Few: the layers above wait for outages, as ``retry.*`` says."""


class PreconditionFailed(Exception):
    """A conditional write found something there."""


class NoSuchUpload(Exception):
    """The multipart upload was completed, or aborted."""


class Bucket:
    """One bucket, with errors of this library."""

    page = 1000
    """The number of keys that a listing has at a time."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self._options = json.dumps(dict(options), sort_keys=True)

    @property
    def client(self) -> Any:
        return _client(self._options, os.getpid())

    def call(self, operation: str, **arguments: Any) -> Any:
        """One request. Raises ``FileNotFoundError`` for a key that is not there, :class:`Transient` for an outage."""
        key = str(arguments.get("Key", ""))
        return self._translated(lambda: getattr(self.client, operation)(Bucket=self.name, **arguments), key)

    def upload(self, content: Any, key: str) -> None:
        """Puts a file of any size, in parts if it is large."""
        self._translated(lambda: self.client.upload_fileobj(content, self.name, key), key)

    def _translated(self, request: Callable[[], Any], key: str) -> Any:
        """The answer to ``request``; its errors are those of this library."""
        _ = self.client  # says what is missing, if boto3 is
        errors, more = import_module("botocore.exceptions"), import_module("boto3.exceptions")
        try:
            return request()
        except errors.ClientError as error:
            raise _error_of_answer(error, self.name, key) from None
        except (errors.BotoCoreError, more.Boto3Error) as error:
            raise _error_without_answer(error) from None

    def keys(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The objects whose keys begin with ``prefix``."""
        for page in self.pages(Prefix=prefix):
            yield from page.get("Contents", ())

    def delete_keys(self, keys: Iterable[str]) -> None:
        """Removes objects, by a request for each thousand. Its answer is a success also where some of them are not removed."""
        objects = [{"Key": key} for key in keys]
        for first in range(0, len(objects), 1000):
            answer = self.call("delete_objects", Delete={"Objects": objects[first : first + 1000], "Quiet": True})
            for left in answer.get("Errors", ()):
                raise _error_of_code(left.get("Code", ""), 200, self.name, left.get("Key", ""), left.get("Message", ""))

    def pages(self, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """The answers to a listing of objects."""
        return self._pages("list_objects_v2", ("ContinuationToken",), MaxKeys=self.page, **arguments)

    def uploads(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The multipart uploads that are neither completed nor aborted, to keys that begin with ``prefix``."""
        for page in self._pages("list_multipart_uploads", ("KeyMarker", "UploadIdMarker"), Prefix=prefix):
            yield from page.get("Uploads", ())

    def _pages(self, operation: str, markers: Sequence[str], **arguments: Any) -> Iterator[Mapping[str, Any]]:
        page: Mapping[str, Any] = {"IsTruncated": True}
        while page.get("IsTruncated"):
            page = self.call(operation, **arguments)
            yield page
            arguments |= {marker: page.get(f"Next{marker}") for marker in markers}


def _error_of_answer(error: Any, bucket: str, key: str) -> Exception:
    described = error.response["Error"]
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    return _error_of_code(described["Code"], status, bucket, key, described.get("Message", ""))


def _error_of_code(code: str, status: int, bucket: str, key: str, message: str) -> Exception:
    if code in _GONE:
        return FileNotFoundError(2, "no such object", f"s3://{bucket}/{key}")
    if code in _TAKEN:
        return PreconditionFailed()
    if code == "NoSuchUpload":
        return NoSuchUpload()
    if code in _WRONG:
        option, text = _WRONG[code]
        return Misconfigured("connectors.storage", [Problem(option, f"{text} (bucket {bucket}).")])
    if status >= 500 or status == 429 or code in (*_BUSY, "SlowDown", "RequestTimeout", "InternalError"):
        return Transient(f"S3 answered {code} ({status}) for s3://{bucket}/{key}")
    return OSError(f"S3 answered {code} ({status}) for s3://{bucket}/{key}: {message}")


def _error_without_answer(error: Exception) -> Exception:
    if "Credentials" in type(error).__name__:
        text = "missing, and this machine has no credentials of its own; give key and secret."
        return Misconfigured("connectors.storage", [Problem("storageOptions", text)])
    if "Region" in type(error).__name__:
        return Misconfigured("connectors.storage", [Problem("storageOptions", "has no client_kwargs.region_name.")])
    return Transient(f"S3 cannot be reached: {error}")


def bucket_and_key(location: str) -> tuple[str, str]:
    """``s3://bucket/some/folder/`` as bucket and ``some/folder``."""
    parsed = urlparse(location)
    return parsed.netloc, parsed.path.strip("/")


def endpoint(options: Mapping[str, Any]) -> str | None:
    """The address of an S3 that is not Amazon's."""
    address: str | None = options.get("endpoint_url") or options.get("client_kwargs", {}).get("endpoint_url")
    return address


def region(options: Mapping[str, Any]) -> str | None:
    """The region, if there is one in the options."""
    name: str | None = options.get("client_kwargs", {}).get("region_name")
    return name


@lru_cache(maxsize=8)
def _client(options: str, process: int) -> Any:
    """One client for each process: connections do not survive a fork."""
    boto3 = client_library("boto3", "'boto3>=1.35.70'", connector="connectors.storage", option="path")
    config = import_module("botocore.config")
    keys = json.loads(options)
    name = keys.get(SERVICE_CREDENTIAL)
    provider = service_credential("connectors.storage", name, "get_credentials") if name else None
    return boto3.Session(botocore_session=provider).client(
        "s3",
        aws_access_key_id=keys.get("key"),
        aws_secret_access_key=keys.get("secret"),
        aws_session_token=keys.get("token"),
        endpoint_url=endpoint(keys),
        region_name=region(keys),
        config=config.Config(retries=_RETRIES, connect_timeout=10, max_pool_connections=AT_ONCE),
    )
