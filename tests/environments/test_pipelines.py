"""What a definition file of a declarative pipeline asks of the library, on Spark Connect, where Spark plans such a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors import pipelines
from connectors.ground.errors import Misconfigured
from connectors.testing.environments import CONNECT
from connectors.workbench.settings import library

pytestmark = [pytest.mark.spark, pytest.mark.parametrize("environment", [CONNECT], indirect=True)]


@pytest.fixture
def spark(environment: Any, tmp_path: Path) -> Iterator[Any]:
    environment.spark.conf.set("connectors.state", f"{tmp_path}/state/")
    pipelines.register(environment.spark)
    yield environment.spark
    environment.spark.conf.unset("connectors.state")


def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **more: Any) -> dict[str, str]:
    """The options with which a sink is declared."""
    declared: list[dict[str, str]] = []
    monkeypatch.setattr("pyspark.pipelines.create_sink", lambda name, system, options: declared.append(options))
    pipelines.create_sink(*arguments, **more)
    return declared[0]


def test_a_source_is_read_with_a_schema_of_its_own_or_of_the_reader(spark: Any, tmp_path: Path) -> None:
    assert pipelines.read_stream("numbers", "sequence", end=5).columns == ["value"]
    files = pipelines.read_stream("rows", "files", path=str(tmp_path), file_format="json", schema="id long")
    lines = {"path": f"{tmp_path}/*.jsonl", "value.format": "json", "schema": "id long"}
    assert files.columns == ["id"]
    assert "value" in pipelines.read_stream("lines", "connectors.file_stream", lines).columns


def test_a_sink_has_its_name_as_id_and_a_place_for_letters(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"jdbc:sqlite:{tmp_path}/orders.db"
    options = options_of(monkeypatch, "orders", "jdbc", {"url": url, "batch.maxRecords": 5}, dbtable="t")
    letters = {"errors": "deadLetter", "deadLetterPath": f"{tmp_path}/state/orders/refused"}
    assert options == {"sinkId": "orders", "url": url, "batch.maxRecords": "5", "dbtable": "t", **letters}
    strict = options_of(monkeypatch, "orders", "jdbc", url=url, dbtable="t", errors="fail", sink_id="own")
    assert strict == {"sinkId": "own", "url": url, "dbtable": "t", "errors": "fail"}
    assert "deadLetterPath" not in options_of(monkeypatch, "print", "print")


def test_the_definition_file_of_the_page_is_one(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```python\n(.*?)```", (library() / "docs" / "declarative.md").read_text(), re.DOTALL)
    assert example is not None
    sinks: list[str] = []
    frames: list[Any] = []
    monkeypatch.setattr("pyspark.pipelines.table", lambda table: frames.append(table()))
    monkeypatch.setattr("pyspark.pipelines.append_flow", lambda target: lambda flow: sinks.append(target))
    monkeypatch.setattr("pyspark.pipelines.create_sink", lambda name, system, options: sinks.append(f"{name}: {system}"))
    exec(example[1], {"spark": spark})
    assert (sinks, [frame.isStreaming for frame in frames]) == (["delivery: connectors.files", "delivery"], [True])


def test_what_is_wrong_is_told_where_it_is_declared(spark: Any, tmp_path: Path) -> None:
    for wrong, text in [
        (lambda: pipelines.read_stream("a", "reddis"), 'did you mean "redis"'),
        (lambda: pipelines.create_sink("a", "fles"), 'did you mean "files"'),
        (lambda: pipelines.create_sink("a", "files", path=str(tmp_path), on_new_query="replace"), "onNewQuery"),
        (lambda: pipelines.read_stream("a", "redis", stream="s"), "group"),
    ]:
        with pytest.raises(Misconfigured, match=text):
            wrong()
    spark.conf.unset("connectors.state")
    with pytest.raises(Misconfigured, match=r"connectors.state .*configuration of the pipeline.*what a must remember"):
        pipelines.read_stream("a", "redis", stream="s", group="g", url="redis://localhost")
    assert pipelines.read_stream("numbers", "sequence", end=5).isStreaming, "a source without memory needs no folder"
