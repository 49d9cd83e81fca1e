"""The beginning of every staging in a folder: what is refused, and the hidden folder of an attempt."""

from __future__ import annotations

from pathlib import Path

from ...core import Batch, Misconfigured, Problem
from ...core.folder import TargetFolder


def new_stage(connector: str, folder: TargetFolder, batch: Batch, attempt: str) -> Path:
    """The staging folder of ``attempt``, made. Raises :class:`Misconfigured` if that cannot be.

    A batch that is to replace what is there is refused: readers list the folder file by file, so they would see both
    contents, or none, between the first change and the last.
    """
    if batch.replace:
        text = 'must be append; "overwrite" cannot be atomic in a folder of files. Write to a new folder, or use a table.'
        raise Misconfigured(connector, [Problem("mode", text)])
    stage = folder.stage(attempt)
    try:
        stage.mkdir(parents=True)
    except OSError as error:
        text = f'"{folder.root}" cannot be written: {error.strerror} ({error.filename}).'
        raise Misconfigured(connector, [Problem("path", text)]) from None
    return stage
