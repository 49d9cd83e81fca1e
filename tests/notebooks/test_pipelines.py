"""The pipelines: written by one skeleton, run again and again on data of one's own, and judged by a gate that sees harm."""

from __future__ import annotations

import datetime
import io
import json
import re
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis
import yaml
from click.testing import CliRunner
from confluent_kafka import Producer

from connectors.ground.errors import Misconfigured
from connectors.testing.demo import Demo, Order, Shop
from connectors.testing.demo_servers import Changes, WholeDatabase
from connectors.testing.demos import demo
from connectors.testing.sampling import wait_until
from connectors.testing.servers import KafkaServer, MotoServer, RedisServer
from connectors.workbench.pipeline import End
from connectors_tools.bundle import Reporter, load, run_job
from connectors_tools.cli import main
from connectors_tools.pipeline_sources import SOURCES
from connectors_tools.pipeline_targets import TARGETS as SINKS
from connectors_tools.pipelines import PIPELINES, ends_of, files_of, gate, write_pipeline
from tests.delta_log import delta
from tests.servers import required

from .pipeline_jobs import ROOT, Job, order_texts, price
from .pipeline_targets import QUICK, TARGETS, OwnRedis, OwnTarget
from .quickstart import run
from .whole_database import database_tables, delta_tables, sqlite_tables

NAMES = list(PIPELINES)


def cells(text: str) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in nbformat.reads(text, as_version=4).cells]


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_is_what_the_skeleton_makes_of_its_row_in_the_table(name: str) -> None:
    for path, text in files_of(name, name).items():
        stored = (ROOT / path).read_text()
        assert (cells(stored) == cells(text)) if path.endswith(".ipynb") else (stored == text), path
    assert cells((ROOT / "notebooks" / "pipelines" / "quality.ipynb").read_text()) == cells(gate())


@pytest.mark.parametrize("name", NAMES)
def test_a_pipeline_is_short_enough_to_be_read_at_once(name: str) -> None:
    for path, text in files_of(name, name).items():
        if path.endswith(".ipynb"):
            code = [source for kind, source in cells(text) if kind == "code"]
            lines = [line for source in code[1:] for line in source.splitlines()]
            assert len(lines) <= 60
            assert max(map(len, lines)) <= 100
            assert all(len(source.splitlines()) <= 15 for source in code if "reader = spark" in source)


def test_a_new_pipeline_is_written_once(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "notebooks" / "pipelines" / "rules").mkdir(parents=True)
    with pytest.raises(Misconfigured, match=r"must be the root of this repository"):
        write_pipeline(tmp_path / "jobs", "visits", "kafka_to_delta")
    (tmp_path / "notebooks" / "pipelines" / "quality.ipynb").write_text(gate())
    files = write_pipeline(tmp_path, "visits", "kafka-to-delta")
    assert [str(file.relative_to(tmp_path)) for file in files] == [
        "notebooks/pipelines/visits.ipynb", "notebooks/pipelines/rules/visits.json", "jobs/visits.yml",
    ]  # fmt: skip
    assert "rules/visits.json" in files[2].read_text()
    with pytest.raises(Misconfigured, match=r"visits is taken"):
        write_pipeline(tmp_path, "visits", "lines_to_delta")
    for kind in ("kafka", "kafka_to_nowhere", "delta_to_delta"):
        with pytest.raises(Misconfigured, match=rf'--pipeline +must be enrich, or FROM_to_TO, from .*; got "{kind}"'):
            write_pipeline(tmp_path, "clicks", kind)
    for name in ("My Visits", "on"):
        with pytest.raises(Misconfigured, match=r'must be a name such as "orders"'):
            write_pipeline(tmp_path, name, "kafka_to_delta")


