"""A query that follows files, and a writer of such files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from connectors.core import ReadLimit
from connectors.core.planning import Offset
from connectors.testing.source_suite import SourceQuery

from ..reference_contexts import FileStreamContext


class Query:
    """A query that is started anew for each batch."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.folder, self.options = folder, options
        self.log: list[Offset] = []

    def reading(self) -> SourceQuery:
        return SourceQuery(FileStreamContext(self.folder), **self.options)

    def rest(self, limit: ReadLimit | None = None) -> list[str]:
        """The new lines, batch by batch, in the order in which the batches had them."""
        del self.log[:-1]  # a query of a thousand batches needs only the last
        return [row["value"] for row in self.reading().rest(self.log, limit)]

    def rows(self) -> list[tuple[str, int, str]]:
        rows = self.reading().rest(self.log)
        return [(Path(row["filename"]).name, row["position"], row["value"]) for row in rows]

    def files(self) -> dict[str, Any]:
        files: dict[str, Any] = self.log[-1]["at"]["files"]
        return files


def append(file: Path, text: str, changed: float | None = None) -> None:
    """Adds to ``file``; ``changed`` sets its time (seconds), where the test's files follow each other too quickly."""
    with file.open("ab") as log:
        log.write(text.encode())
    if changed is not None:
        os.utime(file, (changed, changed))
