"""Lines of growing files become a table, and the rows of the table files of Parquet: each row once, also under kills.

The pipeline's `configuration` says where: `orders.source`, `orders.target`, and `connectors.state` for what must outlive a run.
"""

from pyspark import pipelines as dp
from pyspark.sql import SparkSession

from connectors import pipelines

spark = SparkSession.active()
source, target = spark.conf.get("orders.source"), spark.conf.get("orders.target")

pipelines.register(spark)


@dp.table(comment="Orders. Lines that cannot be read are dead letters.")
def orders():
    options = {"path": f"{source}/*.jsonl", "value.format": "json", "schema": "id long, city string, cents long, at timestamp"}
    return pipelines.read_stream("orders", "file_stream", options).select("value.*")


pipelines.create_sink("delivery", "files", path=target, file_format="parquet")


@dp.append_flow(target="delivery")
def deliver():
    return spark.readStream.table("orders")
