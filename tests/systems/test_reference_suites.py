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


class TestFileStreamSink(SinkSuite):
    context = LinesContext


class TestPrint(SinkSuite):
    context = PrintContext
