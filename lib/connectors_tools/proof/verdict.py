"""Compares what a broken pipeline has written with what the same notebook writes in one undisturbed run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from connectors.formats.base import WHOLE_TIMES, quoted
from connectors.testing.notebooks import run_notebook
from connectors.workbench.versions import history

from .subject import Subject

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SHOWN: Final = 5
_JSON: Final = {"ignoreNullFields": "false", **WHOLE_TIMES}


@dataclass(frozen=True)
class Comparison:
    """The rows of one place, ``target`` or ``quarantine``, against those of the undisturbed run."""

    place: str
    expected: int
    rows: int
    lost: int
    doubled: int
    wrong: int
    samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Some of the rows that are lost, doubled and wrong."""

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)


@dataclass(frozen=True)
class Verdict:
    """The judgement of a proof."""

    comparisons: Sequence[Comparison]
    fed: int
    read: int | None
    """The records that the undisturbed run has read; ``None`` where the target follows changes."""
    letters: tuple[int, int]
    """The dead letters, and how many there should be."""
    error: str = ""
    """Why the pipeline does not end well without faults."""

    @property
    def ok(self) -> bool:
        """True if every promise was kept."""
        return not self.error and all(comparison.ok for comparison in self.comparisons) and self.is_complete and self.letters_ok

    @property
    def is_complete(self) -> bool:
        """True if the undisturbed run has read all rows, and each is in one place: else it would be no measure."""
        rows = sum(place.expected for place in self.comparisons)
        return rows > 0 if self.read is None else self.read == rows + self.letters[1] == self.fed

    @property
    def letters_ok(self) -> bool:
        return self.letters[0] == self.letters[1]


def verdict(spark: SparkSession, subject: Subject, fed: int) -> Verdict:
    """Runs the notebook undisturbed, into a target of its own, and compares."""
    run_notebook(str(subject.notebook.absolute()), subject.parameters("ref"))
    broken, reference = subject.pipeline("out"), subject.pipeline("ref")
    rows = {run: _rows(spark, subject, pipeline) for run, pipeline in (("out", broken), ("ref", reference))}
    comparisons = [compared("target", rows["ref"], rows["out"])]
    read, letters = None, (0, 0)
    if not subject.is_merged:
        stored = [pipeline.stored(spark, "quarantine") for pipeline in (reference, broken)]
        comparisons.append(compared("quarantine", *stored))
        found, expected = (pipeline.reconciliation(spark).collect()[0] for pipeline in (broken, reference))
        read, letters = expected["read"], (found["dead_letters"], expected["dead_letters"])
    return Verdict(comparisons, fed, read, letters)


def delivered(spark: SparkSession, subject: Subject, column: str = "good") -> list[tuple[float, int]]:
    """The rows that the broken pipeline had delivered by each commit of its batches, whose time is in seconds since 1970.

    ``column`` says which ones: ``good``, ``quarantined`` or all ``rows``.
    """
    pipeline = subject.pipeline("out")
    if subject.is_merged or subject.is_copy:
        return []
    commits = history(spark, {"path": pipeline.path("counts")}).where("operationMetrics.numOutputRows = 1").orderBy("version")
    times = [row[0] for row in commits.selectExpr("double(timestamp)").collect()]
    rows = [row[0] for row in pipeline.stored(spark, "counts").orderBy("batch_id").select(column).collect()]
    return list(zip(times, accumulate(rows), strict=False))


def compared(place: str, expected: DataFrame, actual: DataFrame) -> Comparison:
    """Compares two frames, each row as often as it is there."""
    expected, actual = _comparable(expected).persist(), _comparable(actual).persist()
    extra = actual.exceptAll(expected).persist()
    kinds = {
        "lost": expected.exceptAll(actual),
        "doubled": extra.join(expected.distinct(), "row", "left_semi"),
        "wrong": extra.join(expected.distinct(), "row", "left_anti"),
    }
    counts = {kind: frame.count() for kind, frame in kinds.items()}
    samples = {kind: [row["row"] for row in frame.limit(_SHOWN).collect()] for kind, frame in kinds.items() if counts[kind]}
    return Comparison(place, expected.count(), actual.count(), **counts, samples=samples)


def _comparable(rows: DataFrame) -> DataFrame:
    """Each row as JSON of columns with their types, in order, without the place of its change in the run's stream."""
    from pyspark.sql import functions as f

    kinds = sorted((name, kind) for name, kind in rows.dtypes if name != "_position")
    columns = [f.col(quoted(name)).alias(f"{name} {kind}") for name, kind in kinds]
    return rows.select(f.to_json(f.struct(*columns), _JSON).alias("row"))


def _rows(spark: SparkSession, subject: Subject, pipeline: Any) -> DataFrame:
    if subject.end.format == "delta":
        return pipeline.rows(spark)  # type: ignore[no-any-return]
    names: dict[str, Any] = {"spark": spark, "pipeline": pipeline}
    exec(subject.end.look, names)
    return names["table"]  # type: ignore[no-any-return]
