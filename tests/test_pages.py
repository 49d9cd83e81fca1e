"""The pages of ``lib/docs``: recipes run, and messages that a page explains are messages of the library."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import connectors
from connectors import workbench
from connectors.core import CommitRefused
from connectors.core.ledger import Entry, ReplayPolicy, decide
from connectors.systems import all_systems
from connectors.workbench.settings import library
from connectors_tools.cli import main
from connectors_tools.offsets import Checkpoint
from tests.source_names import stream_reader

DOCS = library() / "docs"


QUESTIONS = {
    "What do I do when it says \"another query's epoch log\"?": ("when-it-stops.md", "another query's epoch log"),
    "Does it run on serverless compute?": ("workspace.md", "serverless compute has no such query"),
    "How do I send dead letters again?": ("recipes.md", "## … see the dead letters, and send them again?"),
    "How do I erase a person?": ("recipes.md", "## … erase a person (right to be forgotten)?"),
    "How do I use it in a project of my own?": ("README.md", "**In a project of your own**"),
    "What becomes of my checkpoint of Spark's Kafka source?": ("coming-from.md", "## Spark's Kafka source and sink"),
    "Which carrier do I take?": ("README.md", "Which carrier?"),
    "How do I rotate a secret?": ("operations.md", "## Rotate a secret"),
    "What grows on disk?": ("operations.md", "## What grows, and what is deleted"),
    "How do I write a connector, if there is none?": ("templates/README.md", "## A system that nobody has a connector for"),
    "What exactly is promised, and under which conditions?": ("guarantees.md", "| system | source | sink | conditions |"),
}  # fmt: skip
"""Questions of a newcomer, each with the page that answers it and words that stand there."""


def test_the_questions_of_a_newcomer_are_answered_within_two_clicks_of_the_readme() -> None:
    readme = library().parent / "README.md"
    clicks = {readme: 0}
    for page in (readme, *_linked_pages(readme)):
        for linked in _linked_pages(page):
            clicks.setdefault(linked, clicks[page] + 1)
    for question, (name, words) in QUESTIONS.items():
        pages = [page for page in clicks if page.as_posix().endswith(f"/{name}")]
        assert any(words in page.read_text() for page in pages), question


def _linked_pages(page: Path) -> list[Path]:
    links = re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]*)?\)", page.read_text())
    return [(page.parent / link).resolve() for link in links]


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.spark
def test_the_recipes_run_one_after_another(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    lines = [f'{{"id": {number}, "city": "Bern", "cents": {number * 100}}}' for number in range(1, 10)]
    lines += ['{"id": 10, "city": "damaged",}', '{"id": null, "cents": 5}', ""]
    (tmp_path / "in" / "orders.json").write_text("\n".join(lines))
    names: dict[str, Any] = {"spark": spark, "folder": str(tmp_path), "connectors": connectors, "workbench": workbench}
    service = workbench.api_service()
    service.behave(token=True)
    service.add("users", [{"id": n, "name": f"user {n}", "updated_at": f"2026-01-{n:02}T00:00:00Z"} for n in range(1, 26)])
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "recipes.md").read_text(), re.DOTALL)
    assert len(blocks) >= 10
    for block in blocks:
        exec(compile(block, block.split("\n")[0], "exec"), names)
    assert spark.read.format("delta").load(f"{tmp_path}/orders").count() == 10
    assert spark.read.parquet(f"{tmp_path}/letters").count() == 1
    assert spark.read.format("delta").load(f"{tmp_path}/good").count() == 9
    assert spark.read.format("delta").load(f"{tmp_path}/orders_again").count() == 10
    assert spark.read.format("delta").load(f"{tmp_path}/wider").columns == ["id", "city", "cents", "channel"]
    assert sorted(row.eur for row in names["priced"].collect()) == [0.05, *map(float, range(1, 10))]
    assert spark.read.format("delta").load(f"{tmp_path}/users").count() == 25
    service.behave()
    assert not names["lag"].empty
    show, move = re.findall(r"^python -m connectors (offsets .*)$", (DOCS / "recipes.md").read_text(), re.MULTILINE)
    for line, position in ((f"{show} --json", 1001), (move, None), (f"{show} --json", 901)):
        done = CliRunner().invoke(main, shlex.split(line.replace("$folder", str(tmp_path))))
        assert done.exit_code == 0, done.output
        assert position is None or json.loads(done.output)["sources"][0]["position"] == {"next": position}
    for line in re.findall(r"^python -m connectors (letters .*)$", (DOCS / "recipes.md").read_text(), re.MULTILINE):
        done = CliRunner().invoke(main, shlex.split(line.replace("$folder", str(tmp_path))))
        assert done.exit_code == 0, done.output
        assert "1 dead letter" in done.output or "xxxxxxx" in done.output
    assert not spark.read.parquet(f"{tmp_path}/letters").count()
    (line,) = re.findall(r"^python -m connectors (erase .*)$", (DOCS / "recipes.md").read_text(), re.MULTILINE)
    done = CliRunner().invoke(main, shlex.split(line.replace("$folder", str(tmp_path))))
    assert re.findall("found (.*), erased (.*)", done.output) == [("1", "1"), ("0", "0"), ("1", "1")], done.output
    assert spark.read.format("delta").load(f"{tmp_path}/good").count() == 8
    names["writer"].start().awaitTermination()
    assert Checkpoint(f"{tmp_path}/numbers").entry(10).source("0").position == {"next": 1001}
    exec(blocks[0], names)
    assert spark.read.format("delta").load(f"{tmp_path}/orders").where("city = 'damaged'").count() == 1


@pytest.mark.spark
@pytest.mark.parametrize("source_name", [None, "rates"], ids=["sequence", "named"])
def test_offsets_of_sparks_own_checkpoint_are_found_as_the_page_says(
    spark: Any, tmp_path: Path, source_name: str | None
) -> None:
    """The last line of an offset file is the JSON of the source, whichever source it is."""
    with stream_reader(spark, source_name) as reader:
        writer = reader.format("rate-micro-batch").option("rowsPerBatch", 5).load().writeStream.format("noop")
        writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
    (code,) = re.findall(r"```python\n(from pathlib.*?)```", (DOCS / "coming-from.md").read_text(), re.DOTALL)
    names = {"checkpoint": str(tmp_path)}
    exec(code, names)
    assert json.loads(names["starting_offsets"])["offset"] >= 0  # type: ignore[call-overload]
    assert names["committed"]


def test_each_message_that_the_page_explains_is_one_of_the_library() -> None:
    page = (DOCS / "when-it-stops.md").read_text()
    messages = [cell for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for cell in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 12
    code = " ".join(re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in (library() / "connectors").rglob("*.py"))
    for message in messages:
        for part in message.split(" … "):
            assert part in code or "STATE_STORE" in part, part


def test_a_way_out_by_a_new_checkpoint_says_where_that_begins() -> None:
    page = (DOCS / "when-it-stops.md").read_text()
    for system, option in (("kafka", "startingOffsets"), ("event_hubs", "startingOffsets"), ("kinesis", "startingPosition")):
        source, _ = all_systems()[system]
        assert source is not None
        assert option in source.known_options().declared
        assert option in page.partition("## ")[0]
    (row,) = re.findall(r"^\| `an older checkpoint was restored` .*", page, re.MULTILINE)
    with pytest.raises(CommitRefused, match="an older checkpoint was restored") as refused:
        decide("orders", "query", 2, Entry("query", 4), frozenset(), ReplayPolicy())
    for place in (row, str(refused.value)):
        assert "a new checkpoint, " in place  # a sinkId alone would write what comes behind the older checkpoint
        assert "an empty target" in place
