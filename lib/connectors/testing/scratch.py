"""Systems in which tests and demonstrations make topics, tables, indexes and files of sample orders, and remove them.

A system is reached by its address and the options of its connector, so with the user's own login, whatever it is.
"""

from __future__ import annotations

import contextlib
import datetime
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from ..ground import machine
from ..ground.errors import ConnectorError, Transient
from ..systems import source_class

Order = Mapping[str, Any]

COLUMNS: Final = "id long, city string, cents long, at timestamp"
"""The columns of an order."""
_READY_SECONDS: Final = 60.0


class Scratch(ABC):
    """A system at ``address``; ``options`` are those of its connector, as the parameter ``options`` of a pipeline has them."""

    address: str
    options: Mapping[str, str] = {}
    batch_limit: ClassVar[str] = "maxRowsPerTrigger"
    """The option of the source that bounds the rows of a batch, or its bytes or files."""

    def __init__(self, address: str, options: Mapping[str, str]) -> None:
        self.address, self.options = address, options

    def place(self, name: str) -> str:
        """What a pipeline's parameter ``source`` must be to read ``name``; for a target, see :meth:`target_place`."""
        return name

    def target_place(self, name: str) -> str:
        """What a pipeline's parameter ``target`` must be to write ``name``."""
        return name

    @abstractmethod
    def exists(self, name: str) -> bool:
        """True if the system has something called ``name``."""

    @abstractmethod
    def create(self, name: str) -> None:
        """Makes ``name`` where it is missing; does nothing where the first row makes it."""

    @abstractmethod
    def put(self, name: str, orders: Sequence[Order]) -> None:
        """Adds orders to ``name``."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Removes ``name``, if it is there."""


class Kafka(Scratch):
    """Topics."""

    batch_limit = "maxOffsetsPerTrigger"

    def _config(self) -> dict[str, str]:
        from ..systems.kafka.config import client_config, connection_config

        login = {name: value for name, value in self.options.items() if name.startswith("kafka.")}
        source = source_class("kafka").of({"kafka.bootstrap.servers": self.address, "subscribe": "orders", **login})
        return connection_config(client_config(source.values))

    def _admin(self) -> Any:
        from ..systems.kafka.cluster import connected_admin

        return connected_admin(self._config())

    def exists(self, name: str) -> bool:
        return name in self._admin().list_topics(timeout=30).topics

    def create(self, name: str) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        admin = self._admin()
        if name not in admin.list_topics(timeout=30).topics:
            for creation in admin.create_topics([NewTopic(name, 2)]).values():
                creation.result(30)
            _wait_until(lambda: name in admin.list_topics(timeout=30).topics, f"topic {name}")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from confluent_kafka import Producer

        errors: list[Any] = []

        def note(error: Any, _: Any) -> None:
            errors.extend([error] if error else [])

        producer = Producer({**self._config(), "enable.idempotence": True})
        for order in orders:
            producer.produce(name, text_of(order), on_delivery=note)
            producer.poll(0)
        if producer.flush(60) or errors:
            raise Transient(f"{name} has not taken all orders: {errors[0] if errors else 'no answer within 60 s'}")

    def drop(self, name: str) -> None:
        admin = self._admin()
        if name in admin.list_topics(timeout=30).topics:
            for deletion in admin.delete_topics([name]).values():
                deletion.result(30)


