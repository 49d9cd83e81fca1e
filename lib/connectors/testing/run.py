"""Running a suite where there is no test file: in the notebook in which a connector is being written."""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path

import pytest

from .contexts import SinkContext, SourceContext

_context: list[type[SourceContext] | type[SinkContext]] = []

_MODULE = """
from connectors.testing import SinkSuite, SourceSuite
from connectors.testing.contexts import SinkContext
from connectors.testing.run import _context

class TestConnector(SinkSuite if issubclass(_context[-1], SinkContext) else SourceSuite):
    context = _context[-1]
"""


def run_suite(context: type[SourceContext] | type[SinkContext], *, only: str = "") -> str:
    """Runs every case of the suite against ``context`` and returns the last line, such as ``"24 passed in 2.1s"``.

    ``only`` picks cases as pytest's ``-k`` does. Raises ``AssertionError`` with what failed, and why.
    """
    _context.append(context)
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        file = Path(folder) / f"test_{Path(folder).name}.py"  # Python remembers a module by its name
        file.write_text(_MODULE)
        quiet = ["-q", "--tb=short", "-p", "no:cacheprovider", "--rootdir", folder, "-c", "/dev/null"]
        code = pytest.main([str(file), *quiet, "-k", only])
    _context.pop()
    if code != pytest.ExitCode.OK:
        raise AssertionError(said.getvalue())
    return said.getvalue().strip().splitlines()[-1]
