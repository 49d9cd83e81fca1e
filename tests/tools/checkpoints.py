"""Checkpoints at rest, and the command that moves their sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from connectors_tools.cli import main

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795830943260,"conf":{}}'
KAFKA = {
    "v": 1, "source": "kafka", "parts": 2, "progress": {"id": "x", "start": "orders-", "parts": [["0", 100, 20, 120, 5]]},
    "from": {"topics": {"orders": {"at": {"0": 0, "1": 0}}}},
    "at": {"topics": {"orders": {"at": {"0": 100, "1": 7}, "from": {"1": 3}, "id": "abc"}}, "cut": {"least": 2}},
}  # fmt: skip
SEQUENCE = {"v": 1, "source": "sequence", "parts": 2, "at": {"next": 41}}
FILES = {"v": 1, "source": "files", "parts": 2, "at": {"at": 5, "files": [], "seen": [], "old": [-1, "", 0]}}
MESSAGES = {"v": 1, "source": "pubsub", "parts": 1, "at": {"epoch": 4, "log": "l"}}


def offsets(*arguments: object, code: int = 0, stdin: str | None = None, accepts: bool = True) -> Result:
    """Calls the command. With ``--yes`` and ``accepts`` it may go back."""
    if accepts and "--yes" in arguments:
        arguments += ("--accept-duplicates",)
    result = CliRunner().invoke(main, ["offsets", *map(str, arguments)], input=stdin)
    assert result.exit_code == code, result.output
    return result


def checkpoint(folder: Path, *values: Mapping[str, Any] | None, version: str = "v1", committed: bool = True) -> Path:
    """A checkpoint at rest behind its batch 3."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"71c8-query"}')
    lines = ["-" if value is None else json.dumps(value) for value in values]
    named = [f"{number}:{line}" for number, line in enumerate(lines)] if version == "v2" else lines
    (folder / "offsets" / "3").write_text("\n".join([version, METADATA, *named]))
    (folder / "commits" / ("3" if committed else "2")).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return folder
