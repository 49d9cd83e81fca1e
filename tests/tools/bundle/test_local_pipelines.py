"""What a local run makes of a declarative pipeline's configuration."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors_tools.bundle import Reporter, declarative, load, run_job, tasks
from connectors_tools.bundle.configuration import Findings
from connectors_tools.bundle.declarative import Pipeline, pipeline

from .conftest import Workbench


def configured(folder: Path, **configuration: Any) -> dict[str, str]:
    config = {"schema": "shop", "libraries": [{"file": {"path": "/orders.py"}}], "configuration": configuration}
    texts: dict[str, str] = pipeline("orders", config, Findings()).specification(folder)["configuration"]
    return texts


def test_a_configuration_has_the_texts_that_a_workspace_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path))
    texts = configured(tmp_path, first=True, last=None, limit=3, path="/mnt/data")
    assert texts == {"first": "true", "last": "", "limit": "3", "path": "/mnt/data"}


def test_a_configuration_may_name_a_file_or_a_pattern_in_a_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path))
    volume = tmp_path / "Volumes" / "main" / "shop" / "data"
    names = {"file": "ids.csv", "coming": "in/orders.json", "pattern": "in/*.json"}
    volume.mkdir(parents=True)
    (volume / "ids.csv").write_text("1")
    places = configured(tmp_path, volume="/Volumes/main/shop/data", **{
        key: f"/Volumes/main/shop/data/{name}" for key, name in names.items()
    })  # fmt: skip
    assert places == {"volume": str(volume), **{key: f"{volume}/{name}" for key, name in names.items()}}
    assert [path.name for path in volume.iterdir()] == ["ids.csv"], "nothing is made in its place"


@pytest.mark.parametrize(("text", "names"), [("false", []), ("true", ["*"])])
def test_a_full_refresh_is_asked_for_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, names: list[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(tasks, "run_pipeline", lambda pipeline, folder, refresh, *more: asked.append(refresh))
    bench = Workbench(tmp_path)
    variables = {"full": {"default": False}}
    bench.write("databricks.yml", {"bundle": {"name": "test"}, "include": ["jobs/*.yml"], "variables": variables,
                                   "targets": {"dev": {"default": True}}})  # fmt: skip
    bench.write("tables/orders.py", "")
    spec = {"pipeline_id": "${resources.pipelines.orders.id}", "full_refresh": "${var.full}"}
    jobs = {"job": {"tasks": [{"task_key": "run", "pipeline_task": spec}]}}
    pipelines = {"orders": {"libraries": [{"file": {"path": "../tables/orders.py"}}]}}
    bench.write("jobs/job.yml", {"resources": {"pipelines": pipelines, "jobs": jobs}})
    run_job(load(tmp_path, None, {"full": text}), "job", reporter=Reporter(sys.stderr))
    assert asked == [names]


def test_each_run_has_a_server_of_its_own_that_nobody_else_reaches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers: list[dict[str, Any]] = []

    @contextlib.contextmanager
    def noted(settings: dict[str, Any]) -> Iterator[None]:
        servers.append({name: settings[name] for name in settings if name.startswith("spark.connect.")})
        yield

    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path))
    monkeypatch.setattr(declarative, "_COMMAND", "print({port})")
    monkeypatch.setattr(declarative, "submit_file", noted)
    monkeypatch.setattr(declarative.Pipeline, "settings", lambda pipeline, log: {})
    ports = []
    for name in ("first", "second"):
        with declarative.pipeline_process(Pipeline(name, (), "main", "shop", {}), tmp_path / name) as process:
            assert process.stdout is not None
            ports.append(int(process.stdout.read().split()[-1]))
    assert [server["spark.connect.grpc.binding.port"] for server in servers] == ports
    assert {server["spark.connect.grpc.binding.address"] for server in servers} == {"127.0.0.1"}
    assert ports[0] != ports[1]


def test_a_configuration_which_may_have_secrets_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONNECTORS_VOLUMES", str(tmp_path))
    monkeypatch.setattr(declarative, "_COMMAND", "")
    for name in ("use_java", "prepare_environment"):
        monkeypatch.setattr(declarative, name, lambda: None)
    monkeypatch.setattr(declarative.Pipeline, "settings", lambda pipeline, log: {})
    defined = pipeline("orders", {"libraries": [{"file": {"path": "/orders.py"}}]}, Findings())
    with declarative.pipeline_process(defined, tmp_path / "run") as process:
        process.wait()
    assert (tmp_path / "run" / "spark-pipeline.yml").stat().st_mode & 0o077 == 0
