"""``connectors letters``: what dead letters say, how they are dropped, and a send that no death does by half."""

from __future__ import annotations

import contextlib
import datetime
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from connectors.core import Batch
from connectors.core.dead_letters import LetterFile, SinkLetters, SourceLetters, letter_key, letters_in
from connectors.core.source import Split
from connectors.ground.errors import Fatal, Misconfigured
from connectors.storage.local import LocalStorage
from connectors.testing.forgetful_disk import ForgetfulDisk
from connectors_tools.cli import main
from connectors_tools.letters import Filter, Letters, Target

DAMAGED = [b'{"id":1,"city":"Bern",}', b'{"id":2,"city":"Rome",}', b"neither"]
MEND = "regexp_replace(string(record), ',}$', '}')"
COMMA = Filter(error="comma")


def letters(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["letters", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@dataclass(frozen=True)
class _Part(Split):
    number: int


def put(folder: Path, split: int = 0, records: list[bytes] = DAMAGED) -> None:
    """What a source does with bad records of one split, each time that it reads it."""
    found = SourceLetters("connectors.kafka", LocalStorage(folder))
    for number, record in enumerate(records):
        error = f"no JSON: a comma at {len(record)}" if record.endswith(b",}") else "no JSON at all"
        found.add(f"orders-{split}-{number}", "Poison", error, record, key=b"user-7", headers=[])
    found.put(_Part(split))


def records(folder: Path) -> list[bytes]:
    return [letter["record"] for _, letter in Letters(str(folder)).letters(Filter())]


def lines(folder: Path) -> list[str]:
    return sorted(line for file in folder.glob("part-*") for line in file.read_text().splitlines())


def target(folder: Path, **more: Any) -> Target:
    return Target("file_stream", {"path": str(folder)}, **{"value": MEND, "select": ["string(record) AS value"], **more})


def test_a_list_counts_kinds_of_errors(tmp_path: Path) -> None:
    put(tmp_path)
    put(tmp_path, 1, [b'{"id":1000,}'])
    assert [line for line in letters("list", tmp_path).output.splitlines() if " to " not in line and "UTC" not in line] == [
        "3 dead letters of connectors.kafka, Poison", "    no JSON: a comma at …",
        "1 dead letter of connectors.kafka, Poison", "    no JSON at all",
    ]  # fmt: skip
    kinds = json.loads(letters("list", tmp_path, "--error", "at all", "--json").output)
    assert [(kind["count"], kind["error"]) for kind in kinds] == [(1, "no JSON at all")]
    assert letters("list", tmp_path, "--source", "connectors.files").output == f"no dead letters in {tmp_path}\n"


def test_letters_are_chosen_by_time(tmp_path: Path) -> None:
    put(tmp_path)
    now = datetime.datetime.now().astimezone()
    hour = datetime.timedelta(hours=1)
    counts = [
        len(json.loads(letters("list", tmp_path, option, time.isoformat(timespec="seconds"), "--json").output))
        for option, time in [("--since", now - hour), ("--since", now + hour), ("--until", now - hour), ("--until", now + hour)]
    ]
    assert counts == [2, 0, 0, 2]
    assert letters("list", tmp_path, "--since", "0001-01-01", "--until", "9999-12-31T23:59:59").output.count("dead letter") == 2


def test_values_are_masked_unless_asked_for(tmp_path: Path) -> None:
    put(tmp_path, records=[b'{"city": "Bern", "email" : "a.b@c.ch", "id": 12,}'])
    shown = letters("show", tmp_path).output
    assert '{"city": "xxxx", "email" : "x.x@x.xx", "id": 99,}' in shown
    assert "xxxx-9" in shown
    assert "Bern" in letters("show", tmp_path, "--plain").output


def test_values_in_errors_are_masked_too(tmp_path: Path) -> None:
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    for number, name in enumerate(["anna@example.org", "bo@example.org", "Johannes-Maximilian"]):
        record = json.dumps({"id": name, "note": "a number"}).encode()
        found.add(str(number), "ValueError", f"field id: must be a bigint; got '{name[:16]}...'", record)
    found.put(_Part(0))
    for command in ("list", "show"):
        output = letters(command, tmp_path).output
        assert "must be" in output
        assert not [word for word in ("anna", "bo", "example", "Johannes", "Maxim") if word in output]
    assert "got 'anna@example.org...'" in letters("show", tmp_path, "--plain").output


@pytest.mark.parametrize("encoding", ["json", "utf-8", "latin-1", "utf-16", "utf-16-be"])
def test_values_in_errors_are_masked_whatever_the_encoding_of_the_record(tmp_path: Path, encoding: str) -> None:
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    text = json.dumps({"id": "Jürgen\tBäcker"}, ensure_ascii=encoding == "json")
    record = text.encode("utf-8" if encoding == "json" else encoding)
    found.add("0", "ValueError", "field id: must be a bigint; got 'Jürgen\tBäcker'", record)
    found.put(_Part(0))
    for command in ("list", "show"):
        assert not [word for word in ("Jürgen", "Bäcker") if word in letters(command, tmp_path).output]


def test_a_value_that_stands_before_a_colon_is_masked(tmp_path: Path) -> None:
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    damaged = [b'{"city":"Bern":3,"note":1}', b'"Bern": 3', b'{"note":["Bern" : 3]}', b'{"note":"a \\"Bern\\":"}']
    for number, record in enumerate(damaged):
        found.add(str(number), "JSONDecodeError", "a note at 'Bern'", record)
    found.put(_Part(0))
    shown = letters("show", tmp_path).output + letters("list", tmp_path).output
    assert '{"city":"xxxx":9,"note":9}' in shown
    assert "Bern" not in shown


def test_a_limit_is_a_number_from_1_on(tmp_path: Path) -> None:
    assert "--limit" in letters("show", tmp_path, "--limit", "-1", code=2).output


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "orders.parquet")
    assert "orders.parquet" in letters("list", tmp_path, code=1).output
    (tmp_path / "orders.parquet").write_bytes(b"")
    assert "orders.parquet" in letters("list", tmp_path, code=1).output


def test_a_replay_does_not_bring_back_what_was_dropped(tmp_path: Path) -> None:
    put(tmp_path)
    assert letters("drop", tmp_path, "--error", "comma", "--yes").output == "dropped: 2 dead letters\n"
    put(tmp_path)
    assert records(tmp_path) == [b"neither"]
    letters("drop", tmp_path, "--yes")
    put(tmp_path)
    assert records(tmp_path) == []
    put(tmp_path, records=[*DAMAGED, b"new"])  # the topic was made anew, or a schema has changed
    assert records(tmp_path) == [b"new"]
    put(tmp_path, records=[*DAMAGED, b"new"])
    assert records(tmp_path) == [b"new"]


def test_letters_of_a_year_that_no_datetime_has_are_listed_and_dropped(tmp_path: Path) -> None:
    at = 1_600_000_000_123_000_000
    found = SourceLetters("connectors.kafka", LocalStorage(tmp_path))
    for number in range(2):
        found.add(str(number), "Poison", f"error {number}", b"x", timestamp=at)
    found.put(_Part(0))
    assert letters("list", tmp_path).output.startswith("2 dead letters")
    letters("drop", tmp_path, "--error", "error 0", "--yes")
    assert pq.read_table(tmp_path)["timestamp"].cast(pa.int64()).to_pylist() == [at]


def refuse(folder: Path, *records: str) -> None:
    """What a sink without a ledger does with bad rows of one batch, each time that it writes it."""
    sink, batch, file = SinkLetters(LocalStorage(folder), "http", "orders", repeats=True), Batch("orders", "q", 3), LetterFile()
    for record in records:
        file.add({"error_class": "Poison", "error": f"no {record}", "record": record.encode()})
    staged = [sink.stage(batch, file)]
    sink.decide(batch, staged)
    sink.publish(batch, staged)


def test_a_replay_of_a_sink_without_a_ledger_does_not_bring_back_what_was_dropped(tmp_path: Path) -> None:
    refuse(tmp_path, "taken the next time", "x", "y", "x")
    letters("drop", tmp_path, "--error", "no x", "--yes")
    for _ in range(2):
        refuse(tmp_path, "y", "x", "x", "new")
        assert sorted(records(tmp_path)) == [b"new", b"taken the next time", b"y"]
        assert pq.read_table(tmp_path).num_rows == 3


def test_a_removal_takes_nothing_that_a_replay_of_the_batch_brings_meanwhile(tmp_path: Path) -> None:
    refuse(tmp_path, "x")
    opened = Letters(str(tmp_path))
    opened.storage = _LateStorage(tmp_path, lambda: refuse(tmp_path, "new", "x"))
    assert opened.drop(Filter()) == 1
    assert records(tmp_path) == [b"new"]


def _die(*_: object) -> None:
    raise KeyboardInterrupt


class _DyingStorage(LocalStorage):
    """Dies before the change of this number."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        self.number = number

    def _count(self) -> None:
        if not self.number:
            raise KeyboardInterrupt
        self.number -= 1

    def put_if_absent(self, name: str, content: Any) -> bool:
        self._count()
        return super().put_if_absent(name, content)

    def replace(self, name: str, content: Any, *, durable: bool = False) -> None:
        self._count()
        super().replace(name, content, durable=durable)


@pytest.mark.spark
def test_a_send_that_dies_anywhere_delivers_each_letter_once(spark: Any, tmp_path: Path) -> None:
    deaths = 0
    for number in range(100):
        folder, out = tmp_path / f"letters-{number}", tmp_path / f"out-{number}"
        put(folder)
        put(folder, 1, [b'{"id":3,}'])
        opened = Letters(str(folder))
        opened.storage = _DyingStorage(folder, number)
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
        patch.setattr(Target, "write", _die)
        Letters(str(folder)).send(spark, COMMA, target(out))
    assert "interrupted" in letters("drop", folder, "--yes", code=2).output
    with pytest.raises(Misconfigured, match="--anew"):
        Letters(str(folder)).send(spark, COMMA, target(out, value=""))
    assert Letters(str(folder)).send(spark, COMMA, target(out, value=""), anew=True) == 2
    assert lines(out) == [record.decode() for record in DAMAGED[:2]]
    put(folder, 1, [b'{"id":3,}'])
    opened = Letters(str(folder))
    opened.storage = _DyingStorage(folder, 3)
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


def test_what_is_dropped_is_gone_also_after_a_power_failure(tmp_path: Path) -> None:
    for seed in range(20):
        folder = tmp_path / f"letters-{seed}"
        put(folder)
        disk = ForgetfulDisk(folder, tmp_path / f"journal-{seed}")
        disk.start()
        disk.run(lambda folder=folder: Letters(str(folder)).drop(COMMA))  # type: ignore[misc]
        disk.fail(random.Random(seed))
        assert records(folder) == [b"neither"]
        put(folder)
        assert records(folder) == [b"neither"]


class _LateStorage(LocalStorage):
    """Lets ``others`` work between the time when a letter file was read and the time when it is replaced."""

    def __init__(self, folder: Path, others: Callable[[], object]) -> None:
        super().__init__(folder)
        self.others: Callable[[], object] | None = others

    def replace(self, name: str, content: Any, *, durable: bool = False) -> None:
        if name.endswith(".parquet") and self.others:
            others, self.others = self.others, None
            others()
        super().replace(name, content, durable=durable)


@pytest.mark.spark
def test_a_file_that_another_process_rewrites_late_brings_nothing_back(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors_tools.letters._PART_ROWS", 2)
    folder, out = tmp_path / "letters", tmp_path / "out"
    put(folder, records=[b'{"id":%d,}' % number for number in range(5)])
    opened = Letters(str(folder))
    opened.storage = _LateStorage(folder, lambda: Letters(str(folder)).send(spark, Filter(), target(out)))
    opened.send(spark, Filter(), target(out))
    Letters(str(folder)).send(spark, Filter(), target(out))
    assert lines(out) == [f'{{"id":{number}}}' for number in range(5)]


def test_a_sink_that_there_is_none_is_refused_also_without_letters(tmp_path: Path) -> None:
    refusal = letters("send", tmp_path, "--to", "kavka", code=2)
    assert '"kavka" is no sink; did you mean "kafka"?' in refusal.output


def test_other_readers_see_what_is_left_also_when_two_rewrite_a_file_or_one_dies(tmp_path: Path) -> None:
    put(tmp_path)
    opened = Letters(str(tmp_path))
    opened.storage = _LateStorage(tmp_path, lambda: Letters(str(tmp_path)).drop(Filter(error="at all")))
    assert opened.drop(COMMA) == 2
    assert pq.read_table(tmp_path).num_rows == 0
    put(tmp_path, 1)
    opened.storage = _DyingStorage(tmp_path, 1)  # the record of the removal is there, and the file is as before
    with contextlib.suppress(KeyboardInterrupt):
        opened.drop(COMMA)
    assert Letters(str(tmp_path)).drop(COMMA) == 0
    assert pq.read_table(tmp_path)["record"].to_pylist() == [b"neither"]


@dataclass(frozen=True)
class _LateTarget(Target):
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
        opened.storage = _DyingStorage(folder, 1)
        with contextlib.suppress(KeyboardInterrupt):
            opened.send(spark, COMMA, target(out))

    to = target(out)
    late = _LateTarget(to.sink, to.options, to.value, to.schema, to.select, plan_and_die)
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
        patch.setattr(Target, "write", _die)
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
        opened.storage = _DyingStorage(folder, deaths)
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
    found.put(_Part(0))
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
            found.put(_Part(0))
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
