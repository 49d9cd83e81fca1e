"""What a query's files hold after tries, replays, kills and many batches; no Spark."""

from __future__ import annotations

import json
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError

from connectors.core import metrics
from connectors.core.metrics import PLANNING, Component, Meter, Place, counted
from connectors.ground.errors import Transient
from connectors.ground.retry import RetrySettings
from connectors.metrics import table
from connectors.storage import s3_bucket

from ..machine_bucket import MachineBucket, machine_bucket  # noqa: F401 - a fixture

SOURCE = Component("source", "lines", "abc")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "metrics"))
    monkeypatch.setattr(metrics, "_warned", set())
    return tmp_path / "metrics"


def attempt(
    batch: int,
    rows: int,
    *,
    partition: str = "p",
    index: int = 0,
    query: str = "q",
    source: Component = SOURCE,
    run: str = "first run",
    **events: int,
) -> None:
    with Meter(Place(query, source, batch, index, run)) as meter:
        meter.count(partition, rows=rows)
        if events:
            meter.happened(partition, **events)


def total(counter: str = "rows", query: str = "q") -> int:
    return int(sum(numbers.get(counter, 0) for file in counted(query) for numbers in file["totals"].values()))


def test_batches_add_up() -> None:
    for batch in range(4):
        attempt(batch, 10)
    assert total() == 40


def test_a_batch_that_is_tried_or_replayed_again_counts_once() -> None:
    for batch in (0, 0, 1, 1, 1, 2):
        attempt(batch, 10)
    assert total() == 30


def test_a_read_that_was_left_early_does_not_hide_the_whole_one() -> None:
    attempt(0, 10)
    attempt(0, 3)
    assert total() == 10


def test_a_zombie_of_an_earlier_batch_changes_nothing() -> None:
    attempt(0, 10)
    attempt(1, 10)
    attempt(0, 10)
    assert total() == 20


def test_rows_of_a_failed_attempt_do_not_count_but_its_failure_and_retries_do() -> None:
    def failing() -> None:
        with Meter(Place("q", SOURCE, 0)) as meter:
            meter.count("p", rows=7)
            meter.happened("p", retries=2)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        failing()
    assert total() == 0
    attempt(0, 10, retries=1)
    row = table("q").groupby("component").sum(numeric_only=True).loc["source lines"]
    assert (row["rows"], row["retries"], row["errors"]) == (10, 3, 1)


def test_tasks_and_partitions_are_told_apart_and_added_up() -> None:
    for batch in range(3):
        for index in range(2):
            attempt(batch, 5, index=index, partition="a")
            attempt(batch, 1, index=index + 2, partition="b")
    assert list(table("q")[["partition", "rows"]].itertuples(index=False, name=None)) == [("a", 30), ("b", 6)]


def test_two_queries_do_not_mix() -> None:
    attempt(0, 1, query="one")
    attempt(0, 2, query="two")
    assert (total(query="one"), total(query="two")) == (1, 2)


def test_files_do_not_grow_in_number_or_size_over_200_batches(root: Path) -> None:
    sizes = []
    for batch in range(200):
        for index in range(3):
            attempt(batch, 100, index=index)
        sizes.append(sum(file.stat().st_size for file in root.rglob("*.json")))
    assert len(list(root.rglob("*"))) == 4
    assert sizes[-1] - sizes[10] < 40  # a few more digits
    assert total() == 60_000


def test_partitions_that_come_and_go_do_not_make_a_file_grow_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PARTITIONS", 5)
    for batch in range(30):
        attempt(batch, 1, partition=f"file-{batch}", retries=1)
    (file,) = counted("q")
    assert len(file["totals"]) <= 7
    assert (total(), sum(event["retries"] for event in file["events"].values())) == (30, 30)


def test_a_folder_that_cannot_be_written_is_one_warning_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(metrics.FOLDER, str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, "connectors.metrics"):
        for batch in range(5):
            attempt(batch, 1)
    assert [record.name for record in caplog.records] == ["connectors.metrics"]
    assert "CONNECTORS_METRICS" in caplog.text
    assert table("q").empty


def test_off_writes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metrics.FOLDER, "off")
    attempt(0, 1)
    assert not root.exists()
    assert metrics.folder() is None


def test_a_damaged_file_is_begun_anew(root: Path) -> None:
    attempt(0, 1)
    (file,) = root.rglob("*.json")
    file.write_text('{"v":1,"bat')
    assert counted("q") == []
    attempt(1, 1)
    assert total() == 1


