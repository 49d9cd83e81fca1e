"""The report of a validation as a verdict, a table, an error, or HTML (a page, or a part of a notebook's cell).

The verdicts are Great Expectations'. Its own page is not used: it loads styles, scripts and fonts from the network, and shows
values instead of rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..ground.errors import ConnectorError, Misconfigured, Problem

if TYPE_CHECKING:
    import pandas as pd



_STYLE = """
.quality { --ink: #1c2733; --soft: #5b6b7b; --line: #dfe5ec; --paper: #ffffff; --tint: #f5f7fa;
           --good: #1a7f4b; --good-bg: #e3f5ea; --bad: #b42318; --bad-bg: #fdeceb;
           font: 14px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: var(--ink);
           background: var(--paper); max-width: 64rem; padding: 1.5rem; border: 1px solid var(--line);
           border-radius: 10px; }
@media (prefers-color-scheme: dark) {
  .quality { --ink: #e6ebf1; --soft: #9aa9b8; --line: #34414e; --paper: #161d24; --tint: #1e2730;
             --good: #5fd39a; --good-bg: #143524; --bad: #ff8f85; --bad-bg: #45201d; } }
.quality h1 { font-size: 1.35rem; margin: 0; }
.quality header { display: flex; align-items: center; gap: .8rem; }
.quality p { color: var(--soft); margin: .3rem 0 1.1rem; }
.quality table { border-collapse: collapse; width: 100%; margin: 0; color: inherit; font-size: inherit; }
.quality th, .quality td { text-align: left; padding: .5rem .7rem; vertical-align: top; background: none;
                           border-bottom: 1px solid var(--line); white-space: normal; }
.quality th { font-weight: 600; color: var(--soft); font-size: .85em; }
.quality .n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.quality .pill { display: inline-block; padding: .05rem .6rem; border-radius: 1rem; font-weight: 600; font-size: .9em; }
.quality .ok { color: var(--good); background: var(--good-bg); }
.quality .failed { color: var(--bad); background: var(--bad-bg); }
.quality small { color: var(--soft); display: block; }
.quality .wide { overflow-x: auto; }
.quality .sample { background: var(--tint); font: 12px/1.5 ui-monospace, Menlo, Consolas, monospace; }
.quality .sample th, .quality .sample td { padding: .15rem .6rem; white-space: pre; }
"""


def document(report: Report) -> str:
    """The report as a complete HTML page."""
    title = escape(f"Quality of {report.name}")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    body = '<body style="margin: 2rem auto; max-width: 67rem; background: Canvas">'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n{body}\n{fragment(report)}\n</body></html>\n'


def fragment(report: Report) -> str:
    """The report as a part of another page; its styles affect nothing outside it."""
    rows = "\n".join(map(_row, report.outcomes))
    return f"""<style>{_STYLE}</style>
<section class="quality">
<header><h1>{escape(report.name)}</h1>{_pill(report.ok)}</header>
<p>{escape(summary(report))} Judged by Great Expectations.</p>
<div class="wide"><table>
<thead><tr><th>Check</th><th>Verdict</th><th class="n">Failing</th><th class="n">Share</th></tr></thead>
<tbody>
{rows}
</tbody></table></div>
</section>"""


def summary(report: Report) -> str:
    """One sentence: how many rows, how many checks passed."""
    passed = sum(outcome.ok for outcome in report.outcomes)
    rows = report.outcomes[0].rows if report.outcomes else 0
    return f"{rows:,} row{'s' * (rows != 1)}; {passed} of {len(report.outcomes)} checks passed."


def row_text(row: dict[str, Any]) -> str:
    """A sample row on one line of plain text."""
    return ", ".join(f"{column}={_value(value)}" for column, value in row.items())


def _row(outcome: CheckOutcome) -> str:
    share = f"{outcome.failing / outcome.rows:.2%}" if outcome.rows else ""
    sample = f'<tr><td colspan="4">{_sample(outcome.sample)}</td></tr>' if outcome.sample else ""
    return (
        f"<tr><td>{escape(outcome.meaning)}<small>{escape(outcome.check)} · {escape(outcome.expectation)}</small></td>"
        f'<td>{_pill(outcome.ok)}</td><td class="n">{outcome.failing:,}</td><td class="n">{share}</td></tr>{sample}'
    )


def _sample(rows: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in rows[0])
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="sample"><tr>{head}</tr>{body}</table></div>'


def _cells(row: dict[str, Any]) -> str:
    return "".join(f"<td>{escape(_value(value))}</td>" for value in row.values())


def _pill(ok: bool) -> str:
    return f'<span class="pill {"ok" if ok else "failed"}">{"passed" if ok else "failed"}</span>'


def _value(value: Any) -> str:
    """A value as people write it; text is in quotes, so that an empty one is visible and "1" is not 1."""
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, (str, bytes)) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_SAMPLES_IN_MESSAGE = 3
Samples = list[dict[str, Any]]


class QualityFailed(ConnectorError):
    """An output failed its checks. ``output`` is its name, ``failing`` has the sample rows of each failed check."""

    def __init__(self, message: str, *, output: str = "", failing: dict[str, Samples] | None = None) -> None:
        way_out = "correct the input or the query and write again; report.table() and report.html(path) show more."
        super().__init__(message, where=output, way_out=way_out)
        self.output = output
        self.failing = failing or {}


@dataclass(frozen=True)
class CheckOutcome:
    """The verdict on one check.

    ``failing`` is the number of failing rows: for ``unique`` all that share a value, for ``row_count`` those missing or too
    many, for ``fresh`` all with a time, since each is too old. ``rows`` is the number of rows of the output,
    ``expectation`` the type of Great Expectations' expectation, ``sample`` a few failing rows.
    """

    check: str
    meaning: str
    expectation: str
    ok: bool
    failing: int
    rows: int
    sample: Samples = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.failing:,} of {self.rows:,} rows" if self.sample else f"{self.rows:,} rows"
        return text + "".join(f"\n      {row_text(row)}" for row in self.sample[:_SAMPLES_IN_MESSAGE])


Observer = Callable[["Report"], None]
_observers: list[Observer] = []


@contextlib.contextmanager
def observed_reports(observer: Observer) -> Iterator[None]:
    """Inside, calls ``observer`` with each report that any code of this process makes."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def announce(report: Report) -> Report:
    """Passes ``report`` to the observers and returns it."""
    for observer in list(_observers):
        observer(report)
    return report


@dataclass(frozen=True)
class Report:
    """The verdict on one output. ``result`` is Great Expectations' own, to store or forward."""

    name: str
    outcomes: list[CheckOutcome]
    result: Any = field(repr=False, default=None)

    @property
    def ok(self) -> bool:
        """True if every check passed."""
        return all(outcome.ok for outcome in self.outcomes)

    def table(self) -> pd.DataFrame:
        """One row per check: ``check`` (its name), ``ok``, ``failing`` (rows), ``sample`` (a list of failing rows)."""
        import pandas as pd

        rows = [(outcome.check, outcome.ok, outcome.failing, outcome.sample) for outcome in self.outcomes]
        return pd.DataFrame(rows, columns=["check", "ok", "failing", "sample"])

    def enforce(self) -> None:
        """Raises :class:`QualityFailed` with output, failing checks and sample rows, unless every check passed."""
        failed = [outcome for outcome in self.outcomes if not outcome.ok]
        if failed:
            lines = [f"{len(failed)} of {len(self.outcomes)} checks failed", *(f"  {o.check}: {o}" for o in failed)]
            raise QualityFailed("\n".join(lines), output=self.name, failing={o.check: o.sample for o in failed})

    def html(self, path: str | Path) -> Path:
        """Writes the report as a self-contained page (no network, no script); returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(document(self), encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return fragment(self)

    def __repr__(self) -> str:
        lines = [f"  {'ok    ' if o.ok else 'FAILED'} {o.check}{'' if o.ok else f': {o}'}" for o in self.outcomes]
        return "\n".join([f"{self.name}: {summary(self)}", *lines])


def enforce(*reports: Report) -> pd.DataFrame:
    """The verdict on several outputs: a row for each check, ``output``, ``check``, ``ok``, ``failing`` (rows).

    Raises :class:`QualityFailed` with all failures of all outputs, and :class:`Misconfigured` without a report.
    """
    import pandas as pd

    if not reports:
        raise Misconfigured("quality.enforce", [Problem("reports", "missing; give what validate has returned.")])
    failures = [failure for failure in map(_failure, reports) if failure]
    if len(failures) == 1:
        raise failures[0]
    if failures:
        failing = {f"{failure.output}: {check}": rows for failure in failures for check, rows in failure.failing.items()}
        text = "\n".join(f"{failure.output}: {failure.message}" for failure in failures)
        raise QualityFailed(text, output=", ".join(failure.output for failure in failures), failing=failing)
    tables = [report.table().assign(output=report.name) for report in reports]
    return pd.concat(tables, ignore_index=True)[["output", "check", "ok", "failing"]]


def _failure(report: Report) -> QualityFailed | None:
    try:
        report.enforce()
    except QualityFailed as failure:
        return failure
    return None
