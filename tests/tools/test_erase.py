"""``connectors erase``: a person's rows in folders, and what happens when it dies or queries run meanwhile."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from connectors.core import Batch
from connectors.core.dead_letters import SourceLetters
from connectors.core.epochs import ID, LEASE, EpochLog, Header, record_content
from connectors.core.folder import SinkFolder
from connectors.core.ledger import Entry
from connectors.core.letter_files import LetterFile
from connectors.ground.errors import StateError
from connectors.storage.local import LocalStorage
from connectors.systems.jdbc.connection import Connection
from connectors.testing.source_suite import SourceQuery
from connectors_tools import erasure_places
from connectors_tools.cli import main
from connectors_tools.erasure import Erasure, is_same
from connectors_tools.erasure_epochs import recorded_files, recorded_letters
from connectors_tools.erasure_places import place_of
from tests.core.epochs.queries import to_the_end, values
from tests.systems.reference_contexts import QueueContext

from .letter_folders import DyingStorage, LateStorage, Part, put, records

MARKER = "Zyxomma-7319"
OWN = json.dumps({"user": MARKER, "city": "Bern"}).encode()
OTHER = json.dumps({"user": "Anna", "city": "Bern"}).encode()


def erase(
    *places: object, key: str = f"user={MARKER}", code: int = 0, more: tuple[str, ...] = ("--yes",)
) -> list[dict[str, Any]]:
    """The reports of the command, which ends with ``code``."""
    parts = [part for place in places for part in ("--in", str(place))]
    done = CliRunner().invoke(main, ["erase", "--key", key, *parts, "--json", *more])
    assert done.exit_code == code, done.output
    reports: list[dict[str, Any]] = json.loads(done.stdout) if code < 2 else []
    return reports


def files_with(folder: Path, marker: str = MARKER) -> list[str]:
    """The files below ``folder`` in which the bytes of ``marker`` are, hidden ones too."""
    return sorted(
        str(file.relative_to(folder))
        for file in folder.rglob("*")
        if file.is_file() and marker.encode() in file.read_bytes()
    )


def counts(reports: list[dict[str, Any]]) -> list[tuple[int | None, int]]:
    return [(report["found"], report["erased"]) for report in reports]


DAMAGED = [
    OWN,
    OTHER,
    OWN[:-1] + b",}",
    b'{"payload": "{\\"after\\": {\\"user\\": \\"Zyxomma-7319\\"}}"}',
    b"Anna;Bern",
]


def test_letters_of_the_person_go_and_a_replay_brings_none_back(tmp_path: Path) -> None:
    put(tmp_path, records=DAMAGED)
    assert files_with(tmp_path)
    assert counts(erase(f"letters:{tmp_path}", more=("--dry-run",))) == [(3, 0)]
    assert len(records(tmp_path)) == 5
    assert counts(erase(f"letters:{tmp_path}")) == [(3, 3)]
    put(tmp_path, records=DAMAGED)
    assert sorted(records(tmp_path)) == sorted([OTHER, b"Anna;Bern"])
    assert files_with(tmp_path) == []
    assert counts(erase(f"letters:{tmp_path}")) == [(0, 0)]


def test_a_name_in_the_position_of_a_letter_goes_with_it(tmp_path: Path) -> None:
    letters = SourceLetters("connectors.file_stream", LocalStorage(tmp_path))
    letters.add(json.dumps({"filename": f"/users/{MARKER}.jsonl", "position": 0}), "Poison", "no JSON", OWN)
    letters.put(Part(0))
    assert counts(erase(f"letters:{tmp_path}")) == [(1, 1)]
    assert files_with(tmp_path) == []


def test_letters_that_nobody_can_judge_are_left_and_named(tmp_path: Path) -> None:
    put(tmp_path, records=[f"{MARKER};Bern".encode(), b"\xff\x00\x01", OTHER, b"no JSON"])
    (report,) = erase(f"letters:{tmp_path}", code=1)
    assert (report["found"], report["erased"]) == (0, 0)
    assert "2 letters that nobody can judge" in report["left"][0]
    assert len(records(tmp_path)) == 4


@pytest.mark.parametrize("encoding", ["escaped", "utf-8", "latin-1", "utf-16-le"])
def test_damaged_json_is_judged_in_each_encoding(tmp_path: Path, encoding: str) -> None:
    own, other = (
        json.dumps({"user": user}, ensure_ascii=encoding == "escaped")[:-1] + ",}" for user in ("Jürgen", "Jörg")
    )
    put(tmp_path, records=[text.encode("utf-8" if encoding == "escaped" else encoding) for text in (own, other)])
    (report,) = erase(f"letters:{tmp_path}", key="user=Jürgen", code=int(encoding in ("latin-1", "utf-16-le")))
    assert (report["found"], report["erased"]) == (1, 1)
    assert len(records(tmp_path)) == 1


def test_all_columns_of_the_key_must_have_their_values_in_one_object(tmp_path: Path) -> None:
    rows = [
        {"a": 42, "b": "x"},
        {"a": 42, "b": "y"},
        {"a": 41, "c": {"a": 42, "b": "x"}},
        {"a": 42, "c": {"b": "x"}},
        {"a": "42.0", "b": "x"},
    ]
    put(tmp_path, records=[json.dumps(row).encode() for row in rows])
    done = CliRunner().invoke(main, ["erase", "--key", "a=42", "--key", "b=x", "--in", f"letters:{tmp_path}", "--yes"])
    assert "found 2, erased 2" in done.output
    assert [json.loads(record) for record in records(tmp_path)] == [rows[1], rows[3], rows[4]]


QUOTE = f'he wrote "user": "{MARKER}", and left'


@pytest.mark.parametrize(("record", "verdict"), [
    (json.dumps({"user": "Anna", "note": QUOTE}).encode(), False),  # the text of another person names this one
    (json.dumps({"user": "Anna", "note": f"[x] {QUOTE}"}).encode(), False),
    (b"\x0a\x0cZyxomma-7319B\x04Bern", None),  # Protobuf: the tag of field 8 is a letter
    (f'"{MARKER}"'.encode(), None),
    pytest.param(b"[" * 800 + b"]" * 800, None, id="deep"),
    (b'{"id": 1, "tags": "[urgent] call"}', False),
])  # fmt: skip
def test_a_record_is_judged_by_its_fields(record: bytes, verdict: bool | None) -> None:
    assert Erasure({"user": MARKER}).judge(record) is verdict
    assert Erasure({"user": MARKER}).judge({"value": record}) is verdict


def test_the_key_of_a_tombstone_is_no_silent_rest() -> None:
    assert Erasure({"id": "42"}).judge(b"42") is None
    assert Erasure({"id": "42"}).judge(b"43") is False


def test_fields_of_two_damaged_objects_are_no_person() -> None:
    erasure = Erasure({"a": "42", "b": "x"})
    assert erasure.judge(b'{"a":42,"b":"y"}\n{"a":41,"b":"x"}') is None
    assert erasure.judge(b'{"a":42,"b":"x"}\n{"a":41,"b":"y"}') is True


def test_a_map_whose_keys_are_structs_is_judged() -> None:
    assert Erasure({"user": MARKER}).judge([({"k": 1}, {"user": MARKER})]) is True
    assert Erasure({"user": MARKER}).judge([({"k": 1}, "x")]) is False


@pytest.mark.parametrize("text", ["4_2", "4.2e1", " 42", "042", "+42", "\u0664\u0662"])
def test_a_text_that_is_no_plain_number_is_no_number(text: str) -> None:
    assert is_same(text, text)
    assert not is_same(42, text)


def acknowledged_log(folder: Path, epochs: int = 2) -> EpochLog:
    """A log whose epochs all have a row of the person between those of others; the newest is not acknowledged."""
    log = EpochLog(LocalStorage(folder), "redis")
    log.claim(log.begin())
    for epoch in range(1, epochs + 1):
        rows = pa.table({
            "user": pa.array(["Anna", MARKER, "Bo"]).dictionary_encode(), "value": pa.array([OTHER, OWN, None], pa.binary()),
            ID: pa.array([f"{epoch}-{n}" for n in range(3)], pa.large_string()),
            LEASE: pa.array([f"l{n}" for n in range(3)], pa.large_string()),
        })  # fmt: skip
        log.put(epoch, 0, record_content(rows, Header(3, 1.0, readers=1)))
        log.put_rows(epoch, "x.rows", pa.Table.from_batches(rows.to_batches(max_chunksize=1)))
        if epoch < epochs:
            log.mark_acknowledged(epoch, 3600)
    return log


def test_a_record_of_an_acknowledged_epoch_loses_the_rows_and_keeps_the_ids(tmp_path: Path) -> None:
    log = acknowledged_log(tmp_path, epochs=3)
    ids = sorted(log.known_ids(4, "one").to_pylist())
    (report,) = erase(f"state:{tmp_path}", code=1)
    assert (report["found"], report["erased"]) == (6, 4)
    assert "2 rows of the last batch" in report["left"][0]
    assert all("/00000000000000000003/" in name for name in (f"/{name}" for name in files_with(tmp_path)))
    for epoch in (1, 2):
        record, rows = sorted(recorded_files(log, epoch))
        assert record.header.rows == rows.header.rows == 2
        assert [batch.num_rows for batch in rows.batches] == [1, 0, 1]
        assert [row["user"] for batch in rows.batches for row in batch.to_pylist()] == ["Anna", "Bo"]
    assert sorted(set(log.known_ids(4, "two").to_pylist())) == ids
    log.mark_acknowledged(3, 3600)
    assert counts(erase(f"state:{tmp_path}")) == [(2, 2)]
    assert files_with(tmp_path) == []


def test_a_query_goes_on_over_a_log_that_was_erased_meanwhile(system: QueueContext) -> None:
    """Each batch erases the number 3, also of the batch that a driver may replay, and no message is lost or comes twice."""
    system.write(5)
    query, log, rows = SourceQuery(system), [], list[Any]()
    location = system.options()["stateLocation"]

    def erased(code: int) -> dict[str, Any]:
        return erase(f"state:{location}", key="value=3", code=code)[0]

    rows += values(query.next(log) or [])
    assert rows == [0, 1, 2, 3, 4]
    assert "1 row of the last batch" in erased(1)["left"][0]
    system.write(5)
    rows += to_the_end(query, log)
    assert erased(0)["erased"] == 1
    system.settle()  # all leases end: what the log did not know would come again
    rows += to_the_end(SourceQuery(system), log)
    assert sorted(rows) == list(range(10))
    assert counts([erased(0)]) == [(0, 0)]


def test_two_erasures_at_once_bring_no_row_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one has read the file, and stands still before it writes it."""
    log = acknowledged_log(tmp_path)
    log.mark_acknowledged(2)
    busy = [_BusyStorage(tmp_path, lambda: erase(f"state:{tmp_path}", key="user=Anna"))]
    monkeypatch.setattr(erasure_places, "checked_storage", lambda *_: busy.pop() if busy else LocalStorage(tmp_path))
    assert counts(erase(f"state:{tmp_path}")) == [(4, 4)]
    for epoch in (1, 2):
        assert {row["user"] for file in recorded_files(log, epoch) for row in file.rows()} == {"Bo"}


