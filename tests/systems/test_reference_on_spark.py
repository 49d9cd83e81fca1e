"""The reference connectors pass the cases of the kit on Spark."""

from connectors.testing.spark_suites import SparkSinkSuite, SparkSourceSuite

from .reference_contexts import BufferedContext, FilesContext, FileStreamContext, LinesContext, SequenceContext


class TestSequence(SparkSourceSuite):
    context = SequenceContext
    everywhere = True


class TestFileStream(SparkSourceSuite):
    context = FileStreamContext
    everywhere = True


class TestBuffered(SparkSinkSuite):
    context = BufferedContext
    everywhere = True


class TestFiles(SparkSinkSuite):
    context = FilesContext


class TestFileStreamSink(SparkSinkSuite):
    context = LinesContext
    everywhere = True
