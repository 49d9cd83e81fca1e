"""The reference connectors pass the cases of the kit on Spark: a source and a sink in every environment, others locally."""

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


class TestFileStream(SparkSourceSuite):
    context = FileStreamContext


class TestBuffered(SparkSinkSuite):
    context = BufferedContext
    everywhere = True


class TestFiles(SparkSinkSuite):
    context = FilesContext


class TestFileStreamSink(SparkSinkSuite):
    context = LinesContext
