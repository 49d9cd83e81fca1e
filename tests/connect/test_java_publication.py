"""Whole schemas of PostgreSQL: a publication without the tables that are created later is refused at the start."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.connect.java.source_host import JavaSourceHost
from connectors.core import Fatal
from connectors.testing.servers import PostgresServer
from tests.connect.java_sources import DEBEZIUM, poll, rows_of, settings, started
from tests.servers import required
from tests.systems.cdc.shop import Shop

pytestmark = pytest.mark.server
REFUSALS = {
    "filtered": ("filtered", "SELECT 1", "autocreate.mode=filtered publishes the tables that there are at the start"),
    "none": ("disabled", "SELECT 1", 'does not exist(.|\n)*CREATE PUBLICATION "{0}" FOR TABLES IN SCHEMA "public"'),
    "tables": ("disabled", "CREATE PUBLICATION {0} FOR TABLE orders", "has no whole schema public: the rows of a table"),
    "another schema": ("all_tables", "CREATE PUBLICATION {0} FOR TABLES IN SCHEMA other", 'ADD TABLES IN SCHEMA "public"'),
    "inserts": ("disabled", "CREATE PUBLICATION {0} FOR ALL TABLES WITH (publish = 'insert')", "leaves out inserts, updates"),
}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    database = Shop(required(PostgresServer), tmp_path)
    database.sql("CREATE SCHEMA other")
    yield database
    database.drop()


def schemas(shop: Shop, names: str = "public", mode: str = "disabled") -> dict[str, str]:
    config = shop.config(schema__include__list=names, publication__autocreate__mode=mode)
    del config["table.include.list"]
    return config


@pytest.mark.parametrize("name", REFUSALS)
def test_a_publication_without_later_tables_is_refused_with_the_statement_that_mends_it(shop: Shop, name: str) -> None:
    mode, statement, text = REFUSALS[name]
    shop.sql(statement.format(shop.name))
    with pytest.raises(Fatal, match=text.format(shop.name)), started(schemas(shop, mode=mode), DEBEZIUM):
        pass


def test_a_schema_that_is_not_there_is_named_beside_those_that_are(shop: Shop) -> None:
    text = r"has no schema sales(.|\n)*there are other, public"
    with pytest.raises(Fatal, match=text), started(schemas(shop, "sales"), DEBEZIUM):
        pass


@pytest.mark.parametrize(
    ("mode", "publication"), [("disabled", "TABLES IN SCHEMA other, public"), ("disabled", "ALL TABLES"), ("all_tables", "")]
)
def test_a_publication_with_later_tables_has_their_first_rows(shop: Shop, mode: str, publication: str) -> None:
    shop.sql(f"CREATE PUBLICATION {shop.name} FOR {publication}" if publication else "SELECT 1")
    with started(schemas(shop, "other, pub.*", mode), DEBEZIUM) as host:
        poll(host, 200)
        shop.sql("CREATE TABLE other.users (id int PRIMARY KEY)", "INSERT INTO other.users VALUES (7)")
        (row,) = rows_of(poll(host, 1))
    assert json.loads(row["value"])["payload"]["after"] == {"id": 7}


SILENT = {
    "the root": ("false", "public.notes", "no change of public.visits, which(.|\n)*SET .publish_via_partition_root"),
    "partitions": ("true", "public.notes", "no change of public.visits_1, which would stay(.|\n)*name these tables"),
    "unlogged": ("true", r"public\.visits_\d+", "no change of public.notes, which would stay"),
    "nothing by root": ("true", r"public\.visits_\d+, public.notes", None),
    "nothing by partition": ("false", "public.visits, public.notes", None),
}


@pytest.mark.parametrize("name", SILENT)
def test_a_table_whose_changes_the_log_does_not_tell_is_not_followed_by_its_snapshot_alone(shop: Shop, name: str) -> None:
    by_root, excluded, text = SILENT[name]
    shop.sql(
        "CREATE UNLOGGED TABLE notes (id int PRIMARY KEY)",
        "CREATE TABLE visits (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (100)",
        f"CREATE PUBLICATION {shop.name} FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = {by_root})",
    )
    host = JavaSourceHost(settings({**schemas(shop), "table.exclude.list": excluded}, DEBEZIUM))
    with contextlib.closing(host), contextlib.nullcontext() if text is None else pytest.raises(Fatal, match=text):
        host.check_first_start()


def test_partitions_that_come_later_are_followed_by_the_table_above_them(shop: Shop) -> None:
    shop.sql(
        "DROP TABLE orders",
        "CREATE TABLE visits (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        f"CREATE PUBLICATION {shop.name} FOR TABLES IN SCHEMA public WITH (publish_via_partition_root = true)",
        "CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (0) TO (100)",
        "INSERT INTO visits VALUES (1)",
    )
    with started({**schemas(shop), "table.exclude.list": r"public\.visits_\d+"}, DEBEZIUM) as host:
        records = poll(host, 1)
        shop.sql("CREATE TABLE visits_2 PARTITION OF visits FOR VALUES FROM (100) TO (200)", "INSERT INTO visits VALUES (101)")
        records += poll(host, 1)
    rows = [(row["topic"], json.loads(row["value"])["payload"]["after"]["id"]) for row in rows_of(records)]
    assert rows == [("shop.public.visits", 1), ("shop.public.visits", 101)]
