"""A demonstration: a system on this machine with sample orders; here those that are files.

It keeps below a folder what its system can keep, so that a second run goes on where the first has ended.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

Order = Mapping[str, Any]

ROWS: Final = 300
"""The orders that a demonstration gets at each run of a pipeline."""
COLUMNS: Final = "id long, city string, cents long, at timestamp"
_CITIES: Final = ("Bern", "Genève", "Zürich", "Lugano")
_FILE_CONNECTORS: Final = {"pluginPackages": "org.apache.kafka:connect-file:4.3.1"}


class Demo(ABC):
    """A system with sample orders. ``address`` reaches it, together with ``options``."""

    address: str
    target_address = ""
    """The address as a target, where that is another one."""
    options: Mapping[str, str] = {}
    parameters: Mapping[str, str] = {}
    """What reaches it beside the address, by the widgets of a pipeline."""
    forgets: ClassVar[Sequence[str]] = ()
    """The ends of a pipeline, ``source`` or ``target``, at which the system has forgotten everything in the next process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.is_used = False
        """True once a pipeline of this process has used it."""

    def feed(self, name: str = "orders", rows: int = ROWS) -> None:
        """Adds ``rows`` orders to ``name``, a topic, stream, table, index or file, which is made where there is none.

        One of fifty has a price below zero. Where a system takes any bytes, one of a hundred is cut off.
        """
        self.create(name)
        self.put(name, self._new(name, rows))

    def _new(self, name: str, rows: int) -> Sequence[Order]:
        counter = self.folder / f"{name}.rows"
        first = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(first + rows))  # first: no two orders have one id, also after a kill
        return list(_orders(first, rows))

    def create(self, name: str) -> None:  # noqa: B027  # many systems make it with the first row
        """Makes ``name`` where it is missing."""

    @abstractmethod
    def put(self, name: str, orders: Sequence[Order]) -> None:
        """Adds orders."""


class Files(Demo):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = str(folder / "*.parquet")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        times = [datetime.datetime.fromisoformat(order["at"]) for order in orders]
        rows = pa.Table.from_pylist([dict(order) for order in orders]).set_column(3, "at", pa.array(times))
        file = self.folder / f"{name}-{orders[0]['id']:09}.parquet"
        pq.write_table(rows, file.with_suffix(".part"))
        file.with_suffix(".part").rename(file)


class Lines(Demo):
    is_ascii = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = str(folder / "*.jsonl")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with (self.folder / f"{name}.jsonl").open("a") as file:
            file.writelines(f"{text_of(order, is_ascii=self.is_ascii)}\n" for order in orders)


class Connector(Lines):
    """Lines of files, by Kafka Connect's own connectors."""

    is_ascii = True  # the connector counts letters and goes on at that byte

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options = _FILE_CONNECTORS
        text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
        kind = "org.apache.kafka.connect.file.FileStream{}Connector"
        source = {"connector.class": kind.format("Source"), "file": str(folder / "orders.jsonl"), "topic": "orders"}
        target = {"connector.class": kind.format("Sink"), "file": str(folder / "copy.txt"), "name": "orders"}
        self.address, self.target_address = json.dumps({**source, **text}), json.dumps({**target, **text})


class Database(Demo):
    """An SQLite file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.file = folder / "orders.db"
        self.address = f"jdbc:sqlite:{self.file}"

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with contextlib.closing(sqlite3.connect(self.file, timeout=60)) as database, database:
            columns = "id INTEGER PRIMARY KEY, city TEXT, cents INTEGER, at DATETIME"
            database.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
            rows = [{**order, "at": order["at"].replace("T", " ")[:23]} for order in orders]
            database.executemany(f"INSERT INTO {name} VALUES (:id, :city, :cents, :at)", rows)


class Delta(Demo):
    """A table, as a folder."""

    address = ""

    def table(self, name: str) -> str:
        """The path of the table."""
        return str(self.folder / name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from pyspark.sql import SparkSession

        spark = SparkSession.active()
        rows = [(o["id"], o["city"], o["cents"], datetime.datetime.fromisoformat(o["at"])) for o in orders]
        frame = spark.createDataFrame(rows, COLUMNS)
        frame.coalesce(1).write.format("delta").mode("append").save(self.table(name))


def _orders(first: int, count: int) -> Iterator[Order]:
    chance = random.Random(first)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    for number in range(first, first + count):
        cents = -1 if number % 50 == 7 else chance.randrange(100, 20_000)
        yield {"id": number, "city": chance.choice(_CITIES), "cents": cents, "at": now}


def is_cut_off(order: Order) -> bool:
    return bool(order["id"] % 100 == 13)


def text_of(order: Order, *, is_ascii: bool = False) -> str:
    text = json.dumps(order, ensure_ascii=is_ascii)
    return text[:20] if is_cut_off(order) else text
