"""Metrics and traces of queries for OpenTelemetry: the figures of each query's table, and a span for each run and batch.

SDK and exporters are OpenTelemetry's own, with their own configuration: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from ..core.progress import behind
from ..ground.clients import client_library
from ..ground.messages import message_in
from .alerts import Observation
from .frame import Row
from .watch import Listening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCOPE: Final = "connectors"
_TOTALS: Final = {"rows": "{row}", "bytes": "By", "errors": "{error}", "retries": "{retry}", "dead_letters": "{letter}"}
"""The counts of a component since the query was first started, with their units."""
_END_MILLISECONDS: Final = 30_000
"""So long ``stop`` waits, at most, for a collector."""


def telemetry(spark: SparkSession, *, meters: Any = None, tracers: Any = None) -> Telemetry:
    """From now on, gives metrics and traces of every query of ``spark`` to OpenTelemetry; ``stop()`` of the result ends that.

    Metrics have the attributes ``query`` and ``component``: ``connectors.rows``, ``.bytes``, ``.errors``, ``.retries`` and
    ``.dead_letters`` count since the query's first start; ``connectors.lag`` is in records or the source's unit,
    ``connectors.lag.time`` in seconds, ``connectors.slot.lag`` the bytes of log that PostgreSQL keeps for a slot,
    ``connectors.in_flight`` counts calls; ``connectors.batch.duration`` is a histogram in seconds. Each run of a query is a
    span, its batches are the spans inside.

    ``meters`` and ``tracers``: a ``MeterProvider`` and a ``TracerProvider`` of ``opentelemetry.sdk``; by default they export by
    OTLP over HTTP, as OpenTelemetry's environment variables say. They export in threads of their own, so a collector that is
    slow or away slows nothing down. Raises :class:`~connectors.ground.errors.Misconfigured`.
    """
    install = "opentelemetry-exporter-otlp-proto-http"
    for module in ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http"):
        client_library(module, install, connector="metrics", option="telemetry")
    own = [] if meters else [meters := _meters()]
    own += [] if tracers else [tracers := _tracers()]
    return Telemetry(spark, meters, tracers, own)


def _meters() -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    return MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])


def _tracers() -> Any:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return tracers


class _Run(NamedTuple):
    """A run that goes on: its span, and the context of the spans inside."""

    span: Any
    context: Any


_newest_of: Final[WeakKeyDictionary[Any, dict[str, Observation]]] = WeakKeyDictionary()
"""The newest batch of each query, by ``MeterProvider``: its instruments are those of the first telemetry, and read no other."""


class Telemetry(Listening):
    """The listener that :func:`telemetry` returns; also a context manager."""

    def __init__(self, spark: SparkSession, meters: Any, tracers: Any, own: Sequence[Any]) -> None:
        self._providers, self._own = (meters, tracers), own
        self._tracer = tracers.get_tracer(_SCOPE)
        self._newest = _newest_of.setdefault(meters, {})
        self._runs: dict[str, _Run] = {}
        meter = meters.get_meter(_SCOPE)
        for name, unit in _TOTALS.items():
            meter.create_observable_counter(f"{_SCOPE}.{name}", [self._reading(partial(_sum, name))], unit)
        gauges = (("lag", _lag, ""), ("lag.time", _lag_seconds, "s"), ("slot.lag", _slot_lag, "By"))
        for name, read, unit in (*gauges, ("in_flight", _in_flight, "{call}")):
            meter.create_observable_gauge(f"{_SCOPE}.{name}", [self._reading(read)], unit)
        self._durations = meter.create_histogram(f"{_SCOPE}.batch.duration", "s")
        super().__init__(spark)

    def handle(self, kind: str, event: Any) -> None:
        if kind == "started":
            self._begin(str(event.runId), str(event.id), event.name)
        super().handle(kind, event)
        if kind == "over":
            self._finish(str(event.runId), message_in(str(event.exception or "")))

    def observed(self, batch: Observation, state: str) -> None:
        self._newest[batch.query] = batch
        run = str(batch.progress["runId"])
        if state != "running" or not batch.seconds:
            return
        self._durations.record(batch.seconds, {"query": batch.name})
        end = round(batch.at.timestamp() * 1e9)
        self._begin(run, batch.query, batch.progress.get("name"))
        attributes = {"connectors.batch": batch.batch, "connectors.input_rows": batch.input_rows}
        begin = end - round(batch.seconds * 1e9)
        span = self._tracer.start_span("batch", self._runs[run].context, attributes=attributes, start_time=begin)
        span.end(end)

    def stop(self) -> None:
        """Also waits, but not for ever, until the collector has the last figures. Providers of yours go on."""
        super().stop()
        for run in list(self._runs):
            self._finish(run, "")
        for provider in self._providers:
            self._safely(provider.force_flush, _END_MILLISECONDS)
        for provider in self._own:
            self._safely(provider.shutdown)

    def _begin(self, run: str, query: str, name: str | None) -> None:
        from opentelemetry.trace import set_span_in_context

        if run not in self._runs:
            attributes = {"connectors.query": query, "connectors.run": run}
            span = self._tracer.start_span(f"query {name or query[:8]}", attributes=attributes)
            self._runs[run] = _Run(span, set_span_in_context(span))

    def _finish(self, run: str, error: str) -> None:
        from opentelemetry.trace import StatusCode

        if own := self._runs.pop(run, None):
            if error:
                own.span.set_status(StatusCode.ERROR, error[:2000])
            own.span.end()

    def _reading(self, read: Callable[[list[Row]], float | None]) -> Callable[[Any], Iterator[Any]]:
        """The callback of an instrument: what ``read`` makes of the rows of each component of each query."""

        def callback(_: Any) -> Iterator[Any]:
            from opentelemetry.metrics import Observation as Reading

            for batch in list(self._newest.values()):
                components: dict[str, list[Row]] = {}
                for row in batch.rows:
                    components.setdefault(row["component"], []).append(dict(row))
                for component, rows in components.items():
                    if (value := read(rows)) is not None:
                        yield Reading(value, {"query": batch.name, "component": component})

        return callback


def _sum(name: str, rows: list[Row]) -> float | None:
    known = [row[name] for row in rows if row[name] is not None]
    return sum(known) if known else None


def _lag(rows: list[Row]) -> float | None:
    known = [row for row in rows if row["latest"] is not None or row["lag_records"] is not None]
    return sum(behind(row["lag_records"], row["position"], row["latest"]) for row in known) if known else None


def _lag_seconds(rows: list[Row]) -> float | None:
    return max((row["lag_seconds"] for row in rows if row["lag_seconds"] is not None), default=None)


def _slot_lag(rows: list[Row]) -> float | None:
    return _sum("slot_lag_bytes", rows)


def _in_flight(rows: list[Row]) -> float | None:
    return max((row["in_flight"] for row in rows if row["in_flight"] is not None), default=None)
