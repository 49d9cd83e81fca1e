"""``connectors letters send``: no death sends a letter by half, and what cannot be sent stays."""

from __future__ import annotations

import contextlib
import datetime
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from connectors.core.dead_letters import SourceLetters
from connectors.core.letter_files import letter_key, letters_in
from connectors.ground.errors import Fatal, Misconfigured
from connectors.storage.local import LocalStorage
from connectors_tools.letters import Filter, Letters, Target

from .letter_folders import (
    COMMA,
    DAMAGED,
    MEND,
    DyingStorage,
    LateStorage,
    Part,
    die,
    letters,
    lines,
    put,
    records,
    target,
)


@pytest.mark.spark
def test_a_send_that_dies_anywhere_delivers_each_letter_once(spark: Any, tmp_path: Path) -> None:
    deaths = 0
    for number in range(100):
        folder, out = tmp_path / f"letters-{number}", tmp_path / f"out-{number}"
        put(folder)
        put(folder, 1, [b'{"id":3,}'])
        opened = Letters(str(folder))
        opened.storage = DyingStorage(folder, number)
        with contextlib.suppress(KeyboardInterrupt):
            opened.send(spark, COMMA, target(out))
            break
        deaths += 1
        put(folder)  # the batch is replayed
        Letters(str(folder)).send(spark, COMMA, target(out))
        assert lines(out) == ['{"id":1,"city":"Bern"}', '{"id":2,"city":"Rome"}', '{"id":3}']
        assert records(folder) == [b"neither"]
    assert deaths == 7  # before the plan, the note that it is written, a record of what is removed and the file twice, the end


@pytest.mark.spark
def test_a_letter_that_is_refused_again_is_there_once(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder)
    to = target(out, value="concat(record, '\n', record)")
    assert Letters(str(folder)).send(spark, COMMA, to) == 2
    assert lines(out) == []
    again = [letter for _, letter in Letters(str(folder)).letters(Filter(error="line end"))]
    assert (len(again), len(records(folder))) == (2, 3)
    assert all(letter["source"] != "connectors.kafka" for letter in again)
    row = {"value": "string(record)", "schema": "value string", "select": ["split(value, '\n')[0] AS value"]}
    assert Letters(str(folder)).send(spark, Filter(error="line end"), target(out, **row)) == 2
    assert lines(out) == ['{"id":1,"city":"Bern",}', '{"id":2,"city":"Rome",}']
    assert records(folder) == [b"neither"]


@pytest.mark.spark
def test_a_letter_that_is_refused_again_and_again_is_not_sent_any_more(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.workbench.session", lambda: spark)
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder, 0, DAMAGED[:2])
    send = ["send", folder, "--to", "file_stream", "--option", f"path={out}", "--max-sends", "2", "--select"]
    refused = [*send, "concat(string(record), '\n') AS value"]
    assert letters(*refused).output == "sent: 2 dead letters\n"
    assert "2 dead letters" in (shown := letters("list", folder).output)
    assert "sent again 1 time\n" in shown
    put(folder, 1, [b"new"])
    stay = "not sent again: 2 dead letters, refused 2 times or more\n"
    assert letters(*refused).output == f"sent: 3 dead letters\n{stay}"
    assert [kind.sends for kind in Letters(str(folder)).kinds(Filter())] == [2, 1]
    whole = "replace(from_json(string(record), 'value string').value, chr(10)) AS value"
    assert letters(*send, whole, "--error", "line end").output == f"sent: 1 dead letter\n{stay}"
    assert len(lines(out)) == 1
    assert letters(*send, whole, "--max-sends", "3").output == "sent: 2 dead letters\n"
    assert records(folder) == []
    assert len(lines(out)) == 3


@pytest.mark.spark
def test_what_cannot_be_sent_stays(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder)
    opened = Letters(str(folder))
    with pytest.raises(Misconfigured, match="makes 2 rows of 3 letters"):
        opened.send(spark, Filter(), target(out, select=["explode(filter(array(string(record)), x -> x LIKE '{%')) AS value"]))
    with pytest.raises(Exception, match="one JSON object"):
        opened.send(spark, Filter(), target(out, schema="id int, city string", select=["city AS value"]))
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        opened.send(spark, Filter(), target(out, select=["nothing AS value"]))
    with pytest.raises(Exception, match="value"):
        opened.send(spark, Filter(), target(out, select=["string(record)"]))
    assert (len(records(folder)), lines(out)) == (3, [])


