"""A job is refused whose environment or cluster has an older Spark than its notebooks need."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Workbench

SOURCE = 'frame = (\n    spark.readStream.option("a", 1)\n    .format("connectors.kafka")\n    .load()\n)'
NAMED_BY_A_FIELD = 'spark.readStream.format(f"connectors.{system}").load()'
SINK = 'frame.writeStream.format("connectors.files").start()'
BATCH = 'spark.read.format("connectors.jdbc").load()'
FOREACH_BATCH = "import connectors\nframe.writeStream.foreachBatch(connectors.foreach_batch('files', {}))"
SPARKS_OWN = 'spark.readStream.format("delta").load()'


def environment(version: str) -> dict[str, Any]:
    return {"environments": [{"environment_key": "default", "spec": {"environment_version": version}}]}


def cluster(version: str) -> dict[str, Any]:
    return {"job_clusters": [{"job_cluster_key": "shared", "new_cluster": {"spark_version": version, "num_workers": 1}}]}


@pytest.mark.parametrize(
    ("cell", "version", "needed"),
    [
        (SOURCE, "4", "a source by readStream.format needs Spark 4.2"),
        (SOURCE, "5", "a source by readStream.format needs Spark 4.2"),
        (SOURCE, "6", None),
        (SOURCE, "7", None),
        (NAMED_BY_A_FIELD, "5", "a source by readStream.format needs Spark 4.2"),
        (SINK, "4", "a sink by writeStream.format needs Spark 4.1"),
        (SINK, "5", None),
        (BATCH, "3", "connectors needs Spark 4.0"),
        (BATCH, "4", None),
        (FOREACH_BATCH, "4", None),
        (SPARKS_OWN, "1", None),
    ],
)
def test_an_environment_is_compared_with_what_the_notebook_uses(
    bench: Workbench, cell: str, version: str, needed: str | None
) -> None:
    bench.job("job", {**bench.task("a", cell), "environment_key": "default"}, **environment(version))
    problems = bench.problems()
    assert (needed in problems) if needed else problems == ""


def test_the_error_names_job_environment_feature_and_way_out(bench: Workbench) -> None:
    bench.job("job", {**bench.task("a", BATCH, SOURCE), "environment_key": "default"}, **environment("4"))
    assert bench.problems() == (
        'job.a: runs a.ipynb in environment "default" (version 4), which has Spark 4.0; '
        "a source by readStream.format needs Spark 4.2 (admission control of Python sources). "
        "Take serverless environment 6 or Databricks Runtime 19, or a later one."
    )


CLUSTERS = [("16.4.x-scala2.12", "3.5"), ("17.3.x-scala2.13", "4.0"), ("18.x-scala2.13", "4.1")]


@pytest.mark.parametrize(("version", "spark"), [*CLUSTERS, ("19.x-scala2.13", None), ("20.1.x-scala2.13", None)])
def test_a_cluster_is_compared_too_also_inside_a_loop(bench: Workbench, version: str, spark: str | None) -> None:
    nested = {**bench.task("inner", SOURCE), "job_cluster_key": "shared"}
    loop = {"task_key": "loop", "for_each_task": {"inputs": "[1]", "task": nested}}
    own = {**bench.task("own", SOURCE), "new_cluster": {"spark_version": version}}
    bench.job("job", loop, own, **cluster(version))
    text = f"in a cluster of {version}, which has Spark {spark}; "
    problems = bench.problems()
    assert ([line for line in problems.splitlines() if text not in line], problems != "") == ([], spark is not None)
    assert [key for key in ("inner", "own") if f"job.{key}:" in problems] == (["inner", "own"] if spark else [])


def test_a_task_that_pins_no_spark_is_noted(bench: Workbench) -> None:
    existing = {**bench.task("b", SOURCE), "existing_cluster_id": "1-2-x"}
    bench.job("job", {**bench.task("a", SOURCE), "environment_key": "default"}, existing,
              environments=[{"environment_key": "default", "spec": {"dependencies": []}}])  # fmt: skip
    assert bench.problems() == ""
    text = "pins no environment_version and no spark_version for {}.ipynb; a source by readStream.format needs Spark 4.2"
    assert all(text.format(key) in bench.notes() for key in "ab")


def test_a_job_with_an_old_environment_still_runs_here(bench: Workbench) -> None:
    cell = 'if False:\n    spark.readStream.format("connectors.kafka")'
    bench.job("job", {**bench.task("a", cell), "environment_key": "default"}, **environment("4"))
    assert "needs Spark 4.2" in bench.problems()
    assert bench.check({}).problems == []
