"""The same on Spark Connect, in a process of its own: one process has either kind of session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs grpcio; pip install 'pyspark[connect]'")

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from connectors import quality
from connectors.core.errors import Misconfigured

folder = sys.argv[1]
here = "127.0.0.1"
conf = {"spark.driver.host": here, "spark.connect.grpc.binding.address": here, "spark.ui.enabled": "false"}
spark = SparkSession.builder.remote("local[2]").config(map=conf).getOrCreate()
df = spark.createDataFrame([(1, "AA", 1.5), (2, "AAx", float("nan")), (2, None, None)], "id int, s string, f double")
df = df.selectExpr("*", "current_timestamp() AS ts")
checks = quality.Checks([
    quality.not_null("s"), quality.unique("id"), quality.between("f", 0), quality.in_set("s", ["AA"]),
    quality.matches("s", "AA"), quality.fresh("ts", "1 day"), quality.expression("id < 2"), quality.row_count(3, 3),
])
answer = {"kind": type(df).__module__}
answer["failing"] = checks.validate(df).table().set_index("check").failing.to_dict()
good, quarantined = checks.split(df)
answer["parts"] = [good.count(), quarantined.count()]
try:
    wrong = [quality.expression("nope > 1"), quality.expression("id", name="id"), quality.matches("s", "(")]
    quality.Checks(wrong).split(df)
except Misconfigured as error:
    answer["problems"] = len(error.problems)
df.write.parquet(folder + "/in")
into = lambda part: lambda batch, _: batch.write.mode("append").parquet(folder + "/" + part)
stream = spark.readStream.schema(df.schema).parquet(folder + "/in").writeStream
stream = stream.foreachBatch(checks.foreach_batch(good=into("good"), quarantined=into("bad")))
query = stream.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
answer["streamed"] = [spark.read.parquet(folder + "/" + part).count() for part in ("good", "bad")]
print("ANSWER" + json.dumps(answer))
"""


def test_split_validate_and_stream_work_on_spark_connect(tmp_path: Path) -> None:
    # SPARK_TESTING lets PySpark's local Connect server take any free port.
    environment = {**os.environ, "SPARK_TESTING": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment | {"PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer = json.loads(result.stdout.partition("ANSWER")[2].splitlines()[0])
    assert answer["kind"] == "pyspark.sql.connect.dataframe"
    assert list(answer["failing"].values()) == [1, 2, 1, 1, 1, 0, 2, 0]
    assert answer["parts"] == answer["streamed"] == [1, 2]
    assert answer["problems"] == 3
