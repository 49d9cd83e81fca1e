"""The reference connectors pass the cases of the kit on Spark: a source and a sink in every environment, others locally."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.core.epochs import EpochLog
from connectors.testing import SourceContext, same_records
from connectors.testing.queue_double import QueueDoubleSource
from connectors.testing.spark_suites import SparkSinkSuite, SparkSourceSuite

from .reference_contexts import (
    BufferedContext,
    FilesContext,
    FileStreamContext,
    LinesContext,
    QueueContext,
    SequenceContext,
)


class TestSequence(SparkSourceSuite):
    context = SequenceContext
    everywhere = True


class TestQueue(SparkSourceSuite):
    context = QueueContext

    def test_a_run_ends_when_it_has_read_what_a_dead_task_had_received(
        self, spark: Any, system: SourceContext, tmp_path: Path
    ) -> None:
        mark = tmp_path / "died"

        class DyingSource(QueueDoubleSource):
            def log(self) -> EpochLog:
                log = super().log()
                put = log.put

                def die_once(*record: Any) -> bool:
                    if not mark.exists():
                        mark.touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                    return put(*record)

                log.put = die_once  # type: ignore[method-assign]
                return log

        written = system.write(20)
        connectors.register(spark, DyingSource)
        try:
            self._stream(spark, system, tmp_path, lease="2s", maxEpochTime="1s", maxRowsPerTrigger="100")
        finally:
            connectors.register(spark, QueueDoubleSource)
        assert mark.exists()
        same_records(written, spark.read.parquet(str(tmp_path / "out")).toArrow().to_pylist())


@pytest.mark.soak
class TestFileStream(SparkSourceSuite):
    context = FileStreamContext


class TestBuffered(SparkSinkSuite):
    context = BufferedContext
    everywhere = True


class TestFiles(SparkSinkSuite):
    context = FilesContext


@pytest.mark.soak
class TestFileStreamSink(SparkSinkSuite):
    context = LinesContext
