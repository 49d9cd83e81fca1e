"""The systems that pipelines read, and what is different for each."""

from __future__ import annotations

from string import Template
from typing import Final

from . import pipeline_ends as ends
from .pipeline_ends import Parameter, SourceEnd

_NAME: Final = "pipeline.source.name"
_STATE: Final = {"stateLocation": 'pipeline.path("epochs")'}
_COLUMNS: Final = ", ".join(f'"{column.split()[0]}"' for column in ends.ORDER.split(", "))
_IDENTITY: Final = f"return records.select({_COLUMNS})"
_FIELDS: Final = f'''order = "{ends.ORDER}"
text = "try_cast(cast(fields['{{0}}'] AS string) AS {{1}}) AS {{0}}"
columns = [text.format(*column.split()) for column in order.split(", ")]
return records.selectExpr("id AS entry", *columns)'''
_CALLS: Final = '''lookup = async_io.HttpLookup(pipeline.service.address)  # many calls at a time, in no order
return records.transform(async_io.unordered_wait, lookup, schema="name string", capacity=50)'''
_DEBEZIUM: Final = "io.debezium:debezium-connector-postgres:3.6.1.Final"
_DEBEZIUM_CONFIG: Final = Template('''host, _, port = pipeline.source.address.partition(":")
slot = re.sub("[^a-z0-9]", "_", pipeline.name.lower())
debezium = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "name": pipeline.name,
    "database.hostname": host,
    "database.port": port or "5432",
    "database.dbname": dbutils.widgets.get("database_dbname"),
    "database.user": dbutils.widgets.get("database_user"),
    "database.password": dbutils.widgets.get("database_password"),
    "$included.include.list": pipeline.source.name,
    "topic.prefix": pipeline.name,
    "plugin.name": "pgoutput",
    "slot.name": slot,
    "publication.name": $publication,
    "publication.autocreate.mode": "$mode",
    "tombstones.on.delete": "false", "heartbeat.interval.ms": "600000",  # for quiet tables
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
}''')

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
_PARTS: Final = f'''json.dumps([
        {{"format": "files", "options": {{"path": pipeline.parameter("history")}}}},
        {{
            "format": "kafka",
            "options": {{
                "kafka.bootstrap.servers": pipeline.source.address,
                "subscribe": pipeline.source.name,
            }},
            "columns": {{name: f"value.{{name}}" for name in ({_COLUMNS})}},
        }},
    ])'''


def _name(meaning: str, default: str = "orders") -> Parameter:
    return Parameter("source", default, meaning)


_DATABASE: Final = (
    Parameter("database_hostname", "", "Host, or host:port; empty: a demonstration"),
    Parameter("database_dbname", "postgres", "Database"),
    Parameter("database_user", "postgres", "A user who may replicate"),
    Parameter("database_password", "none", "{{secrets/scope/key}}"),
)
_TABLE: Final = Parameter("source", "", "catalog.schema.table or a folder; empty: a demonstration")

