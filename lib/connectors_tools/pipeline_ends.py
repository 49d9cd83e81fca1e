"""What pipelines from one system to another have of their own, by system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

ORDER: Final = "id long, city string, cents long, at timestamp"
"""The records of every demonstration."""
ENRICH: Final = "enrich"
"""The pipeline from Delta into Delta, through a service."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a pipeline: a widget of its notebook, and a parameter of its job.

    ``of_job`` is the default there where it is another one: the bundle's variables.
    """

    name: str
    default: str
    meaning: str
    of_job: str = ""

    def widget(self) -> str:
        """The line of code that declares it in the notebook."""
        return f'dbutils.widgets.text("{self.name}", "{self.default}", "{self.meaning}")'


@dataclass(frozen=True)
class SourceEnd:
    """A system that pipelines read.

    ``records`` are what is read, in words, and ``record`` is one of them. ``address`` is the parameter that is empty for a
    demonstration. ``options`` are Python code by option. ``rows`` is the body of the function that makes rows of records, and
    no two rows have the same ``key``. ``query`` is the skeleton of the query: ``copy`` for a source that is read as a whole at
    each run, ``changes`` for one that tells of inserts, updates and deletions.
    """

    title: str
    records: str
    record: str
    format: str
    address: str
    parameters: Sequence[Parameter]
    options: Mapping[str, str]
    rows: str
    plain: str = ""
    """The same without the places of records, for another target than Delta, where that is another text."""
    key: Sequence[str] = ("id",)
    query: str = "stream"

    @property
    def plural(self) -> str:
        """Several records."""
        return f"{self.record[:-1]}ies" if self.record.endswith("y") else f"{self.record}s"


@dataclass(frozen=True)
class TargetEnd:
    """A system that pipelines write.

    ``effect`` is what becomes of the rows, in words; ``promise`` goes on with "each row …". ``added`` are columns that the
    system wants beside those of a row. ``look`` is the code by which the gate sees what the system has, empty where it cannot.
    """

    title: str
    effect: str
    promise: str
    format: str
    address: str = ""
    parameters: Sequence[Parameter] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    added: str = ""
    refusal: str = "A row that the target refuses is set aside."
    look: str = ""
    no_look: str = ""
    lookback: str = ""
    """How far back the gate looks for rows, where the system keeps them for a time only."""


_BROKERS: Final = Parameter("kafka_bootstrap_servers", "", "Brokers; empty: a demonstration")
_HUB: Final = Parameter("connectionString", "", "{{secrets/scope/key}}; empty: a demonstration")
_REGION: Final = Parameter("region", "", "AWS region; empty: a demonstration")
_PROJECT: Final = Parameter("projectId", "", "Project; empty: a demonstration")
_REDIS: Final = Parameter("url", "", "redis://host:port/0; empty: a demonstration")
_JDBC: Final = Parameter("url", "", "JDBC URL; empty: a demonstration")
_HOSTS: Final = Parameter("hosts", "", "URLs of nodes; empty: a demonstration")
_NODES: Final = Parameter("contactPoints", "", "Nodes; empty: a demonstration")
_API: Final = Parameter("url", "", "URL of the API; empty: a demonstration")
_CONNECTOR: Final = Parameter("config", "", "The connector's properties, JSON; empty: a demonstration")
_SOURCE_NAME: Final = 'pipeline.source.name'
_TARGET_NAME: Final = 'pipeline.target.name'
_STATE: Final = {"stateLocation": 'pipeline.path("epochs")'}
_DECODED: Final = {"value.format": '"json"', "schema": f'"{ORDER}"'}
_COLUMNS: Final = ", ".join(f'"{column.split()[0]}"' for column in ORDER.split(", "))
_IDENTITY: Final = f"return records.select({_COLUMNS})"
_FIELDS: Final = f'''order = "{ORDER}"
text = "try_cast(cast(fields['{{0}}'] AS string) AS {{1}}) AS {{0}}"
columns = [text.format(*column.split()) for column in order.split(", ")]
return records.selectExpr("id AS entry", *columns)'''
_CALLS: Final = '''lookup = async_io.HttpLookup(pipeline.service.address)  # many calls at a time, in no order
return records.transform(async_io.unordered_wait, lookup, schema="name string", capacity=50)'''
_DEBEZIUM: Final = "io.debezium:debezium-connector-postgres:3.6.1.Final"
_DEBEZIUM_CONFIG: Final = '''host, _, port = pipeline.source.address.partition(":")
slot = re.sub("[^a-z0-9]", "_", pipeline.name.lower())
debezium = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "name": pipeline.name,
    "database.hostname": host,
    "database.port": port or "5432",
    "database.dbname": dbutils.widgets.get("database_dbname"),
    "database.user": dbutils.widgets.get("database_user"),
    "database.password": dbutils.widgets.get("database_password"),
    "table.include.list": pipeline.source.name,
    "topic.prefix": pipeline.name,
    "plugin.name": "pgoutput",
    "slot.name": slot,
    "publication.name": slot,
    "publication.autocreate.mode": "filtered",
    "tombstones.on.delete": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}'''
_API_CONFIG: Final = '''json.dumps({
        "baseUrl": pipeline.source.address,
        "resources": [{
            "name": pipeline.source.name,
            "path": f"page/{pipeline.source.name}",
            "parameters": {"since": "{position}"},
            "key": ["id"],
            "cursor": {"field": "updated_at"},
            "paging": {"kind": "page", "size": 100},
        }],
    })'''


def _name(meaning: str, default: str = "orders") -> Parameter:
    return Parameter("source", default, meaning)


def _target(meaning: str, default: str = "orders", of_job: str = "") -> Parameter:
    return Parameter("target", default, meaning, of_job)


_TABLE: Final = Parameter("source", "", "catalog.schema.table or a folder; empty: a demonstration")


def _look(format: str, options: Mapping[str, str], then: str = "") -> str:
    """The code that reads the target."""
    lines = "\n".join(f'    "{name}": {value},' for name, value in options.items())
    reader = f'spark.read.format("connectors.{format}").options(**pipeline.look(target))'
    return f"target = {{\n{lines}\n}}\nreader = {reader}\ntable = reader.load(){then}"


SOURCES: Final = {
    "kafka": SourceEnd(
        title="Kafka",
        records="The records that are new in a topic",
        record="record",
        format="kafka",
        address="kafka_bootstrap_servers",
        parameters=(_BROKERS, _name("Topic, or several with commas")),
        options={
            "kafka.bootstrap.servers": "pipeline.source.address",
            "subscribe": _SOURCE_NAME,
            "startingOffsets": '"earliest"',
            "maxOffsetsPerTrigger": '"1000000"',
            **_DECODED,
        },
        rows='return records.select("topic", "partition", "offset", "value.*")',
        plain='return records.select("value.*")',
        key=("topic", "partition", "offset"),
    ),
    "event_hubs": SourceEnd(
        title="Event Hubs",
        records="The events that are new in an event hub",
        record="event",
        format="event_hubs",
        address="connectionString",
        parameters=(_HUB, _name("Event hub")),
        options={
            "connectionString": "pipeline.source.address",
            "eventHub": _SOURCE_NAME,
            "startingOffsets": '"earliest"',
            "maxOffsetsPerTrigger": '"1000000"',
            **_DECODED,
        },
        rows='return records.select("partition", "offset", "value.*")',
        plain='return records.select("value.*")',
        key=("partition", "offset"),
    ),
    "kinesis": SourceEnd(
        title="Kinesis",
        records="The records that are new in a stream",
        record="record",
        format="kinesis",
        address="region",
        parameters=(_REGION, _name("Stream")),
        options={
            "region": "pipeline.source.address",
            "streamName": _SOURCE_NAME,
            "startingPosition": '"TRIM_HORIZON"',
            **_STATE,
            **_DECODED,
        },
        rows='return records.select("shardId", "sequenceNumber", "data.*")',
        plain='return records.select("data.*")',
    ),
    "pubsub": SourceEnd(
        title="Pub/Sub",
        records="The messages of a subscription",
        record="message",
        format="pubsub",
        address="projectId",
        parameters=(_PROJECT, _name("Subscription, of this pipeline alone")),
        options={"projectId": "pipeline.source.address", "subscriptionId": _SOURCE_NAME, **_STATE, **_DECODED},
        rows='return records.select("messageId", "publishTime", "data.*")',
        plain='return records.select("data.*")',
        key=("messageId",),
    ),
    "redis": SourceEnd(
        title="a Redis stream",
        records="The entries that are new in a stream",
        record="entry",
        format="redis",
        address="url",
        parameters=(_REDIS, _name("Key of the stream")),
        options={"url": "pipeline.source.address", "stream": _SOURCE_NAME, "group": "pipeline.name", **_STATE},
        rows=_FIELDS,
        plain=_FIELDS.replace('"id AS entry", ', ""),
        key=("entry",),
    ),
    "files": SourceEnd(
        title="files",
        records="The rows of files that are new in a folder",
        record="row",
        format="files",
        address="source",
        parameters=(_name("Folder, or a path with *; empty: a demonstration", ""),),
        options={"path": "pipeline.source.address", "fileFormat": '"parquet"', "maxFilesPerTrigger": '"100"'},
        rows=_IDENTITY,
    ),
    "lines": SourceEnd(
        title="growing files",
        records="The lines that are new in files, which may grow and be rotated,",
        record="line",
        format="file_stream",
        address="source",
        parameters=(_name("Files, as a path with *; empty: a demonstration", ""),),
        options={"path": "pipeline.source.address", "maxBytesPerTrigger": '"256MB"', **_DECODED},
        rows='return records.select("filename", "position", "value.*")',
        plain='return records.select("value.*")',
    ),
    "jdbc": SourceEnd(
        title="a database",
        records="The rows that are new in a table, by a growing column,",
        record="row",
        format="jdbc",
        address="url",
        parameters=(_JDBC, _name("Table")),
        options={
            "url": "pipeline.source.address",
            "dbtable": _SOURCE_NAME,
            "incremental": '"incrementing"',
            "incrementingColumn": '"id"',
        },
        rows=_IDENTITY,
    ),
    "http": SourceEnd(
        title="a REST API",
        records="The records that are new at an API",
        record="record",
        format="http",
        address="url",
        parameters=(_API, _name("Resource of the API")),
        options={"config": _API_CONFIG, **_STATE},
        rows='return records.selectExpr("id", "city", "cents", "timestamp(updated_at) AS at")',
    ),
    "elasticsearch": SourceEnd(
        title="Elasticsearch or OpenSearch",
        records="The documents that are new in an index",
        record="document",
        format="elasticsearch",
        address="hosts",
        parameters=(_HOSTS, _name("Index, alias or pattern")),
        options={"hosts": "pipeline.source.address", "index": _SOURCE_NAME, "idColumn": '"document"'},
        rows=f'return records.select("document", {_COLUMNS})',
        plain=_IDENTITY,
        key=("document",),
    ),
    "cassandra": SourceEnd(
        title="Cassandra",
        records="The rows of a table",
        record="row",
        format="cassandra",
        address="contactPoints",
        parameters=(_NODES, _name("keyspace.table", "shop.orders")),
        options={
            "contactPoints": "pipeline.source.address",
            "keyspace": 'pipeline.source.parts[0]',
            "table": 'pipeline.source.parts[1]',
        },
        rows=_IDENTITY,
        query="copy",
    ),
    "dynamodb": SourceEnd(
        title="DynamoDB",
        records="The items of a table",
        record="item",
        format="dynamodb",
        address="region",
        parameters=(_REGION, _name("Table")),
        options={"region": "pipeline.source.address", "table": _SOURCE_NAME},
        rows='return records.selectExpr("bigint(id) id", "city", "bigint(cents) cents", "timestamp(at) at")',
        query="copy",
    ),
    "connect": SourceEnd(
        title="a connector of Kafka Connect",
        records="The records that are new at a connector",
        record="record",
        format="connect",
        address="config",
        parameters=(_CONNECTOR, _name("Name of the connector")),
        options={"config": 'json.dumps({**pipeline.source.properties, "name": pipeline.source.name})', **_STATE},
        rows=f'''order = "{ORDER}"
value = f.from_json(f.col("value").cast("string"), order).alias("value")
return records.select(value).select("value.*")''',
    ),
    "cdc": SourceEnd(
        title="PostgreSQL's log of changes",
        records="The inserts, updates and deletions of a table",
        record="change",
        format="connect",
        address="database_hostname",
        parameters=(
            Parameter("database_hostname", "", "Host, or host:port; empty: a demonstration"),
            Parameter("database_dbname", "postgres", "Database"),
            Parameter("database_user", "postgres", "A user who may replicate"),
            Parameter("database_password", "none", "{{secrets/scope/key}}"),
            _name("schema.table", "public.orders"),
        ),
        options={"config": "json.dumps(debezium)", "pluginPackages": f'"{_DEBEZIUM}"', **_STATE},
        rows=_DEBEZIUM_CONFIG,
        query="changes",
    ),
    ENRICH: SourceEnd(
        title="Delta, through a service,",
        records="The rows that are new in a table, each with the answer of a service,",
        record="row",
        format="delta",
        address="url",
        parameters=(_TABLE, Parameter("url", "", "URL with {columns}; empty: a demonstration")),
        options={"maxBytesPerTrigger": '"256MB"'},
        rows=_CALLS,
    ),
    "delta": SourceEnd(
        title="Delta",
        records="The rows that are new in a table",
        record="row",
        format="delta",
        address="",
        parameters=(_TABLE,),
        options={"maxBytesPerTrigger": '"256MB"'},
        rows="return records",
    ),
}
"""The systems that pipelines read."""

ONCE: Final = "also when a run is killed at any moment"
_AGAIN: Final = "a run that is killed may send some of them again"

TARGETS: Final[dict[str, TargetEnd]] = {
    "delta": TargetEnd(
        title="Delta",
        effect="appended to a table",
        promise=f"is in the table once, or set aside, {ONCE}",
        format="delta",
    ),
    "kafka": TargetEnd(
        title="Kafka",
        effect="sent to a topic in transactions",
        promise=f"is in the topic once for readers of committed records, or set aside, {ONCE}",
        format="kafka",
        address="kafka_bootstrap_servers",
        parameters=(_BROKERS, _target("Topic")),
        options={
            "kafka.bootstrap.servers": "pipeline.target.address",
            "topic": _TARGET_NAME,
            "transactionalIdPrefix": "pipeline.name",
            "value.format": '"json"',
        },
        added='"string(id) AS key", "struct(*) AS value"',
        look=_look(
            "kafka",
            {
                "kafka.bootstrap.servers": "pipeline.target.address",
                "subscribe": _TARGET_NAME,
                "startingOffsets": '"earliest"',
                **_DECODED,
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
        address="connectionString",
        parameters=(_HUB, _target("Event hub")),
        options={"connectionString": "pipeline.target.address", "eventHub": _TARGET_NAME, "value.format": '"json"'},
        added='"string(id) AS key", "struct(*) AS value"',
        look=_look(
            "event_hubs",
            {
                "connectionString": "pipeline.target.address",
                "eventHub": _TARGET_NAME,
                "startingOffsets": '"earliest"',
                **_DECODED,
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
        address="region",
        parameters=(_REGION, _target("Stream")),
        options={"region": "pipeline.target.address", "streamName": _TARGET_NAME, "partitionKeyColumn": '"city"'},
        no_look="A stream keeps records for a time only; so the gate judges what was handed over.",
    ),
    "firehose": TargetEnd(
        title="Firehose",
        effect="sent to a delivery stream as lines of JSON",
        promise=f"is in the delivery stream, or set aside; {_AGAIN}",
        format="firehose",
        address="region",
        parameters=(_REGION, _target("Delivery stream")),
        options={"region": "pipeline.target.address", "deliveryStream": _TARGET_NAME, "delimiter": r'"\n"'},
        no_look="A delivery stream cannot be read; so the gate judges what was handed over.",
    ),
    "pubsub": TargetEnd(
        title="Pub/Sub",
        effect="published to a topic as JSON",
        promise=f"is published, or set aside; {_AGAIN}",
        format="pubsub",
        address="projectId",
        parameters=(_PROJECT, _target("Topic")),
        options={"projectId": "pipeline.target.address", "topicId": _TARGET_NAME},
        added='"to_json(struct(*)) AS data"',
        no_look="A topic cannot be read; so the gate judges what was handed over.",
    ),
    "redis": TargetEnd(
        title="Redis",
        effect="written to hashes, one a key",
        promise=f"is in the hash of its key, or set aside, {ONCE}",
        format="redis",
        address="url",
        parameters=(_REDIS, _target("Begin of the keys", "order")),
        options={
            "url": "pipeline.target.address",
            "command": '"hset"',
            "key": 'pipeline.target.name + ":{id}"',
            "expire": '"0"',
        },
        look="""from connectors import async_io

