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
from connectors.ground.errors import Misconfigured
from connectors.systems.file_stream import FileStreamSource
from connectors.workbench import Demo, Pipeline, pipeline


def pipeline_in(folder: Path | str, **parameters: str) -> Pipeline:
    defaults = {"name": "p", "workdir": str(folder), "target": f"{folder}/table", "options": "{}", "trigger": "availableNow"}
    defaults["checks"] = '[{"not_null": "id"}]'
    return pipeline(SimpleNamespace(widgets=SimpleNamespace(get={**defaults, **parameters}.__getitem__)))


@pytest.mark.parametrize("errors", ["fail", "skip", "deadletter"])
def test_the_parameter_options_says_what_becomes_of_bad_records(tmp_path: Path, errors: str) -> None:
    options = pipeline_in(tmp_path, options=json.dumps({"errors": errors})).source({"path": f"{tmp_path}/*.log"})
    assert FileStreamSource.of(options).values["errors"].lower() == errors
    assert ("deadLetterPath" in options) == (errors == "deadletter")


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ("availableNow", {"availableNow": True}),
        ("continuous", {"processingTime": "0 milliseconds"}),
        ("10 seconds", {"processingTime": "10000 milliseconds"}),
        ("1 minute", {"processingTime": "60000 milliseconds"}),
    ],
)
def test_a_trigger_is_what_spark_takes(tmp_path: Path, trigger: str, expected: dict[str, Any]) -> None:
    assert pipeline_in(tmp_path, trigger=trigger).trigger == expected


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"name": ""}, r"name +must be letters"),
        ({"name": "../other"}, r'name +must be letters.*got "../other"'),
        ({"workdir": ""}, r"workdir +missing; give a folder"),
        ({"target": "orders"}, r'target +must be a table, as catalog.schema.table, or a folder; got "orders"'),
        ({"options": "{"}, r"options +is no JSON"),
        ({"options": "[1]"}, r"options +must be a JSON object"),
        ({"checks": "rules/none.json"}, 'the file "rules/none.json" cannot be read'),
        ({"trigger": "hourly"}, r'trigger +must be availableNow, continuous or an interval.*got "hourly"'),
    ],
)
def test_a_parameter_that_cannot_be_is_named_with_the_way_out(tmp_path: Path, parameters: dict[str, str], text: str) -> None:
    def parts() -> tuple[Any, ...]:
        wrong = pipeline_in(tmp_path, **parameters)
        return wrong.table, wrong.source({}), wrong.checks, wrong.trigger

    with pytest.raises(Misconfigured, match=text):
        parts()


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