def test_metrics_of_old_queries_are_removed_when_another_begins_and_nothing_else(root: Path) -> None:
    attempt(0, 1, query="old")
    attempt(0, 1, query="recent")
    (root / "photos").mkdir()
    (root / "photos" / "beach.jpg").touch()
    long_ago = time.time() - metrics.RETENTION_SECONDS - 60
    for name in ("old", "photos"):
        os.utime(root / name, (long_ago, long_ago))
    attempt(0, 1, query="new")
    assert {folder.name for folder in root.iterdir()} == {"recent", "new", "photos"}


def test_counts_of_sources_that_are_not_planned_any_more_are_removed_when_a_query_begins(root: Path) -> None:
    old, recent = Component("source", "lines", "old"), Component("source", "lines", "recent")
    for source in (old, recent):
        attempt(0, 1, query=PLANNING, source=source)
    attempt(0, 1, query="q")
    long_ago = time.time() - metrics.RETENTION_SECONDS - 60
    os.utime(root / PLANNING / "source.lines.old.0.json", (long_ago, long_ago))
    (root / PLANNING / "notes.txt").touch()
    os.utime(root / PLANNING / "notes.txt", (long_ago, long_ago))
    attempt(0, 1, query="new")
    assert sorted(os.listdir(root / PLANNING)) == ["notes.txt", "source.lines.recent.0.json"]


def test_a_batch_without_a_query_is_not_counted(root: Path) -> None:
    with Meter() as meter:
        meter.count(rows=1)
    assert not root.exists()


def test_further_tries_after_an_outage_are_counted() -> None:
    left = [Transient("down"), Transient("down")]

    def work() -> str:
        if left:
            raise left.pop()
        return "done"

    with Meter(Place("q", SOURCE, 0)).counting():
        assert RetrySettings(initial_backoff=0.001).call(work) == "done"
    assert counted("q")[0]["events"] == {"": {"retries": 2}}


def test_names_with_slashes_and_dots_stay_in_the_folder(root: Path) -> None:
    with Meter(Place("../q", Component("sink", "../../x", "a/b.c"), 0)) as meter:
        meter.count(rows=1)
    (file,) = root.rglob("*.json")
    assert file.parent.parent == root
    assert table("../q")["rows"].tolist() == [1]


def test_sinks_of_one_system_are_told_apart_and_a_source_with_changed_options_stays_one() -> None:
    for kind, own in (("sink", "left"), ("sink", "right"), ("source", "before"), ("source", "after")):
        with Meter(Place("q", Component(kind, "files", own), 0)) as meter:
            meter.count(rows=1)
    counts = {row.component: row.rows for row in table("q").itertuples()}
    assert counts == {"sink files (left)": 1, "sink files (right)": 1, "source files": 2}


def test_a_batch_that_a_restart_with_other_options_replays_counts_once() -> None:
    other = Component("source", "lines", "other options")
    for batch in range(3):
        attempt(batch, 10)
    attempt(2, 10, source=other, run="second run")
    attempt(3, 10, source=other, run="second run")
    assert total() == 40


def test_two_sources_of_one_system_count_both_in_their_first_batch() -> None:
    for run in ("first run", "second run"):
        for own in ("left", "right"):
            attempt(0, 10, source=Component("source", "lines", own), run=run)
    attempt(1, 10, source=Component("source", "lines", "right"), run="second run")
    assert total() == 30


def test_the_file_is_plain_json(root: Path) -> None:
    attempt(3, 2)
    (file,) = root.rglob("*.json")
    record: dict[str, Any] = json.loads(file.read_text())
    assert file.name == "source.lines.abc.0.json"
    assert (record["batch"], record["now"]) == (3, {"p": {"rows": 2}})


