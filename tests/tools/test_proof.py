"""``prove``: what it refuses, what it compares, and what its page says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from connectors.ground.errors import Misconfigured
from connectors.testing.contexts import open_context
from connectors.testing.engine import Engine
from connectors.testing.faults import Action, Injected, Point
from connectors.testing.sink_cases import BATCH, ROWS, SinkQuery
from connectors_tools.cli import main
from connectors_tools.pipelines import files_of
from connectors_tools.proof.driver import Driver, _forgetful
from connectors_tools.proof.page import ProofRecord, write_proof
from connectors_tools.proof.proof import Proof
from connectors_tools.proof.rounds import FAULTS, Outcome, Rounds
from connectors_tools.proof.subject import Subject
from connectors_tools.proof.verdict import Comparison, Verdict, compared

from ..systems.reference_contexts import LinesContext

PIPELINES = Path(__file__).parents[2] / "notebooks" / "pipelines"


def subject(kind: str, folder: Path, **parameters: str) -> Subject:
    return Subject(PIPELINES / f"{kind}.ipynb", {"checks": f"rules/{kind}.json", **parameters}, folder, "prove_1")


def record(**changes: Any) -> ProofRecord:
    comparison = Comparison("target", 10, 11, 1, 2, 0, {"lost": ['{"id":7}'], "doubled": ['{"id":8}', '{"id":8}']})
    outcomes = [
        Outcome(0, "driver", "killed where the batch is staged", struck=True, start=1.0, end=9.0, rows=5),
        Outcome(1, "network", "2 calls fail from call 7 on; it ended well", struck=False, start=9.0, end=20.0, rows=10),
    ]
    fields: dict[str, Any] = {
        "pipeline": "orders", "command": "python -m connectors prove orders --seed 0", "started": 1_790_000_000.0,
        "seconds": 30.0, "outcomes": outcomes, "verdict": Verdict([comparison], 11, 11, (1, 1)),
        "delivered": [(5.0, 4), (25.0, 10)], "demonstrations": ["kafka"], "unprotected": False,
    }  # fmt: skip
    return ProofRecord(**{**fields, **changes})


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("http_to_delta", r"has the source http, which takes no rows from a proof; it can be cdc, delta, "),
        ("delta_to_firehose", r"has the target firehose, which cannot be read back, row by row; it can be delta, "),
        ("enrich", r"calls a service"),
    ],
)
def test_a_pipeline_that_cannot_be_proven_is_refused_with_the_reason(kind: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=reason):
        subject(kind, tmp_path)


def test_a_notebook_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"quickstart|ingest\.ipynb does not call workbench\.pipeline"):
        Subject(PIPELINES.parent / "quickstart" / "ingest.ipynb", {}, tmp_path, "prove_1")


def test_the_users_options_reach_the_notebook_and_win_over_those_of_the_proof(tmp_path: Path) -> None:
    options = {"kafka.security.protocol": "SASL_SSL", "maxOffsetsPerTrigger": "7"}
    proven = subject("kafka_to_delta", tmp_path, kafka_bootstrap_servers="broker:9093", options=json.dumps(options))
    parameters = proven.parameters("out", 1000)
    assert json.loads(parameters["options"]) == options
    assert parameters["kafka_bootstrap_servers"] == "broker:9093"
    assert parameters["source"] == "prove_1_in"
    assert parameters["name"] == "prove_1_out"
    assert parameters["trigger"] == "availableNow"
    assert Path(parameters["checks"]).is_file()
    assert not proven.is_demonstration
    names = [str(name) for name in proven.names()]
    assert names == ["topic prove_1_in", f"table {tmp_path}/tables/prove_1_out", f"table {tmp_path}/tables/prove_1_ref"]


def test_a_file_of_options_is_found_beside_the_notebook(tmp_path: Path) -> None:
    proven = subject("kafka_to_delta", tmp_path, kafka_bootstrap_servers="broker:9093", options="apis/github.json")
    assert json.loads(proven.parameters("ref")["options"])["resource"] == "issues"


def test_batches_are_bounded_but_for_the_undisturbed_run(tmp_path: Path) -> None:
    proven = subject("kafka_to_delta", tmp_path, kafka_bootstrap_servers="broker:9093")
    assert json.loads(proven.parameters("out", 70)["options"]) == {"maxOffsetsPerTrigger": "70"}
    assert json.loads(proven.parameters("ref")["options"]) == {}


def test_runs_share_nothing_but_the_source(tmp_path: Path) -> None:
    proven = subject("lines_to_delta", tmp_path)
    runs = [proven.parameters(run, 100) for run in ("out", "ref")]
    same = {name for name in runs[0] if runs[0][name] == runs[1][name]}
    assert same == {"checks", "options", "source", "trigger", "workdir"}
    assert proven.is_demonstration


def test_the_faults_of_a_copy_strike_where_it_is_read_since_no_sink_writes_it(tmp_path: Path) -> None:
    points: dict[str, set[Point]] = {}
    for kind, address in {"dynamodb_to_delta": {"region": "us-east-1"}, "lines_to_delta": {"source": str(tmp_path)}}.items():
        proven = subject(kind, tmp_path / kind, **address)
        points[kind] = {*Rounds(proven, list(FAULTS), 0, 10, unprotected=False, since=0.0)._points}
    assert points["dynamodb_to_delta"] == {Point.READ_ROW}
    assert points["lines_to_delta"] == {Point.READ_ROW, Point.TASK_ROW, Point.COMMIT_BEFORE, Point.COMMIT_AFTER}


def test_faults_strike_the_merge_of_changes_too() -> None:
    script = """