@pytest.mark.spark
def test_an_interrupted_send_is_not_sent_elsewhere(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Target, "write", die)
        Letters(str(folder)).send(spark, COMMA, target(out))
    assert "interrupted" in letters("drop", folder, "--yes", code=2).output
    with pytest.raises(Misconfigured, match="--anew"):
        Letters(str(folder)).send(spark, COMMA, target(out, value=""))
    assert Letters(str(folder)).send(spark, COMMA, target(out, value=""), anew=True) == 2
    assert lines(out) == [record.decode() for record in DAMAGED[:2]]
    put(folder, 1, [b'{"id":3,}'])
    opened = Letters(str(folder))
    opened.storage = DyingStorage(folder, 3)
    with contextlib.suppress(KeyboardInterrupt):
        opened.send(spark, COMMA, target(out))
    assert Letters(str(folder)).send(spark, COMMA, target(out, value="")) == 1  # it is written: only its letters are removed
    assert lines(out) == [*(record.decode() for record in DAMAGED[:2]), '{"id":3}']


@pytest.mark.spark
def test_a_send_goes_in_parts(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connectors_tools.letters._PART_ROWS", 2)
    put(tmp_path / "letters", records=[b'{"id":%d,}' % number for number in range(5)])
    arguments = ["send", tmp_path / "letters", "--to", "file_stream", "--option", f"path={tmp_path / 'out'}", "--value", MEND]
    arguments += ["--select", "string(record) AS value"]
    monkeypatch.setattr("connectors.workbench.session", lambda: spark)
    assert '{"id":0}' in letters(*arguments, "--dry-run").output
    assert not (tmp_path / "out").exists()
    assert letters(*arguments).output == "sent: 5 dead letters\n"
    assert lines(tmp_path / "out") == [f'{{"id":{number}}}' for number in range(5)]
    with LocalStorage(tmp_path / "letters").open(next(path.name for path in (tmp_path / "letters").glob("*.parquet"))) as file:
        assert list(letters_in(file)) == []


@pytest.mark.spark
def test_a_file_that_another_process_rewrites_late_brings_nothing_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors_tools.letters._PART_ROWS", 2)
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder, records=[b'{"id":%d,}' % number for number in range(5)])
    opened = Letters(str(folder))
    opened.storage = LateStorage(folder, lambda: Letters(str(folder)).send(spark, Filter(), target(out)))
    opened.send(spark, Filter(), target(out))
    Letters(str(folder)).send(spark, Filter(), target(out))
    assert lines(out) == [f'{{"id":{number}}}' for number in range(5)]


def test_a_sink_that_there_is_none_is_refused_also_without_letters(tmp_path: Path) -> None:
    refusal = letters("send", tmp_path, "--to", "kavka", code=2)
    assert '"kavka" is no sink; did you mean "kafka"?' in refusal.output


@dataclass(frozen=True)
class LateTarget(Target):
    """Lets another sender plan its part after this one has read the letters of its own."""

    others: Callable[[], object] = print

    def rows(self, letters: Any) -> Any:
        self.others()
        return super().rows(letters)


@pytest.mark.spark
def test_two_senders_do_not_plan_the_same_letters(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder)

    def plan_and_die() -> None:
        opened = Letters(str(folder))
        opened.storage = DyingStorage(folder, 1)
        with contextlib.suppress(KeyboardInterrupt):
            opened.send(spark, COMMA, target(out))

    to = target(out)
    late = LateTarget(to.sink, to.options, to.value, to.schema, to.select, plan_and_die)
    with pytest.raises(Fatal, match="another process"):
        Letters(str(folder)).send(spark, COMMA, late)
    assert Letters(str(folder)).send(spark, COMMA, to) == 2
    assert lines(out) == ['{"id":1,"city":"Bern"}', '{"id":2,"city":"Rome"}']


@pytest.mark.spark
def test_the_letters_of_an_interrupted_part_are_looked_up_by_their_keys(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparisons = 0

    class Key(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal comparisons
            comparisons += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder, records=[b'{"id":%d,}' % number for number in range(100)])
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Target, "write", die)
        Letters(str(folder)).send(spark, COMMA, target(out))
    monkeypatch.setattr("connectors_tools.letters.letter_key", lambda letter: Key(letter_key(letter)))
    assert Letters(str(folder)).send(spark, COMMA, target(out)) == 100
    assert comparisons <= 200


