"""A checkpoint that something else has written is refused, whatever the source makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors.core import StateError
from connectors.core.planning import Planner
from connectors.systems import all_systems

POSITIONS: list[dict[str, Any]] = [
    {"logOffset": 3},
    {"partitions": {"a": 1}, "next": "x"},
    {"files": {"/x": 5}, "next": None},
]


OPTIONS: dict[str, dict[str, Any]] = {
    "sequence": {"end": 10},
    "file_stream": {"path": "{folder}/a.txt"},
    "files": {"path": "{folder}", "fileFormat": "text"},
    "jdbc": {
        "url": "sqlite:///{folder}/x.db", "dbtable": "t", "incremental": "incrementing", "incrementingColumn": "id"
    },
}  # fmt: skip
"""The options of each source that needs no server."""


@pytest.mark.parametrize("at", POSITIONS, ids=lambda at: "-".join(at))
@pytest.mark.parametrize("system", OPTIONS)
def test_a_position_of_another_program_is_a_clear_error(tmp_path: Path, system: str, at: dict[str, Any]) -> None:
    (tmp_path / "a.txt").write_text("line\n")
    (tmp_path / "x.db").touch()
    options = {name: str(value).format(folder=tmp_path) for name, value in OPTIONS[system].items()}
    source, _ = all_systems()[system]
    assert source is not None
    planner = Planner(source.of(options, streaming=True))
    offset = {"v": 1, "at": at, "parts": 2}
    with pytest.raises(StateError, match=r"none of this source(?s:.*)checkpointLocation of its own"):
        planner.slices(offset, {**offset, "at": {**at, "z": 1}})
    if system != "jdbc":  # which first looks for its tables
        with pytest.raises(StateError, match=r"none of this source"):
            planner.latest(offset)
