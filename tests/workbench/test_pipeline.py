"""The parameters of a pipeline notebook, and what follows from them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.core.dead_letters import DEAD_LETTERS
from connectors.systems.file_stream import FileStreamSource
from connectors.workbench import Demo, Pipeline, pipeline


def pipeline_in(folder: Path | str, **parameters: str) -> Pipeline:
    defaults = {"name": "p", "workdir": str(folder), "target": f"{folder}/table", "options": "{}"}
    return pipeline(SimpleNamespace(widgets=SimpleNamespace(get={**defaults, **parameters}.__getitem__)))


@pytest.mark.parametrize("errors", ["fail", "skip", "deadletter"])
def test_the_parameter_options_says_what_becomes_of_bad_records(tmp_path: Path, errors: str) -> None:
    options = pipeline_in(tmp_path, options=json.dumps({"errors": errors})).source({"path": f"{tmp_path}/*.log"})
    assert FileStreamSource.of(options).values["errors"].lower() == errors
    assert ("deadLetterPath" in options) == (errors == "deadletter")


def test_bad_records_are_set_aside_unless_something_else_is_said(tmp_path: Path) -> None:
    options = pipeline_in(tmp_path).source({"path": f"{tmp_path}/*.log"})
    assert (options["errors"], options["deadLetterPath"]) == ("deadLetter", f"{tmp_path}/p/letters")


@pytest.mark.spark
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_letters_are_counted_wherever_the_folder_of_pipelines_is(spark: Any, tmp_path: Path, scheme: str) -> None:
    state = pipeline_in(f"{scheme}{tmp_path}")
    assert state._letters(spark) == 0
    (tmp_path / "p" / "letters").mkdir(parents=True)
    assert state._letters(spark) == 0
    pq.write_table(pa.Table.from_pylist([{"source": "s"}] * 3, DEAD_LETTERS), tmp_path / "p" / "letters" / "s-1.parquet")
    assert state._letters(spark) == 3


def test_orders_of_a_demonstration_have_other_ids_after_a_kill(tmp_path: Path) -> None:
    class Killed(Demo):
        def put(self, records: Any) -> None:
            put.extend(records)
            if len(put) == 5:
                raise KeyboardInterrupt

    put: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        Killed(tmp_path, "orders").feed(5)
    Killed(tmp_path, "orders").feed(5)
    assert [json.loads(order)["id"] for order in put] == list(range(10))