def test_a_new_bundle_has_a_name_of_letters_and_one_that_is_there_is_told_what_it_lacks(tmp_path: Path) -> None:
    bundle = tmp_path / "2024"
    with pytest.raises(Misconfigured, match=r"quality is taken"):
        write_pipeline(bundle, "quality", "kafka_to_delta", is_foreign=True)
    assert not bundle.exists()
    write_pipeline(bundle, "visits", "kafka_to_delta", is_foreign=True)
    assert load(bundle).config["bundle"]["name"] == "2024"
    own = tmp_path / "own"
    own.mkdir()
    (own / "databricks.yaml").write_text("bundle: {name: own}\ninclude: [jobs/*.yml]\ntargets: {dev: {default: true}}\n")
    written = CliRunner().invoke(main, ["new", "visits", "--pipeline", "kafka-to-delta", "--into", str(own)])
    assert written.exit_code == 0, written.output
    assert "In your bundle:" in written.output
    assert "${var.workdir} names no variable" in written.output
    assert not (own / "databricks.yml").exists()


@pytest.mark.soak
@pytest.mark.spark
def test_a_pipeline_in_a_bundle_of_ones_own_runs_as_it_is_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "my-shop"
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path / "volumes"))
    written = CliRunner().invoke(main, ["new", "visits", "--pipeline", "lines-to-delta", "--into", str(bundle)])
    assert written.exit_code == 0, written.output
    assert "written: databricks.yml" in written.output
    assert f"cd {bundle} && python -m connectors run visits" in written.output
    output = io.StringIO()
    run_job(load(bundle), "visits", {}, Reporter(output), bundle / "runs", ())
    assert output.getvalue().splitlines()[-1].split()[1] == "SUCCESS", output.getvalue()
    before = (bundle / "databricks.yml").read_text()
    again = CliRunner().invoke(main, ["new", "clicks", "--pipeline", "files-to-jdbc", "--into", str(bundle)])
    assert "databricks.yml" not in again.output
    assert (bundle / "databricks.yml").read_text() == before


@pytest.mark.soak
@pytest.mark.spark
def test_lines_of_ones_own_are_in_the_table_once_and_the_gate_sees_harm(spark: Any, tmp_path: Path) -> None:
    log = tmp_path / "in.jsonl"
    job = Job("lines_to_delta", tmp_path, source=f"{log}*")
    for first in (100, 200):
        if log.exists():
            log.rename(f"{log}.1")  # the next file has its name, and lines at the same positions
        log.write_text("".join(f"{order}\n" for order in order_texts(range(first, first + 100))))
        succeeded, output = job.run()
        assert succeeded, output
    job.check(range(100, 300))
    table = f"delta.`{job.target}`"
    version = spark.sql(f"DESCRIBE HISTORY {table}").agg({"version": "max"}).first()[0]
    lost = f"DELETE FROM {table} WHERE id = 103"
    doubled = f"INSERT INTO {table} SELECT * FROM {table} WHERE id = 104"
    wrong = f"UPDATE {table} SET cents = -5 WHERE id = 105"
    harms = {
        (lost,): ["read = delivered + dead_letters + quarantined"],
        (doubled, wrong): ["unique(id)", "between(cents, 0, 1000000)"],
    }
    for statements, checks in harms.items():
        for statement in statements:
            spark.sql(statement)
        succeeded, output = job.run("quality")
        assert not succeeded
        assert [check for check in checks if check not in output] == []
        spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {version}")
    succeeded, output = job.run("quality")
    assert succeeded, output


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.server
@pytest.mark.spark
def test_records_of_a_topic_of_ones_own_are_in_the_table_once(spark: Any, tmp_path: Path) -> None:
    server = required(KafkaServer)
    topic, producer = server.create_topic("orders-of-ones-own", 2), Producer({"bootstrap.servers": server.bootstrap})
    address = {"kafka_bootstrap_servers": server.bootstrap, "source": topic}
    job = Job("kafka_to_delta", tmp_path, **address, options='{"minPartitions": "3"}')
    for first in (0, 100):
        for order in order_texts(range(first, first + 100)):
            producer.produce(topic, order)
        producer.flush()
        succeeded, output = job.run()
        assert succeeded, output
    job.check(range(200))


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.server
@pytest.mark.spark
def test_a_pipeline_without_an_end_is_judged_while_it_runs(spark: Any, tmp_path: Path) -> None:
    server = required(KafkaServer)
    topic, producer = server.create_topic("orders-without-end", 2), Producer({"bootstrap.servers": server.bootstrap})
    address, slow = {"kafka_bootstrap_servers": server.bootstrap, "source": topic}, '{"maxOffsetsPerTrigger": "10"}'
    job = Job("kafka_to_delta_continuous", tmp_path, trigger="continuous", options=slow, **address)
    gate = Job("kafka_to_delta_continuous_quality", tmp_path)
    counts = job.folder / "state" / job.name / "counts" / "_delta_log"

    def batches() -> int:
        return len(list(counts.glob("*.json")))

    for order in order_texts(range(600)):
        producer.produce(topic, order)
    producer.flush()
    with ThreadPoolExecutor(1) as pool:
        is_time, delivered = threading.Event(), []
        running = pool.submit(run, job.name, job.parameters, is_time.is_set)
        try:
            wait_until(lambda: batches() > 0 or running.done(), 300)
            for _ in range(2):
                succeeded, output = gate.run()
                assert succeeded, output
                delivered.append(places(gate)["delivered"])
        finally:
            is_time.set()
        code, output = running.result()
    assert code == -signal.SIGKILL, output
    assert delivered[0] < delivered[1], "it runs while it is judged"
    last = Job("kafka_to_delta", tmp_path, **address)
    last.parameters["name"] = job.name
    succeeded, output = last.run()
    assert succeeded, output
    job.check(range(600))


