"""Stories are short: who reads one sees the idea, and no machinery."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

STORIES = sorted((Path(__file__).parents[2] / "notebooks" / "stories").glob("*.ipynb"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story_is_short(story: Path) -> None:
    notebook = nbformat.read(story, as_version=4)
    cells = [cell.source.splitlines() for cell in notebook.cells if cell.cell_type == "code"]
    assert sum(map(len, cells)) <= 120
    assert max(map(len, cells)) <= 25
    assert max(len(line) for cell in cells for line in cell) <= 96
