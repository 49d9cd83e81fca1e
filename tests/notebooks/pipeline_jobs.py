"""A pipeline of the repository as a job, on data and in a folder of a test's own."""

from __future__ import annotations

import datetime
import io
import json
from collections.abc import Collection
from pathlib import Path

import pyarrow.parquet as pq

from connectors.workbench.settings import library
from connectors_tools.bundle import Reporter, load, run_job
from tests.delta_log import delta

ROOT = library().parent


def order_texts(numbers: Collection[int]) -> list[str]:
    """Orders as JSON; every tenth is cut off, and every eleventh of the others has a price below zero."""
    texts = {n: json.dumps({"id": n, "city": "Zürich", "cents": price(n), "at": "2026-03-01T00:00:00Z"}) for n in numbers}
    return [text[:12] if n % 10 == 0 else text for n, text in texts.items()]


def price(number: int) -> int:
    return -1 if number % 11 == 0 else 100 * number


class Job:
    """A pipeline of the repository whose state and table are in ``folder``."""

    def __init__(self, name: str, folder: Path, **parameters: str) -> None:
        self.name, self.folder, self.target = name, folder, folder / "table"
        self.parameters = {"workdir": str(folder / "state"), "target": str(self.target), **parameters}

    def run(self, *only: str) -> tuple[bool, str]:
        """Runs its tasks, or some of them; returns whether they succeeded, and what was printed."""
        output = io.StringIO()
        run_job(load(ROOT), self.name, self.parameters, Reporter(output), self.folder / "runs", only)
        return output.getvalue().splitlines()[-1].split()[1] == "SUCCESS", output.getvalue()

    def check(self, numbers: Collection[int]) -> None:
        """Compares every row of the table and of the quarantine, and every dead letter, with the :func:`order_texts`."""
        state = self.folder / "state" / self.name
        at, whole = datetime.datetime(2026, 3, 1), [n for n in numbers if n % 10]
        for table, is_good in ((self.target, True), (state / "quarantine", False)):
            rows = delta(table).select(["id", "city", "cents", "at"]).sort_by("id").to_pylist()
            expected = [n for n in whole if (price(n) > 0) is is_good]
            assert rows == [{"id": n, "city": "Zürich", "cents": price(n), "at": at} for n in expected]
        files = (state / "letters").glob("*.parquet")
        letters = [record for file in files for record in pq.read_table(file)["record"].to_pylist()]
        assert sorted(letters) == sorted(order.encode() for order in order_texts(numbers) if len(order) == 12)
