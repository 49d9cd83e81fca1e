"""The table of what passed where: ``pytest --environment-table FILE``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from connectors.testing.environments import ENVIRONMENTS


class EnvironmentTable:
    """The outcomes of a test run, as a table in Markdown."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts: Counter[tuple[str, str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest after each phase of a test."""
        properties = dict(report.user_properties)
        if "environment" in properties and (report.when == "call" or (report.when == "setup" and not report.passed)):
            self.counts[str(properties["subject"]), str(properties["environment"]), report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Called by pytest at the end."""
        self.file.write_text(self.text())

    def text(self) -> str:
        """A row for each subject, a column for each environment."""
        subjects = {subject for subject, _, outcome in self.counts if outcome != "skipped"}
        head = ["| case | " + " | ".join(ENVIRONMENTS) + " |", "|---" * (len(ENVIRONMENTS) + 1) + "|"]
        rows = [
            f"| {subject} | " + " | ".join(self._cell(subject, environment) for environment in ENVIRONMENTS) + " |"
            for subject in sorted(subjects, key=lambda subject: (", " not in subject, subject))
        ]
        return "\n".join([*head, *rows]) + "\n"

    def _cell(self, subject: str, environment: str) -> str:
        counts = [(self.counts[subject, environment, outcome], outcome) for outcome in ("passed", "failed")]
        return ", ".join(f"{count} {outcome}" for count, outcome in counts if count) or "-"