from connectors.core import Batch
from connectors.systems.delta import merge
from connectors.testing.faults import Action, FailureInjector, Point
from connectors_tools.proof.driver import add_faults
injector = FailureInjector(sys.argv[1])
add_faults(["connect"], injector, unprotected=False)
injector.arm(Point.COMMIT_BEFORE, Action.RAISE)
sink = merge.merge("/nowhere").sink
sink.committer().commit_frame(None, Batch(sink.sink_id(), "q", 0))
"""
    command = [sys.executable, "-c", f"import sys\n{script}"]
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert Point.COMMIT_BEFORE.value in result.stderr


@pytest.mark.parametrize("protected", [True, False])
def test_only_without_its_ledger_a_sink_doubles_a_batch_that_is_done_again(protected: bool, tmp_path: Path) -> None:
    with open_context(LinesContext, tmp_path / "target") as target:
        query = SinkQuery(target, tmp_path, "foreach_batch")

        def start() -> Engine:  # as a process of its own
            if not protected:
                target.sink = _forgetful(LinesContext.sink)  # type: ignore[misc]
            return query.engine()

        start().run(batches=2)
        query.injector.arm(Point.COMMIT_AFTER, Action.RAISE)
        with pytest.raises(Injected):
            start().run()
        start().run()
        values = [row["value"] for row in target.rows()]
    assert len({*values}) == ROWS
    assert len(values) == ROWS + (0 if protected else BATCH)


@pytest.mark.parametrize("kind", ["cdc_to_delta", "dynamodb_to_delta"])
def test_the_latency_of_a_copy_or_of_changes_is_refused(kind: str, tmp_path: Path) -> None:
    address = {"database_hostname": "127.0.0.1:1", "database_user": "u"} if kind == "cdc_to_delta" else {"region": "us-east-1"}
    with pytest.raises(Misconfigured, match=r"--latency +does not fit the pipeline, which ends with each copy"):
        Proof(PIPELINES / f"{kind}.ipynb", {"checks": f"rules/{kind}.json", **address}, tmp_path / "proof", latency=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"faults": ["flood"]}, r'--faults +must be of driver, .*; got "flood"'),
        ({"faults": []}, r"--faults +missing"),
        ({"rows": 5, "kills": 5}, r"--rows +must be more than the 5 of --kills; got 5"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_made(changes: Mapping[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=reason):
        Proof(PIPELINES / "lines_to_delta.ipynb", {}, tmp_path / "proof", **changes)
    assert not (tmp_path / "proof").exists()


def test_the_command_line_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(main, ["prove", *arguments, "--folder", str(tmp_path)])

    monkeypatch.chdir(PIPELINES.parents[1])
    listed = run("--list")
    assert [line.split()[0] for line in listed.output.splitlines()] == list(FAULTS)
    for arguments, reason in (
        ((), "give a PIPELINE, or --source and --sink"),
        (("kafka_to_delta", "--source", "kafka", "--sink", "jdbc"), "give a PIPELINE, or --source and --sink"),
        (("--source", "kafka", "--sink", "nowhere"), "kafka_to_nowhere is no pipeline"),
        (("kafka_to_delta", "--param", "brokers=here:9092"), "brokers is no parameter of kafka_to_delta; it has name, workdir"),
        (("kafka_to_deltas",), "is no job of this bundle"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert reason in result.output


def test_whoever_says_no_finds_nothing_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PIPELINES.parents[1])
    own, lines = tmp_path / "own", tmp_path / "logs"
    lines.mkdir()
    wish = ["prove", "lines_to_delta", "--param", f"source={lines}", "--folder", str(own)]
    result = CliRunner().invoke(main, wish, input="n\n")
    assert result.exit_code == 1
    assert f"makes, and removes at the end: file {lines}/prove_" in result.output
    assert not list(lines.iterdir())
    assert [file for file in own.rglob("*") if file.is_file()] == []


@pytest.mark.spark
def test_rows_are_compared_as_often_as_they_are_there(spark: Any) -> None:
    columns = "id long, city string, at timestamp, tags array<string>"
    times = [spark.sql(f"SELECT timestamp '2026-01-01 00:00:00.00000{digit}' at") for digit in (1, 2)]
    assert compared("target", *times).wrong == 1, "times have microseconds"
    kinds = [spark.sql(f"SELECT {kind} '2026-01-01' at") for kind in ("date", "")]
    assert compared("target", *kinds).wrong == 1, "columns have types"
    expected = spark.sql("SELECT id, if(id = 3, null, 'Bern') city, timestamp '2026-01-01' at, array('a') tags FROM range(6)")
    broken = expected.where("id > 0").unionAll(expected.where("id in (1, 3)")).unionAll(expected.where("id = 3"))
    broken = broken.unionAll(spark.sql("SELECT 4L id, '' city, timestamp '2026-01-01' at, array('a') tags"))
    result = compared("target", expected, spark.createDataFrame(broken.collect(), columns))
    assert (result.expected, result.rows, result.lost, result.doubled, result.wrong) == (6, 9, 1, 3, 1)
    assert '"id bigint":0' in result.samples["lost"][0]
    assert '"city string":""' in result.samples["wrong"][0]
    assert sorted('"city string":null' in row for row in result.samples["doubled"]) == [False, True, True]
    assert not result.ok
    assert compared("target", expected, expected).ok


def test_the_page_says_what_was_lost_and_how_to_repeat_it(tmp_path: Path) -> None:
    page = write_proof(record(), tmp_path).read_text()
    for text in ("1 lost, 2 doubled", "Different", "doubled: {&#34;id&#34;:8}", "prove orders --seed 0", "nothing struck"):
        assert text in page
    report = json.loads((tmp_path / "proof.json").read_text())
    assert (report["ok"], report["title"]) == (False, "1 lost, 2 doubled")
    assert report["verdict"]["comparisons"][0]["doubled"] == 2
    assert "latency" not in page
    page = write_proof(record(latencies=[0.5, 1.5, 0.75]), tmp_path).read_text()
    assert "0.75 s" in page
    assert "median latency, at most 1.50 s" in page


@pytest.mark.parametrize(
    ("verdict", "title", "ok"),
    [
        (Verdict([Comparison("target", 5, 5, 0, 0, 0)], 5, 5, (0, 0)), "every row once", True),
        (Verdict([Comparison("target", 3, 3, 0, 0, 0)], 5, 5, (1, 2)), "dead letters differ", False),
        (Verdict([Comparison("target", 4, 4, 0, 0, 0)], 5, 4, (0, 0)), "the undisturbed run lacks or doubles rows", False),
        (Verdict([Comparison("target", 4, 4, 0, 0, 0)], 5, 5, (0, 0)), "the undisturbed run lacks or doubles rows", False),
        (Verdict([Comparison("target", 6, 6, 0, 0, 0)], 5, 5, (0, 0)), "the undisturbed run lacks or doubles rows", False),
        (Verdict([], 5, None, (0, 0), "Fatal: gone"), "the pipeline does not go on", False),
    ],
)
def test_a_verdict_in_words(verdict: Verdict, title: str, ok: bool, tmp_path: Path) -> None:
    proof = record(verdict=verdict)
    assert (proof.title, proof.ok) == (title, ok)
    assert title in write_proof(proof, tmp_path).read_text()


def test_a_pair_gets_a_notebook_that_can_be_proven(tmp_path: Path) -> None:
    for path, text in files_of("lines_to_files", "pair").items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    proven = Subject(tmp_path / "notebooks/pipelines/pair.ipynb", {}, tmp_path / "proof", "prove_1")
    assert (proven.source_end.system, proven.target_end.system) == ("lines", "files")


def test_a_name_that_exists_survives_its_refusal(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("prove_1_in.jsonl", "prove_1_in_of_others.jsonl"):
        (logs / name).write_text("of the user")
    proof = Proof(PIPELINES / "lines_to_delta.ipynb", {"source": str(logs)}, tmp_path / "proof", token="prove_1")
    with pytest.raises(Misconfigured, match=r"token +is taken: file .*/prove_1_in\.jsonl exists"):
        proof.run()
    assert proof.clean() == []
    assert {file.name for file in logs.iterdir()} == {"prove_1_in.jsonl", "prove_1_in_of_others.jsonl"}


def test_a_folder_of_the_users_is_not_taken_for_the_state(tmp_path: Path) -> None:
    proof = Proof(PIPELINES / "lines_to_delta.ipynb", {}, tmp_path)
    proof.clean()
    (tmp_path / "state").mkdir()
    with pytest.raises(Misconfigured, match=r"--folder +has state already; give an empty folder"):
        Proof(PIPELINES / "lines_to_delta.ipynb", {}, tmp_path)


@pytest.mark.parametrize(
    ("kind", "pattern", "file"),
    [
        ("lines_to_delta", "*.jsonl", r"prove_1_in\.jsonl"),
        ("lines_to_delta", "{a,prove*}.jsonl", r"prove_1_in\.jsonl"),
        ("files_to_delta", "*/*.parquet", r"prove_1_in/0\.parquet"),
    ],
)
def test_a_folder_that_a_running_pipeline_reads_is_refused(kind: str, pattern: str, file: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=rf"source +is .*, and so reads .*/{file}, which the proof makes; give a folder"):
        subject(kind, tmp_path / "proof", source=f"{tmp_path}/{pattern}")
    for fine in ("other*.jsonl", "*.parquet"):
        subject(kind, tmp_path / "proof", source=f"{tmp_path}/{fine}")


@pytest.mark.parametrize("kind", ["lines_to_delta", "files_to_delta"])
def test_a_path_is_that_of_the_commands_working_directory(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    proven = subject(kind, tmp_path / "proof", source="logs")
    assert proven.parameters("out", 1)["source"].startswith(f"{tmp_path}/logs/prove_1_in")


def test_options_that_are_no_json_object_are_refused_without_their_secrets(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"options +must be a JSON object") as error:
        subject("kafka_to_delta", tmp_path, kafka_bootstrap_servers="broker:9093", options='["secret"]').parameters("out", 1)
    assert "secret" not in str(error.value)


def test_a_table_by_its_url_is_removed(tmp_path: Path) -> None:
    proven = subject("lines_to_delta", tmp_path / "proof", target=f"file://{tmp_path}/tables")
    place = tmp_path / "tables" / "prove_1_out"
    (place / "_delta_log").mkdir(parents=True)
    assert proven.target("out").scratch.exists("prove_1_out")
    assert proven.drop() == []
    assert not place.exists()


def test_what_cannot_be_removed_is_told_and_keeps_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven = subject("lines_to_delta", tmp_path)
    (tmp_path / "tables" / "prove_1_out").mkdir(parents=True)

    def refuse(*_: Any) -> None:
        raise OSError("no\nanswer")

    monkeypatch.setattr(proven.source.scratch, "drop", refuse)
    (left,) = proven.drop()
    assert left.endswith("/prove_1_in.jsonl: no answer")
    assert not (tmp_path / "tables" / "prove_1_out").exists()


def test_the_slots_of_a_change_log_are_names_of_the_proof(tmp_path: Path) -> None:
    proven = subject("cdc_to_delta", tmp_path, database_hostname="db:5432")
    names = [str(name) for name in proven.names()]
    assert names[0] == "table prove_1_in"
    assert {"slot and publication prove_1_out", "slot and publication prove_1_ref"} < {*names}


def test_an_interrupted_proof_leaves_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers: list[Driver] = []

    def interrupt(rounds: Rounds, *_: Any) -> None:
        drivers.append(rounds._start(1))
        raise KeyboardInterrupt

    monkeypatch.setattr(Rounds, "run", interrupt)
    proof = Proof(PIPELINES / "lines_to_delta.ipynb", {}, tmp_path / "proof")
    with pytest.raises(KeyboardInterrupt):
        proof.run()
    assert [driver.process.poll() for driver in drivers] == [-signal.SIGKILL]
    assert proof.clean() == []


def test_a_driver_ends_with_its_proof() -> None:
    driver = "import os; from connectors_tools.proof.driver import _end_with"
    driver += "; proof = os.getppid(); print(1, flush=True); _end_with(proof); print('survives')"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {driver!r}], start_new_session=True)"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE) as proof:
        assert proof.stdout is not None
        assert proof.stdout.readline() == b"1\n"
        proof.kill()
        assert proof.stdout.read() == b""  # the driver, too, has closed it


def test_a_proof_that_is_told_to_end_removes_what_it_has_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(proof: Proof, _: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.chdir(PIPELINES.parents[1])
    monkeypatch.setattr(Proof, "run", end)
    monkeypatch.setattr(Proof, "clean", lambda proof: ["topic prove_1_in: no answer"])
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(main, ["prove", "lines_to_delta", "--folder", str(tmp_path)])
    assert result.exit_code == 128 + signal.SIGTERM
    assert "not removed: topic prove_1_in: no answer" in result.output
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_is_proven_if_no_fault_has_struck() -> None:
    verdict = Verdict([Comparison("target", 5, 5, 0, 0, 0)], 5, 5, (0, 0))
    proof = record(verdict=verdict, outcomes=[Outcome(0, "network", "it ended well", False, 0.0, 1.0, 5)])
    assert not proof.ok
    assert proof.judgement.startswith("nothing is proven")
    assert record(verdict=verdict).judgement == "every promise was kept"


def test_two_empty_targets_prove_nothing() -> None:
    proof = record(verdict=Verdict([Comparison("target", 0, 0, 0, 0, 0)], 5, None, (0, 0)))
    assert (proof.ok, proof.title) == (False, "the undisturbed run lacks or doubles rows")


@pytest.mark.parametrize(("doubled", "ok"), [(2, True), (0, False)])
def test_without_protection_only_doubles_count(doubled: int, ok: bool) -> None:
    verdict = Verdict([Comparison("target", 5, 4 + doubled, 1, doubled, 0)], 5, 5, (0, 0))
    assert record(verdict=verdict, unprotected=True).ok is ok
    failure = Verdict([], 5, None, (0, 0), "Fatal: gone")
    assert not record(verdict=failure, unprotected=True).ok


def test_a_checkpoint_is_put_back_only_where_there_is_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proof = Proof(PIPELINES / "lines_to_delta.ipynb", {}, tmp_path)
    rounds = Rounds(proof.subject, ["older-checkpoint"], 0, 10, unprotected=False, since=0.0)
    offsets = tmp_path / "state" / f"{proof.token}_out" / "checkpoint" / "offsets"
    runs: list[list[str]] = []

    class Run:
        """A run that writes the next batch into its checkpoint."""

        def __init__(self, *_: Any) -> None:
            offsets.mkdir(parents=True, exist_ok=True)
            runs.append(sorted(file.name for file in offsets.iterdir()))
            if len(runs) != 2:
                (offsets / str(len(runs))).touch()

        def wait(self) -> int:
            return 0

    monkeypatch.setattr("connectors_tools.proof.rounds.Driver", Run)
    outcomes = [rounds.run(number, 10) for number in range(3)]
    assert [outcome.struck for outcome in outcomes] == [False, False, True]
    assert "there is no older checkpoint" in outcomes[1].what
    assert runs == [[], ["1"], ["1"], ["1"]]  # the last one again, without what the third has written
