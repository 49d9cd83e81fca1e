"""``workbench.wait``: the rows of a query can be seen when it returns, whatever the sink hides meanwhile."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import connectors
from connectors import workbench
from connectors.testing.environments import Environment

pytestmark = [pytest.mark.spark, pytest.mark.essential]


def writer_of(spark: Any, folder: Path, carrier: str, **options: Any) -> Any:
    rows = spark.readStream.format("connectors.sequence").options(end=100, maxRowsPerTrigger=60).load()
    settings = {"path": str(folder / "out"), "rolling": "policy", "fileFormat": "json", **options}
    writer = rows.writeStream
    if carrier == "foreach_batch":
        writer = writer.foreachBatch(connectors.foreach_batch("files", settings))
    else:
        writer = writer.format("connectors.files").options(**settings)
    return writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)


def started(spark: Any, folder: Path, carrier: str, **options: Any) -> Any:
    return writer_of(spark, folder, carrier, **options).start()


def visible(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.joinpath("out").glob("*.json"))


@pytest.mark.environments("local", "connect")
@pytest.mark.parametrize("carrier", ["foreach_batch", "format"])
def test_the_rows_can_be_seen_when_wait_returns(environment: Environment, tmp_path: Path, carrier: str) -> None:
    if (environment.name, carrier) == ("connect", "format"):
        pytest.skip("a client of Spark Connect does not know the sink of a format")
    workbench.wait(started(environment.spark, tmp_path, carrier))
    assert visible(tmp_path) == 100


@pytest.mark.environments("local")
def test_what_the_options_want_hidden_stays_hidden(environment: Environment, tmp_path: Path) -> None:
    options = {"path": str(tmp_path / "out"), "rolling.sealAtEnd": "false"}
    workbench.wait(started(environment.spark, tmp_path, "format", **options))
    assert visible(tmp_path) == 0


@pytest.mark.environments("local", "connect")
def test_the_summary_counts_rows_and_batches(environment: Environment, tmp_path: Path, capsys: Any) -> None:
    summary = workbench.wait(started(environment.spark, tmp_path, "foreach_batch"))
    is_counted = environment.name == "local"  # Spark Connect does not count what foreachBatch reads
    assert (summary.rows, summary.batches) == (100 if is_counted else None, 2)
    assert f"{summary.query}: {'100 rows in ' if is_counted else ''}2 micro-batches, " in str(summary)
    shown = capsys.readouterr().out
    assert f"batch 0, {60 if is_counted else 0} rows" in shown
    assert f"batch 1, {40 if is_counted else 0} rows" in shown
    assert shown.rstrip().endswith("ended")


@pytest.mark.environments("local", "connect")
def test_the_error_of_the_query_is_raised(environment: Environment, tmp_path: Path, capsys: Any) -> None:
    def fail(batch: Any, number: int) -> None:
        raise ValueError("the batch is not wanted")

    rows = environment.spark.readStream.format("connectors.sequence").option("end", 10).load()
    writer = rows.writeStream.foreachBatch(fail).option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match="the batch is not wanted"):
        workbench.wait(writer.trigger(availableNow=True).start())
    assert capsys.readouterr().out.rstrip().endswith("failed")


class SlowWriter:
    """A writer whose first starts fail, as they do where a Python process has not started in time."""

    def __init__(self, writer: Any, failures: int, text: str) -> None:
        self.writer, self.failures, self.text = writer, failures, text
        self.starts = 0

    def start(self) -> Any:
        self.starts += 1
        if self.starts > self.failures:
            return self.writer.start()
        return SimpleNamespace(isActive=False, exception=lambda: RuntimeError(self.text))


@pytest.mark.environments("local", "connect")
def test_a_start_that_was_too_slow_is_made_again_and_no_other_one(environment: Environment, tmp_path: Path) -> None:
    slow = SlowWriter(writer_of(environment.spark, tmp_path, "foreach_batch"), 2, "Python worker failed to connect back.")
    assert workbench.wait(workbench.launch(slow)).batches == 2  # type: ignore[arg-type]
    assert slow.starts == 3
    for failures, text, starts in ((9, slow.text, 8), (2, "no such table", 1)):
        other = SlowWriter(None, failures, text)
        with pytest.raises(RuntimeError, match=text):
            workbench.launch(other)  # type: ignore[arg-type]
        assert other.starts == starts
