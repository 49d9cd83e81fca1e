"""What the page about a workspace says, word for word, from a clone to a job that has run in it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.workbench.settings import library

ROOT = library().parent
PAGE = (ROOT / "lib" / "docs" / "workspace.md").read_text()


def commands() -> list[list[str]]:
    """The commands of the page, without their comments."""
    lines = re.findall(r"^    (python -m connectors[^#\n]*)", PAGE, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def test_the_page_has_the_commands_of_a_first_deployment() -> None:
    assert [command[2:4] for command in commands()] == [
        ["connectors_tools.fake_workspace"], ["connectors", "doctor"], ["connectors", "deploy"], ["connectors", "deploy"],
        ["connectors", "run"],
    ]  # fmt: skip


@pytest.mark.soak
@pytest.mark.spark
def test_a_new_user_deploys_and_runs_the_quickstart(tmp_path: Path) -> None:
    start, *others = commands()
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DATABRICKS_")}
    environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "lib"), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, *start[1:], "--port", "0"]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as workspace:
        try:
            assert workspace.stdout is not None
            while len(names := [name for name in environment if name.startswith("DATABRICKS_")]) < 2:
                if match := re.match(r"  export (\w+)=(\S+)", workspace.stdout.readline()):
                    environment[match[1]] = match[2]
            assert sorted(names) == ["DATABRICKS_HOST", "DATABRICKS_TOKEN"]
            outputs = []
            for words in others:
                result = subprocess.run(
                    [sys.executable, *words[1:]], env=environment, cwd=ROOT, capture_output=True, text=True
                )
                assert result.returncode == 0, f"{shlex.join(words)}\n{result.stdout}{result.stderr}"
                outputs.append(result.stdout)
        finally:
            workspace.terminate()
    assert "MISSING" not in outputs[0]
    assert "quality  SUCCESS" in outputs[-1]
    assert re.match(r"quickstart  SUCCESS", outputs[-1].splitlines()[-2])