def test_letters_beside_the_rows_of_an_epoch_go_too(tmp_path: Path) -> None:
    """Nobody reads them when the epoch is over, unless a checkpoint is restored: then none is published again."""
    log, binary = acknowledged_log(tmp_path), f"Struct{{user={MARKER}}}".encode()
    for epoch in (1, 2):
        file = LetterFile()
        for record in (OWN, OTHER, binary):
            file.add({"source": "connectors.connect", "position": "{}", "error_class": "Poison", "error": "", "record": record})
        log.storage.put_if_absent(f"epochs/{epoch:020d}/x.letters", file.content())
    (report,) = erase(f"state:{tmp_path}", code=1)
    assert (report["found"], report["erased"]) == (6, 4)
    assert [[letter["record"] for _, own in recorded_letters(log, epoch) for letter in own] for epoch in (1, 2)] == [
        [OTHER], [OTHER, binary],
    ]  # fmt: skip
    assert "1 row that nobody can judge" in report["left"][1]


def staged_folder(folder: Path) -> SinkFolder:
    """What a batch that is published, one that is decided, and one that is under way have staged."""
    sink = SinkFolder(LocalStorage(folder), "orders")
    for number in (1, 2, 3):
        batch = Batch("orders", "query", number)
        attempt = batch.attempt()
        sink.begin(attempt)
        pq.write_table(
            pa.table({"user": ["Anna", MARKER]}), folder / sink.stage(attempt) / "0.parquet", compression="none"
        )
        (folder / sink.stage(attempt) / "1.json").write_bytes(OTHER + b"\n")
        entry = Entry("query", number)
        if number < 3:
            sink.ledger().record(entry)
        if number == 1:
            sink.ledger().mark_published(entry)
    return sink


