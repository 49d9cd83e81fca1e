"""The outputs in stored notebooks: a run of their job made them, and a hash of each cell's code says so."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nbformat

from connectors.workbench.settings import VOLUMES_VARIABLE

from .model import GOOD, State
from .notebooks import pictures, read_notebook
from .runner import run_job

if TYPE_CHECKING:
    from .loading import Bundle

HASH: Final = "source_hash"
"""The key in a code cell's metadata: the hash of the code that made the outputs which are stored with it."""


def store_outputs(bundle: Bundle, jobs: Sequence[str]) -> list[Path]:
    """Runs ``jobs`` on their defaults, stores what their notebooks show in the notebooks, and returns these.

    Stops at the first job that fails: its notebooks stay as they are, and what it has run stays in a temporary folder.
    Paths of this machine are left out of the outputs.
    Raises :class:`~connectors.ground.errors.Misconfigured` as :func:`run_job` does.
    """
    stored: list[Path] = []
    for key in jobs:
        runs = Path(tempfile.mkdtemp(prefix="connectors-outputs-"))
        with _own_volumes(str(runs)):
            if run_job(bundle, key, runs=runs) not in (*GOOD, State.EXCLUDED):
                return stored
            stored += _take_over(bundle, key, runs / key)
        shutil.rmtree(runs)
    return stored


@contextlib.contextmanager
def _own_volumes(folder: str) -> Iterator[None]:
    """Lets notebooks begin without data of earlier runs."""
    before = os.environ.get(VOLUMES_VARIABLE)
    os.environ[VOLUMES_VARIABLE] = folder
    try:
        yield
    finally:
        os.environ.pop(VOLUMES_VARIABLE)
        if before is not None:
            os.environ[VOLUMES_VARIABLE] = before


def outdated_cells(notebook: Path) -> list[int]:
    """The code cells, from 1, whose outputs do not come from the code that stands there; a cell without code counts never."""
    cells = [cell for cell in read_notebook(notebook).content.cells if cell.cell_type == "code"]
    return [
        number
        for number, cell in enumerate(cells, start=1)
        if cell.source.strip() and cell.metadata.get(HASH) != source_hash(cell.source)
    ]


def source_hash(source: str) -> str:
    """The hash that names the code of a cell: 16 letters and digits."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _take_over(bundle: Bundle, job: str, runs: Path) -> Iterator[Path]:
    for task in bundle.job(job).tasks.values():
        name = re.compile(re.escape(task.key) + r"-\d+\.ipynb")
        attempts = [file for file in runs.glob("*/*.ipynb") if name.fullmatch(file.name)]
        attempts.sort(key=lambda file: file.stat().st_mtime)
        if task.notebook is None or not attempts:
            continue
        stored, executed = read_notebook(task.notebook).content, read_notebook(attempts[-1]).content
        for cell, shown in zip(stored.cells, executed.cells, strict=True):
            if cell.cell_type == "code" and cell.source.strip():
                cell.metadata[HASH] = source_hash(cell.source)
                cell.execution_count = shown.execution_count
                cell.outputs = [_portable(output, bundle.root, runs.parent) for output in shown.outputs]
        task.notebook.write_text(nbformat.writes(stored) + "\n", encoding="utf-8")
        _store_picture(task.notebook)
        yield task.notebook


def first_picture(notebook: Path) -> bytes | None:
    """The first picture among the outputs that are stored in ``notebook``, a PNG."""
    return next(pictures(read_notebook(notebook).content), None)


def picture_file(notebook: Path) -> Path:
    """The file of the first picture of ``notebook``, in ``pictures`` beside it, for pages that show it."""
    return notebook.parent / "pictures" / f"{notebook.stem}.png"


def _store_picture(notebook: Path) -> None:
    picture, file = first_picture(notebook), picture_file(notebook)
    if picture is not None:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(picture)
    else:
        file.unlink(missing_ok=True)


def _portable(output: Any, *own: Path) -> Any:
    """``output`` without the paths of this machine: those below ``own`` folders, the temporary one and the user's."""
    folders = "|".join(re.escape(str(folder)) for folder in (*own, Path(tempfile.gettempdir()), Path.home()))

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(rf"(?:{folders})(?=[/\s'\"<)]|$)", "…", value)
        if isinstance(value, dict):
            return nbformat.from_dict({key: item if key.startswith("image/") else cleaned(item) for key, item in value.items()})
        return [cleaned(item) for item in value] if isinstance(value, list) else value

    return cleaned(output)