ONCE_MORE = {"enrich", "http", "cassandra", "dynamodb", "jdbc", "files", "elasticsearch", "delta"}
"""Sources that have no bytes which could be cut off."""
KEPT_EQUAL = {"cdc", "cdc_database", "jdbc_database"}
"""Sources whose targets follow a database; nothing is set aside."""


def places(job: Job) -> dict[str, int]:
    """The last line of the gate's newest run: how many records are where."""
    newest = max((job.folder / "runs").rglob("quality*.ipynb"), key=lambda file: file.stat().st_mtime)
    cells = nbformat.read(newest, as_version=4).cells
    text = "".join(output.get("text", "") for cell in cells if cell.cell_type == "code" for output in cell.outputs)
    counts = re.findall(r"([\d,]+) (read|delivered|dead_letters|quarantined)", text)
    return {place: int(count.replace(",", "")) for count, place in counts}


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_that_is_run_twice_has_each_order_in_one_place(
    spark: Any, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path / "volumes"))
    job = Job(name, tmp_path)
    job.parameters = {}
    source = name.partition("_to_")[0]
    for orders in (300, 600):
        succeeded, output = job.run()
        assert succeeded, output
        if source in KEPT_EQUAL:
            continue
        bad = 0 if source in ONCE_MORE else orders // 100 - (source == "hybrid")  # the history has no bytes to cut off
        negative = orders // 50
        found = places(job)
        if source in ("redis", "connect"):  # what cannot be read there has no id
            negative, bad = negative + bad, 0
        delivered = orders - bad - negative
        assert found == {"read": orders, "delivered": delivered, "dead_letters": bad, "quarantined": negative}


def mark(name: str) -> Any:
    return pytest.param(name, marks=() if name in QUICK else (pytest.mark.soak, pytest.mark.server))


