"""What the README says is what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import connectors
from connectors.systems import SYSTEMS

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_table_of_guarantees_is_the_codes() -> None:
    frame = connectors.guarantees()
    rows = frame[frame["system"].isin(list(SYSTEMS))].itertuples(index=False)
    lines = [f"| {' | '.join(cell or '-' for cell in row)} |" for row in rows]
    table = "\n".join(["| system | source | sink | conditions |", "|---|---|---|---|", *lines])
    found = re.search(r"<!-- guarantees -->\n(.*?)<!-- /guarantees -->", README, re.DOTALL)
    assert found is not None
    assert found[1].strip() == table, f"put this into the README:\n{table}"


def test_every_notebook_and_file_that_the_readme_names_is_there() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target
