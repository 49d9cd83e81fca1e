"""Runs suites without a test file."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import pytest

from ..core.epoch_source import EpochLogSource, EpochSource
from .batch_suite import BatchSuite
from .contexts import SinkContext, SourceContext
from .epoch_suite import EpochSourceSuite
from .queue_suite import QueueSuite
from .sink_suite import SinkSuite
from .source_suite import SourceSuite

_running: list[type[SourceContext] | type[SinkContext]] = []
_TEST_FILE = """
from connectors.testing.run import _running, suite_of

class TestConnector(suite_of(_running[-1])):
    context = _running[-1]
"""


def suite_of(context: type[SourceContext] | type[SinkContext]) -> type:
    """The suite whose cases ``context`` must pass."""
    if issubclass(context, SinkContext):
        return SinkSuite
    if context.source.batch_only:
        return BatchSuite
    if issubclass(context.source, EpochSource):
        return QueueSuite
    return EpochSourceSuite if issubclass(context.source, EpochLogSource) else SourceSuite


def run_suite(context: type[SourceContext] | type[SinkContext], *, only: str = "") -> str:
    """Runs a suite without a test file, for example in a notebook in which you write a connector.

    Returns the last line of pytest's output, such as ``"24 passed in 2.1s"``. ``only`` selects cases like pytest's ``-k``.
    Raises ``AssertionError`` with the output if a case fails.
    """
    _running.append(context)
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(output):
        file = Path(folder) / f"test_{Path(folder).name}.py"  # Python remembers a module by its name
        file.write_text(_TEST_FILE)
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", folder, "-c", "/dev/null"]
        code = pytest.main([str(file), *options, "-k", only])
    _running.pop()
    if code != pytest.ExitCode.OK:
        raise AssertionError(output.getvalue())
    return output.getvalue().strip().splitlines()[-1]
