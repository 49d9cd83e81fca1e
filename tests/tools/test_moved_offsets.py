"""``connectors offsets`` with real queries: places that brokers tell, and queries that go on where they were moved to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from connectors.storage.local import LocalStorage
from connectors_tools.offsets import Checkpoint, SourceOffset

from ..systems.kafka.reading import Query
from ..systems.kafka.source_contexts import Topic
from .checkpoints import KAFKA, SEQUENCE, checkpoint, offsets


class TestOfKafka:
    """Places that the brokers tell."""

    @pytest.fixture
    def topic(self) -> Topic:
        topic = Topic(2)
        topic.send([b"old", b"new"], 0, at=1000)
        topic.send([b"other"], 1, at=5000)
        return topic

    def moved(self, query: Query, topic: Topic, folder: Path, *flags: str, own: bool = True, **more: str) -> list[bytes]:
        """The values that ``query`` reads behind a move."""
        log = query.log[-1] if own else {topic.name: query.at(topic.name)}  # Spark's own source has the offsets alone
        path = checkpoint(folder / "c", log)
        options = json.dumps({**topic.options(), **more})
        offsets("set", path, *flags, "--options", options, "--yes")
        after = Checkpoint(str(path)).movable().source(None)
        if not own:
            assert set(after.value) == {topic.name}
            after = SourceOffset("0", log_of(query, after.value[topic.name], topic.name))
        return Query(topic.options(), [after.value]).values()

    @pytest.mark.parametrize("own", [True, False])
    @pytest.mark.parametrize(
        ("flags", "values"),
        [
            (["--to-earliest"], [b"new", b"old", b"other"]),
            (["--to-latest"], []),
            (["--to-datetime", "1970-01-01T00:00:01.001"], [b"new", b"other"]),
            (["--to-datetime", "1970-01-01T01:00:01.001+01:00"], [b"new", b"other"]),
            (["--to-datetime", "1970-01-01T00:00:04Z"], [b"other"]),
        ],
    )
    def test_a_move_asks_the_brokers(
        self, topic: Topic, tmp_path: Path, flags: list[str], values: list[bytes], own: bool
    ) -> None:
        query = Query(topic.options())
        query.values()
        assert sorted(self.moved(query, topic, tmp_path, *flags, own=own)) == values

    def test_expired_records_are_not_gone_back_to_and_new_partitions_are_read_whole(
        self, topic: Topic, tmp_path: Path
    ) -> None:
        query = Query(topic.options())
        query.values()
        topic.expire({0: 1})
        topic.grow(3)
        topic.send([b"third"], 2)
        assert sorted(self.moved(query, topic, tmp_path, "--to-earliest")) == [b"new", b"other", b"third"]

    def test_the_start_in_the_options_of_the_query_does_not_count(self, topic: Topic, tmp_path: Path) -> None:
        query = Query(topic.options())
        query.values()
        more = {"startingTimestamp": "1", "endingOffsets": json.dumps({topic.name: {"0": 1, "1": 1}})}
        assert self.moved(query, topic, tmp_path, "--to-latest", **more) == []

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--to-earliest"], "give the options of the source"),
            (["--to-earliest", "--to-latest", "--options", '{"subscribe": "x"}'], "give one of --to-offset, --shift-by"),
            (["--to-datetime", "yesterday"], 'must be like 2026-11-28T10:00:00; got "yesterday"'),
        ],
    )
    def test_a_call_without_a_place_is_refused(self, tmp_path: Path, flags: list[str], message: str) -> None:
        path = checkpoint(tmp_path / "c", KAFKA)
        assert message in offsets("set", path, *flags, "--yes", code=2).output

    def test_options_of_another_query_and_another_system_are_refused(self, topic: Topic, tmp_path: Path) -> None:
        options = json.dumps(topic.options())
        for name, value, message in (
            ("a", KAFKA, "do not read orders 0, orders 1, as source 0 does"),
            ("b", SEQUENCE, "asks Kafka for offsets; source 0 stands at"),
        ):
            path = checkpoint(tmp_path / name, value)
            before = (path / "offsets" / "3").read_text()
            assert message in offsets("set", path, "--to-earliest", "--options", options, "--yes", code=2).output
            assert (path / "offsets" / "3").read_text() == before


def log_of(query: Query, at: Mapping[str, int], topic: str) -> dict[str, Any]:
    """The offset of our source at the place of Spark's own."""
    return {**query.log[-1], "at": {"topics": {topic: {**query.log[-1]["at"]["topics"][topic], "at": dict(at)}}}}


