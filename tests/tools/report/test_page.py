"""The page of a run, from a description that nobody has run: what is on it, and that it needs nothing else."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest

from connectors.metrics.frame import COLUMNS
from connectors.metrics.history import BatchRecord, Standing
from connectors.quality.report import CheckOutcome, Report
from connectors_tools.report.graph import ranks_of
from connectors_tools.report.page import html_of, notebook_html, write_page
from connectors_tools.report.plots import plots_of, scale, short
from connectors_tools.report.records import (
    AttemptRecord,
    DeadLetterRecord,
    LetterSample,
    QueryRecord,
    RunRecord,
    TaskRecord,
)

EVIL = '<script>alert("x")</script>'
START = 1_790_000_000.0


class Elements(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.all.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.all if (value := attributes.get(attribute))]


def query(batches: int = 3, **more: Any) -> QueryRecord:
    records = [BatchRecord(number, START + number, 100 * (number + 1), 2.0, 50 - number) for number in range(batches)]
    commit = {"rows": 1234, "last_commit": START, "commit_ms": 40}
    row = {**dict.fromkeys(COLUMNS), "component": "sink files", "partition": "", **commit}
    standing = Standing("q", "orders", "ended", rows=600, batches=batches, lag=0, dead_letters=2, table=[row])
    return QueryRecord(replace(standing, **more), START, records, targets={"sink files": "/data/out"})


def task(key: str, after: Sequence[str] = (), state: str = "SUCCESS", **more: Any) -> TaskRecord:
    attempt = AttemptRecord(key, 1, state, START, 5.0, **more)
    return TaskRecord(key, state, depends_on=dict.fromkeys(after, ""), attempts=[attempt])


def run(*tasks: TaskRecord, **more: Any) -> RunRecord:
    return RunRecord("job", "20260101-060000", more.pop("state", "SUCCESS"), START, 20.0, tasks, **more)


def full(folder: Path) -> RunRecord:
    """A run with everything in it that a page can show."""
    cells = [nbformat.v4.new_markdown_cell("# The title"), nbformat.v4.new_code_cell("1 + 1")]
    picture = nbformat.v4.new_output("display_data", {"image/png": "aVBORw0KGgo="})
    cells[1].outputs = [picture, nbformat.v4.new_output("stream", text="printed by the cell\n")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "a-1.ipynb")
    check = CheckOutcome("not_null(id)", "id is not null", "", False, 1, 10, [{"id": None, "name": EVIL}])
    letters = DeadLetterRecord("/data/letters", 7, [LetterSample('{"offset":3}', "must be a number; got 'far'", EVIL)])
    whole = task("a", said="600 rows", notebook=folder / "a-1.ipynb", queries=[query()], letters=[letters])
    failing = task("b", ["a"], "FAILED", error=f"ValueError: {EVIL}", quality=[Report("orders", [check])])
    stopped = TaskRecord("c", "UPSTREAM_FAILED", depends_on={"b": ""})
    facts = {"description": "Orders, each once", "target": "dev"}
    return run(whole, failing, stopped, state="FAILED", parameters={"rows": "600"}, versions={"pyspark": "4.2.0"}, **facts)


def test_a_query_says_what_a_trigger_costs_and_how_long_a_record_waits() -> None:
    text = Elements(html_of(run(task("a", queries=[query(4)])))).text
    assert "A batch takes 2.0 s: a trigger every minute keeps the driver busy for 3% of the time" in text
    assert "a record waits for 62 s at most." in text
    assert "A batch takes" not in Elements(html_of(run(task("a", queries=[query(1)])))).text  # it has started everything


def test_a_page_shows_all_of_a_run(tmp_path: Path) -> None:
    page = write_page(full(tmp_path), tmp_path / "index.html")
    text = Elements(page.read_text()).text
    for part in (
        "Orders, each once", "Upstream failed", "600 rows", "orders", "/data/out", "1,234", "id is not null",
        "7 dead letters", "must be a number; got 'far'", '{"offset":3}', "The title", "printed by the cell", "pyspark",
        "4.2.0", "0 of 1",
    ):  # fmt: skip
        assert part in text, part


def test_a_query_that_is_started_again_is_named_once() -> None:
    again = [query(), query(1, rows=100, state="failed"), query(query="p", name="copy")]
    text = Elements(html_of(run(task("a", queries=again)))).text
    assert text.count("orders in a") == 1
    assert "Started again, Failed: 100 rows in 1 batch" in text
    assert "rows read by 2 queries in 7 batches" in text


def test_a_query_that_another_task_starts_again_is_named_with_that_task() -> None:
    text = Elements(html_of(run(task("a", queries=[query()]), task("b", ["a"], queries=[query()])))).text
    assert ("orders in a" in text, "orders in b" in text) == (True, True)


def test_a_page_needs_no_network_no_script_and_no_other_file(tmp_path: Path) -> None:
    html = html_of(full(tmp_path), tmp_path)
    elements = Elements(html)
    assert {tag for tag, _ in elements.all} & {"script", "link", "iframe", "object"} == set()
    assert [source for source in elements.values("src") if not source.startswith("data:")] == []
    assert re.search(r"url\(|@import", html) is None
    assert "default-src 'none'" in "".join(elements.values("content"))
    assert {link for link in elements.values("href") if not link.startswith("#")} == {"a-1.ipynb"}


def test_what_data_holds_is_text_on_the_page_and_never_markup(tmp_path: Path) -> None:
    elements = Elements(html_of(full(tmp_path), tmp_path))
    assert "script" not in {tag for tag, _ in elements.all}
    assert elements.text.count('alert("x")') >= 3


def strange(folder: Path) -> Path:
    """An executed notebook whose Markdown and outputs hold what strangers would write."""
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    text = f"# Title\n\n{EVIL}\n\n[a link](javascript:alert(1)) <b onclick='alert(2)'>bold</b>"
    cells = [nbformat.v4.new_markdown_cell(text)]
    cells.append(nbformat.v4.new_code_cell("print('<script>as code</script>')"))
    html = f"""{EVIL}<style>.pill {{ display: none }}</style><img src=x onerror="alert(3)"><img src="https://evil.example/a.png">
        <svg><script>alert(4)</script></svg><math><style><img src=x onerror=alert(5)></style></math><base href="https://evil.example/">
        <meta http-equiv="refresh" content="0;url=https://evil.example">
        <iframe srcdoc="{EVIL}"></iframe><form action="https://evil.example">
        <a href="data:text/html,{EVIL}">data</a><a href=" JaVaScRiPt:alert(6)">script</a>
        <div id="tasks" style="position:fixed;top:0;color:red" class="x">over all</div>
        </form></div></div></details></section></main>
        <table border="1" class="dataframe"><thead><tr style="text-align: right;"><th>id</th></tr></thead>
        <tbody><tr><td colspan="2">41&lt;</td></tr></tbody></table>"""
    svg = f'<svg xmlns="http://www.w3.org/2000/svg">{EVIL}<rect width="9" height="9"/></svg>'
    outputs = [{"text/html": html}, {"image/png": pixel}, {"image/svg+xml": svg}, {"application/javascript": "alert(7)"},
               {"text/markdown": f"**strong** {EVIL}"}]  # fmt: skip
    cells[1].outputs = [nbformat.v4.new_output("display_data", output) for output in outputs]
    cells[1].outputs[1].metadata = {"image/png": {"width": "1 onerror=alert(8)"}}
    isolated = {"text/html": {"isolated": True}}
    cells[1].outputs.append(nbformat.v4.new_output("display_data", {"text/html": EVIL}, metadata=isolated))
    cells[1].outputs.append(nbformat.v4.new_output("stream", text=f"printed {EVIL}\n"))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "strange.ipynb")
    return folder / "strange.ipynb"


def test_what_a_notebook_shows_runs_nothing_loads_nothing_and_covers_nothing(tmp_path: Path) -> None:
    elements = Elements(html_of(run(task("a", notebook=strange(tmp_path))), tmp_path))
    tags = [tag for tag, _ in elements.all]
    assert set(tags) & {"script", "iframe", "base", "form", "object", "math", "link", "svg"} == set()
    assert (tags.count("style"), tags.count("meta"), elements.values("id")) == (1, 4, ["tasks", "task-a", "notebooks"])
    assert [name for _, attributes in elements.all for name in attributes if name.startswith("on")] == []
    assert {link for link in elements.values("href") if not link.startswith("#")} == {"strange.ipynb"}
    assert [source for source in elements.values("src") if not source.startswith("data:image/")] == []
    assert "color:red;" in elements.values("style")
    assert [style for style in elements.values("style") if "position" in style] == []
    assert not re.search(r"alert\([4567]\)|display: none \}$", elements.text)


def test_text_tables_and_pictures_of_a_notebook_are_on_its_page(tmp_path: Path) -> None:
    html = html_of(run(task("a", notebook=strange(tmp_path))), tmp_path)
    elements = Elements(html)
    assert {"dataframe", "highlight"} <= {name for names in elements.values("class") for name in names.split()}
    assert ("td", {"colspan": "2"}) in elements.all
    assert "text-align: right;" in elements.values("style")
    pictures = [source.partition(",")[0] for source in elements.values("src")]
    assert pictures == ["data:image/png;base64", "data:image/svg+xml;base64"]
    for part in ("Title", "bold", "over all", "41<", "strong", f"printed {EVIL}", "'<script>as code</script>'"):
        assert part in elements.text, part
    assert html.index("over all") < html.index("</details>")


OPEN = ['<div style="display:none">', "<style>", "<script>", "<details><table><td>", "<!--", "<a title='"]


@pytest.mark.parametrize("opening", OPEN)
@pytest.mark.parametrize("kind", ["text/html", "text/markdown"])
def test_what_a_cell_leaves_open_ends_with_it(tmp_path: Path, kind: str, opening: str) -> None:
    output = nbformat.v4.new_output("display_data", {kind: f"before {opening} inside"})
    last = nbformat.v4.new_output("display_data", {"text/html": "<style>.a { color: red }</style><p>the last one</p>"})
    cells = [
        nbformat.v4.new_code_cell("1", outputs=[output]),
        nbformat.v4.new_markdown_cell(f"text {opening}"),
        nbformat.v4.new_code_cell("2", outputs=[last]),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "open.ipynb")
    above = notebook_html(tmp_path / "open.ipynb").partition("<p>the last one</p>")[0]
    assert above.count("<div") - above.count("</div") == 5, "those of its own cell"
    assert [above.count(f"<{tag}") - above.count(f"</{tag}") for tag in ("details", "table", "style", "script")] == [0] * 4


def test_a_table_that_nobody_can_read_is_a_sentence(tmp_path: Path) -> None:
    table = f"<table>{'<tr><td>1</td><td>x</td></tr>' * 20_000}</table>"
    outputs = [nbformat.v4.new_output("display_data", {"text/html": html}) for html in (table, "<p>the next one</p>")]
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)]), tmp_path / "long.ipynb")
    html = notebook_html(tmp_path / "long.ipynb")
    assert "<p>580,015 characters of HTML are not shown here; the executed notebook has them.</p>" in html
    assert "<p>the next one</p>" in html


def test_scripts_without_an_end_are_searched_once(tmp_path: Path) -> None:
    output = nbformat.v4.new_output("display_data", {"text/html": f"<p>before</p>{'<script ' * 4000}{'x' * 400_000}"})
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[output])]), tmp_path / "a.ipynb")
    began = time.process_time()
    assert "<p>before</p>" in notebook_html(tmp_path / "a.ipynb")
    assert time.process_time() - began < 3


def test_a_page_has_no_other_base_and_sends_no_form(tmp_path: Path) -> None:
    policy = next(value for value in Elements(html_of(full(tmp_path))).values("content") if "default-src" in value)
    assert "base-uri 'none'; form-action 'none'" in policy


def test_each_id_is_there_once_and_each_link_leads_to_one(tmp_path: Path) -> None:
    record = full(tmp_path)
    twice = replace(record, tasks=[*record.tasks, task("d", notebook=tmp_path / "a-1.ipynb")])
    elements = Elements(html_of(twice, tmp_path))
    ids = elements.values("id")
    assert sorted(ids) == sorted(set(ids))
    assert {link[1:] for link in elements.values("href") if link.startswith("#")} <= set(ids)


def test_what_a_run_does_not_have_is_no_section() -> None:
    elements = Elements(html_of(run(task("a"))))
    assert set(elements.values("id")) == {"tasks", "task-a"}


def test_a_notebook_that_is_gone_is_a_sentence(tmp_path: Path) -> None:
    assert "The notebook cannot be shown" in html_of(run(task("a", notebook=tmp_path / "gone.ipynb")))


def test_a_run_of_a_workspace_has_links_to_it() -> None:
    record = run(task("a", link="https://host/run/7/a"), link="https://host/run/7")
    assert {"https://host/run/7", "https://host/run/7/a"} <= set(Elements(html_of(record)).values("href"))


def test_tasks_are_ranked_by_the_steps_before_them() -> None:
    tasks = [task("d", ["b", "c"]), task("a"), task("b", ["a"]), task("c", ["a"]), task("e", ["gone"])]
    assert ranks_of(tasks) == [["a", "e"], ["b", "c"], ["d"]]


def test_tasks_stand_below_what_they_follow() -> None:
    tasks = [task("a"), task("b"), task("y", ["b"]), task("x", ["a"])]
    assert ranks_of(tasks) == [["a", "b"], ["x", "y"]]


def test_the_graph_has_a_box_for_each_task_and_an_arrow_for_each_dependency() -> None:
    condition = TaskRecord("if", "SUCCESS", result="true", depends_on={"a": ""})
    branch = replace(task("b"), depends_on={"if": "true"})
    elements = Elements(html_of(run(task("a"), condition, branch, task("c", ["a", "b"]))))
    arrows = [value for value in elements.values("class") if value == "arrow"]
    boxes = [value for value in elements.values("class") if value.startswith("box")]
    assert (len(boxes), len(arrows)) == (2 * 4, 2 * 4)  # drawn for a wide page and for a phone
    assert "true" in elements.texts


def test_no_box_of_a_phone_is_outside_its_drawing() -> None:
    html = html_of(run(*(task(key) for key in "abcdefg"), task("z", "abcdefg")))
    [width] = [int(digits) for digits in re.findall(r'graph narrow" viewBox="0 0 (\d+)', html)]
    narrow = html[html.index("graph narrow") :]
    assert width <= 360
    assert max(int(x) + int(w) for x, w in re.findall(r'class="frame" x="(\d+)" y="\d+" width="(\d+)"', narrow)) <= width


def test_a_query_has_plots_of_rows_seconds_and_lag() -> None:
    titles = [re.findall(r'class="title"[^>]*>([^<]*)', plot)[0] for plot in plots_of(query())]
    assert titles == ["Rows of a batch", "Seconds of a batch", "Lag after a batch, records"]


def test_one_batch_needs_no_plot_and_an_unknown_lag_has_none() -> None:
    assert plots_of(query(1)) == []
    unknown = replace(query(), batches=[replace(batch, lag=None) for batch in query().batches])
    assert len(plots_of(unknown)) == 2


def test_many_batches_share_bars_and_the_largest_is_seen() -> None:
    batches = [BatchRecord(number, START, 9_999 if number == 777 else 10, 1.0) for number in range(1000)]
    rows = plots_of(replace(query(), batches=batches))[0]
    assert rows.count("<rect") <= 90
    assert "9,999 rows" in rows


@pytest.mark.parametrize(
    ("largest", "top", "step"), [(0, 1, 1), (300, 300, 100), (78_239, 100_000, 50_000), (0.7, 0.75, 0.25), (1, 1, 0.5)]
)
def test_the_scale_of_an_axis(largest: float, top: float, step: float) -> None:
    assert scale(largest) == pytest.approx((top, step))


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.25, "0.25"), (7, "7"), (2500, "2.5k"), (5_000_000, "5M")])
def test_numbers_of_an_axis(value: float, text: str) -> None:
    assert short(value) == text