@pytest.mark.soak
@pytest.mark.server
@pytest.mark.spark
@pytest.mark.parametrize("source", sorted(SOURCES.keys() - {"delta", "enrich"}))
def test_a_source_of_ones_own_is_given_by_parameters_alone(spark: Any, tmp_path: Path, source: str) -> None:
    own = demo(source, str(tmp_path / "own"))
    names = {"cassandra": "own.sales", "cdc": "public.sales", "connect": "orders", "jdbc_database": "orders,customers,returns"}
    name = names.get(source, "sales")
    job = Job(f"{source}_to_delta", tmp_path, options=json.dumps(dict(own.options)), source=name)
    job.parameters |= {SOURCES[source].address: own.address, **own.parameters}
    for orders in (100, 200):
        own.feed(name, 100)
        succeeded, output = job.run()
        assert succeeded, output
        assert "demonstration" not in output
        if source in KEPT_EQUAL:
            continue
        bad = 0 if source in ONCE_MORE else orders // 100 - (source == "hybrid")  # the history has no bytes to cut off
        negative = orders // 50
        if source in ("redis", "connect"):  # what cannot be read there has no id
            negative, bad = negative + bad, 0
        expected = {"read": orders, "delivered": orders - bad - negative, "dead_letters": bad, "quarantined": negative}
        assert places(job) == expected
    if isinstance(own, WholeDatabase):
        assert delta_tables(job.target) == database_tables(own, name)
    elif isinstance(own, Shop):
        copied = delta_tables(job.target)
        cancelled = [row for row in copied["orders"] if row["id"] < 100 and row["id"] % 20 == 0]
        assert len(cancelled) == 5
        copied["orders"] = [row for row in copied["orders"] if row not in cancelled]
        assert copied == sqlite_tables(own.folder / "orders.db")
    elif isinstance(own, Changes):
        rows = delta(job.target).select(["id", "cents"]).sort_by("id").to_pylist()
        assert [(row["id"], row["cents"]) for row in rows] == own.rows(name)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("target", list(map(mark, TARGETS)))
def test_rows_are_in_a_target_of_ones_own_once_and_its_gate_sees_each_harm(
    spark: Any, tmp_path: Path, target: str
) -> None:
    own: OwnTarget = TARGETS[target](tmp_path)
    job = Job(f"delta_to_{own.name}", tmp_path)
    source = tmp_path / "sales"
    job.parameters = {"workdir": str(tmp_path / "state"), "source": str(source), **own.parameters()}
    at = datetime.datetime(2026, 3, 1)
    for first in (100, 200):
        rows = [(n, "Zürich", price(n), at) for n in range(first, first + 100)]
        frame = spark.createDataFrame(rows, "id long, city string, cents long, at timestamp")
        frame.write.format("delta").mode("append").save(str(source))
        succeeded, output = job.run()
        assert succeeded, output
    bad = sum(price(n) < 0 for n in range(100, 300))
    assert places(job) == {"read": 200, "delivered": 200 - bad, "dead_letters": 0, "quarantined": bad}
    harms = {"unique(id)": own.doubling, "between(cents, 0, 1000000)": own.spoil}
    for check, harm in harms.items():
        if harm:
            harm(105)
            succeeded, output = job.run("quality")
            assert not succeeded
            assert check in output
    job.parameters["checks"] = '[{"not_null": "id"}]'  # of what is lost no row tells
    assert job.run("quality")[0]
    own.lose(106)
    succeeded, output = job.run("quality")
    assert not succeeded
    assert "read = delivered + dead_letters + quarantined" in output


@pytest.mark.server
@pytest.mark.spark
def test_the_gate_of_redis_finds_a_hash_without_the_fields_that_were_null(spark: Any) -> None:
    url = required(RedisServer).url
    with redis.Redis.from_url(url) as client:
        client.hset("null:1", mapping={"id": 1, "city": "Bern"})
    target = End(url, "null")
    pipeline = SimpleNamespace(target=target, look=dict, stored=lambda spark, part: spark.range(1, 3))
    names: dict[str, Any] = {"spark": spark, "pipeline": pipeline}
    exec(SINKS["redis"].look, names)
    assert [(row.id, row.cents) for row in names["table"].collect()] == [(1, None)]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", SINKS)
def test_any_source_goes_with_any_target(source: str, target: str) -> None:
    if ends_of(f"{source}_to_{target}") is None:
        assert target == source == "delta" or SOURCES[source].query != "stream" or source == "enrich"
        return
    files = files_of(f"{source}-to-{target}", "visits")
    (settings,) = yaml.safe_load(files["jobs/visits.yml"])["resources"]["jobs"].values()
    parameters = [parameter["name"] for parameter in settings["parameters"]]
    assert len(set(parameters)) == len(parameters)
    for path in (path for path in files if path.endswith(".ipynb")):
        code = "\n".join(text for kind, text in cells(files[path]) if kind == "code")
        compile(code, path, "exec")
        widgets = re.findall(r'widgets\.text\("(\w+)"', code)
        assert set(widgets) <= set(parameters)
        for name in re.findall(r'address="(\w+)"', code):
            assert name in widgets or (name == "source" and "quality" in path)  # of which the gate has no need


