"""Figures of benchmarks: how they are judged, recorded and shown."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).with_name("benchmarks")))  # as a benchmark finds them

import run
from figures import Figure

SCRIPT = '''"""Rows that are counted: ``python bench_rows.py [rows]``."""
import sys
from figures import figure
figure("rows → nowhere", "rows/s", [30, 20, 40], "the | client", [20, 20, 20], least=0.8)
figure("a batch of 1 row <b>", "ms", [12.345], most=10)
sys.exit(int(sys.argv[1]))
'''


@pytest.mark.parametrize(
    ("figure", "values", "goal", "verdict"),
    [
        (Figure("b", "w", "rows/s", [200, 150], "peer", [100, 100], least=0.8), [2, 1.5], "at least 0.8", "reached"),
        (Figure("b", "w", "s", [2, 4], "peer", [1, 1], least=0.8), [0.5, 0.25], "at least 0.8", "missed"),
        (Figure("b", "w", "s", [1, 4], "peer", [1, 1], least=0.8), [1, 0.25], "at least 0.8", "no verdict"),
        (Figure("b", "w", "ms", [9, 10], most=10), [9, 10], "at most 10 ms", "reached"),
        (Figure("b", "w", "rows/s", [90_000], least=100_000), [90_000], "at least 100,000 rows/s", "missed"),
        (Figure("b", "w", "", [3]), [3], "", ""),
    ],
)
def test_rounds_on_both_sides_of_a_goal_are_no_verdict(figure: Figure, values: Any, goal: str, verdict: str) -> None:
    assert (figure.values, figure.goal, figure.verdict) == (values, goal, verdict)


def test_rounds_of_both_are_as_many() -> None:
    with pytest.raises(ValueError, match="zip"):
        _ = Figure("b", "w", "s", [1, 2], "peer", [1]).values


@pytest.mark.parametrize("code", [0, 1])
def test_a_benchmark_gives_figures_to_page_and_record(tmp_path: Path, code: int, monkeypatch: Any) -> None:
    monkeypatch.setenv("PYTHONPATH", str(run.FOLDER))
    script = tmp_path / "bench_rows.py"
    script.write_text(SCRIPT)
    outcome = run.ran(script, [str(code)], tmp_path)
    assert (outcome.benchmark, outcome.title, outcome.code) == ("rows", "Rows that are counted", code)
    assert [figure.verdict for figure in outcome.figures] == ["reached", "missed"]
    printed = (tmp_path / "rows.txt").read_text().splitlines()
    measured = "1.50 (1.00 to 2.00) of the | client: 30.00 rows/s, it 20.00; at least 0.8: reached"
    assert printed[0] == f"{'rows → nowhere':<60} {measured}"
    html = run.html_of([outcome])
    assert "a batch of 1 row &lt;b&gt;" in html
    assert ("did not end well" in html) == bool(code)
    assert 'style="left: 50.0%; width: 50.0%"' in html
    stored, page = tmp_path / "figures.json", tmp_path / "performance.md"
    stored.write_text(json.dumps({"rows": {}, "other": {**vars(outcome), "figures": []}}))
    page.write_text(f"head\n{run.MARKS[0]}old\n{run.MARKS[1]}\ntail\n")
    if code:  # what has ended early is no measure
        stored.write_text("{}")
    run.record([outcome], stored, page)
    assert sorted(json.loads(stored.read_text())) == ([] if code else ["other", "rows"])
    rows = page.read_text().splitlines()
    assert (rows[0], rows[-1]) == ("head", "tail")
    row = f"| rows → nowhere | 1.50 of the \\| client | 1.00 to 2.00 | at least 0.8 | reached | {outcome.on} |"
    assert (row in rows) == (not code)