@pytest.mark.spark
class TestOnSpark:
    """Queries that go on where they were moved to."""

    def stream(self, spark: Any, folder: Path, kind: str = "connectors.sequence", **options: Any) -> Any:
        options = {"end": 10, "maxRowsPerTrigger": 6, **options} if kind == "connectors.sequence" else options
        rows = spark.readStream.format(kind).options(**options).load(*([str(folder / "in")] if kind == "text" else []))
        writer = rows.writeStream.format("json").option("checkpointLocation", str(folder / "checkpoint"))
        writer.trigger(availableNow=True).start(str(folder / "out")).awaitTermination()
        return rows.columns[0]

    def values(self, spark: Any, folder: Path, column: str) -> list[Any]:
        return sorted(row[0] for row in spark.read.schema(f"{column} string").json(str(folder / "out")).collect())

    @pytest.mark.parametrize("version", ["1", "2"])
    def test_a_source_goes_on_at_the_new_place_and_begins_anew(self, spark: Any, tmp_path: Path, version: str) -> None:
        spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", version)
        try:
            column = self.stream(spark, tmp_path)
            path = tmp_path / "checkpoint"
            assert '{"next":11}' in offsets("show", path).output
            offsets("set", path, "--to-offset", '{"next": 9}', "--yes")
            self.stream(spark, tmp_path)
            assert self.values(spark, tmp_path, column) == sorted(map(str, [*range(1, 11), 9, 10]))
            offsets("reset", path, "--yes")
            self.stream(spark, tmp_path, start=8)
        finally:
            spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
        assert self.values(spark, tmp_path, column) == sorted(map(str, [*range(1, 11), 9, 10, 8, 9, 10]))

    def test_files_that_spark_reads_itself_are_read_again(self, spark: Any, tmp_path: Path) -> None:
        (tmp_path / "in").mkdir()
        for name in "abc":
            (tmp_path / "in" / f"{name}.txt").write_text(f"{name}\n")
            self.stream(spark, tmp_path, "text")
        path = tmp_path / "checkpoint"
        output = offsets("set", path, "--to-offset", '{"logOffset": 3}', "--yes", code=2).output
        assert "source 0 has 2 at most, and would never start" in " ".join(output.split())
        offsets("set", path, "--to-offset", '{"logOffset": 1}', "--yes")
        offsets("set", path, "--to-offset", '{"logOffset": 2}', "--yes")
        values = [Checkpoint(str(path)).entry(batch).source("0").value for batch in (1, 2)]
        assert values == [{"logOffset": 1}, {"logOffset": 2}]
        offsets("set", path, "--to-offset", '{"logOffset": 0}', "--yes")
        (tmp_path / "in" / "d.txt").write_text("d\n")
        self.stream(spark, tmp_path, "text")
        assert self.values(spark, tmp_path, "value") == ["a", "b", "b", "c", "c", "d"]

    @pytest.mark.parametrize("last", ["delete", "replace"])
    def test_a_move_that_dies_leaves_the_old_place_or_the_new_one(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str
    ) -> None:
        column = self.stream(spark, tmp_path)
        step, after = getattr(LocalStorage, last), {"delete": 11, "replace": 9}[last]

        def death(storage: LocalStorage, *arguments: Any, **options: Any) -> None:
            step(storage, *arguments, **options)
            if storage.root == str(tmp_path / "checkpoint"):  # the session notes elsewhere what its queries do
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, last, death)
            offsets("set", tmp_path / "checkpoint", "--to-offset", '{"next": 9}', "--yes", code=1)
        assert Checkpoint(str(tmp_path / "checkpoint")).movable().source(None).position == {"next": after}
        self.stream(spark, tmp_path)
        assert self.values(spark, tmp_path, column) == sorted(map(str, [*range(1, 11), *range(after, 11)]))

    def test_what_goes_back_is_known_to_a_deduplication(self, spark: Any, tmp_path: Path) -> None:
        for _ in range(2):
            rows = spark.readStream.format("connectors.sequence").options(end=10).load().dropDuplicates(["value"])
            writer = rows.writeStream.format("json").option("checkpointLocation", str(tmp_path / "checkpoint"))
            writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
            assert self.values(spark, tmp_path, "value") == sorted(map(str, range(1, 11)))
            output = offsets("set", tmp_path / "checkpoint", "--to-offset", '{"next": 5}', "--yes").output
            assert "left out as known" in output


def test_a_topic_that_was_made_anew_is_read_from_where_the_new_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    position = {"topics": {"orders": {"at": {"0": 7}, "id": "new"}}}
    enumerator = SimpleNamespace(start=lambda: position, close=lambda: None)
    monkeypatch.setattr("connectors.systems.kafka.source.KafkaSource.enumerator", lambda _: enumerator)
    old = {"v": 1, "source": "kafka", "at": {"topics": {"orders": {"at": {"0": 1200}, "from": {"0": 3}, "id": "old"}}}}
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"}
    moved = SourceOffset("0", old).begin({"startingOffsets": "latest"}, options, "--to-latest")
    assert moved.value["at"] == position