SOURCES: Final = {
    "kafka": SourceEnd(
        title="Kafka",
        records="New records of a topic",
        record="record",
        format="kafka",
        parameters=(ends.BROKERS, _name("Topic, or several with commas")),
        options={
            "kafka.bootstrap.servers": "pipeline.source.address",
            "subscribe": _NAME,
            "startingOffsets": '"earliest"',
            "maxOffsetsPerTrigger": '"1000000"',
            **ends.DECODED,
        },
        rows='return records.select("topic", "partition", "offset", "value.*")',
        plain='return records.select("value.*")',
        key=("topic", "partition", "offset"),
    ),
    "event_hubs": SourceEnd(
        title="Event Hubs",
        records="New events of an event hub",
        record="event",
        format="event_hubs",
        parameters=(ends.HUB, _name("Event hub")),
        options={
            "connectionString": "pipeline.source.address",
            "eventHub": _NAME,
            "startingOffsets": '"earliest"',
            "maxOffsetsPerTrigger": '"1000000"',
            **ends.DECODED,
        },
        rows='return records.select("partition", "offset", "value.*")',
        plain='return records.select("value.*")',
        key=("partition", "offset"),
    ),
    "kinesis": SourceEnd(
        title="Kinesis",
        records="New records of a stream",
        record="record",
        format="kinesis",
        parameters=(ends.REGION, _name("Stream")),
        options={
            "region": "pipeline.source.address",
            "streamName": _NAME,
            "startingPosition": '"TRIM_HORIZON"',
            **_STATE,
            **ends.DECODED,
        },
        rows='return records.select("shardId", "sequenceNumber", "data.*")',
        plain='return records.select("data.*")',
    ),
    "pubsub": SourceEnd(
        title="Pub/Sub",
        records="The messages of a subscription",
        record="message",
        format="pubsub",
        parameters=(ends.PROJECT, _name("Subscription, of this pipeline alone")),
        options={"projectId": "pipeline.source.address", "subscriptionId": _NAME, **_STATE, **ends.DECODED},
        rows='return records.select("messageId", "publishTime", "data.*")',
        plain='return records.select("data.*")',
        key=("messageId",),
    ),
    "redis": SourceEnd(
        title="a Redis stream",
        records="New entries of a stream",
        record="entry",
        format="redis",
        parameters=(ends.REDIS, _name("Key of the stream")),
        options={"url": "pipeline.source.address", "stream": _NAME, "group": "pipeline.name", **_STATE},
        rows=_FIELDS,
        plain=_FIELDS.replace('"id AS entry", ', ""),
        key=("entry",),
    ),
    "files": SourceEnd(
        title="files",
        records="The rows of new files in a folder",
        record="row",
        format="files",
        parameters=(_name("Folder, or a path with *; empty: a demonstration", ""),),
        options={"path": "pipeline.source.address", "fileFormat": '"parquet"', "maxFilesPerTrigger": '"100"'},
        rows=_IDENTITY,
    ),
    "lines": SourceEnd(
        title="growing files",
        records="New lines of files, which may grow and be rotated,",
        record="line",
        format="file_stream",
        parameters=(_name("Files, as a path with *; empty: a demonstration", ""),),
        options={"path": "pipeline.source.address", "maxBytesPerTrigger": '"256MB"', **ends.DECODED},
        rows='return records.select("filename", "position", "value.*")',
        plain='return records.select("value.*")',
    ),
    "jdbc": SourceEnd(
        title="a database",
        records="New rows of a table, found by a growing column,",
        record="row",
        format="jdbc",
        parameters=(ends.JDBC, _name("Table")),
        options={
            "url": "pipeline.source.address",
            "dbtable": _NAME,
            "incremental": '"incrementing"',
            "incrementingColumn": '"id"',
        },
        rows=_IDENTITY,
    ),
    "jdbc_database": SourceEnd(
        title="the tables of a database",
        records="New and changed rows of tables, found by the time of their last change,",
        record="row",
        format="jdbc",
        parameters=(ends.JDBC, Parameter("source", ".*", "Tables, with commas, or a pattern of names")),
        options={
            "url": "pipeline.source.address",
            "tables": _NAME,
            "incremental": '"timestamp+incrementing"',
            "timestampColumns": '"updated_at"',
            "includeSchema": '"true"',
        },
        rows="",
        query="tables",
    ),
    "http": SourceEnd(
        title="a REST API",
        records="New records of an API",
        record="record",
        format="http",
        parameters=(ends.API, _name("Resource of the API")),
        options={"config": _API_CONFIG, **_STATE},
        rows='return records.selectExpr("id", "city", "cents", "timestamp(updated_at) AS at")',
    ),
    "hybrid": SourceEnd(
        title="files, then Kafka,",
        records="A history in files, and behind it the records of a topic,",
        record="record",
        format="hybrid",
        parameters=(
            ends.BROKERS,
            _name("Topic"),
            Parameter("history", "", "Folder of Parquet files; empty: a demonstration"),
        ),
        options={
            "sources": _PARTS,
            "startFrom": '"at - 10 minutes"',
            "deduplicateBy": '"id"',
            "stateLocation": 'pipeline.path("state")',
            **ends.DECODED,
        },
        rows=_IDENTITY,
    ),
    "elasticsearch": SourceEnd(
        title="Elasticsearch or OpenSearch",
        records="New documents of an index",
        record="document",
        format="elasticsearch",
        parameters=(ends.HOSTS, _name("Index, alias or pattern")),
        options={"hosts": "pipeline.source.address", "index": _NAME, "idColumn": '"document"'},
        rows=f'return records.select("document", {_COLUMNS})',
        plain=_IDENTITY,
        key=("document",),
    ),
    "cassandra": SourceEnd(
        title="Cassandra",
        records="The rows of a table",
        record="row",
        format="cassandra",
        parameters=(ends.NODES, _name("keyspace.table", "shop.orders")),
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
        parameters=(ends.REGION, _name("Table")),
        options={"region": "pipeline.source.address", "table": _NAME},
        rows='return records.selectExpr("bigint(id) id", "city", "bigint(cents) cents", "timestamp(at) at")',
        query="copy",
    ),
    "connect": SourceEnd(
        title="a connector of Kafka Connect",
        records="New records of a connector",
        record="record",
        format="connect",
        parameters=(ends.CONNECTOR, _name("Name of the connector")),
        options={"config": 'json.dumps({**pipeline.source.properties, "name": pipeline.source.name})', **_STATE},
        rows=f'''order = "{ends.ORDER}"
value = f.from_json(f.col("value").cast("string"), order).alias("value")
return records.select(value).select("value.*")''',
    ),
    "cdc": SourceEnd(
        title="PostgreSQL's log of changes",
        records="The inserts, updates and deletions of a table",
        record="change",
        format="connect",
        parameters=(*_DATABASE, _name("schema.table", "public.orders")),
        options={"config": "json.dumps(debezium)", "pluginPackages": f'"{_DEBEZIUM}"', **_STATE},
        rows=_DEBEZIUM_CONFIG.substitute(included="table", publication="slot", mode="filtered"),
        query="changes",
    ),
    "cdc_database": SourceEnd(
        title="the log of a whole PostgreSQL database",
        records="The inserts, updates and deletions of all tables of a schema",
        record="change",
        format="connect",
        parameters=(
            *_DATABASE,
            Parameter("publication_name", "dbz_publication", "The publication of the schemas"),
            _name("Schemas, with commas", "public"),
        ),
        options={"config": "json.dumps(debezium)", "pluginPackages": f'"{_DEBEZIUM}"', **_STATE},
        rows=_DEBEZIUM_CONFIG.substitute(
            included="schema", publication='dbutils.widgets.get("publication_name")', mode="disabled"
        ),
        query="all_changes",
    ),
    ends.ENRICH: SourceEnd(
        title="Delta, through a service,",
        records="New rows of a table, each with the answer of a service,",
        record="row",
        format="delta",
        other_address="url",
        parameters=(_TABLE, Parameter("url", "", "URL with {columns}; empty: a demonstration")),
        options={"maxBytesPerTrigger": '"256MB"'},
        rows=_CALLS,
    ),
    "delta": SourceEnd(
        title="Delta",
        records="New rows of a table",
        record="row",
        format="delta",
        other_address="",
        parameters=(_TABLE,),
        options={"maxBytesPerTrigger": '"256MB"'},
        rows="return records",
    ),
}
"""The systems that pipelines read."""
