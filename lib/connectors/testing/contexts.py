"""What a connector's author tells the suites about the system that it connects to."""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from ..core.sink import Guarantee, Sink
from ..core.source import Source


class SourceContext(ABC):
    """One external system with data in it, for one test; made anew for each.

    Set ``source``, and ``schema``, that of the rows that :meth:`write` returns. ``limit`` and ``latest`` where the source's
    options have other names, or where it can start at the newest record.
    """

    source: ClassVar[type[Source]]
    schema: ClassVar[pa.Schema]
    limit: ClassVar[Mapping[str, str]] = {"maxRowsPerTrigger": "7"}
    """Options that cut the data of one :meth:`write` into several batches."""
    latest: ClassVar[Mapping[str, str] | None] = None
    """Options that start at the newest record. ``None`` skips the case of a start that must not move."""
    unordered: ClassVar[str] = ""
    """Why the system has no order, such as "an index has no order of writing". Empty: the records of one partition are
    read in the order in which :meth:`write` returned them; all records, where :meth:`partition` names none."""
    never_empty: ClassVar[str] = ""
    """Why there cannot be a system without records. Empty: a new context is such a system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options that read everything."""

    @abstractmethod
    def write(self, count: int) -> list[dict[str, Any]]:
        """Adds ``count`` new records to the system and returns them as rows."""

    def partition(self, row: Mapping[str, Any]) -> str | None:
        """The partition that ``row`` was written to: the records of one have an order (see ``unordered``).

        ``None`` is one partition for everything, and skips the case of a limit that must be shared fairly.
        """
        return None

    def lose(self) -> bool:
        """Makes the system forget what was written, read or not, as expiry or truncation does. False if it cannot."""
        return False

    def close(self) -> None:  # noqa: B027 - a hook, not a duty
        """Ends what the context started."""


class SinkContext(ABC):
    """One target, empty at first, for one test; made anew for each.

    Set ``sink``. A sink with columns of its own sets ``schema``, overrides :meth:`row`, and gives the same rows in
    ``select``, as SQL over a column ``value`` that holds the number.
    """

    sink: ClassVar[type[Sink]]
    schema: ClassVar[pa.Schema] = pa.schema([("id", pa.int64()), ("name", pa.string())])
    carriers: ClassVar[Sequence[str]] = ("foreach_batch", "format")
    select: ClassVar[Sequence[str]] = ("value AS id", "concat('row ', value) AS name")
    """What :meth:`row` gives, as SQL over a column ``value`` of numbers."""
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    """What the suite must find kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options that write to the target."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """What a reader of the target sees now."""

    def take_away(self) -> list[dict[str, Any]] | None:
        """Moves what readers see now out of the target, as an archive job does, and returns it.

        ``None`` where nothing can be taken: the case that a recovery must not bring it back is then skipped.
        """
        return None

    def leftovers(self) -> list[str] | None:
        """The names of everything that is staged now; ``None`` skips the cases of staging that must go.

        ``sweeping`` are the options that make all old staging old enough.
        """
        return None

    def disks(self) -> Sequence[Path]:
        """The local folders that the sink writes to, each whole: what is not synced there is lost in a power failure.

        None skips the cases of power failures.
        """
        return ()

    def lose_stage(self) -> bool:
        """Removes all that is staged, as a wrong clean-up does, or a folder that executors do not share. False if it cannot."""
        return False

    sweeping: ClassVar[Mapping[str, Any]] = {"stagingRetention": "0s"}
    most_leftovers: ClassVar[int] = 8
    """How many things may be staged, however often the same batch has failed: what four starts of two tasks leave."""

    def row(self, number: int) -> dict[str, Any]:
        """The ``number``-th row that the suite writes; the same one at each call."""
        return {"id": number, "name": f"row {number}"}

    def close(self) -> None:  # noqa: B027
        """Ends what the context started."""


class FolderContext(SinkContext):
    """A target that is a local folder, which the sink writes to by :class:`~connectors.core.folder.SinkFolder`."""

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    def disks(self) -> Sequence[Path]:
        return [self.folder]

    def lose_stage(self) -> bool:
        for stage in self._stages():
            shutil.rmtree(stage)
        return True

    def leftovers(self) -> list[str]:
        return sorted(stage.name for stage in self._stages())

    def _stages(self) -> list[Path]:
        return list(self.folder.glob(".connectors/*/stage/*"))


# MERGED Running a suite where there is no test file: in the notebook in which a connector is being written.

_context: list[type[SourceContext] | type[SinkContext]] = []

_MODULE = """
from connectors.testing import SinkSuite, SourceSuite
from connectors.testing.contexts import SinkContext
from connectors.testing.contexts import _context

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
