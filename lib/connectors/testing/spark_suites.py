"""The suites on Spark: the same contexts, but fewer cases, since each of them starts real queries.

The plugin :mod:`connectors.testing.environments` provides their sessions. The cases of
:class:`~connectors.testing.source_suite.SourceSuite` and :class:`~connectors.testing.sink_suite.SinkSuite` test
every fault without Spark; these suites show that Spark keeps the same contract.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

import connectors

from ..core.sink import Guarantee
from ..systems import SYSTEMS
from .compare import same_records
from .contexts import SinkContext, SourceContext
from .driver import SparkQuery
from .environments import Environment
from .faults import FailureInjector, Point, faulty_source
from .sink_cases import SinkCases
from .source_suite import SourceCases

ROWS, BATCH, COUNT = 30, 10, 20


class SparkCases:
    """The session of a suite, in each environment."""

    everywhere: ClassVar[bool] = False
    """True if all cases run, the essential ones in every environment; else ``local`` runs those that are not thorough."""

    @pytest.fixture
    def spark(self, environment: Environment) -> Any:
        return environment.spark


class SparkSourceSuite(SourceCases, SparkCases):
    """The cases of a source on Spark. A subclass sets ``context``."""

    @pytest.fixture
    def spark(self, environment: Environment) -> Any:
        own = [] if self.context.source.name in SYSTEMS else [self.context.source]
        if classes := [*own, *self.context.classes]:
            connectors.register(environment.spark, *classes)
        return environment.spark

    def test_a_batch_read_gives_everything_once(self, spark: Any, system: SourceContext) -> None:
        if not _has_end(system):
            pytest.skip("the source has no end")
        written = system.write(COUNT)
        rows = spark.read.format(f"connectors.{system.source.name}").options(**system.options()).load()
        same_records(written, rows.toArrow().to_pylist())

    @pytest.mark.essential
    def test_a_stream_that_is_started_again_reads_everything_once(
        self, spark: Any, system: SourceContext, tmp_path: Path
    ) -> None:
        written = system.write(COUNT)
        self._stream(spark, system, tmp_path)
        written += system.write(COUNT)
        self._stream(spark, system, tmp_path, numPartitions="3")
        same_records(written, _stored(spark, tmp_path))

    @pytest.mark.thorough
    def test_an_empty_system_gives_no_rows_and_what_comes_later_is_read(
        self, spark: Any, system: SourceContext, tmp_path: Path
    ) -> None:
        self.needs_empty(system)
        if _has_end(system):
            reader = spark.read.format(f"connectors.{system.source.name}").options(**system.options())
            assert reader.schema(_schema(system)).load().collect() == []
        self._stream(spark, system, tmp_path, schema=_schema(system))
        written = system.write(COUNT)
        self._stream(spark, system, tmp_path, schema=_schema(system))
        same_records(written, _stored(spark, tmp_path))

    def _stream(self, spark: Any, system: SourceContext, folder: Path, schema: Any = None, **options: str) -> None:
        reader = spark.readStream.format(f"connectors.{system.source.name}")
        reader = reader.options(**{**system.options(), **system.limit, **options})
        rows = (reader.schema(schema) if schema else reader).load()
        writer = rows.writeStream.format("parquet").trigger(availableNow=True)
        writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "out")).awaitTermination()


class SparkBatchSuite(SourceCases, SparkCases):
    """The cases of a source on Spark that is read as a batch only. A subclass sets ``context``."""

    @pytest.mark.essential
    def test_a_batch_read_gives_everything_once(self, spark: Any, system: SourceContext) -> None:
        written = system.write(COUNT)
        rows = spark.read.format(f"connectors.{system.source.name}").options(**system.options(), numPartitions="3").load()
        same_records(written, rows.toArrow().to_pylist())

    @pytest.mark.essential
    def test_a_task_that_fails_is_read_again_whole(self, spark: Any, system: SourceContext, tmp_path: Path) -> None:
        written = system.write(COUNT)
        injector = FailureInjector(tmp_path / "faults")
        injector.arm(Point.READ_ROW, row=3)
        kind = faulty_source(system.source, injector)
        connectors.register(spark, kind)
        try:
            rows = spark.read.format(f"connectors.{kind.name}").options(**system.options()).load()
            same_records(written, rows.toArrow().to_pylist())
        finally:
            connectors.register(spark, system.source)
        assert injector.struck() == 1

    def test_an_empty_system_gives_no_rows(self, spark: Any, system: SourceContext) -> None:
        reader = spark.read.format(f"connectors.{system.source.name}").options(**system.options())
        assert reader.schema(_schema(system)).load().collect() == []


def _stored(spark: Any, folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = spark.read.parquet(str(folder / "out")).toArrow().to_pylist()
    return rows


def _has_end(system: SourceContext) -> bool:
    """True if the source can be read as a batch."""
    return bool(system.source.of(system.options()).bounded)


def _schema(system: SourceContext) -> Any:
    """The schema of a context as Spark's. Some systems have none before they have records."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(system.schema)