class Kinesis(Scratch):
    """Data streams of two shards."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ..systems.aws import aws_client

        values = _values("kinesis", self, region=self.address, streamName="orders", stateLocation="/")
        with aws_client("connectors.kinesis", "kinesis", values) as aws:
            yield aws.client

    def exists(self, name: str) -> bool:
        with self._client() as client:
            return any(name in page["StreamNames"] for page in client.get_paginator("list_streams").paginate())

    def create(self, name: str) -> None:
        if not self.exists(name):
            with self._client() as client:
                client.create_stream(StreamName=name, ShardCount=2)
                client.get_waiter("stream_exists").wait(StreamName=name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._client() as client:
            for order in orders:
                client.put_record(StreamName=name, PartitionKey=str(order["city"]), Data=text_of(order).encode())

    def drop(self, name: str) -> None:
        if self.exists(name):
            with self._client() as client:
                client.delete_stream(StreamName=name, EnforceConsumerDeletion=True)


class DynamoDb(Scratch):
    """Tables with the key ``id``."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ..systems.aws import aws_client

        values = _values("dynamodb", self, region=self.address, table="orders")
        with aws_client("connectors.dynamodb", "dynamodb", values) as aws:
            yield aws.client

    def exists(self, name: str) -> bool:
        with self._client() as client:
            return any(name in page["TableNames"] for page in client.get_paginator("list_tables").paginate())

    def create(self, name: str) -> None:
        if not self.exists(name):
            key = [{"AttributeName": "id", "KeyType": "HASH"}], [{"AttributeName": "id", "AttributeType": "N"}]
            with self._client() as client:
                settings = {"KeySchema": key[0], "AttributeDefinitions": key[1], "BillingMode": "PAY_PER_REQUEST"}
                client.create_table(TableName=name, **settings)
                client.get_waiter("table_exists").wait(TableName=name)

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._client() as client:
            for order in orders:
                item = {key: {"N" if isinstance(value, int) else "S": str(value)} for key, value in order.items()}
                client.put_item(TableName=name, Item=item)

    def drop(self, name: str) -> None:
        if self.exists(name):
            with self._client() as client:
                client.delete_table(TableName=name)


class Redis(Scratch):
    """Streams, and the hashes whose keys begin with the name."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ..systems.redis.connection import RedisClient

        values = _values("redis", self, url=self.address, stream="orders", group="orders", stateLocation="/")
        redis = RedisClient("connectors.redis", values)
        try:
            with redis.errors():
                yield redis.client
        finally:
            redis.close()

    def _keys(self, client: Any, name: str) -> Iterator[Any]:
        yield from client.scan_iter(name)
        yield from client.scan_iter(f"{name}:*")

    def exists(self, name: str) -> bool:
        with self._client() as client:
            return next(self._keys(client, name), None) is not None

    def create(self, name: str) -> None:
        """The first entry makes it."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        with self._client() as client, client.pipeline(transaction=False) as pipeline:
            for order in orders:
                pipeline.xadd(name, {"id": "?"} if is_cut_off(order) else {key: str(value) for key, value in order.items()})
            pipeline.execute()

    def drop(self, name: str) -> None:
        with self._client() as client:
            for key in list(self._keys(client, name)):
                client.delete(key)


class Search(Scratch):
    """Indexes of Elasticsearch or OpenSearch."""

    @contextlib.contextmanager
    def _client(self) -> Iterator[Any]:
        from ..systems.elasticsearch.client import SearchClient

        client = SearchClient("connectors.elasticsearch", _values("elasticsearch", self, hosts=self.address, index="orders"))
        try:
            yield client
        finally:
            client.close()

    def exists(self, name: str) -> bool:
        from ..systems.elasticsearch.client import NotFound

        with self._client() as client:
            try:
                client.ask("GET", f"/{name}")
            except NotFound:
                return False
            return True

    def create(self, name: str) -> None:
        kinds = {"id": "long", "city": "keyword", "cents": "long", "at": "date"}
        mapping = {"properties": {key: {"type": kind} for key, kind in kinds.items()}}
        if not self.exists(name):
            with self._client() as client:
                client.ask("PUT", f"/{name}", {"mappings": mapping})

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from ..systems.elasticsearch.client import NDJSON

        lines = [json.dumps(line) for order in orders for line in ({"index": {"_id": str(order["id"])}}, dict(order))]
        body = "".join(f"{line}\n" for line in lines).encode()
        with self._client() as client:
            answer = client.loads(client.request("POST", f"/{name}/_bulk?refresh=true", body, NDJSON))
        if answer["errors"]:
            raise Transient(f"{name} has not taken all orders: {json.dumps(answer)[:300]}")

    def drop(self, name: str) -> None:
        if self.exists(name):
            with self._client() as client:
                client.ask("DELETE", f"/{name}")


