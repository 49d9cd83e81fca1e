"""Demonstrations: systems on this machine that get some new records at each call, for pipelines without an address.

Their data stay below a folder of the pipeline, so that a second run goes on where the first has ended.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from ..ground.errors import Misconfigured, Problem

_ROWS: Final = 300
_CITIES: Final = ("Bern", "Genève", "Zürich", "Lugano")


def demo(system: str, folder: str, address: str, parameter: Callable[[str], str]) -> str:
    """The address of the demonstration of ``system``, with its data below ``folder``, after it has got some new records.

    ``address`` is the name of the parameter that would give an address; ``parameter`` gives the value of any, such as the
    topic. Raises :class:`Misconfigured` where this machine cannot have the demonstration.
    """
    from ..testing.servers import Unavailable

    Path(folder).mkdir(parents=True, exist_ok=True)
    counter = Path(folder) / "rows"
    first = int(counter.read_text()) if counter.exists() else 0
    try:
        place = _FEEDS[system](Path(folder), list(_orders(first, _ROWS)), parameter)
    except (ImportError, Unavailable) as missing:
        text = f"missing; give the address of your system. The demonstration cannot be had here: {missing}"
        raise Misconfigured("the pipeline", [Problem(address, text)]) from missing
    counter.write_text(str(first + _ROWS))
    print(f"{address} is empty: a demonstration, with {_ROWS} new records.")
    return place


def _orders(first: int, count: int) -> Iterator[str]:
    """Orders as JSON: one of a hundred is cut off, one of fifty has a price below zero."""
    chance = random.Random(first)
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds")
    for number in range(first, first + count):
        cents = -1 if number % 50 == 7 else chance.randrange(100, 20_000)
        order = json.dumps({"id": number, "city": chance.choice(_CITIES), "cents": cents, "at": now}, ensure_ascii=False)
        yield order[:20] if number % 100 == 13 else order


def _kafka(folder: Path, orders: list[str], parameter: Callable[[str], str]) -> str:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    from ..testing.servers import KafkaServer

    topic = parameter("topic")
    server = _running.get(str(folder))
    if server is None:
        server = KafkaServer()
        server.folder = folder
        _running[str(folder)] = server.start()
    client: dict[str, Any] = {"bootstrap.servers": server.bootstrap, "log_level": 0}
    if topic not in AdminClient(client).list_topics(timeout=30).topics:
        server.create_topic(topic, 2)
    producer = Producer(client)
    for order in orders:
        producer.produce(topic, order)
    producer.flush()
    return str(server.bootstrap)


def _lines(folder: Path, orders: list[str], parameter: Callable[[str], str]) -> str:
    with (folder / "orders.jsonl").open("a") as file:
        file.writelines(f"{order}\n" for order in orders)
    return str(folder / "*.jsonl")


_running: dict[str, Any] = {}
_FEEDS: Final[dict[str, Callable[[Path, list[str], Callable[[str], str]], str]]] = {"kafka": _kafka, "lines": _lines}
