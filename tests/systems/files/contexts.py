"""Where the sink writes in tests: each store, with and without rolling and buckets; also the targets of killed drivers.

On Spark with ``foreach_batch`` the S3 ones need the jars of Spark's S3 client: ``{"spark.jars": ",".join(s3_jars())}``.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from connectors.core import Misconfigured
from connectors.storage.hdfs import WebHdfs
from connectors.systems.files import FilesSink
from connectors.systems.files.rolling import seal_folder
from connectors.testing import SinkContext
from connectors.testing.servers import HdfsServer, MotoServer

from ...servers import required
from ..reference_contexts import FilesContext


class RollingContext(FilesContext):
    """Parts wait; before a reader looks, they are sealed, as ``connectors files seal`` does."""

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "rolling": "policy"}

    def files(self) -> list[Any]:
        with contextlib.suppress(Misconfigured):  # a reader may look before any sink has written
            seal_folder(str(self.folder))
        return super().files()


class BucketedContext(RollingContext):
    """Rows of two shops and different hours wait in folders of the shop and the hour."""

    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("shop", pa.string())])
    select = ("value AS id", "timestamp_seconds(1709159400 + value % 3 * 3600) AS at", "concat('_', value % 2) AS shop")

    def options(self) -> dict[str, str]:
        pattern = {"bucket": "{shop}/'day='yyyy-MM-dd/HH", "bucket.timeColumn": "at", "bucket.timeZone": "Europe/Berlin"}
        return {**super().options(), **pattern}

    def rows(self) -> list[dict[str, Any]]:
        rows = super().rows()  # of Spark's own files pyarrow gives times without a zone, which are in UTC
        return [{**row, "at": row["at"].replace(tzinfo=datetime.timezone.utc)} for row in rows]

    def row(self, number: int) -> dict[str, Any]:
        hours = datetime.timedelta(hours=number % 3)
        at = datetime.datetime(2024, 2, 28, 22, 30, tzinfo=datetime.timezone.utc) + hours
        return {"id": number, "at": at, "shop": f"_{number % 2}"}


class FinishedContext(RollingContext):
    """Six rows of each hour wait in its folder; a success file appears there as soon as a row of the next hour is committed."""

    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    select = ("value AS id", "timestamp_seconds(1709164800 + value * 600) AS at")
    begin = datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc)

    def options(self) -> dict[str, str]:
        bucket = {"bucket": "'day='yyyy-MM-dd/HH", "bucket.timeColumn": "at"}
        return {**super().options(), **bucket, "bucket.successFile": "_SUCCESS", "bucket.finishedAfter": "0s"}

    def rows(self) -> list[dict[str, Any]]:
        hidden = list(self.folder.glob(".connectors/*/parts/*/*/*.parquet"))
        is_one_sink = len(list(self.folder.glob(".connectors/*"))) == 1  # each finishes the folders of its own rows
        early = {f"{file.parts[-3]}/{file.parts[-2]}" for file in hidden} & self.finished()
        assert not (is_one_sink and early), "a success file came early"
        return [{**row, "at": row["at"].replace(tzinfo=datetime.timezone.utc)} for row in super().rows()]

    def row(self, number: int) -> dict[str, Any]:
        return {"id": number, "at": self.begin + datetime.timedelta(minutes=10 * number)}

    def finished(self) -> set[str]:
        """The folders that have a success file."""
        return {file.parent.relative_to(self.folder).as_posix() for file in self.folder.glob("day=*/*/_SUCCESS")}

    def expect(self, last: int, first: int = 1) -> None:
        super().expect(last, first)
        hours = {self.row(number)["at"].replace(minute=0) for number in range(first, last + 1)}
        over = {f"{hour:day=%Y-%m-%d/%H}" for hour in hours if hour + datetime.timedelta(hours=1) <= self.row(last)["at"]}
        assert over <= self.finished()
        assert all(folder < f"{self.row(last)['at']:day=%Y-%m-%d/%H}" for folder in self.finished())


class SealingContext(FilesContext):
    """Each commit seals the two parts of before, and more or fewer where tasks are."""

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "rolling": "policy", "rolling.inactivityInterval": "0", "fileFormat": "parquet"}


class S3Context(SinkContext):
    """A folder in a bucket of its own, read as any reader of objects reads it."""

    sink = FilesSink

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.bucket = f"b{uuid.uuid4().hex}"
        self.storage = required(MotoServer).bucket(self.bucket)
        self.client = required(MotoServer).client("s3")

    def options(self) -> dict[str, str]:
        return {"path": f"s3://{self.bucket}/deep/folder", "storageOptions": json.dumps(self.storage)}

    def keys(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=self.bucket, Prefix="deep/folder/").get("Contents", [])
        return [item["Key"] for item in listed if "/." not in item["Key"]]

    def rows(self) -> list[dict[str, Any]]:
        objects = (self.client.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in self.keys())
        return [row for content in objects for row in pq.read_table(io.BytesIO(content)).to_pylist()]

    def take_away(self) -> list[dict[str, Any]]:
        taken = self.rows()
        for key in self.keys():
            self.client.delete_object(Bucket=self.bucket, Key=key)
        return taken


class RollingS3Context(S3Context):
    """Parts wait in the bucket; before a reader looks, they are sealed."""

    def options(self) -> dict[str, str]:
        return {**super().options(), "rolling": "policy"}

    def keys(self) -> list[str]:
        with contextlib.suppress(Misconfigured):  # a batch write leaves nothing hidden behind, and a bucket has no folders
            seal_folder(self.options()["path"], self.storage)
        return super().keys()


class HdfsContext(SinkContext):
    """A folder in HDFS, read as any reader lists it: without hidden names."""

    sink = FilesSink

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = required(HdfsServer)
        self.at = f"/{uuid.uuid4().hex}/deep/folder"
        self.hdfs = WebHdfs(f"http://{self.server.web}", "test")

    def options(self) -> dict[str, str]:
        return {"path": self.server.url + self.at, "storageOptions": json.dumps(self.server.storage)}

    def files(self, folder: str = "") -> list[str]:
        children = self.hdfs.children(self.at + folder)
        entries = [(f"{folder}/{entry.name}", entry) for entry in children if entry.name[0] not in "._"]
        below = [file for name, entry in entries if entry.is_folder for file in self.files(name)]
        return sorted([*(name for name, entry in entries if not entry.is_folder), *below])

    def content(self, file: str) -> bytes:
        content = io.BytesIO()
        self.hdfs.download(self.at + file, content)
        return content.getvalue()

    def rows(self) -> list[dict[str, Any]]:
        return [row for file in self.files() for row in pq.read_table(io.BytesIO(self.content(file))).to_pylist()]

    def take_away(self) -> list[dict[str, Any]]:
        taken = self.rows()
        for file in self.files():
            assert self.hdfs.rename(self.at + file, f"/taken-{uuid.uuid4().hex}")
        return taken

    def leftovers(self) -> list[str]:
        hidden = f"{self.at}/.connectors"
        return sorted(stage for sink in self.hdfs.names(hidden) for stage in self.hdfs.names(f"{hidden}/{sink}/stage"))


class RollingHdfsContext(HdfsContext):
    """Parts wait in HDFS; before a reader looks, they are sealed."""

    def options(self) -> dict[str, str]:
        return {**super().options(), "rolling": "policy"}

    def rows(self) -> list[dict[str, Any]]:
        if self.hdfs.status(f"{self.at}/.connectors"):
            seal_folder(self.options()["path"], self.server.storage)
        return super().rows()