class SparkSinkSuite(SinkCases, SparkCases):
    """The cases of a sink on Spark. A subclass sets ``context``. Kills of a driver are in :mod:`connectors.testing.kills`."""

    @pytest.fixture
    def query(self, target: SinkContext, tmp_path: Path, carrier: str) -> SparkQuery:
        return spark_query(target, tmp_path, carrier)

    @pytest.mark.essential
    def test_a_stream_writes_every_row_through_faults_of_tasks(
        self, spark: Any, target: SinkContext, query: SparkQuery
    ) -> None:
        injector = FailureInjector(query.faults)
        injector.arm(Point.TASK_ROW, row=1)
        query.run(spark)
        assert injector.struck() == 1
        target.expect(ROWS)

    @pytest.mark.thorough
    @pytest.mark.parametrize("point", [Point.COMMIT_BEFORE, Point.COMMIT_AFTER])
    def test_a_commit_that_raises_is_made_good_by_the_next_start(
        self, spark: Any, target: SinkContext, query: SparkQuery, point: Point
    ) -> None:
        if target.sink.of(target.options()).committer() is None:
            pytest.skip("the sink has no commit")
        FailureInjector(query.faults).arm(point)
        with pytest.raises(Exception, match="injected"):
            query.run(spark)
        query.run(spark)
        target.expect(ROWS)

    @pytest.mark.essential
    def test_a_batch_that_spark_replays_is_not_written_again(self, spark: Any, target: SinkContext, query: SparkQuery) -> None:
        query.run(spark)
        query.forget_commit()
        query.source_options["numPartitions"] = "3"
        query.run(spark)
        target.expect(ROWS)

    @pytest.mark.thorough
    def test_a_new_checkpoint_is_refused_with_the_way_out(self, spark: Any, target: SinkContext, query: SparkQuery) -> None:
        if target.guarantee is not Guarantee.EXACTLY_ONCE:
            pytest.skip("the sink keeps no ledger")
        query.run(spark)
        shutil.rmtree(query.checkpoint)
        refusal = pytest.raises(Exception, match="onNewQuery=continue")
        with contextlib.nullcontext() if target.offsets_in_target else refusal:
            query.run(spark)
        target.expect(ROWS)

    def test_a_batch_write_is_written_once_under_its_transaction_name(self, spark: Any, target: SinkContext) -> None:
        if target.guarantee is not Guarantee.EXACTLY_ONCE or "format" not in target.carriers:
            pytest.skip("the sink keeps no ledger, or does not take df.write")
        frame = spark.range(1, ROWS + 1).withColumnRenamed("id", "value").selectExpr(*target.select)
        writer = frame.write.format(f"connectors.{target.sink.name}").mode("append").options(**target.options())
        for _ in range(2):
            writer.option("txnAppId", "nightly").option("txnVersion", "1").save()
        target.expect(ROWS)


def spark_query(target: SinkContext, folder: Path, carrier: str, rows: int = ROWS) -> SparkQuery:
    """A query that writes the first ``rows`` rows of a context, a few at a time."""
    kind = target.sink
    return SparkQuery(
        name=f"{kind.name}_{carrier}_{os.getpid()}_{time.monotonic_ns()}",
        source="sequence",
        source_options={"end": str(rows), "maxRowsPerTrigger": str(BATCH), "numPartitions": "2"},
        sink=class_name(kind),
        sink_options=target.options(),
        carrier=carrier,
        checkpoint=str(folder / "checkpoint"),
        faults=str(folder / "faults"),
        select=list(target.select),
        classes=[class_name(own) for own in target.classes],
    )


def class_name(kind: type) -> str:
    """``"module:Class"``, as :class:`SparkQuery` names classes."""
    return f"{kind.__module__}:{kind.__name__}"
