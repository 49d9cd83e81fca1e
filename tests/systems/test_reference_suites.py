"""The reference connectors pass every case of the kit."""

from connectors.testing import SinkSuite, SourceSuite

from .reference_contexts import (
    BufferedContext,
    FilesContext,
    FileStreamContext,
    LinesContext,
    PrintContext,
    SequenceContext,
)


class TestSequence(SourceSuite):
    context = SequenceContext


class TestFileStream(SourceSuite):
    context = FileStreamContext


class TestBuffered(SinkSuite):
    context = BufferedContext


class TestFiles(SinkSuite):
    context = FilesContext
    starts = 10


class TestFileStreamSink(SinkSuite):
    context = LinesContext
    starts = 10


class TestPrint(SinkSuite):
    context = PrintContext
