"""From a :class:`~connectors_tools.report.RunRecord` to its page."""

from __future__ import annotations

import datetime
import re
import statistics
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, Final

import nbformat
from bleach import Cleaner
from bleach.css_sanitizer import CSSSanitizer
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from connectors.metrics.words import amount, count, duration, moment
from connectors.quality.report import row_text, summary

from .graph import graph, state_class, state_words
from .plots import plots_of
from .records import AttemptRecord, QueryRecord, RunRecord, TaskRecord

_FOLDER: Final = Path(__file__).parent
_MINUTE: Final = 60.0


def write_page(run: RunRecord, file: Path) -> Path:
    """Writes the page of ``run`` to ``file``; links to executed notebooks are relative to its folder."""
    file.write_text(html_of(run, file.parent), encoding="utf-8")
    return file


def html_of(run: RunRecord, folder: Path | None = None) -> str:
    """The page of ``run``: HTML without scripts that loads nothing."""
    attempts = list(run.attempts())
    return str(
        templates()
        .get_template("page.html")
        .render(
            run=run,
            graph=graph(run),
            attempts=attempts,
            queries=[(task, query) for task, attempt in attempts for query in attempt.queries],
            quality=[(task, report) for task, attempt in attempts for report in attempt.quality],
            letters=[(task, letters) for task, attempt in attempts for letters in attempt.letters],
            notebooks=[(task, attempt, notebook_html(attempt.notebook)) for task, attempt in attempts if attempt.notebook],
            figures=_figures(run),
            file_link=lambda path: _relative(path, folder),
            code_styles=_code_styles(),
        )
    )


def _figures(run: RunRecord) -> list[tuple[str, str, str]]:
    """The figures at the top: the number, what it is, and how it looks."""
    attempts = [attempt for _, attempt in run.attempts()]
    queries = [query.standing for attempt in attempts for query in attempt.queries]
    checks = [check for attempt in attempts for report in attempt.quality for check in report.outcomes]
    letters = sum(letters.count for attempt in attempts for letters in attempt.letters)
    passed = sum(check.ok for check in checks)
    figures = [(duration(run.seconds), "from start to end", "")]
    if queries:
        rows, batches = sum(query.rows for query in queries), sum(query.batches for query in queries)
        number = len({query.query for query in queries})
        words = f"rows read by {count(number, 'query', 'queries')} in {count(batches, 'batch', 'batches')}"
        figures.append((f"{rows:,}", words, ""))
    if letters or queries:
        figures.append((f"{letters:,}", "dead letter" if letters == 1 else "dead letters", "fair" if letters else ""))
    if checks:
        figures.append((f"{passed} of {len(checks)}", "checks of quality passed", "" if passed == len(checks) else "bad"))
    return figures


@lru_cache(maxsize=1)
def _exporter() -> Any:
    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True, sanitize_html=True)
    exporter.register_filter("clean_html", lambda html: _clean(str(html)))
    return exporter


_CODE: Final = re.compile(r"<(script|style)\b(?:.*?</\1\s*>|.*)", re.DOTALL | re.IGNORECASE)
"""Scripts and styles, which would stand on the page as text, once their tags are gone."""
_IDS: Final = re.compile(r'(<div\b[^<>]*?) id="[^"]*"')
"""The ids of cells, which several notebooks on a page may share."""
_MOST_TAGS: Final = 20_000
"""In one output. Cleaning more takes minutes, and nobody reads so long a table on a page."""
_TAGS: Final = frozenset(
    ("a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div", "dl", "dt",
     "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "i", "img", "ins", "kbd", "li", "mark",
     "ol", "p", "pre", "q", "s", "samp", "section", "small", "span", "strike", "strong", "sub", "summary", "sup", "table",
     "tbody", "td", "tfoot", "th", "thead", "tr", "tt", "u", "ul", "var")
)  # fmt: skip
_ATTRIBUTES: Final = frozenset(("alt", "class", "colspan", "height", "rowspan", "start", "style", "title", "width"))
_LINK: Final = re.compile(r"https?:|mailto:", re.IGNORECASE)
_PICTURE: Final = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]", re.IGNORECASE)


