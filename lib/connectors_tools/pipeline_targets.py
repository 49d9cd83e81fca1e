"""The systems that pipelines write, and what is different for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from . import pipeline_ends as ends
from .pipeline_ends import Parameter, TargetEnd

_NAME: Final = "pipeline.target.name"
_AGAIN: Final = "a run that is killed may send some of them again"
_DYNAMODB: Final = {"region": "pipeline.target.address", "table": _NAME}
_CASSANDRA: Final = {
    "contactPoints": "pipeline.target.address",
    "keyspace": "pipeline.target.parts[0]",
    "table": "pipeline.target.parts[1]",
}


def _target(meaning: str, default: str = "orders", of_job: str = "") -> Parameter:
    return Parameter("target", default, meaning, of_job)


def _look(format: str, options: Mapping[str, str], then: str = "") -> str:
    """The code that reads the target."""
    lines = "\n".join(f'    "{name}": {value},' for name, value in options.items())
    reader = f'spark.read.format("connectors.{format}").options(**pipeline.look(target))'
    return f"target = {{\n{lines}\n}}\nreader = {reader}\ntable = reader.load(){then}"


TARGETS: Final[dict[str, TargetEnd]] = {
    "delta": TargetEnd(
        title="Delta",
        effect="appended to a table",
        promise=f"is in the table once, or set aside, {ends.ONCE}",
        format="delta",
        other_address="",
    ),
    "kafka": TargetEnd(
        title="Kafka",
        effect="sent to a topic in transactions",
        promise=f"is in the topic once for readers of committed records, or set aside, {ends.ONCE}",
        format="kafka",
        parameters=(ends.BROKERS, _target("Topic")),
        options={
            "kafka.bootstrap.servers": "pipeline.target.address",
            "topic": _NAME,
            "transactionalIdPrefix": "pipeline.name",
            "value.format": '"json"',
        },
        added='"string(id) AS key", "struct(*) AS value"',
        look=_look(
            "kafka",
            {
                "kafka.bootstrap.servers": "pipeline.target.address",
                "subscribe": _NAME,
                "startingOffsets": '"earliest"',
                **ends.DECODED,
            },
            '.select("value.*")',
        ),
        lookback="1 day",
    ),
    "event_hubs": TargetEnd(
        title="Event Hubs",
        effect="sent to an event hub",
        promise=f"is in the event hub, or set aside; {_AGAIN}",
        format="event_hubs",
        parameters=(ends.HUB, _target("Event hub")),
        options={"connectionString": "pipeline.target.address", "eventHub": _NAME, "value.format": '"json"'},
        added='"string(id) AS key", "struct(*) AS value"',
        look=_look(
            "event_hubs",
            {
                "connectionString": "pipeline.target.address",
                "eventHub": _NAME,
                "startingOffsets": '"earliest"',
                **ends.DECODED,
            },
            '.select("value.*").dropDuplicates(["id"])  # some may come again',
        ),
        lookback="1 day",
    ),
    "kinesis": TargetEnd(
        title="Kinesis",
        effect="sent to a stream as JSON",
        promise=f"is in the stream, or set aside; {_AGAIN}",
        format="kinesis",
        parameters=(ends.REGION, _target("Stream")),
        options={"region": "pipeline.target.address", "streamName": _NAME, "partitionKeyColumn": '"city"'},
        no_look="A stream keeps records for a time only; so the gate judges what was handed over.",
    ),
    "firehose": TargetEnd(
        title="Firehose",
        effect="sent to a delivery stream as lines of JSON",
        promise=f"is in the delivery stream, or set aside; {_AGAIN}",
        format="firehose",
        parameters=(ends.REGION, _target("Delivery stream")),
        options={"region": "pipeline.target.address", "deliveryStream": _NAME, "delimiter": r'"\n"'},
        no_look="A delivery stream cannot be read; so the gate judges what was handed over.",
    ),
    "pubsub": TargetEnd(
        title="Pub/Sub",
        effect="published to a topic as JSON",
        promise=f"is published, or set aside; {_AGAIN}",
        format="pubsub",
        parameters=(ends.PROJECT, _target("Topic")),
        options={"projectId": "pipeline.target.address", "topicId": _NAME},
        added='"to_json(struct(*)) AS data"',
        no_look="A topic cannot be read; so the gate judges what was handed over.",
    ),
    "redis": TargetEnd(
        title="Redis",
        effect="written to hashes, one a key",
        promise=f"is in the hash of its key, or set aside, {ends.ONCE}",
        format="redis",
        parameters=(ends.REDIS, _target("Begin of the keys", "order")),
        options={
            "url": "pipeline.target.address",
            "command": '"hset"',
            "key": 'pipeline.target.name + ":{id}"',
            "expire": '"0"',
        },
        look="""from connectors import async_io

