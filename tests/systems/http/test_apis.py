"""The configurations in notebooks/pipelines/apis, played against answers written after the documentation of each API."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import jmespath
import orjson
import pyarrow as pa
import pytest

from connectors.systems.http import HttpSource
from connectors.testing import SourceContext
from connectors.testing.servers import RecordedApi
from connectors.testing.servers.fault_proxy import Seen
from connectors.testing.source_suite import SourceQuery

from .answers import QUICK, Rows

APIS = Path(__file__).parents[3] / "notebooks" / "pipelines" / "apis"
RECORDINGS = Path(__file__).parent / "recordings"
TOKEN = "t0ken-of-the-test"
POSITIONS: Mapping[str, Mapping[str, str]] = {
    "airtable": {"records": "2026-01-05T09:09:30.250Z"},
    "github": {"issues": "2026-01-05T16:15:10Z", "comments": "2026-01-05T09:55:00Z"},
    "notion": {"pages": "2026-01-05T09:25:00.000Z", "trash": "2026-01-05T07:00:00.000Z"},
    "pagerduty": {"log_entries": "2026-01-05T09:00:00Z"},
    "shopify": {"products": "2026-01-05T09:25:00-05:00", "deletions": "2026-01-05T07:55:00-05:00"},
    "slack": {"messages": "1767514100.0005"},
    "socrata": {"crimes": "2026-01-05T09:00:00.456Z"},
    "stripe": {"charges": "1767601500", "events": "1767600300"},
    "wikimedia": {"changes": "2026-01-05T08:55:01Z"},
    "zendesk": {"tickets": "1767599800"},
}
"""The position in the requests of the second sweep, by configuration and resource."""

DELETIONS: Mapping[str, Mapping[str, str]] = {
    "notion trash": {"id": "59833787-2cf9-4fdf-8782-e53db20768a2", "in_trash": "true"},
    "shopify deletions": {"subject_id": "921728737", "verb": "destroy"},
    "slack messages": {"ts": "1767600060.000300", "subtype": "tombstone"},
    "stripe events": {"id": "evt_1Qf", "type": "customer.deleted"},
    "wikimedia changes": {"title": "Café", "logaction": "delete"},
    "zendesk tickets": {"id": "35438", "status": "deleted"},
}
"""What the row of a deletion has, where the API tells of it."""


class Played(SourceContext):
    """A resource of a configuration, at an address of its own; each column is text."""

    source = HttpSource

    def __init__(self, folder: Path, config: Mapping[str, Any], url: str, resource: str, columns: list[str]) -> None:
        super().__init__(folder)
        self.schema = pa.schema([(name, pa.string()) for name in columns])  # type: ignore[misc]
        parts = urlsplit(config["config"]["baseUrl"])
        own = {"config": {**config["config"], "baseUrl": f"{url}{parts.path}"}, "resource": resource}
        fast = {"stateLocation": str(folder / "log"), "pollInterval": "20ms", "drainTimeout": "20ms", "rateLimit": "1000"}
        values = {**config, **own, **fast, **QUICK}
        self.values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}

    def options(self) -> dict[str, str]:
        return dict(self.values)

    def write(self, count: int) -> Rows:
        raise NotImplementedError


def text_of(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def request(seen: Seen | Mapping[str, Any]) -> str:
    """The parts of a request that its answer depends on, as text."""
    if isinstance(seen, Seen):
        method, path, body = seen.method, seen.path, json.loads(seen.body) if seen.body else None
    else:
        method, path, body = seen["method"], seen["path"], seen.get("body")
    return json.dumps([method, urlsplit(path).path, sorted(parse_qsl(urlsplit(path).query)), body], sort_keys=True)


def records(path: str | None, exchanges: list[Any], requests: set[str]) -> list[Any]:
    """The records in the answers to the requests, without those that are in another one as they are."""
    answers = [each["response"]["body"] for each in exchanges if request(each["request"]) in requests]
    found = [record for answer in answers for record in jmespath.search(path or "@", answer) or []]
    return list({json.dumps(record): record for record in found}.values())


def test_each_configuration_has_its_recorded_answers() -> None:
    assert sorted(file.stem for file in APIS.iterdir()) == sorted(file.stem for file in RECORDINGS.iterdir())
    assert sorted(POSITIONS) == sorted(file.stem for file in APIS.iterdir())


@pytest.mark.parametrize("name", POSITIONS)
def test_each_state_of_each_record_is_read_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_TOKEN", TOKEN)
    config = json.loads((APIS / f"{name}.json").read_text())
    resources = {each["name"]: each for each in config["config"]["resources"]}
    assert config["resource"] in resources
    assert resources.keys() == POSITIONS[name].keys()
    asked: set[str] = set()
    with RecordedApi(RECORDINGS / f"{name}.json") as api:
        exchanges = json.loads((RECORDINGS / f"{name}.json").read_text().replace("{api}", api.url))
        for resource, declared in resources.items():
            columns = list(dict.fromkeys(key for each in records_of_all(declared, exchanges) for key in each))
            system, log, got = Played(tmp_path / resource, config, api.url, resource, columns), [], Rows()
            api.seen.clear()
            for _ in range(5):
                got += SourceQuery(system, maxRowsPerTrigger="2").rest(log)
            assert api.missing == []
            requests = {request(seen) for seen in api.seen}
            states = records(declared.get("records"), exchanges, requests)
            expected = [{column: text_of(state.get(column)) for column in columns} for state in states]
            assert sorted(map(json.dumps, got)) == sorted(map(json.dumps, expected))
            assert any(POSITIONS[name][resource] in each for each in requests)
            deletion = DELETIONS.get(f"{name} {resource}", {})
            assert not deletion or any(deletion.items() <= row.items() for row in got)
            assert name == "wikimedia" or any(TOKEN in value or "Basic" in value for value in api.seen[0].headers.values())
            asked |= requests
    assert asked == {request(each["request"]) for each in exchanges}, "each recorded answer was needed"


def records_of_all(declared: Mapping[str, Any], exchanges: list[Any]) -> list[Any]:
    return records(declared.get("records"), exchanges, {request(each["request"]) for each in exchanges})


@pytest.mark.soak
@pytest.mark.spark
def test_workers_of_spark_reach_a_recording_and_columns_follow_from_its_records(spark: Any, tmp_path: Path) -> None:
    config = json.loads((APIS / "github.json").read_text())
    config["auth"]["token"] = TOKEN  # the environment of the workers is older than this test
    with RecordedApi(RECORDINGS / "github.json") as api:
        options = Played(tmp_path, config, api.url, "issues", []).options()
        for _ in range(3):
            issues = spark.readStream.format("connectors.http").options(**options).load()
            writer = issues.select("number", "user.login", "updated_at").writeStream.format("parquet")
            writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
            writer.start(str(tmp_path / "out")).awaitTermination()
        assert api.missing == []
    rows = spark.read.parquet(str(tmp_path / "out")).orderBy("number", "updated_at").collect()
    assert [(row["number"], row["login"]) for row in rows] == [
        (1, "octocat"), (1, "octocat"), (2, "monalisa"), (4, "octocat"), (5, "ghost"),
    ]  # fmt: skip
