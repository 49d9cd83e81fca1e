"""The reference connectors pass the cases of the kit on Spark: a source and a sink in every environment, others locally."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.core.epochs import EpochLog
from connectors.testing import SourceContext, same_records
from connectors.testing.queue_double import QueueDouble
from connectors.testing.spark_suites import SparkSinkSuite, SparkSourceSuite
from connectors.testing.sqlite_file import transaction
from tests.queue_source import QueueDoubleSource

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

        self._run(spark, system, DyingSource, tmp_path, lease="2s", maxEpochTime="1s", maxRowsPerTrigger="100")
        assert mark.exists()

    def test_a_run_gives_back_at_its_end_what_was_published_while_it_ran(
        self, spark: Any, system: QueueContext, tmp_path: Path
    ) -> None:
        path, mark = system.queue.path, tmp_path / "published"

        class PublishingSource(QueueDoubleSource):
            def log(self) -> EpochLog:
                log = super().log()
                put = log.put

                def put_and_publish(*record: Any) -> bool:
                    if not mark.exists():
                        mark.touch()
                        QueueDouble(path).publish([100, 101, 102])
                    return put(*record)

                log.put = put_and_publish  # type: ignore[method-assign]
                return log

        self._run(spark, system, PublishingSource, tmp_path)
        end = time.monotonic() + 10.0  # the lease is longer
        while system.queue.waiting() < 3 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(system.queue.receive(3)) == 3
        with transaction(path) as file:
            assert file.execute("SELECT deliveries FROM messages WHERE body >= 100").fetchall() == [(2,)] * 3

    def _run(self, spark: Any, system: SourceContext, source: type[QueueDoubleSource], folder: Path, **options: str) -> None:
        written = system.write(20)
        connectors.register(spark, source)
        try:
            self._stream(spark, system, folder, **options)
        finally:
            connectors.register(spark, QueueDoubleSource)
        same_records(written, spark.read.parquet(str(folder / "out")).toArrow().to_pylist())


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
