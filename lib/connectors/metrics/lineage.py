"""Lineage of queries in OpenLineage's events: which datasets a query reads and writes, and how its runs go.

The client is OpenLineage's own, with its own configuration (``OPENLINEAGE_URL``, ``openlineage.yml`` …).
"""

from __future__ import annotations

import datetime
import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ..core.datasets import Dataset
from ..ground import machine
from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem
from ..ground.messages import message_in
from ..ground.options import Duration
from .alerts import Observation
from .frame import abouts_of
from .history import RUNNING
from .watch import Listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("connectors.metrics")
_PRODUCER: Final = "urn:connectors"
_MOST_WAITING: Final = 100
"""While more events of Spark wait, a query's ``RUNNING`` is left out: a slow collector would let them pile up in memory."""


def lineage(
    spark: SparkSession, *, namespace: str = "default", every: str | float = "1 minute", client: Any = None
) -> Lineage:
    """From now on, tells a collector of OpenLineage about every query of ``spark``; ``stop()`` of the result ends that.

    A run of a query is a run there: ``START``, ``RUNNING`` at most ``every`` so often, ``COMPLETE`` or ``FAIL`` with the error.
    The job is the query's name in ``namespace``. Its inputs and outputs are those of ``connectors.*`` sources and sinks, named
    by OpenLineage's rules, from the first batch on. ``client``: an ``openlineage.client.OpenLineageClient``, which by default
    configures itself. A collector that is slow or away slows no batch down: events wait for it, and one that cannot be told is
    a warning in the log. Raises :class:`~connectors.ground.errors.Misconfigured`.
    """
    client_library("openlineage.client", "openlineage-python", connector="metrics", option="lineage")
    try:
        seconds = Duration(None).parse(str(every))
    except ValueError as wrong:
        raise Misconfigured("metrics.lineage", [Problem("every", f'must be {wrong}; got "{every}"')]) from None
    if client is None:
        from openlineage.client import OpenLineageClient

        client = OpenLineageClient()
    return Lineage(spark, client, namespace, seconds)


class Lineage(Listening):
    """The listener that :func:`lineage` returns; also a context manager. It tells events in the listener's own thread."""

    def __init__(self, spark: SparkSession, client: Any, namespace: str, every: float) -> None:
        self._client, self._namespace, self._every = client, namespace, every
        self._told: dict[str, float] = {}
        super().__init__(spark)

    def handle(self, kind: str, event: Any) -> None:
        if kind == "started":
            self._tell("START", str(event.id), str(event.runId), event.name)
        elif kind == "over":
            name = (self._last.get(str(event.id)) or {}).get("name")
            state = "FAIL" if event.exception else "COMPLETE"
            self._tell(state, str(event.id), str(event.runId), name, message_in(str(event.exception or "")))
            self._told.pop(str(event.runId), None)
        super().handle(kind, event)

    def observed(self, batch: Observation, state: str) -> None:
        run = str(batch.progress["runId"])
        is_due = machine.monotonic() - self._told.get(run, 0.0) >= self._every
        if state == RUNNING and is_due and self._events.qsize() < _MOST_WAITING:
            self._tell("RUNNING", batch.query, run, batch.progress.get("name"))

    def _tell(self, state: str, query: str, run: str, name: str | None, error: str = "") -> None:
        self._told[run] = machine.monotonic()
        try:
            self._client.emit(_event(state, name or query[:8], self._namespace, run, abouts_of(query), error))
        except Exception as refused:
            _log.warning("OpenLineage has not got %s of query %s: %s", state, name or query[:8], str(refused)[:500])


def _event(state: str, name: str, namespace: str, run: str, abouts: Mapping[str, Mapping[str, str]], error: str) -> Any:
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run

    facets: dict[str, Any] = {}
    if error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message=error[:2000], programmingLanguage="python")
    inputs = [InputDataset(*dataset) for dataset in _datasets(abouts, "source ")]
    outputs = [OutputDataset(*dataset) for dataset in _datasets(abouts, "sink ")]
    return RunEvent(
        eventTime=datetime.datetime.now(datetime.timezone.utc).isoformat(),
        producer=_PRODUCER,
        run=Run(run, facets),
        job=Job(namespace, name),
        eventType=RunState(state),
        inputs=inputs,
        outputs=outputs,
    )


def _datasets(abouts: Mapping[str, Mapping[str, str]], kind: str) -> list[Dataset]:
    """The datasets of the parts whose names begin with ``kind``, each once."""
    parts = (json.loads(about.get("datasets", "[]")) for name, about in abouts.items() if name.startswith(kind))
    return list(dict.fromkeys(Dataset(*dataset) for part in parts for dataset in part))
