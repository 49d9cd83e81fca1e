"""What a validation found: as a verdict, a table, a page, or an error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import ConnectorError
from . import page

if TYPE_CHECKING:
    import pandas as pd

_IN_A_MESSAGE = 3
Samples = list[dict[str, Any]]


class QualityFailed(ConnectorError):
    """An output that fails its checks. ``output`` is its name, ``failing`` has the sample rows of each failed check."""

    def __init__(self, message: str, *, output: str = "", failing: dict[str, Samples] | None = None) -> None:
        way_out = "correct the input or the query and write again; report.table() and report.html(path) show more."
        super().__init__(message, where=output, way_out=way_out)
        self.output = output
        self.failing = failing or {}


@dataclass(frozen=True)
class Outcome:
    """The verdict on one check.

    ``failing`` is a number of rows: those that fail; for ``unique`` all that share a value; for ``row_count`` those
    missing or too many; for ``fresh`` all with a time, as each is too old. ``rows`` is how many the output has,
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
        return text + "".join(f"\n      {page.row_text(row)}" for row in self.sample[:_IN_A_MESSAGE])


@dataclass(frozen=True)
class Report:
    """The verdict on one output. ``result`` is Great Expectations' own, for whoever keeps or forwards it."""

    name: str
    outcomes: list[Outcome]
    result: Any = field(repr=False, default=None)

    @property
    def ok(self) -> bool:
        """True when every check passed."""
        return all(outcome.ok for outcome in self.outcomes)

    def table(self) -> pd.DataFrame:
        """One row per check: ``check`` (its name), ``ok``, ``failing`` (rows), ``sample`` (a list of failing rows)."""
        import pandas as pd

        rows = [(outcome.check, outcome.ok, outcome.failing, outcome.sample) for outcome in self.outcomes]
        return pd.DataFrame(rows, columns=["check", "ok", "failing", "sample"])

    def enforce(self) -> None:
        """Nothing when all is well; else raises :class:`QualityFailed` with output, failing checks and sample rows."""
        failed = [outcome for outcome in self.outcomes if not outcome.ok]
        if failed:
            lines = [f"{len(failed)} of {len(self.outcomes)} checks failed", *(f"  {o.check}: {o}" for o in failed)]
            raise QualityFailed("\n".join(lines), output=self.name, failing={o.check: o.sample for o in failed})

    def html(self, path: str | Path) -> Path:
        """Writes the report as one page that needs nothing else (no network, no script); returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page.document(self), encoding="utf-8")
        return target

    def _repr_html_(self) -> str:
        return page.fragment(self)

    def __repr__(self) -> str:
        lines = [f"  {'ok    ' if o.ok else 'FAILED'} {o.check}{'' if o.ok else f': {o}'}" for o in self.outcomes]
        return "\n".join([f"{self.name}: {page.summary(self)}", *lines])
