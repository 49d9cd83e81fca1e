"""``storageOptions``: fsspec's keys, in the words of Arrow, of boto3, of WebHDFS and of Spark's S3 client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any
from urllib.parse import urlparse

from ...core import Problem
from ...core.errors import Misconfigured
from ...core.options import redacted
from .hadoop import HDFS
from .hdfs_files import HdfsFiles
from .webhdfs import WebHdfs

_TOP = ("key", "secret", "token", "endpoint_url", "client_kwargs")
_CLIENT = ("endpoint_url", "region_name")
_WEB = ("host", "port", "user", "token", "use_https")
_WEB_PORT = 9870
S3 = ("s3://", "s3a://")
_RETRIES = {"mode": "standard", "total_max_attempts": 2}
"""Few: the sink itself waits for outages, as ``retry.*`` says."""


def check_storage(path: str, storage: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with a path and its ``storageOptions``."""
    if path.startswith(S3):
        client = storage.get("client_kwargs", {})
        unknown = [key for key in storage if key not in _TOP]
        unknown += [f"client_kwargs.{key}" for key in client if key not in _CLIENT]
        if unknown:
            known = ", ".join((*_TOP[:-1], *(f"client_kwargs.{key}" for key in _CLIENT)))
            yield Problem("storageOptions", f"has {', '.join(sorted(unknown))}, which cannot be translated; known: {known}.")
        if ("key" in storage) != ("secret" in storage):
            yield Problem("storageOptions", "has one of key and secret; give both, or none to use the machine's own.")
        if not urlparse(path).netloc:
            yield Problem("path", f"must name a bucket, as s3://bucket/folder; got {redacted('path', path)}.")
    elif path.startswith(HDFS):
        if unknown := [key for key in storage if key not in _WEB]:
            text = f"has {', '.join(sorted(unknown))}, which WebHDFS cannot use here; known: {', '.join(_WEB)}."
            yield Problem("storageOptions", text + " With Kerberos give a delegation token, or write by foreach_batch.")
        if "token" in storage and "user" in storage:
            yield Problem("storageOptions", "has a token and a user; the token names its user, so leave user out.")
    elif "://" in path and not path.startswith("file:"):
        text = f"must be a local or mounted folder, s3://… or hdfs://…; got {redacted('path', path)}. Mount it."
        yield Problem("path", text)
    elif storage:
        yield Problem("storageOptions", "mean nothing for a local or mounted folder.")


def endpoint(storage: Mapping[str, Any]) -> str | None:
    """The address of an S3 that is not Amazon's."""
    found: str | None = storage.get("endpoint_url") or storage.get("client_kwargs", {}).get("endpoint_url")
    return found


def region(storage: Mapping[str, Any]) -> str | None:
    """The region, if it is given."""
    found: str | None = storage.get("client_kwargs", {}).get("region_name")
    return found


def bucket_and_key(path: str) -> tuple[str, str]:
    """``s3://bucket/some/folder/`` as bucket and ``some/folder``."""
    parsed = urlparse(path)
    return parsed.netloc, parsed.path.strip("/")


def web_hdfs(path: str, storage: Mapping[str, Any]) -> WebHdfs:
    """WebHDFS for ``path``; its address is that of the path, and the port Hadoop's own, unless ``storage`` has others."""
    host = storage.get("host") or urlparse(path).hostname
    if not host:
        problem = Problem("storageOptions", "has no host; a process without a JVM needs the NameNode's web address.")
        raise Misconfigured("connectors.files", [problem])
    scheme = "https" if storage.get("use_https") else "http"
    address = f"{scheme}://{host}:{storage.get('port', _WEB_PORT)}"
    return WebHdfs(address, storage.get("user"), storage.get("token"))


def file_system(path: str, storage: Mapping[str, Any]) -> tuple[Any, str]:
    """Arrow's file system for ``path``, or what can as much, and the path in it."""
    from pyarrow import fs

    if path.startswith(HDFS):
        return HdfsFiles(web_hdfs(path, storage)), urlparse(path).path.rstrip("/") or "/"
    if not path.startswith(S3):
        return fs.LocalFileSystem(), path.removeprefix("file://").removeprefix("file:")
    given = {
        "access_key": storage.get("key"),
        "secret_key": storage.get("secret"),
        "session_token": storage.get("token"),
        "region": region(storage),
    }
    if address := endpoint(storage):
        given |= {"endpoint_override": urlparse(address).netloc, "scheme": urlparse(address).scheme}
    made = fs.S3FileSystem(**{name: value for name, value in given.items() if value is not None})
    return made, "/".join(filter(None, bucket_and_key(path)))


def s3_client(storage: Mapping[str, Any]) -> Any:
    """A boto3 client. Raises :class:`Misconfigured` where boto3 is missing."""
    try:
        boto3, config = import_module("boto3"), import_module("botocore.config")
    except ImportError:
        text = "s3:// needs boto3; pip install 'boto3>=1.35.70'."
        raise Misconfigured("connectors.files", [Problem("path", text)]) from None
    return boto3.client(
        "s3",
        aws_access_key_id=storage.get("key"),
        aws_secret_access_key=storage.get("secret"),
        aws_session_token=storage.get("token"),
        endpoint_url=endpoint(storage),
        region_name=region(storage),
        config=config.Config(retries=_RETRIES, connect_timeout=10),
    )


def spark_options(path: str, storage: Mapping[str, Any]) -> dict[str, str]:
    """Options of a Spark writer that let its S3 client (``s3a://``) reach what the others reach."""
    if not storage:
        return {}
    prefix = f"fs.s3a.bucket.{bucket_and_key(path)[0]}."
    address, token = endpoint(storage), storage.get("token")
    provider = "TemporaryAWSCredentialsProvider" if token else "SimpleAWSCredentialsProvider"
    given = {
        "access.key": storage.get("key"),
        "secret.key": storage.get("secret"),
        "session.token": token,
        "aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{provider}" if storage.get("key") else None,
        "endpoint.region": region(storage),
        "endpoint": address,
        "path.style.access": "true" if address else None,
        "connection.ssl.enabled": "false" if address and address.startswith("http:") else None,
    }
    # Hadoop keeps one client per bucket, whatever options come later: a session's own would be used instead of these.
    return {prefix + name: str(value) for name, value in given.items() if value} | {"fs.s3a.impl.disable.cache": "true"}
