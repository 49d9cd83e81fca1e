"""Files, and tables that are folders."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .base import COLUMNS, Order, Scratch, parquet, text_of


class Files(Scratch):
    """Parquet files in a folder for each name, below the folder that ``address`` names, on any storage."""

    batch_limit = "maxFilesPerTrigger"

    def _storage(self) -> Any:
        from ...storage.location import storage_of

        root = self.address if "*" not in self.address else self.address[: self.address.index("*")].rpartition("/")[0]
        return storage_of(root.rstrip("/"), json.loads(self.options.get("storageOptions", "{}")))

    def place(self, name: str) -> str:
        return f"{self._storage().root}/{name}/*.parquet"

    def target_place(self, name: str) -> str:
        return f"{self._storage().root}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self._storage().items(name))

    def create(self, name: str) -> None:
        """The first file makes it."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self._storage().replace(f"{name}/{orders[0]['id']:09}.parquet", parquet(orders))

    def drop(self, name: str) -> None:
        self._storage().delete_folder(name)


class Lines(Scratch):
    """A growing file for each name, in the folder that ``address`` names."""

    batch_limit = "maxBytesPerTrigger"
    is_ascii = False

    def place(self, name: str) -> str:
        return f"{self._folder}/{name}.jsonl"

    @property
    def _folder(self) -> Path:
        path = Path(self.address)
        return path.parent if "*" in path.name else path

    def exists(self, name: str) -> bool:
        return self._file(name).exists()

    def create(self, name: str) -> None:
        """The first line makes it."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(name).open("a") as file:
            file.writelines(f"{text_of(order, is_ascii=self.is_ascii)}\n" for order in orders)

    def drop(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return Path(self.place(name))


class Delta(Files):
    """Tables that are folders below ``address``, on any storage."""

    batch_limit = "maxBytesPerTrigger"

    def place(self, name: str) -> str:
        return f"{self.address}/{name}"

    target_place = place

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from pyspark.sql import SparkSession

        rows = [(o["id"], o["city"], o["cents"], datetime.datetime.fromisoformat(o["at"])) for o in orders]
        frame = SparkSession.active().createDataFrame(rows, COLUMNS)
        frame.coalesce(1).write.format("delta").mode("append").save(self.place(name))
