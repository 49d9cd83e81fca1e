"""What a cell shows when it fails: the library's message, the line of the cell, and nothing of anybody's stack."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

import connectors
from connectors.core import Misconfigured
from connectors.ground.messages import own_message
from connectors.testing.environments import Environment
from connectors.workbench import BOOTSTRAP

WHOLE = "The full traceback: import traceback; traceback.print_last() - or the log of the job's run."
MISSING = "Misconfigured: connectors.files cannot start; 1 problem:\n  path   missing; give it "


def executed(folder: Path, *cells: str) -> list[list[Any]]:
    """The outputs of each cell of a notebook in Jupyter."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, resources=resources, timeout=200, allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells]


def test_an_error_of_ours_is_its_message_and_the_line_of_the_cell_and_the_rest_is_there(tmp_path: Path) -> None:
    mistake = 'import connectors\ndef write():\n    connectors.foreach_batch("files")\n\nwrite()'
    outputs, whole, other = executed(tmp_path, mistake, "import traceback; traceback.print_last()", "1 / 0")
    message = f'{MISSING}in the options of foreach_batch: {{"path": …}}.'
    assert outputs[0].traceback == [*message.splitlines(), "", "in line 5 of the cell: write()", "", WHOLE]
    assert "ground/options.py" in whole[0].text
    assert "ZeroDivisionError" in "".join(other[0].traceback)
    assert WHOLE not in other[0].traceback


@pytest.mark.soak
@pytest.mark.spark
def test_an_error_of_ours_inside_one_of_spark_is_shown_alone(tmp_path: Path) -> None:
    bad_load = 'rows = spark.read.format("connectors.files").option("fileFormat", "csv").load()'
    batch = 'import connectors\nstream = spark.readStream.format("connectors.sequence").option("end", 3).load()'
    bad_batch = 'stream.writeStream.foreachBatch(connectors.foreach_batch("kafka", {"kafka.bootstrap.servers": "a:1"})).start()'
    wait, last = "query.awaitTermination()", "import traceback; traceback.print_last()"
    cells = (BOOTSTRAP, bad_load, batch, f"query = {bad_batch}", wait, last, "spark.table('no')")
    outputs = executed(tmp_path, *cells)
    _, load, _, _, end, whole, foreign = outputs
    assert load[0].traceback == [
        *f'{MISSING}by .option("path", …).'.splitlines(), "", f"in line 1 of the cell: {bad_load}", "", WHOLE,
    ]  # fmt: skip
    assert end[0].traceback[0] == "Misconfigured: connectors.kafka cannot start; 2 problems:"
    assert end[0].traceback[-3:] == [f"in line 1 of the cell: {wait}", "", WHOLE]
    assert not re.search(r"py4j|java\.|Traceback \(most|SQLSTATE|File ", "\n".join([*load[0].traceback, *end[0].traceback]))
    assert [len(shown) for shown in outputs] == [0, 1, 0, 0, 1, 1, 1]
    assert "StreamingQueryException" in whole[0].text
    assert "TABLE_OR_VIEW_NOT_FOUND" in "".join(foreign[0].traceback)


def _load(spark: Any, folder: Path) -> None:
    _ = spark.read.format("connectors.files").option("fileFormat", "csv").load().schema


def _start(spark: Any, folder: Path, writer: Callable[[Any], Any]) -> None:
    frame = spark.readStream.format("connectors.sequence").option("end", 3).load()
    query = writer(frame.writeStream).option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()


def _format(spark: Any, folder: Path) -> None:
    _start(spark, folder, lambda writer: writer.format("connectors.files").option("fileFormat", "csv"))


def _foreach_batch(spark: Any, folder: Path) -> None:
    typed = {"kafka.bootstrap.servers": "a:1"}
    _start(spark, folder, lambda writer: writer.queryName("wrong").foreachBatch(connectors.foreach_batch("kafka", typed)))


def _task(spark: Any, folder: Path) -> None:
    (folder / "in").mkdir()
    (folder / "in" / "rows.json").write_text('{"a": 1}\n' * 20)
    spark.read.format("connectors.files").schema("a long").option("path", f"{folder}/in").load().collect()


def _commit(spark: Any, folder: Path) -> None:
    for checkpoint in ("first", "second"):
        _start(spark, folder / checkpoint, lambda writer: writer.format("connectors.files").option("path", f"{folder}/out"))


CASES = {
    _load: f'{MISSING}by .option("path", …).',
    _format: f'{MISSING}by .option("path", …).',
    _foreach_batch: "Misconfigured: connectors.kafka cannot start; 2 problems:\n  topic   missing; give it in the options",
    _task: "Misconfigured: connectors.files cannot start; 1 problem:\n  fileFormat   parquet is not the format of ",
    _commit: "CommitRefused: connectors.files, batch 0 of query ",
}


@pytest.mark.essential
@pytest.mark.environments("local", "connect")
@pytest.mark.parametrize("mistake", CASES, ids=lambda mistake: mistake.__name__.strip("_"))
def test_our_message_is_found_in_the_errors_of_spark(environment: Environment, tmp_path: Path, mistake: Any) -> None:
    with pytest.raises(Exception, match=r".") as raised:
        mistake(environment.spark, tmp_path)
    message = own_message(raised.value)
    assert message.startswith(CASES[mistake])
    assert not re.search(r"SQLSTATE|Traceback|\tat |=== Streaming", message)
    if mistake is _commit:
        assert message.endswith("or, if its rows are new, start it with onNewQuery=continue")


def test_an_error_of_ours_is_its_own_message_and_a_foreign_one_has_none() -> None:
    assert own_message(Misconfigured("connectors.x", [])).startswith("Misconfigured: connectors.x cannot start")
    assert own_message(ValueError("connectors.files: a text")) == ""