@pytest.mark.spark
def test_a_letter_file_that_is_deleted_stops_nothing(spark: Any, tmp_path: Path) -> None:
    for deaths in (1, 3):  # before the note that the part is written, and after it
        folder, out = tmp_path / f"letters-{deaths}", tmp_path / f"out-{deaths}"
        put(folder)
        opened = Letters(str(folder))
        opened.storage = DyingStorage(folder, deaths)
        with contextlib.suppress(KeyboardInterrupt):
            opened.send(spark, COMMA, target(out))
        next(folder.glob("*.parquet")).unlink()
        put(folder, 1, [b'{"id":3,}'])
        Letters(str(folder)).send(spark, COMMA, target(out))
        assert lines(out)[-1] == '{"id":3}'
        assert records(folder) == []


@pytest.mark.spark
def test_a_folder_that_is_restored_from_a_copy_sends_what_is_new(spark: Any, tmp_path: Path) -> None:
    folder, copy, out = (tmp_path / name for name in ("letters", "copy", "out"))
    put(folder, 0, [b'{"id":0,}'])
    Letters(str(folder)).send(spark, COMMA, target(out))
    shutil.copytree(folder, copy)
    put(folder, 1, [b'{"id":1,}'])
    Letters(str(folder)).send(spark, COMMA, target(out))
    put(copy, 2, [b'{"id":2,}'])
    assert Letters(str(copy)).send(spark, COMMA, target(out)) == 1
    assert lines(out) == [f'{{"id":{number}}}' for number in range(3)]


@pytest.mark.spark
def test_letters_by_a_clock_ahead_are_sent(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = tmp_path / "letters", tmp_path / "out"
    ahead = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    found = SourceLetters("connectors.kafka", LocalStorage(folder))
    found.add("orders-0-0", "Poison", "comma", b'{"id":1,}', at=ahead)
    found.put(Part(0))
    assert Letters(str(folder)).send(spark, COMMA, target(out)) == 1


@pytest.mark.spark
def test_options_and_columns_are_checked_before_anything_is_planned(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.workbench.session", lambda: spark)
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder)
    path, line = ["--option", f"path={out}"], ["--select", "string(record) AS value"]
    for arguments, code, message in [
        (["kafak"], 2, 'did you mean "kafka"'),
        (["file_stream", *line], 2, "path"),
        (["file_stream", *line, "--option", "pth=1", *path], 2, "pth"),
        (["file_stream", *path], 2, 'takes one column "value"'),
        (["file_stream", *path, "--select", "nothing AS value"], 1, "Error: [UNRESOLVED_COLUMN"),
        (["file_stream", *path, "--schema", "id int", "--select", "string(id) AS value"], 1, "Error: "),
    ]:
        assert message in letters("send", folder, "--to", *arguments, code=code).output
    letters("send", folder, "--to", "connectors.file_stream", *path, *line)
    assert lines(out) == sorted(record.decode() for record in DAMAGED)


@pytest.mark.spark
def test_a_record_is_sent_whole_or_stays(spark: Any, tmp_path: Path) -> None:
    row = {"value": "", "schema": "row int", "select": ["string(row) AS value"]}
    for number, record in enumerate([None, b"", b" ", b'{"row":1}{"row":2}', b'{"row":1} and more']):
        folder = tmp_path / f"letters-{number}"
        put(folder, records=[] if record is None else [record])
        if record is None:
            found = SourceLetters("connectors.kafka", LocalStorage(folder))
            found.add("orders-0-0", "Poison", "no value", None)
            found.put(Part(0))
        with pytest.raises(Exception, match="one JSON object"):
            Letters(str(folder)).send(spark, Filter(), target(tmp_path / "out", **row))
        assert records(folder) == [record]
    put(tmp_path / "other", records=[b'{"Row":1,"raw":{"row":2}}'])
    with pytest.raises(Exception, match="none of the columns"):
        Letters(str(tmp_path / "other")).send(spark, Filter(), target(tmp_path / "out", **row))
    lost = target(tmp_path / "out", value="get_json_object(string(record), '$.nothing')")
    with pytest.raises(Exception, match="NULL of a record"):
        Letters(str(tmp_path / "letters-3")).send(spark, Filter(), lost)
    put(tmp_path / "letters", records=[b'{"row":1}'])
    Letters(str(tmp_path / "letters")).send(spark, Filter(), target(tmp_path / "out", **row))
    frame = spark.createDataFrame([("p", b'{"row":1}')], "position string, record binary")
    assert Target("delta", schema="row int").rows(frame).collect() == [(1,)]
    assert lines(tmp_path / "out") == ["1"]


def test_storage_options_by_location_reach_the_letters_of_the_sink() -> None:
    options = {"path": "/out"}
    value = pa.schema([("value", pa.string())])
    login = {"key": "a", "secret": "b"}
    for storage_options in (login, {"s3://bucket": login}):
        Target("file_stream", options).check(value, "s3://bucket/letters", storage_options)
