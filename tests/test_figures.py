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
    marks = [f"<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in (run.PAPER, run.FIGURES, *run.HEADS)]
    page.write_text(f"head\n{''.join(marks)}tail\n")
    if code:  # what has ended early is no measure
        stored.write_text("{}")
    run.record([outcome], stored, page)
    assert sorted(json.loads(stored.read_text())) == ([] if code else ["other", "rows"])
    rows = page.read_text().splitlines()
    assert (rows[0], rows[-1]) == ("head", "tail")
    row = f"| rows → nowhere | 1.50 of the \\| client | 1.00 to 2.00 | at least 0.8 | reached | {outcome.on} |"
    assert (row in rows) == (not code)
    assert (f"| rows → nowhere | 30.00 rows/s | {run.GOAL // 30 + 1:,} |  |" in rows) == (not code)


def test_the_page_has_what_is_recorded() -> None:
    runs = [run.Run.of(record) for record in json.loads(run.STORED.read_text()).values()]
    tables = {run.FIGURES: run.table(runs), run.PAPER: run.paper(runs)}
    for name, table in {**tables, **{name: run.head(runs, figures) for name, figures in run.HEADS.items()}}.items():
        _, _, after = run.PAGE.read_text().partition(f"<!-- {name} -->\n")
        assert after.partition(f"<!-- /{name} -->")[0] == table, "make bench ARGS=--record writes it"


def test_the_page_begins_with_figures_that_there_are() -> None:
    runs = [run.Run.of(record) for record in json.loads(run.STORED.read_text()).values()]
    known = {figure.what for one in runs for figure in one.figures}
    assert {name for names in run.HEADS.values() for name in names} <= known


def test_a_row_at_the_begin_of_the_page_has_all_peers() -> None:
    peers = {"Spark's own": 1500, "Flink": 6000}
    rows = [Figure("b", "rows | there", "rows/s", [3000], peer, [rate]) for peer, rate in peers.items()]
    table = run.head([run.Run("b", "", 1, 0, "", "", [*rows, Figure("b", "a plan", "s", [1])])], ["rows | there"])
    assert table.splitlines()[2:] == ["| rows \\| there | 2.00 of Spark's own; 0.50 of Flink | 3,000 rows/s |"]


@pytest.mark.parametrize(
    ("peer", "ratio", "limit"),
    [("redis-py", 0.9, "the system, or its client"), ("redis-py", 0.5, "this library"), ("Spark's own", 2, "")],
)
def test_on_paper_a_system_is_the_limit_where_its_client_alone_is_no_faster(peer: str, ratio: float, limit: str) -> None:
    beside_spark = Figure("b", "rows → there", "rows/s", [3000], "Spark's own", [1])
    beside = Figure("b", "rows → there", "rows/s", [3000], peer, [3000 / ratio])
    figures = [beside, beside_spark, Figure("b", "a plan", "s", [1])]
    (_, _, row) = run.paper([run.Run("b", "", 1, 0, "", "", figures)]).splitlines()
    assert row == f"| rows → there | 3,000 rows/s | 6,667 | {limit} |"
