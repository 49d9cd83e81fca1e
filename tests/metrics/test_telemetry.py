"""Telemetry: what a collector of OTLP gets of a session's queries, and that it never disturbs them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from connectors import metrics
from connectors.metrics.alerts import Observation
from connectors.metrics.frame import COLUMNS
from connectors.metrics.telemetry import Telemetry

from .test_lineage import Collector, copy, served


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with served() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        yield collector


class Memory:
    """Providers that keep what they get."""

    def __init__(self) -> None:
        self.reader, self.exporter = InMemoryMetricReader(), InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def values(self) -> dict[tuple[str, str], float]:
        """The value of each metric and component; of a histogram its count."""
        data = self.reader.get_metrics_data()
        assert data is not None
        found = [metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics]
        points = [(metric.name, point) for metric in found for point in metric.data.data_points]
        return {
            (name, str((point.attributes or {}).get("component", ""))): getattr(point, "value", getattr(point, "count", 0))
            for name, point in points
        }


@pytest.mark.spark
class TestOnSpark:
    """Figures and spans of real queries."""

    def test_figures_and_spans_are_those_of_the_query(self, spark: Any, tmp_path: Path) -> None:
        memory = Memory()
        with metrics.telemetry(spark, meters=memory.meters, tracers=memory.tracers):
            query = copy(spark, tmp_path)
        values = memory.values()
        assert values["connectors.rows", "source sequence"] == 10
        assert values["connectors.rows", "sink files"] == 10
        assert values["connectors.lag", "source sequence"] == 0
        assert values["connectors.batch.duration", ""] == 2
        first, second, run = memory.exporter.get_finished_spans()
        assert [span.name for span in (first, second, run)] == ["batch", "batch", "query numbers"]
        assert run.attributes is not None
        assert run.attributes["connectors.run"] == str(query.runId)
        for number, span in enumerate((first, second)):
            assert span.attributes == {"connectors.batch": number, "connectors.input_rows": 5}
            assert span.parent is not None
            assert span.parent.span_id == run.context.span_id
            assert span.start_time < span.end_time  # type: ignore[operator]
        assert run.status.status_code is StatusCode.UNSET

    def test_a_run_that_dies_is_a_span_with_its_error(self, spark: Any, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / ".connectors").write_text("no folder")
        memory = Memory()
        with (
            metrics.telemetry(spark, meters=memory.meters, tracers=memory.tracers),
            pytest.raises(Exception, match=r"\.connectors"),
        ):
            copy(spark, tmp_path)
        run = memory.exporter.get_finished_spans()[-1]
        assert run.status.status_code is StatusCode.ERROR
        assert ".connectors" in str(run.status.description)

    def test_providers_of_the_user_go_on_behind_the_end(self, spark: Any, tmp_path: Path) -> None:
        memory = Memory()
        metrics.telemetry(spark, meters=memory.meters, tracers=memory.tracers).stop()
        with memory.tracers.get_tracer("mine").start_as_current_span("mine"):
            pass
        assert [span.name for span in memory.exporter.get_finished_spans()] == ["mine"]

    def test_a_collector_gets_both_by_otlp(self, spark: Any, tmp_path: Path, collector: Collector) -> None:
        with metrics.telemetry(spark):
            copy(spark, tmp_path)
        names, spans = set(), []
        for path, body in collector.bodies:
            if path == "/v1/metrics":
                for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    names |= {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
            else:
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    spans += [span.name for scope in resource.scope_spans for span in scope.spans]
        assert {"connectors.rows", "connectors.lag", "connectors.batch.duration"} <= names
        assert sorted(spans) == ["batch", "batch", "query numbers"]

    @pytest.mark.soak
    def test_a_collector_that_hangs_slows_no_batch_and_no_end(self, spark: Any, tmp_path: Path, collector: Collector) -> None:
        copy(spark, tmp_path / "warm")
        collector.pause.clear()
        telemetry = metrics.telemetry(spark)
        began = time.monotonic()
        copy(spark, tmp_path / "hanging", end=50)
        assert time.monotonic() - began < 60
        telemetry.stop()
        assert time.monotonic() - began < 120


class Session:
    """A session without queries."""

    def __init__(self) -> None:
        self.streams = SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None, active=[])


def progress(lag: int) -> dict[str, Any]:
    return {"id": "q", "runId": "r", "name": "orders", "batchId": lag, "numInputRows": 1, "batchDuration": 1, "sources": []}


def test_a_telemetry_gives_its_figures_also_to_a_provider_that_has_had_one_before() -> None:
    memory, session = Memory(), Session()
    row = dict.fromkeys(COLUMNS) | {"component": "sink files", "slot_lag_bytes": 7}
    for rows in (10, 4):
        with metrics.telemetry(session, meters=memory.meters, tracers=memory.tracers) as telemetry:  # type: ignore[arg-type]
            batch = Observation(progress(0), [{**row, "rows": rows}])
            telemetry.observed(batch, "running")  # type: ignore[attr-defined]
            values = memory.values()
            assert (values["connectors.rows", "sink files"], values["connectors.slot.lag", "sink files"]) == (rows, 7)


def test_a_collector_that_takes_no_last_figures_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Provider(MeterProvider):
        def force_flush(self, timeout_millis: float = 0) -> bool:
            raise RuntimeError("MeterProvider.force_flush failed")

    telemetry = Telemetry(Session(), Provider(), tracers := TracerProvider(), [tracers])  # type: ignore[arg-type]
    tracers.shutdown = lambda: ended.append(True)  # type: ignore[method-assign]
    ended: list[bool] = []
    telemetry.stop()
    assert ended == [True]
    assert "MeterProvider.force_flush failed" in caplog.text