def notebook_html(file: Path | None) -> str:
    """The executed notebook as HTML with its outputs and pictures, without scripts; a sentence where it cannot be read."""
    try:
        document = nbformat.read(file, as_version=4)
        for output in (output for cell in document.cells for output in cell.get("outputs", ()) if "metadata" in output):
            output.metadata = {}  # some of it becomes markup as it is
        body, _ = _exporter().from_notebook_node(document)
    except Exception as unreadable:
        return f"<p>The notebook cannot be shown: {escape(str(unreadable)[:300])}</p>"
    return _IDS.sub(r"\1", body)


def _clean(html: str) -> str:
    """Cleans the ``html`` of a cell or output, in which strangers may have written: text, tables and pictures stay.

    What it leaves open ends with it. Ids go; styles of an element stay where they cannot lay it over others.
    """
    if html.count("<") > _MOST_TAGS:
        return f"<p>{len(html):,} characters of HTML are not shown here; the executed notebook has them.</p>"
    cleaner = Cleaner(_TAGS, _is_harmless, ["http", "https", "mailto", "data"], strip=True, css_sanitizer=CSSSanitizer())
    return str(cleaner.clean(_CODE.sub("", html)))


def _is_harmless(tag: str, attribute: str, value: str) -> bool:
    address = {("a", "href"): _LINK, ("img", "src"): _PICTURE}.get((tag, attribute))
    return address.match(value) is not None if address else attribute in _ATTRIBUTES


def _code_styles() -> str:
    light = HtmlFormatter(style="friendly").get_style_defs(".notebook .highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".notebook .highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


@lru_cache(maxsize=1)
def templates() -> Any:
    """The templates of pages, with their filters and styles."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    styles = (_FOLDER / "page.css").read_text(encoding="utf-8")
    environment.filters.update(duration=duration, state=state_words, look=state_class, moment=moment, clock=_clock)
    environment.filters.update(quality=summary, sample=row_text, breakable=_breakable)
    environment.globals.update(plots_of=plots_of, amount=amount, count=count, bar=_bar, styles=styles)
    environment.globals.update(components=_components, cost=_cost)
    return environment


def _breakable(name: str) -> Any:
    """A name that a narrow page breaks behind its underscores."""
    return Markup(escape(name).replace("_", "_<wbr>"))


def _clock(seconds: float | None) -> str:
    return "" if seconds is None else datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%H:%M:%S")


def _bar(run: RunRecord, item: TaskRecord | AttemptRecord) -> str:
    """The styles of a task's bar: when it ran, as a share of the run's time."""
    whole = max(run.seconds, 0.001)
    start = max(0.0, ((item.started or run.started) - run.started) / whole)
    return f"left:{min(start, 1) * 100:.2f}%;width:{max(0.6, min(item.seconds / whole, 1) * 100):.2f}%"


def _components(query: QueryRecord) -> list[dict[str, Any]]:
    """The query's table with a row for each source, operator and sink: its partitions are added up."""
    joined: dict[str, dict[str, Any]] = {}
    for row in query.standing.table:
        component = joined.setdefault(row["component"], {"component": row["component"], "partitions": 0, "last_commit": None})
        component["partitions"] += bool(row["partition"])
        for name in ("rows", "bytes", "errors", "retries", "dead_letters"):
            if row[name] is not None:
                component[name] = component.get(name, 0) + row[name]
        if row["last_commit"] and row["last_commit"] > (component["last_commit"] or 0):
            component.update(last_commit=row["last_commit"], commit_ms=row["commit_ms"])
    return [{**component, "target": query.targets.get(name, "")} for name, component in joined.items()]


def _cost(query: QueryRecord) -> str:
    """The cost of a trigger, and how long a record waits; empty for a query with one batch, which has started everything."""
    seconds = [batch.seconds for batch in query.batches[1:]]
    if not seconds:
        return ""
    typical = statistics.median(seconds)
    share = f"{min(1.0, typical / _MINUTE):.0%}"
    return (
        f"A batch takes {typical:,.1f} s: a trigger every minute keeps the driver busy for {share} of the time, and a "
        f"record waits for {duration(_MINUTE + typical)} at most."
    )


def _relative(path: Path, folder: Path | None) -> str:
    return path.relative_to(folder).as_posix() if folder is not None and path.is_relative_to(folder) else path.name
