"""S3 through Spark's own client and through Python: two queries of a session that has the jars, killed once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import connectors
from connectors.testing.compare import same_records
from connectors.testing.driver import start_driver
from connectors.testing.faults import Action, FailureInjector, Point
from connectors.testing.spark_suites import ROWS, spark_query

from .contexts import RollingS3Context, S3Context
from .s3_jars import s3_jars


@pytest.mark.parametrize("kills", [0, 1])
@pytest.mark.soak
def test_spark_and_python_write_to_s3_exactly_once_also_when_the_driver_is_killed(tmp_path: Path, kills: int) -> None:
    targets = {"foreach_batch": S3Context(tmp_path), "format": S3Context(tmp_path), "rolling": RollingS3Context(tmp_path)}
    queries = {
        name: spark_query(target, tmp_path / name, "format" if name == "format" else "foreach_batch")
        for name, target in targets.items()
    }
    if kills:
        FailureInjector(queries["foreach_batch"].faults).arm(Point.RECORDED, Action.KILL)
    codes = []
    for _ in range(kills + 1):
        child = start_driver(tmp_path / "child", "local[2,4]", list(queries.values()), **{"spark.jars": ",".join(s3_jars())})
        codes.append(child.wait(240))
    log = (tmp_path / "child/log").read_text()
    assert codes == [-9] * kills + [0], log[-4000:]
    for target in targets.values():
        same_records([target.row(number) for number in range(1, ROWS + 1)], target.rows())
    written = targets["foreach_batch"].keys()
    assert all(key.endswith(".snappy.parquet") for key in written), "Spark's writer names them so"
    secrets = f'"secret": "{targets["format"].storage["secret"]}"'
    assert secrets not in log


@pytest.mark.server
@pytest.mark.spark
@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_without_the_jars_of_sparks_client_rows_pass_through_python(spark: Any, tmp_path: Path, file_format: str) -> None:
    target = S3Context(tmp_path)
    options = {**target.options(), "fileFormat": file_format}
    options["path"] += "/of orders"  # a blank makes it no URI
    numbers = spark.readStream.format("connectors.sequence").option("end", 100).option("maxRowsPerTrigger", 60).load()
    writer = numbers.writeStream.foreachBatch(connectors.foreach_batch("files", options)).trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
    written = target.keys()
    assert written
    assert not any("snappy" in key for key in written), "Spark's writer names them so"
    rows = spark.read.format("connectors.files").options(path=f"{options['path']}/*", fileFormat=file_format)
    read = rows.option("storageOptions", options["storageOptions"]).schema("value long").load().collect()
    assert sorted(row.value for row in read) == list(range(1, 101))
    for column in ("make_ym_interval(1)", "make_dt_interval(1)"):
        elsewhere = {**options, "path": f"{options['path']}/{column[:7]}"}
        writer = numbers.selectExpr(column).writeStream.foreachBatch(connectors.foreach_batch("files", elsewhere))
        with pytest.raises(Exception, match=r"cast it, such as to a string.*to s3:// with the jar hadoop-aws"):
            writer.trigger(availableNow=True).start().awaitTermination()
