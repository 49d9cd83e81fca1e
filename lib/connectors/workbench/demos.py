"""Demonstrations: systems on this machine with sample records, for pipelines that were given no address.

Their data stay below a folder, so that a second run goes on where the first has ended.
"""

from __future__ import annotations

import datetime
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..ground.errors import Misconfigured, Problem
from .settings import VOLUMES, workdir

_CITIES: Final = ("Bern", "Genève", "Zürich", "Lugano")
ROWS: Final = 300
"""The records that a demonstration gets at each run of a pipeline."""


def demo(system: str, folder: str = "", source: str = "orders") -> Demo:
    """The demonstration of ``system``: ``kafka`` or ``lines``. It runs as long as this process, its data stay in ``folder``.

    ``source`` is the name of the topic. Raises :class:`Misconfigured` for another system, and
    :class:`~connectors.testing.servers.Unavailable`, or ``ImportError``, where this machine cannot have it.
    """
    if system not in _DEMOS:
        raise Misconfigured("workbench.demo", [Problem("system", f'must be {" or ".join(_DEMOS)}; got "{system}".')])
    place = Path(folder or workdir(f"{VOLUMES}main/connectors/data/demonstrations/{system}"))
    key = system, str(place), source
    if key not in _running:
        place.mkdir(parents=True, exist_ok=True)
        _running[key] = _DEMOS[system](place, source)
    return _running[key]


class Demo(ABC):
    """A system with sample orders. ``address`` reaches it, ``source`` is what its records are in."""

    address: str

    def __init__(self, folder: Path, source: str) -> None:
        self.folder, self.source = folder, source

    def feed(self, rows: int = ROWS) -> None:
        """Adds ``rows`` orders: one of a hundred is cut off, one of fifty has a price below zero."""
        counter = self.folder / "rows"
        first = int(counter.read_text()) if counter.exists() else 0
        counter.write_text(str(first + rows))  # first: no two orders have one id, also after a kill
        self.put(list(_orders(first, rows)))

    @abstractmethod
    def put(self, records: Sequence[str]) -> None:
        """Adds records to the source, which is made where there is none."""


class _Kafka(Demo):
    def __init__(self, folder: Path, source: str) -> None:
        from ..testing.servers import KafkaServer

        super().__init__(folder, source)
        self._server = KafkaServer()
        self._server.folder = folder
        self.address = self._server.start().bootstrap

    def put(self, records: Sequence[str]) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        client: dict[str, Any] = {"bootstrap.servers": self.address, "log_level": 0}
        if self.source not in AdminClient(client).list_topics(timeout=30).topics:
            self._server.create_topic(self.source, 2)
        producer = Producer(client)
        for record in records:
            producer.produce(self.source, record)
        producer.flush()


class _Lines(Demo):
    def __init__(self, folder: Path, source: str) -> None:
        super().__init__(folder, source)
        self.address = str(folder / "*.jsonl")

    def put(self, records: Sequence[str]) -> None:
        with (self.folder / "orders.jsonl").open("a") as file:
            file.writelines(f"{record}\n" for record in records)


def _orders(first: int, count: int) -> Iterator[str]:
    chance = random.Random(first)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    for number in range(first, first + count):
        cents = -1 if number % 50 == 7 else chance.randrange(100, 20_000)
        order = json.dumps({"id": number, "city": chance.choice(_CITIES), "cents": cents, "at": now}, ensure_ascii=False)
        yield order[:20] if number % 100 == 13 else order


_running: dict[tuple[str, str, str], Demo] = {}
_DEMOS: Final[dict[str, type[Demo]]] = {"kafka": _Kafka, "lines": _Lines}
