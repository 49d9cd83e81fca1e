"""Totals of real queries equal the rows really read and written: after tries, replays and kills, live and after the end."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors import async_io, metrics
from connectors.core import metrics as files
from connectors.testing.sampling import wait_until
from tests.systems.pipelines import REFERENCE, killed

from .sources import PartsSource, Shaky

COUNT = 40


@pytest.fixture
def session(spark: Any) -> Any:
    connectors.register(spark, PartsSource)
    return spark


def started(spark: Any, folder: Path, sink: Any = None, frame: Any = None, **options: Any) -> Any:
    """A query over the three partitions, into files unless ``sink`` is something else."""
    rows = frame or spark.readStream.format("connectors.parts_of_test").options(count=COUNT, **options).load()
    write = sink or connectors.foreach_batch("files", {"path": str(folder / "out"), "fileFormat": "json"})
    writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(availableNow=True).start()


def totals(query: Any) -> dict[str, Any]:
    """Rows by component, and by partition of sources."""
    frame = metrics.table(query)
    return {f"{row.component} {row.partition}".strip(): row.rows for row in frame.itertuples()}


ALL = {**{f"source parts_of_test {name}": COUNT for name in "abc"}, "sink files": 3 * COUNT}


def test_totals_are_exact_after_an_outage_a_failed_task_and_a_replayed_batch(session: Any, tmp_path: Path) -> None:
    for trouble in ("outage", "error"):
        (tmp_path / trouble).touch()
    query = started(session, tmp_path, trouble=str(tmp_path))
    query.awaitTermination()
    assert totals(query) == ALL
    frame = metrics.table(query).set_index("partition")
    assert (frame.loc["b", "retries"], frame.loc["b", "lag_records"], frame.loc["a", "retries"]) == (1, 0, 0)
    assert frame["errors"].sum() == 1
    assert frame.loc["", "commit_ms"] >= 0
    assert frame.loc[["a", "b", "c"], "position"].tolist() == [COUNT] * 3

    counters = Path(files.folder() or "") / str(query.id)
    names = {file.name for file in counters.iterdir()}
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    again = started(session, tmp_path, trouble=str(tmp_path), step=20)
    again.awaitTermination()
    assert str(again.id) == str(query.id)
    assert totals(again) == ALL
    assert totals(str(query.id)) == ALL
    assert {file.name for file in counters.iterdir() if ".source." not in file.name} >= names
    assert session.read.json(str(tmp_path / "out")).count() == 3 * COUNT


def test_two_queries_at_once_count_each_for_itself(session: Any, tmp_path: Path) -> None:
    both = [started(session, tmp_path / name, step=step) for name, step in (("left", 20), ("right", 40))]
    for query in both:
        query.awaitTermination()
        assert totals(query) == ALL


def test_a_batch_that_several_sinks_write_is_read_once_and_each_of_them_counts(session: Any, tmp_path: Path) -> None:
    options = [{"path": str(tmp_path / name), "fileFormat": "json", "sinkId": name} for name in ("left", "right")]
    query = started(session, tmp_path, connectors.foreach_batch([("files", target) for target in options]), step=COUNT)
    query.awaitTermination()
    assert totals(query) == {
        **{name: rows for name, rows in ALL.items() if name.startswith("source")},
        "sink files (left)": 3 * COUNT,
        "sink files (right)": 3 * COUNT,
    }


def test_a_share_that_is_read_with_others_by_one_task_counts(session: Any, tmp_path: Path) -> None:
    rows = session.readStream.format("connectors.sequence").options(end=90, numPartitions=3).load().coalesce(1)
    query = started(session, tmp_path, frame=rows)
    query.awaitTermination()
    assert totals(query) == {"source sequence 0": 90, "sink files": 90}


def test_asynchronous_calls_are_counted_with_their_retries_and_failures(session: Any, tmp_path: Path) -> None:
    rows = session.readStream.format("connectors.parts_of_test").options(count=COUNT, step=20).load()
    retry = async_io.Retry(max_retries=1, initial_backoff=0.01)
    called = rows.transform(async_io.unordered_wait, Shaky(), schema="double long", retry=retry)
    query = started(session, tmp_path, frame=called)
    query.awaitTermination()
    calls = metrics.table(query).set_index("component").loc["async Shaky"]
    assert (calls["rows"], calls["errors"], calls["retries"]) == (3 * COUNT, 3, 3 * COUNT // 10 + 3)
    assert calls["in_flight"] > 0
    detail = metrics.details(query)
    assert detail[detail["counter"] == "latency_p95"]["value"].tolist() > [0.0]


@pytest.mark.soak
def test_a_folder_that_cannot_be_written_does_not_disturb_a_query(
    session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(files.FOLDER, str(tmp_path / "file"))
    session.sparkContext.environment[files.FOLDER] = str(tmp_path / "file")
    try:
        connectors.register(session, PartsSource)
        query = started(session, tmp_path, step=COUNT)
        query.awaitTermination()
    finally:
        del session.sparkContext.environment[files.FOLDER]
        connectors.register(session, PartsSource)
    assert session.read.json(str(tmp_path / "out")).count() == 3 * COUNT
    frame = metrics.table(query)
    assert frame["lag_records"].tolist() == [0, 0, 0]
    assert frame["rows"].isna().all()


def test_rows_that_source_and_sink_skip_are_errors_and_bytes_are_those_that_were_read_and_written(
    session: Any, tmp_path: Path
) -> None:
    lines = [json.dumps({"id": n, "n": n % 10}) if n % 4 else "no json" for n in range(40)]
    (tmp_path / "in.json").write_text("".join(f"{line}\n" for line in lines))
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER CHECK (n <> 7))")
    options = {"value.format": "json", "value.schema": "id long, n long", "errors": "skip"}
    read = session.readStream.format("connectors.file_stream").options(path=str(tmp_path / "in.json"), **options).load()
    targets: list[tuple[str, dict[str, str]]] = [
        ("jdbc", {"url": f"jdbc:sqlite:{tmp_path / 'x.db'}", "dbtable": "t", "errors": "skip"}),
        ("buffered", {"path": str(tmp_path / "buffered")}),
    ]
    for rows_of_jdbc in (26, 30):  # the second time the batch is replayed: nobody knows what the database refused before
        query = started(session, tmp_path, connectors.foreach_batch(targets), read.select("value.id", "value.n"))
        query.awaitTermination()
        frame = metrics.table(query)[["component", "rows", "bytes", "errors", "dead_letters"]].set_index("component")
        source, jdbc, buffered = (frame.loc[name] for name in ("source file_stream", "sink jdbc", "sink buffered"))
        assert source[["rows", "errors", "dead_letters"]].tolist() == [30, 10, 0]
        assert source["bytes"] >= sum(map(len, lines))
        assert jdbc[["rows", "errors", "dead_letters"]].tolist() == [rows_of_jdbc, 4, 0]
        assert buffered[["rows", "errors"]].tolist() == [30, 0]
        assert (jdbc["bytes"], buffered["bytes"]) == (480, 480), "30 rows of two numbers of 8 bytes"
        newest = tmp_path / "checkpoint" / "commits" / "0"
        newest.unlink()
        newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(tmp_path / "x.db")) as database:
        assert database.execute("SELECT count(*) FROM t").fetchone() == (26,)


def test_who_records_or_watches_may_fail_and_the_query_goes_on(
    session: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("broken")

    (tmp_path / "file").touch()
    recorder = metrics.record(session, str(tmp_path / "file" / "metrics"), file_format="parquet", every="1h")
    with recorder, metrics.watch(session, rules=[fail, metrics.LagAbove(records=25)], on_alert=fail, show=False):
        query = started(session, tmp_path)
        query.awaitTermination()
    assert query.exception() is None
    assert totals(query) == ALL
    assert "the metrics are not recorded" in caplog.text
    failures = {(record.msg, str(record.exc_info[1])) for record in caplog.records if record.exc_info}
    assert failures == {("the rule %r failed", "broken"), ("the callback for alerts failed at %r", "broken")}


def test_what_is_recorded_and_watched_is_what_happened(
    session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alerts: list[metrics.Alert] = []
    rules = [metrics.LagAbove(records=25), metrics.NearTimeout("1 ms")]
    recorder = metrics.record(session, str(tmp_path / "metrics"), file_format="parquet", every="1h")
    with recorder, metrics.watch(session, rules=rules, on_alert=alerts.append):
        query = started(session, tmp_path)
        query.awaitTermination()
    table = session.read.parquet(str(tmp_path / "metrics")).toPandas()
    assert set(table["query"]) == {str(query.id)}
    lags = table[(table["partition"] == "b") & (table["state"] == "running")].sort_values("batch")
    assert lags["lag"].tolist() == [30, 20, 10, 0]
    assert table[table["state"] == "ended"].set_index("partition")["rows"].to_dict() == {"a": 40, "b": 40, "c": 40, "": 120}
    assert {(alert.rule, alert.partition) for alert in alerts} >= {("lag_above", "a"), ("lag_above", "b"), ("near_timeout", "")}
    assert len([alert for alert in alerts if alert.rule == "lag_above"]) == 3
    shown = capsys.readouterr().out
    assert "batch 3, 30 rows" in shown
    assert "120 in all, lag 0" in shown


def test_a_failed_query_is_recorded_with_its_errors(session: Any, tmp_path: Path) -> None:
    sink = connectors.foreach_batch("files", {"path": "/proc/out", "fileFormat": "json", "retry.maxRetries": "0"})
    with metrics.record(session, str(tmp_path / "metrics"), file_format="parquet", every="1h"):
        query = started(session, tmp_path, sink)
        with pytest.raises(Exception, match="/proc"):
            query.awaitTermination()
    table = session.read.parquet(str(tmp_path / "metrics")).toPandas()
    assert set(table["state"]) == {"failed"}
    assert table.set_index("component").loc["sink files", "errors"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("names", [["buffered"], ["buffered", "files by foreach_batch"]])
def test_totals_are_exact_after_kills(tmp_path: Path, names: list[str]) -> None:
    count = 3 * len(names)
    with killed({name: REFERENCE[name] for name in names}, tmp_path, seed=5) as kills:
        kills.run(count)
    assert any("killed" in line for line in kills.report), kills.report
    for name in names:
        checkpoint = next((tmp_path / name).rglob("metadata"))
        query = json.loads(checkpoint.read_text())["id"]
        rows = totals(query)
        expected = {"source sequence 0": 40 * count, f"sink {name.split()[0]}": 40 * count}
        assert rows == expected, f"{name}: {rows}; {kills.report}"


@pytest.mark.soak
@pytest.mark.environments("local", "connect")
def test_a_batch_that_hangs_is_told_while_it_does_and_a_quiet_source_only_by_a_rule_for_that(
    environment: Any, tmp_path: Path
) -> None:
    spark, folder = environment.spark, str(tmp_path)

    def hang_at_the_second(rows: Any, batch: int) -> None:
        import time
        from pathlib import Path

        rows.collect()
        while batch and not (Path(folder) / "go-on").exists():
            time.sleep(0.1)

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1").write_text("a\n")
    other = spark.readStream.format("rate").option("rowsPerSecond", 20).load().writeStream.format("noop")
    other = other.option("checkpointLocation", f"{folder}/other").start()  # its batches end all the time
    rows = spark.readStream.format("text").load(f"{folder}/in")
    writer = rows.writeStream.foreachBatch(hang_at_the_second).option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.queryName("hangs").start()
    told: list[metrics.Alert] = []

    def rules() -> list[str]:
        return [alert.rule for alert in told if alert.query == str(query.id)]

    try:
        for begun in (query, other):  # the first batches of a session may take long
            wait_until(lambda begun=begun: begun.lastProgress, 120)
        with metrics.watch(spark, rules=[metrics.Stalled(5), metrics.NoData(6)], on_alert=told.append, show=False):
            wait_until(rules, 60)
            assert rules() == ["no_data"]
            (tmp_path / "in" / "2").write_text("b\n")
            wait_until(lambda: len(rules()) > 1, 60)
            assert query.lastProgress["batchId"] == 0, "it is told before the batch has ended"
            (tmp_path / "go-on").touch()
            wait_until(lambda: len(rules()) > 2, 60)
            assert rules() == ["no_data", "stalled", "no_data"]
    finally:
        query.stop()
        other.stop()
