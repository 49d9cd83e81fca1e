"""The reference connectors pass every case of the kit."""

from connectors.testing import SinkSuite, SourceSuite

from .marks import IN_A_FOLDER, every_start_leaves_a_stage
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


@every_start_leaves_a_stage(IN_A_FOLDER)
class TestBuffered(SinkSuite):
    context = BufferedContext


@every_start_leaves_a_stage(IN_A_FOLDER)
class TestFiles(SinkSuite):
    context = FilesContext
    starts = 10


@every_start_leaves_a_stage(IN_A_FOLDER)
class TestFileStreamSink(SinkSuite):
    context = LinesContext
    starts = 10


class TestPrint(SinkSuite):
    context = PrintContext