class Jdbc(Scratch):
    """Tables with the key ``id``."""

    def url(self) -> str:
        return self.address

    def login(self) -> Mapping[str, str]:
        """The options of the connector that reach the database."""
        return self.options

    @contextlib.contextmanager
    def connected(self) -> Iterator[tuple[Any, Any]]:
        """A connection and its dialect."""
        from ..systems.jdbc.connection import pooled_connection

        known = {name: value for name, value in self.login().items() if name in ("user", "password") or "." in name}
        source: Any = source_class("jdbc").of({"url": self.url(), "dbtable": "orders", **known})
        dialect = source.dialect()
        with pooled_connection(dialect) as connection:
            yield connection, dialect

    def exists(self, name: str) -> bool:
        from ..systems.jdbc.target import table_of

        with self.connected() as (connection, dialect):
            return bool(dialect.columns(connection, table_of(name, dialect)))

    def create(self, name: str) -> None:
        import pyarrow as pa

        from ..systems.jdbc.target import table_of

        kinds = {"city": pa.string(), "cents": pa.int64(), "at": pa.timestamp("us", "UTC")}
        with self.connected() as (connection, dialect):
            columns = [f"{dialect.quote('id')} {dialect.sql_type(pa.int64(), key=True)} PRIMARY KEY"]
            columns += [f"{dialect.quote(column)} {dialect.sql_type(kind)}" for column, kind in kinds.items()]
            table = dialect.table(table_of(name, dialect))
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})")

    def put(self, name: str, orders: Sequence[Order]) -> None:
        import pyarrow as pa

        from ..systems.jdbc.column_types import as_python
        from ..systems.jdbc.target import table_of

        with self.connected() as (connection, dialect), connection.transaction():
            sql = dialect.insert_values(table_of(name, dialect), ["id", "city", "cents", "at"])
            connection.many(sql, as_python(pa.RecordBatch.from_pylist(table_rows(orders)), plain=dialect.plain_values))

    def drop(self, name: str) -> None:
        from ..systems.jdbc.target import table_of

        with self.connected() as (connection, dialect):
            connection.execute(f"DROP TABLE IF EXISTS {dialect.table(table_of(name, dialect))}")


class Changes(Jdbc):
    """Tables of a PostgreSQL whose log is followed; ``options`` are the pipeline's parameters for database, user and password.

    Each :meth:`put` also updates some orders and deletes some.
    """

    def url(self) -> str:
        host, _, port = self.address.partition(":")
        return f"jdbc:postgresql://{host}:{port or 5432}/{self.options.get('database_dbname', 'postgres')}"

    def login(self) -> Mapping[str, str]:
        names = {"user": "database_user", "password": "database_password"}
        return {name: self.options[widget] for name, widget in names.items() if self.options.get(widget)}

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from ..systems.jdbc.target import table_of

        with self.connected() as (connection, dialect):
            table = dialect.table(table_of(name, dialect))
            connection.execute(f"UPDATE {table} SET cents = cents + 1 WHERE id % 10 = 3")
            connection.execute(f"DELETE FROM {table} WHERE id % 10 = 4")
        super().put(name, [{**order, "cents": abs(order["cents"])} for order in orders])

    def place(self, name: str) -> str:
        return f"public.{name}"


class Slots(Changes):
    """The slots of pipelines, and the publications of the same names. A slot that nobody reads fills the database's disk."""

    def exists(self, name: str) -> bool:
        slot, publication = self._rows("SELECT 1", name), f"SELECT 1 FROM pg_publication WHERE pubname = '{_slot(name)}'"
        with self.connected() as (connection, _):
            return bool(slot or connection.rows(publication))

    def create(self, name: str) -> None:
        """The pipeline makes it."""

    def drop(self, name: str) -> None:
        with self.connected() as (connection, dialect):
            connection.execute(f"DROP PUBLICATION IF EXISTS {dialect.quote(_slot(name))}")
        self._rows("SELECT pg_terminate_backend(active_pid)", name, "AND active")
        _wait_until(lambda: self._is_gone(name), f"the end of the slot {_slot(name)}")

    def _is_gone(self, name: str) -> bool:
        self._rows("SELECT pg_drop_replication_slot(slot_name)", name, "AND NOT active")
        return not self._rows("SELECT 1", name)

    def _rows(self, select: str, name: str, where: str = "") -> Sequence[Any]:
        with self.connected() as (connection, _):
            text = f"{select} FROM pg_replication_slots WHERE slot_name = '{_slot(name)}' {where}"
            return connection.rows(text)  # type: ignore[no-any-return]


