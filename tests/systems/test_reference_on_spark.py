"""The reference connectors pass the cases of the kit on Spark: a source and a sink in every environment, others locally."""

import pytest

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
