"""What the README says is what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_table_of_guarantees_is_the_codes() -> None:
    command = [sys.executable, "-m", "connectors", "guarantees", "--markdown"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    found = re.search(r"<!-- guarantees -->\n(.*?)<!-- /guarantees -->", README, re.DOTALL)
    assert found is not None
    assert found[1].strip() == table, f"put this into the README:\n{table}"


def test_every_notebook_and_file_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
