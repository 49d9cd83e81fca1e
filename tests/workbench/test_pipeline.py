"""The parameters of a pipeline notebook, and what follows from them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException

import connectors
from connectors import quality
from connectors.core.letter_files import DEAD_LETTERS
from connectors.ground.errors import Misconfigured
from connectors.systems.file_stream import FileStreamSource
from connectors.systems.files import FilesSink
from connectors.systems.http import HttpSource
from connectors.testing import demos
from connectors.testing.demo import Demo, Order
from connectors.workbench.settings import VOLUMES_VARIABLE, library

from .helpers import pipeline_in

LINES = {"path": "/logs/*.log", "value.format": "json", "schema": "id long"}


@pytest.mark.parametrize("errors", ["fail", "skip", "deadletter"])
def test_the_parameter_options_says_what_becomes_of_bad_records(tmp_path: Path, errors: str) -> None:
    options = pipeline_in(tmp_path, options=json.dumps({"errors": errors})).read(LINES)
    assert FileStreamSource.of(options).values["errors"].lower() == errors
    assert ("deadLetterPath" in options) == (errors == "deadletter")


def test_the_options_of_a_source_may_be_a_file_beside_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(library().parent / "notebooks" / "pipelines")
    declared = {"config": "{}", "stateLocation": "log"}
    options = pipeline_in(tmp_path, "http to delta", options="apis/github.json").read(declared)
    content = json.loads(Path("apis/github.json").read_text())
    assert json.loads(options["config"]) == content["config"], "what the file says wins"
    assert (options["stateLocation"], options["resource"], options["rateLimit"]) == ("log", "issues", 1)
    monkeypatch.setenv("SECRET_API_TOKEN", "t0ken")
    assert HttpSource.of(options).values["auth"] == {"type": "bearer", "token": "t0ken"}


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ("availableNow", {"availableNow": True}),
        ("continuous", {"processingTime": "0 seconds"}),
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
        ({"name": "orders@../other"}, r'name +must be letters.*got "orders@../other"'),
        ({"workdir": ""}, r"workdir +missing; give a folder"),
        ({"target": "orders"}, r'target +must be a table, as catalog.schema.table, or a folder; got "orders"'),
        ({"options": "{"}, r"options +is no JSON"),
        ({"options": "[1]"}, r"options +must be a JSON object"),
        ({"options": "apis/none.json"}, r"options +is no JSON, nor a file that can be read: No such file"),
        ({"checks": "rules/none.json"}, 'the file "rules/none.json" cannot be read'),
        ({"trigger": "hourly"}, r'trigger +must be availableNow, continuous or an interval.*got "hourly"'),
    ],
)
def test_a_parameter_that_cannot_be_is_named_with_the_way_out(tmp_path: Path, parameters: dict[str, str], text: str) -> None:
    def parts() -> tuple[Any, ...]:
        wrong = pipeline_in(tmp_path, **parameters)
        return wrong.table, wrong.read({}), wrong.checks, wrong.trigger

    with pytest.raises(Misconfigured, match=text):
        parts()


def test_bad_records_are_set_aside_unless_something_else_is_said(tmp_path: Path) -> None:
    options = pipeline_in(tmp_path).read(LINES)
    assert (options["errors"], options["deadLetterPath"]) == ("deadLetter", f"{tmp_path}/p/letters")
    assert "errors" not in pipeline_in(tmp_path, "jdbc to delta").read({"url": "jdbc:sqlite:x"})  # rows are decoded there


def test_a_sink_is_called_as_the_pipeline_and_sets_aside_what_the_target_refuses(tmp_path: Path) -> None:
    options = pipeline_in(tmp_path, "delta to redis", options='{"user": "u"}').write({"url": "redis://there"})
    letters = {"errors": "deadLetter", "deadLetterPath": f"{tmp_path}/p/refused"}
    assert options == {"sinkId": "p", "url": "redis://there", "user": "u", **letters}
    assert "errors" not in pipeline_in(tmp_path, "delta to connect").write({})  # its connector says that


def test_a_gate_looks_at_the_target_by_those_options_that_reading_has_too(tmp_path: Path) -> None:
    options = {"kafka.security.protocol": "SSL", "transactionTimeout": "1m", "schemaRegistry.url": "http://r"}
    look = pipeline_in(tmp_path, "delta to kafka", options=json.dumps(options)).look({"subscribe": "orders"})
    assert look == {"kafka.security.protocol": "SSL", "schemaRegistry.url": "http://r", "subscribe": "orders"}
    refused = json.dumps({"errors": "deadLetter", "deadLetterPath": "/refused"})
    assert pipeline_in(tmp_path, "delta to kafka", options=refused).look({"subscribe": "orders"}) == {"subscribe": "orders"}


def test_what_the_parameter_says_of_the_target_holds_for_the_sink_and_for_its_gate(tmp_path: Path) -> None:
    options = json.dumps({"fileFormat": "json", "partitionBy": ["city"], "storageOptions": {"endpoint_url": "http://s3"}})
    both = pipeline_in(tmp_path, "delta to files", target="s3://bucket/orders", options=options)
    target = {"path": both.target.name, "fileFormat": "parquet"}
    values = FilesSink.of(both.write(target)).values
    storage = {"endpoint_url": "http://s3"}
    assert (values["fileFormat"], values["partitionBy"], values["storageOptions"]) == ("json", ("city",), storage)
    look = both.look(target)
    assert look == {"path": "s3://bucket/orders", "fileFormat": "json", "storageOptions": json.dumps(storage)}


def test_a_topic_is_not_copied_into_itself(tmp_path: Path) -> None:
    ends = {"source": "orders, returns", "target_options": "{}"}
    with pytest.raises(Misconfigured, match=r'target +must be another than source.*got "returns"'):
        pipeline_in(tmp_path, "kafka to kafka", target="returns", **ends).write({})
    assert pipeline_in(tmp_path, "kafka to kafka", target="copies", **ends).write({})["sinkId"] == "p"


def test_a_target_of_many_tables_is_a_schema_and_its_rules_are_arguments_of_the_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VOLUMES_VARIABLE, str(tmp_path / "volumes"))
    options = {"target_options": '{"deletes": "soft"}', "target": "main.shop"}
    both = pipeline_in(tmp_path, "cdc_database to delta", **options)
    folder = str(tmp_path / "volumes" / "Volumes" / "main" / "shop")
    assert both.tables({"deletes": "hard", "routes": {}}) == {"schema": folder, "deletes": "soft", "routes": {}}
    keys = {"keys": {"orders": ["number"]}}
    copy = pipeline_in(tmp_path, "jdbc_database to delta", target=f"{tmp_path}/t", target_options=json.dumps(keys))
    assert copy.tables({"keys": {"*": ["id"]}}) == {"schema": f"{tmp_path}/t", **keys}
    assert pipeline_in(tmp_path, "cdc_database to delta", target=f"{tmp_path}/t").schema.name == f"{tmp_path}/t"
    with pytest.raises(Misconfigured, match="must be a schema, as catalog"):
        _ = pipeline_in(tmp_path, "cdc_database to delta", target="main.shop.orders").schema


def test_ends_are_the_addresses_and_names_of_the_parameters(tmp_path: Path) -> None:
    both = pipeline_in(tmp_path, "kafka to files", source="orders", target=f"{tmp_path}/files")
    assert (both.source.address, both.source.name) == ("there", "orders")
    assert (both.target.address, both.target.name) == ("", f"{tmp_path}/files")


@pytest.mark.soak
@pytest.mark.spark
def test_keys_that_the_target_lacks_are_lost_as_far_as_one_looks_back(spark: Any, tmp_path: Path) -> None:
    state = pipeline_in(tmp_path, "delta to redis")
    old = spark.createDataFrame([(1,), (2,)], "id long").selectExpr("id", "current_timestamp() - INTERVAL 2 DAYS delivered_at")
    new = spark.createDataFrame([(2,), (3,), (4,)], "id long").selectExpr("id", "current_timestamp() delivered_at")
    old.union(new).write.format("delta").save(state.path("keys"))
    rows = spark.createDataFrame([(3, 7)], "id long, cents long")
    assert sorted(row.id for row in state.lost(spark, rows).collect()) == [1, 2, 4]
    recent = pipeline_in(tmp_path, "delta to redis", lookback="1 day")
    assert sorted(row.id for row in recent.lost(spark, rows).collect()) == [2, 4]
    with pytest.raises(Misconfigured, match=r'lookback +must be empty or a duration.*got "often"'):
        pipeline_in(tmp_path, "delta to redis", lookback="often").lost(spark, rows)


@pytest.mark.spark
def test_a_key_with_a_null_is_found_in_the_target(spark: Any, tmp_path: Path) -> None:
    state = pipeline_in(tmp_path, "delta to kafka")
    rows = spark.createDataFrame([(1, None, 3), (2, "Bern", 4), (None, None, 5)], "id long, city string, cents long")
    rows.selectExpr("id", "city", "current_timestamp() delivered_at").write.format("delta").save(state.path("keys"))
    assert state.lost(spark, rows).count() == 0
    lost = state.lost(spark, rows.where("id > 1 OR id IS NULL")).collect()
    assert [tuple(row) for row in lost] == [(1, None)]


@pytest.mark.soak
@pytest.mark.spark
def test_rows_that_were_refused_long_ago_hide_none_that_are_lost_now(spark: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    now = datetime.datetime.now(datetime.timezone.utc)
    ages = (datetime.timedelta(days=3), datetime.timedelta(days=3), datetime.timedelta(minutes=10))
    letters = pa.Table.from_pylist([{"at": now - age} for age in ages], DEAD_LETTERS)
    pq.write_table(letters, elsewhere / "kafka-1.parquet")
    options = json.dumps({"errors": "deadLetter", "deadLetterPath": str(elsewhere)})
    state = pipeline_in(tmp_path, "delta to kafka", lookback="1 day", options=options)
    keys = "id", "current_timestamp() - if(id < 2, INTERVAL 3 DAYS, INTERVAL 0 DAYS) delivered_at"
    spark.range(10).selectExpr(*keys).write.format("delta").save(state.path("keys"))
    spark.createDataFrame([(10, 10)], "rows long, good long").write.format("delta").save(state.path("counts"))
    spark.range(0).write.format("delta").save(state.path("quarantine"))
    delivered = {first: state.reconciliation(spark, spark.range(first, 10)).collect()[0] for first in (2, 3, 5)}
    assert {first: (row.read, row.delivered, row.dead_letters) for first, row in delivered.items()} == {
        2: (10, 7, 3), 3: (10, 7, 3), 5: (10, 5, 3),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["orders", ".orders", "shop.", "a.shop.orders"])
def test_a_name_with_one_dot_is_asked_for_by_its_parameter(tmp_path: Path, name: str) -> None:
    assert pipeline_in(tmp_path, "cassandra to delta", source="shop.orders").source.parts == ("shop", "orders")
    with pytest.raises(Misconfigured, match=rf'source +must have one dot, such as shop.orders; got "{name}"'):
        pipeline_in(tmp_path, "cassandra to delta", source=name).source.parts  # noqa: B018


def test_properties_that_are_no_json_are_told_by_their_parameter(tmp_path: Path) -> None:
    assert pipeline_in(tmp_path, "delta to connect", address='{"a": 1}').target.properties == {"a": 1}
    with pytest.raises(Misconfigured, match=r"address +is no JSON"):
        pipeline_in(tmp_path, "delta to connect", address="a=1").target.properties  # noqa: B018


@pytest.mark.parametrize("ends", ["lines to files", "delta to delta", "cdc to delta", "cdc_database to delta"])
def test_only_what_is_appended_to_a_table_has_slices(tmp_path: Path, ends: str) -> None:
    with pytest.raises(Misconfigured, match=r'name +must have no "@": slices are of pipelines that append.*got "p@2026-03-01"'):
        pipeline_in(tmp_path, ends, name="p@2026-03-01", target_options="{}")


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.parametrize("is_several", [False, True], ids=["one quarantine", "two"])
def test_rules_may_change_before_a_batch_is_written_and_behind_it_and_not_within_it(
    spark: Any, tmp_path: Path, is_several: bool
) -> None:
    state = pipeline_in(tmp_path)
    half, other = '[{"between": ["id", 0, 5]}, {"not_null": "id"}]', '[{"between": ["id", 4, 9]}]'

    def run(checks: str, target: str = "table", **options: str) -> None:
        one: Any = ("delta", {"path": state.path("quarantine"), **options})
        two = ("files", {"path": f"{tmp_path}/more", "fileFormat": "json", **options})
        sinks = quality.rules(checks).foreach_batch(
            good=connectors.foreach_batch("delta", path=f"{tmp_path}/{target}"),
            quarantined=connectors.foreach_batch([one, two] if is_several else one[0], None if is_several else one[1]),
        )
        writer = spark.readStream.format("delta").load(f"{tmp_path}/source").writeStream.foreachBatch(sinks)
        writer.option("checkpointLocation", state.path("checkpoint")).trigger(availableNow=True).start().awaitTermination()

    def is_refused(checks: str) -> bool:
        try:
            run(checks)
        except StreamingQueryException as failure:
            return "batch 0 is written again, and was split by other rules" in str(failure)
        return False

    spark.range(10).write.format("delta").save(f"{tmp_path}/source")
    (tmp_path / "broken").touch()
    for wrong in ('[{"not_null": "idd"}]', '[{"expression": "raise_error(string(id))"}]'):
        with pytest.raises(StreamingQueryException):
            run(wrong)
    with pytest.raises(StreamingQueryException):  # the quarantine is written, and the good rows are not
        run(half, "broken")
    assert is_refused(other)  # it splits off as many rows
    assert is_refused('[{"not_null": "id"}]')
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        assert is_refused(half)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    expected = [0, 1, 2, 3, 4, 5] if not is_several else [4, 5, 6, 7, 8, 9]
    if is_several:  # the user takes what is lost
        run(other, onReplayMismatch="skip")
    else:
        run('[{"not_null": "id"}, {"between": ["id", 0, 5]}, {"unique": "id"}]')  # as the error says: the same rules
    spark.range(10, 20).write.format("delta").mode("append").save(f"{tmp_path}/source")
    run('[{"not_null": "id"}]')
    good, quarantined = (spark.read.format("delta").load(f"{tmp_path}/{part}") for part in ("table", "p/quarantine"))
    assert sorted(row.id for row in good.collect()) == [*expected, *range(10, 20)]
    assert sorted(row.id for row in quarantined.collect()) == [6, 7, 8, 9]


@pytest.mark.soak
@pytest.mark.spark
def test_a_copy_takes_the_place_of_its_own_rows_and_of_nobody_elses(spark: Any, tmp_path: Path) -> None:
    state, numbers = pipeline_in(tmp_path, "cassandra to delta"), spark.range(3)
    numbers.write.format("delta").save(state.table["path"])
    with pytest.raises(Misconfigured, match=r"target +has rows that p.*Give another table, or empty this one"):
        state.replace(numbers, "copy")
    spark.sql(f"DELETE FROM delta.`{state.table['path']}`")
    first = state.replace(numbers, "copy")
    state.replace(numbers.selectExpr("count(*) AS rows", "count(*) AS good"), "counts")
    assert state.replace(first).count() == 3
    state.replace(spark.range(5), "copy")  # a run beside this one
    assert first.count() == 3
    state.replace(spark.range(4))
    assert state.rows(spark).count() == 4
    spark.sql(f"OPTIMIZE delta.`{state.table['path']}`")
    state.replace(numbers, "copy")
    elsewhere = pipeline_in(tmp_path, "cassandra to delta", target=f"{tmp_path}/elsewhere")
    namesake = pipeline_in(tmp_path, "cassandra to delta", workdir=f"{tmp_path}/other", target=state.table["path"])
    numbers.write.format("delta").save(elsewhere.table["path"])
    spark.sql(f"RESTORE delta.`{state.table['path']}` TO VERSION AS OF 0")
    for other in (elsewhere, namesake, state):
        with pytest.raises(Misconfigured, match=r"target +has rows that p, whose state is in .*, has not written"):
            other.replace(numbers, "copy")
    state.replace(numbers)
    state.replace(numbers, "copy")
    with pytest.raises(Misconfigured, match=r"target +has rows that p, whose state is in .*/other/p, has not written"):
        namesake.replace(numbers, "copy")


@pytest.mark.soak
@pytest.mark.spark
def test_a_copy_knows_its_rows_where_the_history_counts_none(spark: Any, tmp_path: Path) -> None:
    state, numbers = pipeline_in(tmp_path, "cassandra to delta"), spark.range(3)
    spark.conf.set("spark.databricks.delta.history.metricsEnabled", "false")
    try:
        state.replace(numbers)
        state.replace(numbers, "copy")
        numbers.write.format("delta").mode("append").save(state.table["path"])
    finally:
        spark.conf.unset("spark.databricks.delta.history.metricsEnabled")
    with pytest.raises(Misconfigured, match=r"target +has rows that p"):
        state.replace(numbers, "copy")


class Forgetful(Demo):
    """A system whose server keeps nothing."""

    address = "here"
    forgets: ClassVar[Sequence[str]] = ("source",)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        """Nobody reads it."""


def test_a_pipeline_begins_anew_where_its_demonstration_does_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(demos._DEMOS, "kafka", Forgetful)
    monkeypatch.setenv(VOLUMES_VARIABLE, str(tmp_path / "volumes"))
    monkeypatch.setattr(demos, "_running", {})
    table = "main.sales.orders"
    state = pipeline_in(tmp_path, "kafka to delta", target=table, address="", source="orders")
    folders = [Path(state.path("checkpoint")), Path(state.table["path"])]

    def begin() -> None:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "file").touch()

    (folders[1] / "file").touch()
    assert state.source.address == "here"
    assert (folders[1] / "file").exists()  # a table that it has not made
    demos._running.clear()
    begin()
    assert pipeline_in(tmp_path, "kafka to delta", target=table, address="", source="orders").source.address == "here"
    assert not any((folder / "file").exists() for folder in folders)
    begin()
    assert pipeline_in(tmp_path, "kafka to delta", target=table, address="", source="orders").source.name == "orders"
    assert all((folder / "file").exists() for folder in folders)  # the same process, and so the same server
    demos._running.clear()
    of_ones_own = tmp_path / "own"
    (of_ones_own / "file").mkdir(parents=True)
    with pytest.raises(Misconfigured, match=r"target +must be a table on this machine"):
        pipeline_in(tmp_path, "kafka to delta", target=str(of_ones_own), address="", source="orders").source  # noqa: B018
    assert (of_ones_own / "file").exists()
    assert all((folder / "file").exists() for folder in folders)


class Remembering(Forgetful):
    forgets: ClassVar[Sequence[str]] = ()


def test_a_demonstration_and_a_system_of_ones_own_never_share_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(demos._DEMOS, "kafka", Remembering)
    monkeypatch.setitem(demos._DEMOS, "redis", Remembering)
    monkeypatch.setattr(demos, "_running", {})

    def of(ends: str, name: str, address: str) -> str:
        state = pipeline_in(tmp_path, ends, name=name, address=address, source="a", target=f"{tmp_path}/t")
        return (state.source if ends == "kafka to delta" else state.target).name

    for ends in ("kafka to delta", "kafka to redis"):
        for first, then, text in (("", "there", "given, but .* is a demonstration"), ("there", "", "missing; .* your own")):
            name = f"{ends[9:]}-{first}"
            assert of(ends, name, first)
            (tmp_path / name / "checkpoint").mkdir(parents=True)
            assert of(ends, name, first)
            with pytest.raises(Misconfigured, match=rf"address +(is )?{text}"):
                of(ends, name, then)


def test_a_demonstration_and_slices_of_a_system_of_ones_own_never_share_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(demos._DEMOS, "kafka", Forgetful)
    monkeypatch.setattr(demos, "_running", {})

    def address(name: str, address: str = "") -> str:
        return pipeline_in(tmp_path, "kafka to delta", name=name, address=address, source="a").source.address

    with pytest.raises(Misconfigured, match="a demonstration has no slices"):
        address("own@2026-03-01")
    assert address("own@2026-03-01", "there") == "there"
    state = tmp_path / "own/slices/2026-03-01/checkpoint"
    state.mkdir(parents=True)
    with pytest.raises(Misconfigured, match=r"address +missing; own has run on a system of your own"):
        address("own")
    assert state.exists()
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/demonstration.source").write_text("table")
    with pytest.raises(Misconfigured, match=r"address +is given, but demo@2026-03-01 is a demonstration until now"):
        address("demo@2026-03-01", "there")


def test_slices_have_no_url_for_their_state() -> None:
    with pytest.raises(Misconfigured, match=r"workdir +must be a folder or a volume, no URL"):
        pipeline_in("s3://bucket", name="p@2026-03-01")


def test_an_address_is_not_shown(tmp_path: Path) -> None:
    assert "secret" not in repr(pipeline_in(tmp_path, "redis to delta", address="redis://:secret@host").source)


def test_orders_of_a_demonstration_have_other_ids_after_a_kill(tmp_path: Path) -> None:
    class Killed(Demo):
        def put(self, name: str, orders: Sequence[Order]) -> None:
            put.extend(orders)
            if len(put) == 5:
                raise KeyboardInterrupt

    put: list[Order] = []
    with pytest.raises(KeyboardInterrupt):
        Killed(tmp_path).feed("orders", 5)
    Killed(tmp_path).feed("orders", 5)
    assert [order["id"] for order in put] == list(range(10))
