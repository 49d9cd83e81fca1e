"""The beginning of every staging in a folder: what is refused, and the hidden folder of an attempt."""

from __future__ import annotations

from ...core import Batch, Misconfigured, Problem
from ...core.folder import SinkFolder


def begin(connector: str, folder: SinkFolder, batch: Batch, attempt: str) -> str:
    """The staging folder of ``attempt``, relative to the target, made. Raises :class:`Misconfigured` if that cannot be.

    A batch that is to replace what is there is refused: readers list the folder file by file, so they would see both
    contents, or none, between the first change and the last.
    """
    if batch.replace:
        text = 'must be append; "overwrite" cannot be atomic in a folder of files. Write to a new folder, or use a table.'
        raise Misconfigured(connector, [Problem("mode", text)])
    try:
        return folder.begin(attempt)
    except OSError as error:
        text = f'"{folder.root}" cannot be written: {error.strerror} ({error.filename}).'
        raise Misconfigured(connector, [Problem("path", text)]) from None
