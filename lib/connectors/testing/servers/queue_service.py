"""A message queue over HTTP, as a vendor's: messages are leased, extended, released and acknowledged.

Each queue is there when it is first used; ``POST /queues/<queue>/<call>`` takes and answers JSON::

    publish      {"bodies": […]}                          {"ids": […]}
    receive      {"count": 10, "lease": 30, "wait": 5}    {"messages": [{"id", "body", "published", "lease"}, …]}
    acknowledge  {"leases": […]}                          forgets the messages
    release      {"leases": […]}                          delivers them again at once
    extend       {"leases": […], "seconds": 30}
    count                                                 {"waiting": 3, "unacknowledged": 5}
    clock        {"now": 1700000000.5}                    stops the queue's clock at this time, in seconds since 1970

``POST /behaviour`` sets probabilities: ``duplicate`` delivers a leased message once more, ``reorder`` shuffles, ``forget``
loses an acknowledgement. A queue is an SQLite file, so that it outlives its process.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..queue_double import QueueDouble
from .json_service import Call, JsonService, serve

_POLL_SECONDS: Final = 0.02


class QueueService(JsonService):
    """The service in a process of its own. ``state`` is the folder of its queues."""

    def publish(self, queue: str, bodies: Sequence[str]) -> None:
        """Adds a message for each body."""
        self.call(f"queues/{queue}/publish", bodies=list(bodies))

    def count(self, queue: str) -> tuple[int, int]:
        """The number of messages that wait for a receiver, and of those that are not acknowledged."""
        counts = self.call(f"queues/{queue}/count")
        return counts["waiting"], counts["unacknowledged"]

    def behave(self, **probabilities: float) -> None:
        """From now on the queues misbehave so: ``duplicate``, ``reorder``, ``forget``."""
        self.call("behaviour", **probabilities)


class _Queues:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queues: dict[str, QueueDouble] = {}
        self._behaviour: dict[str, float] = {}

    def calls(self) -> dict[str, Call]:
        verbs = ("publish", "receive", "acknowledge", "release", "extend", "count", "clock")
        return {"behaviour": self.behave, **{f"queues/{{queue}}/{verb}": getattr(self, verb) for verb in verbs}}

    async def publish(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ids": self._queue(names).publish(body["bodies"])}

    async def receive(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        queue, end = self._queue(names), time.monotonic() + float(body["wait"])
        while not (messages := queue.receive(int(body["count"]), float(body["lease"]))) and time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)
        return {"messages": [dict(zip(("id", "body", "published", "lease"), message, strict=True)) for message in messages]}

    async def acknowledge(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._queue(names).acknowledge(body["leases"])
        return {}

    async def release(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._queue(names).set_visible(body["leases"], 0.0)
        return {}

    async def extend(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._queue(names).set_visible(body["leases"], float(body["seconds"]))
        return {}

    async def count(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        queue = self._queue(names)
        return {"waiting": queue.waiting(), "unacknowledged": queue.unacknowledged()}

    async def clock(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._queue(names).set_time(float(body["now"]))
        return {}

    async def behave(self, names: Mapping[str, str], body: Mapping[str, Any]) -> Mapping[str, Any]:
        self._behaviour = {name: float(chance) for name, chance in body.items()}
        self._queues.clear()
        return {}

    def _queue(self, names: Mapping[str, str]) -> QueueDouble:
        name = names["queue"]
        if not re.fullmatch(r"[\w-]{1,80}", name):
            raise ValueError(f'a queue has a name such as "orders", not {name!r}')
        if name not in self._queues:
            self._queues[name] = QueueDouble(self._folder / f"{name}.db", misbehaviour=self._behaviour)
        return self._queues[name]


if __name__ == "__main__":
    serve(int(sys.argv[1]), _Queues(Path(sys.argv[2])).calls())
