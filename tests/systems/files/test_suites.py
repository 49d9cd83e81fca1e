"""The sink passes every case of the kit, however its files roll and wherever they lie."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from connectors.systems.files import FilesSink
from connectors.systems.files.by_hand import seal_folder
from connectors.testing import SinkContext, SinkSuite
from connectors.testing.servers import MotoServer

from ...servers import required
from ..reference_contexts import FilesContext


class RollingContext(FilesContext):
    """Parts wait; before a reader looks, they are sealed, as ``connectors files seal`` does."""

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder), "rolling": "policy"}

    def files(self) -> list[Any]:
        seal_folder(str(self.folder))
        return super().files()


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
        return [one["Key"] for one in listed if "/." not in one["Key"]]

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
        seal_folder(self.options()["path"], self.storage)
        return super().keys()


class TestRolling(SinkSuite):
    context = RollingContext


class TestSealing(SinkSuite):
    context = SealingContext


class TestS3(SinkSuite):
    context = S3Context


class TestRollingS3(SinkSuite):
    context = RollingS3Context