redis = pipeline.look({"url": pipeline.target.address})
login = {name: redis[name] for name in ("user", "password") if name in redis}
lookup = async_io.RedisLookup(redis["url"], pipeline.target.name + ":{id}", **login)
keys = pipeline.stored(spark, "keys").select("id").distinct()
order = "id long, city string, cents long, at string"
table = keys.transform(async_io.unordered_wait, lookup, schema=order, keep=[], capacity=100)
table = table.where("id IS NOT NULL")""",
    ),
    "dynamodb": TargetEnd(
        title="DynamoDB",
        effect="put into a table as items",
        promise=f"is in the table under its key, or set aside, {ends.ONCE}",
        format="dynamodb",
        parameters=(ends.REGION, _target("Table")),
        options=_DYNAMODB,
        look=_look(
            "dynamodb",
            _DYNAMODB,
            '.selectExpr("bigint(id) id", "city", "bigint(cents) cents", "timestamp(at) at")',
        ),
    ),
    "cassandra": TargetEnd(
        title="Cassandra",
        effect="written to a table by its primary key",
        promise=f"is in the table under its key, or set aside, {ends.ONCE}",
        format="cassandra",
        parameters=(ends.NODES, _target("keyspace.table", "shop.orders")),
        options=_CASSANDRA,
        look=_look("cassandra", _CASSANDRA),
    ),
    "jdbc": TargetEnd(
        title="a database",
        effect="upserted into a table, batch by batch",
        promise=f"is in the table once under its key, or set aside, {ends.ONCE}",
        format="jdbc",
        parameters=(ends.JDBC, _target("Table")),
        options={
            "url": "pipeline.target.address",
            "dbtable": _NAME,
            "operation": '"upsert"',
            "keyColumns": '"id"',
            "createTable": '"true"',
        },
        look=_look("jdbc", {"url": "pipeline.target.address", "dbtable": _NAME}),
    ),
    "elasticsearch": TargetEnd(
        title="Elasticsearch or OpenSearch",
        effect="indexed as documents",
        promise=f"is in the index under its key, or set aside, {ends.ONCE}",
        format="elasticsearch",
        parameters=(ends.HOSTS, _target("Index")),
        options={"hosts": "pipeline.target.address", "index": _NAME, "idColumn": '"id"'},
        look=_look("elasticsearch", {"hosts": "pipeline.target.address", "index": _NAME}),
    ),
    "http": TargetEnd(
        title="a REST API",
        effect="put to an API, one request a row",
        promise=f"is at the API under its key, or set aside, {ends.ONCE}",
        format="http",
        parameters=(ends.API, _target("Resource of the API")),
        options={"url": 'f"{pipeline.target.address}/rows/{pipeline.target.name}/{{id}}"', "method": '"PUT"'},
        no_look="What an API has, each tells in its own way; so the gate judges what was handed over.",
    ),
    "files": TargetEnd(
        title="files",
        effect="written to files of a folder",
        promise=f"is in one complete file, or set aside, {ends.ONCE}",
        format="files",
        other_address="",
        parameters=(_target("Folder, also s3://", "/Volumes/main/connectors/data/orders", "${var.workdir}/orders"),),
        options={"path": _NAME, "fileFormat": '"parquet"'},
        look=_look("files", {"path": _NAME, "fileFormat": '"parquet"', "recursiveFileLookup": '"true"'}).replace(
            "load()", f'schema("{ends.ORDER}").load()'
        ),
    ),
    "connect": TargetEnd(
        title="a sink connector of Kafka Connect",
        effect="handed to a connector as records",
        promise=f"is handed to the connector, or set aside; {_AGAIN}",
        refusal="A row that the connector refuses ends the query, unless its properties say otherwise.",
        format="connect",
        parameters=(ends.CONNECTOR, _target("Topic of the rows, as the connector sees them")),
        options={"config": 'json.dumps({**pipeline.target.properties, "topics": pipeline.target.name})'},
        no_look="What its system has, a connector does not tell; so the gate judges what was handed over.",
    ),
}
TARGETS["search"] = TARGETS["elasticsearch"]
"""The systems that pipelines write."""
