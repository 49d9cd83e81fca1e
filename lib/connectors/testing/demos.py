"""The demonstrations by system, for pipelines that were given no address."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Final

from ..ground.errors import Misconfigured, Problem
from ..workbench.settings import VOLUMES, workdir
from . import demo as local
from . import demo_servers as served


def demo(system: str, folder: str = "") -> local.Demo:
    """The demonstration of ``system``, a name such as ``kafka``. It runs as long as this process, its data stay in ``folder``.

    Raises :class:`Misconfigured` for another system, and :class:`~connectors.testing.servers.Unavailable`, or ``ImportError``,
    where this machine cannot have it.
    """
    if system not in _DEMOS:
        raise Misconfigured("workbench.demo", [Problem("system", f'must be {" or ".join(_DEMOS)}; got "{system}".')])
    place = Path(folder or workdir(f"{VOLUMES}main/connectors/data/demonstrations/{system}"))
    key = system, str(place)
    with _starting.setdefault(key, Lock()):
        if key not in _running:
            place.mkdir(parents=True, exist_ok=True)
            _running[key] = _DEMOS[system](place)
        return _running[key]


_running: dict[tuple[str, str], local.Demo] = {}
_starting: Final[dict[tuple[str, str], Lock]] = {}
_DEMOS: Final[dict[str, type[local.Demo]]] = {
    "cassandra": served.Cassandra,
    "cdc": served.Changes,
    "cdc_database": served.WholeDatabase,
    "connect": local.Connector,
    "delta": local.Delta,
    "dynamodb": served.DynamoDb,
    "elasticsearch": served.OpenSearch,
    "event_hubs": served.EventHubs,
    "files": local.Files,
    "firehose": served.Firehose,
    "http": served.Api,
    "hybrid": served.History,
    "jdbc": local.Database,
    "jdbc_database": local.Shop,
    "kafka": served.Kafka,
    "kinesis": served.Kinesis,
    "lines": local.Lines,
    "pubsub": served.PubSub,
    "redis": served.Redis,
    "service": served.Service,
}
