"""A demonstration: a system on this machine with sample orders; here those that are files.

It keeps below a folder what its system can keep, so that a second run goes on where the first has ended.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from .scratch import SCRATCH, Order, Scratch, parquet
from .scratch import Lines as LineFiles

ROWS: Final = 300
"""The orders that a demonstration gets at each run of a pipeline."""
_CITIES: Final = ("Bern", "Genève", "Zürich", "Lugano")
_KEY: Final = "id INTEGER PRIMARY KEY, updated_at DATETIME NOT NULL"
_TABLES: Final = {
    "orders": "city TEXT, cents INTEGER, state TEXT",
    "customers": "name TEXT",
    "returns": "cents INTEGER",
}
"""The columns of the shop's tables."""
_FILE_CONNECTORS: Final = {"pluginPackages": "org.apache.kafka:connect-file:4.3.1"}


class Demo:
    """A system with sample orders. ``address`` reaches it, together with ``options``."""

    system: ClassVar[str] = ""
    """The system of :data:`~connectors.testing.scratch.SCRATCH` that takes the orders, for a class without its own ``put``."""
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

    def scratch(self) -> Scratch:
        """The system, to which any name can be added."""
        return SCRATCH[self.system](self.address, self.options)

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
        return list(orders_of(first, rows))

    def create(self, name: str) -> None:
        """Makes ``name`` where it is missing."""
        if self.system:
            self.scratch().create(name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        """Adds orders."""
        self.scratch().put(name, orders)


class Files(Demo):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = str(folder / "*.parquet")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        file = self.folder / f"{name}-{orders[0]['id']:09}.parquet"
        file.with_suffix(".part").write_bytes(parquet(orders))
        file.with_suffix(".part").rename(file)


class Lines(Demo):
    system = "lines"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = str(folder / "*.jsonl")


class Connector(Demo):
    """Lines of files, by Kafka Connect's own connectors."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.options = _FILE_CONNECTORS
        text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
        kind = "org.apache.kafka.connect.file.FileStream{}Connector"
        source = {"connector.class": kind.format("Source"), "file": str(folder / "orders.jsonl"), "topic": "orders"}
        target = {"connector.class": kind.format("Sink"), "file": str(folder / "copy.txt"), "name": "orders"}
        self.address, self.target_address = json.dumps({**source, **text}), json.dumps({**target, **text})

    def put(self, name: str, orders: Sequence[Order]) -> None:
        files = LineFiles(str(self.folder), {})
        files.is_ascii = True  # the connector counts letters and goes on at that byte
        files.put(name, orders)


class Database(Demo):
    """An SQLite file."""

    system = "jdbc"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = f"jdbc:sqlite:{folder / 'orders.db'}"


class Shop(Database):
    """An SQLite file of several tables: customers, their orders, and from the second day on what came back."""

    def feed(self, name: str = "orders", rows: int = ROWS) -> None:
        """A day: one of twenty orders of the day before is cancelled, and the others are sent; ``rows`` new ones come."""
        orders = self._new("shop", rows)
        first, now = orders[0]["id"], datetime.datetime.now(datetime.timezone.utc)
        times = [f"{now + datetime.timedelta(microseconds=n):%F %T.%f}" for n in range(rows)]
        with contextlib.closing(sqlite3.connect(self.folder / "orders.db", timeout=60)) as shop, shop:
            for table, columns in _TABLES.items():
                if table != "returns" or first:
                    shop.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_KEY}, {columns})")
            shop.execute("DELETE FROM orders WHERE state = 'new' AND id % 20 = 0")
            shop.execute("UPDATE orders SET state = 'sent', updated_at = ? WHERE state = 'new'", times[:1])
            values = [(order["id"], at, order["city"], abs(order["cents"])) for order, at in zip(orders, times, strict=True)]
            shop.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, 'new')", values)
            customers = [(first + n, times[0], f"customer {n}") for n in range(10)]
            shop.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
            if first:
                sent = "SELECT id, ?, cents FROM orders WHERE state = 'sent' AND id % 9 = 0"
                shop.execute(f"INSERT INTO returns {sent}", times[:1])


class Delta(Demo):
    """A table, as a folder."""

    address = ""

    def table(self, name: str) -> str:
        """The path of the table."""
        return str(self.folder / name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        SCRATCH["delta"](str(self.folder), {}).put(name, orders)


def orders_of(first: int, count: int) -> Iterator[Order]:
    """``count`` orders with ids from ``first`` on; apart from ``at``, which is now, they depend on these alone."""
    chance = random.Random(first)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    for number in range(first, first + count):
        cents = -1 if number % 50 == 7 else chance.randrange(100, 20_000)
        yield {"id": number, "city": chance.choice(_CITIES), "cents": cents, "at": now}
