"""What has shown each guarantee, and when: ``pytest --evidence`` puts the outcomes of a run into ``stored/evidence.json``.

``make soak`` does so. A claim is a source or a sink of the guarantee table. The seeds of its suites count by themselves;
other tests have the marker ``evidence``, whose ``of`` makes what they show of their parameters. A test that fails before it
begins has it, too. The table is shown in ``lib/docs/tested.md``.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

from connectors.systems import SYSTEMS
from connectors.testing import SimulationSuite, SinkContext, SourceContext
from connectors.testing.sink_cases import KillSuite

RECORD: Final = Path(__file__).with_name("stored") / "evidence.json"
PAGE: Final = Path(__file__).parents[1] / "lib" / "docs" / "tested.md"
MARKS: Final = ("<!-- evidence -->\n", "<!-- /evidence -->")
PROPERTY: Final = "evidence"
SCHEDULES, HISTORIES, DRIVERS, FAULTS = KINDS = "schedules of kills", "histories", "killed drivers", "faults of proofs"
Context = type[SourceContext] | type[SinkContext]


def evidence(contexts: Iterable[Context], kind: str, count: int) -> list[tuple[str, str, int]]:
    """What a test shows that shows ``count`` things of a ``kind`` for each of ``contexts``."""
    return [(claim, kind, count) for claim in sorted({*map(claim_of, contexts)} - {""})]


def claim_of(context: Context) -> str:
    """The claim that ``context`` is of; empty for a toy, and a system that has none."""
    side = "source" if issubclass(context, SourceContext) else "sink"
    name: str = getattr(context, side).name
    return f"{name} {side}" if name in SYSTEMS else ""


class EvidenceRecord:
    """Counts what a run shows, and adds it to the record. What it does not run stays as it was.

    So does what it runs in part, unless that has failed: a run that was interrupted, or is of some tests, clears no failure.
    """

    def __init__(self, file: Path = RECORD, page: Path = PAGE) -> None:
        self.file, self.page = file, page
        self.passed: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.tests: dict[str, list[tuple[str, str, int]]] = {}
        """What each test shows; the report of a process that dies does not tell it."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.user_properties.append((PROPERTY, evidence_of(item)))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = self.tests.setdefault(report.nodeid, list(_properties(report)))
        if not (report.failed or (report.when == "call" and report.passed)):
            return
        counts = self.failed if report.failed else self.passed
        for claim, kind, count in properties:
            counts[claim, kind] += count

    def pytest_sessionfinish(self, session: Any) -> None:
        if hasattr(session.config, "workerinput"):  # the process that started it has the reports of all
            return
        record, today = _read(self.file), datetime.date.today().isoformat()
        for claim, kind in sorted({*self.passed, *self.failed}):
            counts = {"passed": self.passed[claim, kind], "failed": self.failed[claim, kind]}
            kinds = record.setdefault(claim, {})
            if counts["failed"] or sum(counts.values()) >= _total(kinds.get(kind)):
                kinds[kind] = {**counts, "on": today}
        record = dict(sorted(record.items()))
        self.file.write_text(json.dumps(record, indent=1) + "\n")
        head, _, rest = self.page.read_text().partition(MARKS[0])
        self.page.write_text(f"{head}{MARKS[0]}{table(record)}{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def evidence_of(item: Any) -> list[tuple[str, str, int]]:
    """What a test shows, if it passes."""
    suite = getattr(item, "cls", None) or object
    if mark := item.get_closest_marker("evidence"):
        return list(mark.kwargs["of"](*item.callspec.params.values()))
    if issubclass(suite, SimulationSuite):
        return evidence([suite.context], HISTORIES, suite.histories)
    if issubclass(suite, KillSuite) and "seed" in item.fixturenames:
        return evidence([suite.context], SCHEDULES, 1)
    return []


def table(record: dict[str, Any]) -> str:
    """A row of Markdown for each claim, with the day since which all of it has run."""
    rows = [
        [claim, *(_cell(kinds.get(kind)) for kind in KINDS), min(counts["on"] for counts in kinds.values())]
        for claim, kinds in record.items()
    ]
    head = ["claim", *KINDS, "last run"]
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def _cell(counts: dict[str, Any] | None) -> str:
    if counts is None:
        return "-"
    return f"{counts['passed']:,}" + (f", {counts['failed']} failed" if counts["failed"] else "")


def _total(counts: dict[str, Any] | None) -> int:
    return counts["passed"] + counts["failed"] if counts else 0


def _read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text())) if file.exists() else {}


def _properties(report: pytest.TestReport) -> Iterable[tuple[str, str, int]]:
    for name, value in report.user_properties:
        if name == PROPERTY:
            yield from value  # type: ignore[misc]