class OwnBucket(Demo):
    """Parquet files in a bucket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.address = "s3://own-orders/*.parquet"
        self.options = {"storageOptions": json.dumps(required(MotoServer).bucket("own-orders"))}

    def put(self, name: str, orders: Sequence[Order]) -> None:
        times = [datetime.datetime.fromisoformat(order["at"]) for order in orders]
        rows = pa.Table.from_pylist([dict(order) for order in orders]).set_column(3, "at", pa.array(times))
        content = io.BytesIO()
        pq.write_table(rows, content)
        client = required(MotoServer).client("s3")
        client.put_object(Bucket="own-orders", Key=f"{orders[0]['id']}.parquet", Body=content.getvalue())


KILLED = {
    "redis_to_delta": {"maxRowsPerTrigger": "60", "minIdle": "2s", "maxEpochTime": "1s"},  # a queue
    "lines_to_delta": {"maxBytesPerTrigger": "4kB"},  # a log
    "http_to_delta": {"maxRowsPerTrigger": "60"},  # an API
    "delta_to_redis": {},  # by requests
    "files_to_delta": {"maxFilesPerTrigger": "1"},  # on S3
    "hybrid_to_delta": {"maxRowsPerTrigger": "60"},  # a history, then a log
}


@pytest.mark.long
@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "kills"),
    [("redis_to_delta", 1), *(pytest.param(name, 2, marks=pytest.mark.soak) for name in KILLED)],
)
def test_a_pipeline_that_is_killed_between_its_sinks_goes_on_and_has_every_order_once(
    spark: Any, tmp_path: Path, name: str, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = name.split("_to_")
    own = OwnBucket(tmp_path / "own") if source == "files" else demo(source, str(tmp_path / "own"))
    own.folder.mkdir(exist_ok=True)
    orders: list[Order] = []
    put = own.put

    def put_and_remember(name: str, more: Sequence[Order]) -> None:
        orders.extend(more)
        put(name, more)

    monkeypatch.setattr(own, "put", put_and_remember)
    for _ in range(2 * kills):
        own.feed("sales", 100)
    job = Job(name, tmp_path, source="sales", options=json.dumps({**KILLED[name], **own.options}))
    if target == "redis":
        job.parameters |= {"source": f"{own.folder}/sales", "url": required(RedisServer).url, "target": "killed"}
    else:
        job.parameters |= {SOURCES[source].address: own.address, **own.parameters}
    state = job.folder / "state" / name

    def commits(part: str) -> int:
        return len(list((state / part / "_delta_log").glob("*.json")))

    batches = 2 if target == "delta" else 1
    moments = (lambda: commits("quarantine") > commits("counts"), lambda: commits("counts") >= batches)
    for is_time in moments[:kills]:
        code, output = run(name, job.parameters, is_time)
        assert code, output
    code, output = run(name, job.parameters)
    assert code == 0, output
    cut_off = {order["id"] for order in orders if order["id"] % 100 == 13 and source in ("redis", "lines", "hybrid")}
    cut_off -= {13} if source == "hybrid" else set()  # of the history, whose files cut nothing off
    expected = sorted((o["id"], o["city"], o["cents"]) for o in orders if o["id"] not in cut_off and o["cents"] >= 0)
    if target == "redis":
        client = OwnRedis(tmp_path).client
        hashes = [client.hgetall(key) for key in client.scan_iter("killed:*")]
        found = [(int(row[b"id"]), row[b"city"].decode(), int(row[b"cents"])) for row in hashes]
    else:
        found = [tuple(row.values()) for row in delta(job.target).select(["id", "city", "cents"]).to_pylist()]
    assert sorted(found) == expected
    quarantined = [row["id"] for row in delta(state / "quarantine").select(["id"]).to_pylist()]
    without_id = len(cut_off) if source == "redis" else 0
    negative = [order["id"] for order in orders if order["cents"] < 0 and order["id"] not in cut_off]
    assert sorted(id for id in quarantined if id is not None) == sorted(negative)
    assert quarantined.count(None) == without_id