def test_a_folder_may_be_a_location_of_files(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(metrics.FOLDER, f"file:{root}")
    attempt(0, 3)
    assert [file.relative_to(root) for file in root.rglob("*.json")] == [Path("q/source.lines.abc.0.json")]
    assert total() == 3


def test_only_this_user_may_read_the_folder(root: Path) -> None:
    attempt(0, 1)
    assert root.stat().st_mode & 0o777 == 0o700


class TestUsualFolder:
    """The folder among the temporary files, where anybody may have made one of that name."""

    @pytest.fixture
    def usual(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.delenv(metrics.FOLDER)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path / "cache"))
        return tmp_path / f"connectors-metrics-{os.getuid()}"

    def test_it_is_of_this_user_alone(self, usual: Path) -> None:
        attempt(0, 3)
        assert (usual.stat().st_mode & 0o777, total()) == (0o700, 3)

    @pytest.mark.parametrize("kind", ["link", "readable", "writable", "file", "foreign"])
    def test_one_that_others_can_look_into_is_left_alone(
        self, usual: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        if kind == "link":
            (tmp_path / "theirs").mkdir(mode=0o700)
            usual.symlink_to(tmp_path / "theirs")
        elif kind == "file":
            usual.touch()
        else:
            usual.mkdir()
            usual.chmod({"readable": 0o750, "writable": 0o702}.get(kind, 0o700))
        if kind == "foreign":
            user = os.getuid() + 1
            monkeypatch.setattr(os, "getuid", lambda: user)
            usual = usual.rename(tmp_path / f"connectors-metrics-{user}")
            own = metrics.folder()
            assert own is None, "neither is the other one, in this test"
            return
        with caplog.at_level(logging.WARNING, logger="connectors.metrics"):
            attempt(0, 3)
            attempt(1, 3)
        own = tmp_path / "cache" / "metrics" / str(os.getuid())
        assert (metrics.folder(), own.stat().st_mode & 0o777, total()) == (str(own), 0o700, 6)
        assert [path for path in usual.rglob("*") if path.is_file()] == []
        assert caplog.messages == [f"metrics go to {own}: {usual} is not a folder of this user alone"]

    @pytest.mark.parametrize("cache", ["{usual}/below", "~nobody-has-this-name/cache"])
    def test_a_query_runs_without_metrics_where_no_folder_is_its_users(
        self, usual: Path, cache: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual.touch()
        monkeypatch.setenv("CONNECTORS_CACHE", cache.format(usual=usual))
        attempt(0, 3)
        assert (metrics.folder(), total()) == (None, 0)


class TestObjectStore:
    """Metrics in a folder of S3, with the machine's own credentials."""

    @pytest.fixture
    def bucket(self, machine_bucket: MachineBucket, monkeypatch: pytest.MonkeyPatch) -> MachineBucket:  # noqa: F811
        monkeypatch.setenv(metrics.FOLDER, f"{machine_bucket.url}/metrics")
        return machine_bucket

    def test_batches_and_replays_add_up(self, bucket: MachineBucket) -> None:
        for batch in (0, 0, 1, 1, 2):
            for index in range(2):
                attempt(batch, 10, index=index, partition=str(index), retries=1)
        assert bucket.keys() == {f"metrics/q/source.lines.abc.{index}.json" for index in range(2)}
        assert total() == 60
        assert table("q")[["rows", "retries"]].sum().tolist() == [60, 10]

    def test_a_further_batch_takes_two_requests(self, bucket: MachineBucket) -> None:
        attempt(0, 1)
        requests: list[str] = []
        client = s3_bucket._client("{}", os.getpid())
        client.meta.events.register("before-send.s3", lambda event_name, **_: requests.append(event_name))
        attempt(1, 1)
        assert requests == ["before-send.s3.GetObject", "before-send.s3.PutObject"]

    def test_old_queries_are_removed_when_another_begins_and_nothing_else(
        self, bucket: MachineBucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        attempt(0, 1, query="old")
        bucket.client.put_object(Bucket=bucket.name, Key="metrics/photos/beach.jpg", Body=b"")
        attempt(0, 1, query="other")
        assert {"metrics/old/source.lines.abc.0.json", "metrics/photos/beach.jpg"} < bucket.keys()
        monkeypatch.setattr(metrics, "RETENTION_SECONDS", -60.0)
        attempt(0, 1, query="new")
        assert bucket.keys() == {"metrics/photos/beach.jpg", "metrics/new/source.lines.abc.0.json"}

    def test_a_bucket_that_is_missing_is_one_warning_and_no_error(
        self, bucket: MachineBucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setenv(metrics.FOLDER, f"{bucket.url}-else/metrics")
        for batch in range(3):
            attempt(batch, 1)
        assert table("q").empty
        (warning,) = caplog.records
        assert "names a bucket that is not there" in warning.getMessage()

    def test_an_outage_of_a_moment_does_not_begin_the_counts_anew(
        self, bucket: MachineBucket, caplog: pytest.LogCaptureFixture
    ) -> None:
        attempt(0, 10)
        events = s3_bucket._client("{}", os.getpid()).meta.events

        def fail(**_: Any) -> None:
            raise ConnectTimeoutError(endpoint_url=bucket.url)

        events.register("before-send.s3.GetObject", fail)
        attempt(1, 10)
        assert table("q").empty
        events.unregister("before-send.s3.GetObject", fail)
        assert "S3 cannot be reached" in caplog.text
        attempt(2, 10)
        assert total() == 20