def test_staged_files_of_dead_attempts_go_and_those_of_live_batches_stay(tmp_path: Path) -> None:
    sink = staged_folder(tmp_path)
    (report,) = erase(f"staging:{tmp_path}", code=1)
    assert (report["found"], report["erased"]) == (3, 1)
    assert "2 files that a sink may still publish" in report["left"][0]
    prefixes = {name.split("/")[3].split("-")[0] for name in files_with(tmp_path)}
    assert prefixes == {Batch("orders", "query", number).prefix() for number in (2, 3)}
    assert sum(1 for _ in tmp_path.rglob("1.json")) == 3
    sink.ledger().mark_published(Entry("query", 2))
    sink.ledger().record(Entry("query", 3))
    sink.ledger().mark_published(Entry("query", 3))
    assert counts(erase(f"staging:{tmp_path}")) == [(2, 2)]
    assert files_with(tmp_path) == []


class MortalStorage(DyingStorage):
    """Dies before the change of this number, whichever it is."""

    def delete(self, name: str) -> None:
        self._count()
        super().delete(name)

    def delete_folder(self, name: str) -> None:
        self._count()
        super().delete_folder(name)


@pytest.mark.parametrize("kind", ["letters", "state", "staging"])
def test_a_second_call_ends_what_a_death_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The command dies before each change of the storage in turn."""
    for number in range(100):
        folder = tmp_path / str(number)
        folder.mkdir()
        if kind == "letters":
            put(folder, 0, DAMAGED)
            put(folder, 1, DAMAGED)
        elif kind == "state":
            acknowledged_log(folder).mark_acknowledged(2, 3600)
        else:
            sink = staged_folder(folder)
            for batch in (2, 3):
                sink.ledger().record(Entry("query", batch))
                sink.ledger().mark_published(Entry("query", batch))
        assert files_with(folder)
        storage = MortalStorage(folder, number)
        with monkeypatch.context() as patch:
            patch.setattr(erasure_places, "checked_storage", lambda *_, storage=storage: storage)
            patch.setattr("connectors_tools.letters.checked_storage", lambda *_, storage=storage: storage)
            with contextlib.suppress(KeyboardInterrupt):
                list(place_of(f"{kind}:{folder}")(Erasure({"user": MARKER})))
                break
        erase(f"{kind}:{folder}")
        assert files_with(folder) == []
        assert files_with(folder, "Anna")
    assert number > 1
    assert files_with(folder) == []


def test_letters_that_come_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, records=[OWN, OTHER])
    late = LateStorage(tmp_path, lambda: put(tmp_path, 1, [OTHER]))
    monkeypatch.setattr("connectors_tools.letters.checked_storage", lambda *_: late)
    assert counts(erase(f"letters:{tmp_path}")) == [(1, 1)]
    assert records(tmp_path) == [OTHER, OTHER]


def test_an_epoch_that_the_query_deletes_meanwhile_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = acknowledged_log(tmp_path, epochs=3)
    ids = sorted(log.known_ids(4, "one").to_pylist())
    log.mark_acknowledged(3, 3600)
    monkeypatch.setattr("connectors.core.epochs.HISTORY", 1)
    monkeypatch.setattr(erasure_places, "checked_storage", lambda *_: _BusyStorage(tmp_path, lambda: log.delete_old(2)))
    erase(f"state:{tmp_path}")
    assert log.epochs() == [2, 3]
    assert sorted(set(log.known_ids(4, "two").to_pylist())) == ids
    assert files_with(tmp_path) == []


class _BusyStorage(LateStorage):
    """Lets ``others`` work before the first file is replaced."""

    def replace(self, name: str, content: Any, *, durable: bool = False) -> None:
        if self.others:
            others, self.others = self.others, None
            others()
        super().replace(name, content, durable=durable)


def test_an_interrupted_send_of_letters_is_left(tmp_path: Path) -> None:
    put(tmp_path, records=[OWN])
    (tmp_path / ".letters").mkdir()
    (tmp_path / ".letters" / "1").write_text('{"sink": "kafka", "letters": {}}')
    (report,) = erase(f"letters:{tmp_path}", code=1)
    assert "Call send again first" in report["left"][0]


@pytest.mark.parametrize(
    "place", ["kafka:orders", "kinesis:s", "pubsub:p", "files:/data/lake", "checkpoint:/c", "http:x", "backup:db"]
)
def test_a_place_that_cannot_be_reached_is_named_with_a_way_out(place: str) -> None:
    (report,) = erase(place, code=1)
    assert (report["place"], report["found"]) == (place, None)
    assert report["left"][0].startswith("cannot be reached: ")


def test_a_place_that_nobody_knows_is_refused_before_anything_is_erased(tmp_path: Path) -> None:
    put(tmp_path, records=[OWN])
    tables = f"jdbc:{json.dumps({'url': 'sqlite:x.db', 'dbtable': 'orders_{region}'})}"
    for place, text in (
        ("moon:orders", "moon"), ("letters:", "letters:"), ("jdbc:{}", "dbtable"), (tables, "each of the tables"),
        ("redis:x", "JSON"),
    ):  # fmt: skip
        done = CliRunner().invoke(
            main, ["erase", "--key", f"user={MARKER}", "--in", f"letters:{tmp_path}", "--in", place, "--yes"]
        )
        assert done.exit_code == 2, done.output
        assert text in done.output
    assert records(tmp_path) == [OWN]
    (report,) = erase(f"letters:{tmp_path}-none", code=1)
    assert "there is no folder" in report["left"][0]


def test_the_command_asks_and_shows_what_it_has_found(tmp_path: Path) -> None:
    put(tmp_path, records=[OWN, OTHER])
    arguments = ["erase", "--key", f"user={MARKER}", "--in", f"letters:{tmp_path}"]
    no = CliRunner().invoke(main, arguments, input="n\n")
    assert no.exit_code == 1
    assert f"letters:{tmp_path}  found 1, erased 0" in no.output
    assert records(tmp_path) == [OWN, OTHER]
    assert "found 1, erased 1" in CliRunner().invoke(main, arguments, input="y\n").output
    assert records(tmp_path) == [OTHER]


@pytest.fixture
def system(tmp_path: Path) -> Any:
    from connectors.testing.contexts import open_context

    with open_context(QueueContext, tmp_path / "system") as context:
        yield context
        for planner in context.planners:
            planner.close()


def sqlite(folder: Path, names: list[str]) -> tuple[sqlite3.Connection, str]:
    """A table with ``names`` whose collation knows no case, and the place."""
    connection = sqlite3.connect(folder / "people.db")
    connection.execute("CREATE TABLE people (name text COLLATE NOCASE)")
    connection.executemany("INSERT INTO people VALUES (?)", [(name,) for name in names])
    connection.commit()
    return connection, f"jdbc:{json.dumps({'url': f'sqlite:{folder}/people.db', 'dbtable': 'people'})}"


def test_a_collation_makes_no_person_of_two(tmp_path: Path) -> None:
    connection, place = sqlite(tmp_path, ["anna", "Anna", "Bo"])
    (report,) = erase(place, key="name=anna", code=1)
    assert "takes other values of name for equal too" in report["left"][0]
    assert connection.execute("SELECT count(*) FROM people").fetchone() == (3,)
    assert counts(erase(place, key="name=Bo")) == [(1, 1)]
    connection.close()


def test_rows_that_nobody_has_compared_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer adds Anna between the look at the rows and their deletion."""
    connection, place = sqlite(tmp_path, ["anna", "Anna"])
    rows = Connection.rows

    def early(self: Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return rows(self, sql, *values)[: 1 if "WHERE" in sql and "people" in sql else None]

    monkeypatch.setattr(Connection, "rows", early)
    (report,) = erase(place, key="name=anna", code=1)
    assert "another writer has changed rows" in report["left"][0]
    assert connection.execute("SELECT count(*) FROM people").fetchone() == (2,)
    connection.close()


def test_a_column_has_one_value(tmp_path: Path) -> None:
    """Of two the last one would count, and the other person's rows would stay without a word."""
    put(tmp_path, records=[OWN, OTHER])
    keys = ["--key", f"user={MARKER}", "--key", "user=Anna"]
    done = CliRunner().invoke(main, ["erase", *keys, "--in", f"letters:{tmp_path}", "--yes"])
    assert (done.exit_code, len(records(tmp_path))) == (2, 2)
    assert "name each column once" in done.output


class _Index:
    """A client of an index in which two documents have words like the value. It keeps what was deleted."""

    sources: tuple[dict[str, Any], ...]
    deleted: list[str]

    def __init__(self, *_: Any) -> None:
        self.json = self
        self.pages = [[
            {"_index": "i", "_id": str(number), "_seq_no": 1, "_primary_term": 1, **source}
            for number, source in enumerate(self.sources)
        ], []]  # fmt: skip

    def ask(self, _: str, path: str, __: Any = None) -> Any:
        return {} if path.endswith("_refresh") else {"_scroll_id": "s", "hits": {"hits": self.pages.pop(0)}}

    def dumps(self, value: Any) -> bytes:
        self.deleted.append(value["delete"]["_id"])
        return b""

    def request(self, *_: Any) -> bytes:
        return b""

    def loads(self, _: bytes) -> Any:
        return {"items": [{"delete": {"status": 200}} for _ in self.deleted]}

    def close(self) -> None:
        """It has nothing open."""


@pytest.mark.parametrize("rest", [{}, {"_source": {"city": "Bern"}}, {"_source": {"city": {"user": MARKER}}}])
def test_documents_that_nobody_can_compare_are_left_and_named(
    monkeypatch: pytest.MonkeyPatch, rest: dict[str, Any]
) -> None:
    _Index.sources, _Index.deleted = ({"_source": {"user": MARKER}}, {"_source": {"user": f"{MARKER} sen"}}, rest), []
    monkeypatch.setattr("connectors.systems.elasticsearch.client.SearchClient", _Index)
    options = json.dumps({"hosts": "http://127.0.0.1:1", "index": "people"})
    (report,) = erase(f"elasticsearch:{options}", code=1)
    assert (report["found"], report["erased"], _Index.deleted) == (1, 1, ["0"])
    assert "1 document that may be of others" in report["left"][0]


def test_a_report_has_no_value_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL repeats a value that is not of the type of its column."""

    def refuse(*_: Any) -> Any:
        raise StateError(f'invalid input syntax for type bigint: "{MARKER}"', way_out="none")

    connection, place = sqlite(tmp_path, ["anna"])
    monkeypatch.setattr(Connection, "rows", refuse)
    (report,) = erase(place, key=f"name={MARKER}", code=1)
    assert MARKER not in json.dumps(report)
    assert 'type bigint: "…"' in report["left"][0]
    connection.close()
