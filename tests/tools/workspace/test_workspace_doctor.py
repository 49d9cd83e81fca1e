"""The doctor of a target finds each thing that is missing, and says what to do."""

from __future__ import annotations

import re
import shutil

import pytest

from connectors.workbench.settings import library

from .conftest import Place

PROBE = "lib/connectors/workbench/probe.ipynb"
READ = 'df = spark.readStream.format("connectors.kafka").option("password", "{{secrets/kv/kafka}}").load()'
ENVIRONMENT = [{"environment_key": "default", "spec": {"environment_version": "6"}}]


@pytest.fixture
def place(place: Place) -> Place:
    place.job("job", place.task("a", READ, 'dbutils.secrets.get("kv", "other")', environment_key="default"),
              environments=ENVIRONMENT, parameters=[{"name": "workdir", "default": "/Volumes/main/sales/data/x"}])  # fmt: skip
    return place


def provide(place: Place) -> None:
    place.workspace.catalog.make_volume("main.sales.data")
    place.workspace.secrets.scopes["kv"] = {"kafka": "1", "other": "2"}


def examined(place: Place, *more: str) -> tuple[int, list[str]]:
    result = place.call("doctor", "-t", "dev", *more)
    return result.exit_code, [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_a_workspace_with_all_that_the_jobs_need_is_well(place: Place) -> None:
    provide(place)
    code, lines = examined(place)
    assert code == 0
    assert "ok volume main.sales.data can be written" in lines
    assert "ok secret kv/kafka" in lines
    assert "ok spark new enough where it is pinned by job" in lines
    assert not [line for line in lines if line.startswith("MISSING")]


def test_a_text_that_says_what_a_reference_looks_like_is_none(place: Place) -> None:
    provide(place)
    place.job("text", place.task("t", 'print("write {{secrets/scope/key}}")'))
    assert not any("scope/key" in line for line in examined(place)[1])


def test_it_changes_nothing(place: Place) -> None:
    examined(place)
    assert {call.split()[0] for call in place.workspace.faults.calls} == {"GET"}


def test_each_miss_has_its_way_out(place: Place) -> None:
    code, lines = examined(place)
    text = "\n".join(lines)
    assert code == 1
    assert "MISSING schema main.sales does not exist; CREATE SCHEMA main.sales" in text
    assert 'MISSING secret kv/kafka: scope "kv" does not exist; databricks secrets create-scope kv' in text
    assert "optional deployment not deployed yet; python -m connectors deploy -t dev" in text
    provide(place)
    del place.workspace.secrets.scopes["kv"]["other"]
    place.workspace.catalog.privileges["main.sales.data"] = ["READ_VOLUME"]
    text = "\n".join(examined(place)[1])
    assert "MISSING secret kv/other does not exist; databricks secrets put-secret kv other" in text
    assert "GRANT WRITE VOLUME ON VOLUME main.sales.data TO `dev.user@example.com`" in text


def test_a_spark_that_is_too_old_is_found_by_environment_and_by_cluster(place: Place) -> None:
    provide(place)
    old = [{"environment_key": "default", "spec": {"environment_version": "4"}}]
    place.job("old", place.task("b", READ, environment_key="default"), environments=old)
    place.job("cluster", place.task("c", READ, existing_cluster_id="0101-abc"))
    place.workspace.clusters.runtimes["0101-abc"] = "17.3.x-scala2.13"
    place.job("gone", place.task("d", READ, existing_cluster_id="nothing"))
    code, lines = examined(place)
    missing = {re.split(r"\W", line.split()[2])[0]: line for line in lines if line.startswith("MISSING spark")}
    assert (code, set(missing)) == (1, {"old", "cluster", "gone"})
    assert "which has Spark 4.0" in missing["old"]
    assert "a cluster of 17.3.x-scala2.13, which has Spark 4.0" in missing["cluster"]
    assert "Cluster nothing does not exist" in missing["gone"]


@pytest.mark.soak
def test_the_library_that_was_deployed_is_the_one_that_runs_and_is_imported_on_the_compute_of_the_jobs(
    place: Place,
) -> None:
    provide(place)
    assert any("MISSING library" in line and "deploy" in line for line in examined(place, "--compute")[1])
    shutil.copytree(
        library() / "connectors", place.root / "lib" / "connectors", ignore=shutil.ignore_patterns("__pycache__")
    )
    place.write("lib/connectors/marker.py", "HERE = 'deployed'")
    notebook = place.task(
        "b", "from connectors.marker import HERE\ndbutils.notebook.exit(HERE)", environment_key="default"
    )
    place.job("second", notebook, environments=ENVIRONMENT)
    place.deploy()
    result = place.call("run", "second", "--on", "workspace")
    assert re.search(r"b  SUCCESS  [\d.]+ s  deployed", result.stdout)
    place.workspace.jobs.runs.clear()
    code, lines = examined(place, "--compute")
    (line,) = (line for line in lines if " library " in line)
    assert (code, line.startswith("ok library job, second: Spark 4.2, Python 3.")) == (0, True)
    assert list(place.workspace.volumes.make("main.sales.data").iterdir()) == [], "the file that was tried is removed"
    assert len(place.workspace.jobs.runs) == 1, "jobs with the same compute share a probe"


def test_a_library_that_cannot_be_imported_there_is_a_miss(place: Place) -> None:
    provide(place)
    notebook = place.root / place.notebook("probe", "raise ImportError('no such package on this runtime')")[3:]
    place.write(PROBE, notebook.read_text())
    place.deploy()
    code, lines = examined(place, "--compute")
    assert (code, any("ImportError: no such package on this runtime" in line for line in lines)) == (1, True)


@pytest.mark.soak
def test_a_volume_that_can_have_no_ledger_there_is_a_miss(place: Place) -> None:
    provide(place)
    report = "{'spark': '4.2.0', 'python': '3.12', 'problems': dbutils.widgets.get('folders').split()}"
    cell = f"import json\ndbutils.widgets.text('folders', '[]')\ndbutils.notebook.exit(json.dumps({report}))"
    place.write(PROBE, (place.root / place.notebook("probe", cell)[3:]).read_text())
    place.deploy()
    code, lines = examined(place, "--compute")
    assert (code, "MISSING volume job: [\"/Volumes/main/sales/data\"]" in lines) == (1, True)