def _slot(pipeline: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in pipeline.lower())


class Files(Scratch):
    """Parquet files in a folder for each name, below the folder that ``address`` names, on any storage."""

    batch_limit = "maxFilesPerTrigger"

    def _storage(self) -> Any:
        from ..storage.location import storage_of

        root = self.address if "*" not in self.address else self.address[: self.address.index("*")].rpartition("/")[0]
        return storage_of(root.rstrip("/"), json.loads(self.options.get("storageOptions", "{}")))

    def place(self, name: str) -> str:
        return f"{self._storage().root}/{name}/*.parquet"

    def target_place(self, name: str) -> str:
        return f"{self._storage().root}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self._storage().items(name))

    def create(self, name: str) -> None:
        """The first file makes it."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self._storage().replace(f"{name}/{orders[0]['id']:09}.parquet", parquet(orders))

    def drop(self, name: str) -> None:
        self._storage().delete_folder(name)


class Lines(Scratch):
    """A growing file for each name, in the folder that ``address`` names."""

    batch_limit = "maxBytesPerTrigger"
    is_ascii = False

    def place(self, name: str) -> str:
        return f"{self._folder}/{name}.jsonl"

    @property
    def _folder(self) -> Path:
        path = Path(self.address)
        return path.parent if "*" in path.name else path

    def exists(self, name: str) -> bool:
        return self._file(name).exists()

    def create(self, name: str) -> None:
        """The first line makes it."""

    def put(self, name: str, orders: Sequence[Order]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._file(name).open("a") as file:
            file.writelines(f"{text_of(order, is_ascii=self.is_ascii)}\n" for order in orders)

    def drop(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return Path(self.place(name))


class Delta(Files):
    """Tables that are folders below ``address``, on any storage."""

    batch_limit = "maxBytesPerTrigger"

    def place(self, name: str) -> str:
        return f"{self.address}/{name}"

    target_place = place

    def put(self, name: str, orders: Sequence[Order]) -> None:
        from pyspark.sql import SparkSession

        rows = [(o["id"], o["city"], o["cents"], datetime.datetime.fromisoformat(o["at"])) for o in orders]
        frame = SparkSession.active().createDataFrame(rows, COLUMNS)
        frame.coalesce(1).write.format("delta").mode("append").save(self.place(name))


SCRATCH: Final[Mapping[str, Callable[[str, Mapping[str, str]], Scratch]]] = {
    "cdc": Changes,
    "delta": Delta,
    "dynamodb": DynamoDb,
    "elasticsearch": Search,
    "files": Files,
    "jdbc": Jdbc,
    "kafka": Kafka,
    "kinesis": Kinesis,
    "lines": Lines,
    "redis": Redis,
}
"""The systems, by name."""


def table_rows(orders: Sequence[Order]) -> list[dict[str, Any]]:
    """Orders whose times are times."""
    return [{**order, "at": datetime.datetime.fromisoformat(order["at"])} for order in orders]


def parquet(orders: Sequence[Order]) -> bytes:
    """A Parquet file of orders."""
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table_rows(orders)), content)
    return content.getvalue()


def is_cut_off(order: Order) -> bool:
    """True for an order that a system which takes any bytes gets without its end."""
    return bool(order["id"] % 100 == 13)


def text_of(order: Order, *, is_ascii: bool = False) -> str:
    """An order as JSON, or the beginning of it."""
    text = json.dumps(order, ensure_ascii=is_ascii)
    return text[:20] if is_cut_off(order) else text


def _values(system: str, scratch: Scratch, **options: str) -> Any:
    """The options of the system's source, those of ``scratch`` that it knows included."""
    kind = source_class(system)
    known = kind.known_options()
    more = {name: value for name, value in scratch.options.items() if known.knows(name)}
    return kind.of({**more, **options}).values


def _wait_until(is_true: Callable[[], bool], what: str) -> None:
    until = machine.monotonic() + _READY_SECONDS
    while not is_true():
        if machine.monotonic() > until:
            raise ConnectorError(f"{what} is not there {_READY_SECONDS:g} s after it was made")
        machine.sleep(0.1)