lookup = async_io.RedisLookup(pipeline.target.address, pipeline.target.name + ":{id}")
keys = pipeline.stored(spark, "keys").select("id").distinct()
order = "id long, city string, cents long, at string"
table = keys.transform(async_io.unordered_wait, lookup, schema=order, keep=[], capacity=100)
table = table.where("id IS NOT NULL")""",
    ),
    "dynamodb": TargetEnd(
        title="DynamoDB",
        effect="put into a table as items",
        promise=f"is in the table under its key, or set aside, {ONCE}",
        format="dynamodb",
        address="region",
        parameters=(_REGION, _target("Table")),
        options={"region": "pipeline.target.address", "table": _TARGET_NAME},
        look=_look(
            "dynamodb",
            {"region": "pipeline.target.address", "table": _TARGET_NAME},
            '.selectExpr("bigint(id) id", "city", "bigint(cents) cents", "timestamp(at) at")',
        ),
    ),
    "cassandra": TargetEnd(
        title="Cassandra",
        effect="written to a table by its primary key",
        promise=f"is in the table under its key, or set aside, {ONCE}",
        format="cassandra",
        address="contactPoints",
        parameters=(_NODES, _target("keyspace.table", "shop.orders")),
        options={
            "contactPoints": "pipeline.target.address",
            "keyspace": 'pipeline.target.parts[0]',
            "table": 'pipeline.target.parts[1]',
        },
        look=_look(
            "cassandra",
            {
                "contactPoints": "pipeline.target.address",
                "keyspace": 'pipeline.target.parts[0]',
                "table": 'pipeline.target.parts[1]',
            },
        ),
    ),
    "jdbc": TargetEnd(
        title="a database",
        effect="upserted into a table, batch by batch",
        promise=f"is in the table once under its key, or set aside, {ONCE}",
        format="jdbc",
        address="url",
        parameters=(_JDBC, _target("Table")),
        options={
            "url": "pipeline.target.address",
            "dbtable": _TARGET_NAME,
            "operation": '"upsert"',
            "keyColumns": '"id"',
            "createTable": '"true"',
        },
        look=_look("jdbc", {"url": "pipeline.target.address", "dbtable": _TARGET_NAME}),
    ),
    "elasticsearch": TargetEnd(
        title="Elasticsearch or OpenSearch",
        effect="indexed as documents",
        promise=f"is in the index under its key, or set aside, {ONCE}",
        format="elasticsearch",
        address="hosts",
        parameters=(_HOSTS, _target("Index")),
        options={"hosts": "pipeline.target.address", "index": _TARGET_NAME, "idColumn": '"id"'},
        look=_look("elasticsearch", {"hosts": "pipeline.target.address", "index": _TARGET_NAME}),
    ),
    "http": TargetEnd(
        title="a REST API",
        effect="put to an API, one request a row",
        promise=f"is at the API under its key, or set aside, {ONCE}",
        format="http",
        address="url",
        parameters=(_API, _target("Resource of the API")),
        options={"url": 'f"{pipeline.target.address}/rows/{pipeline.target.name}/{{id}}"', "method": '"PUT"'},
        no_look="What an API has, each tells in its own way; so the gate judges what was handed over.",
    ),
    "files": TargetEnd(
        title="files",
        effect="written to files of a folder",
        promise=f"is in one complete file, or set aside, {ONCE}",
        format="files",
        parameters=(_target("Folder, also s3://", "/Volumes/main/connectors/data/orders", "${var.workdir}/orders"),),
        options={"path": _TARGET_NAME, "fileFormat": '"parquet"'},
        look=f'order = "{ORDER}"\ntable = spark.read.schema(order).parquet(pipeline.target.name)',
    ),
    "connect": TargetEnd(
        title="a sink connector of Kafka Connect",
        effect="handed to a connector as records",
        promise=f"is handed to the connector, or set aside; {_AGAIN}",
        refusal="A row that the connector refuses ends the query, unless its properties say otherwise.",
        format="connect",
        address="config",
        parameters=(_CONNECTOR, _target("Topic of the rows, as the connector sees them")),
        options={"config": 'json.dumps({**pipeline.target.properties, "topics": pipeline.target.name})'},
        no_look="What its system has, a connector does not tell; so the gate judges what was handed over.",
    ),
}
TARGETS["search"] = TARGETS["elasticsearch"]
"""The systems that pipelines write."""
