"""Examines what the jobs of a target need of their workspace, and whether it is there. Looks only; nothing is changed.

On the compute of the jobs, a file is created in each volume and removed.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from databricks.sdk.errors import NotFound

from connectors.ground.runtime import dotted, version_of
from connectors.workbench.doctor import Finding

from ..bundle import Findings, validate
from ..bundle.checks import notebooks_of
from ..bundle.compute import check_compute
from ..bundle.configuration import Config
from ..bundle.model import Job
from ..bundle.notebooks import SECRET
from ..bundle.resources import every_task
from . import runs
from .client import WorkspaceError, refusals
from .settings import fingerprint, job_settings, uploaded_path
from .target import Target

_VOLUME: Final = re.compile(r"/Volumes/([^/\s\"']+)/([^/\s\"']+)/([^/\s\"']+)")
_PROBE: Final = "lib/connectors/workbench/probe"
_DEPLOY_FIRST: Final = "the library is tried where it is deployed: python -m connectors deploy, then this again"
_PLACEHOLDER: Final = ("scope", "key")
"""The scope and the key by which a text says what a reference looks like: ``{{secrets/scope/key}}``."""
_WRITES: Final = frozenset({"ALL_PRIVILEGES", "WRITE_VOLUME", "MANAGE"})
_COMPUTE: Final = ("environment_key", "existing_cluster_id", "new_cluster", "job_cluster_key")


def examine_target(target: Target, *, compute: bool = False) -> Iterator[Finding]:
    """Everything that the jobs of ``target`` need of the workspace; ``compute`` also starts what each of them runs on."""
    yield Finding("workspace", True, f"{target.client.config.host}, logged in as {target.user}")
    yield from _bundle(target)
    yield _deployed(target)
    yield from _sparks(target)
    yield from _volumes(target)
    yield from _secrets(target)
    yield from _library(target) if compute else _library_not_tried()


def _bundle(target: Target) -> Iterator[Finding]:
    problems = validate(target.bundle).problems
    for problem in problems:
        yield Finding("bundle", False, f"{problem.option}: {problem.text}")
    if not problems:
        yield Finding("bundle", True, f"target {target.bundle.target}, {len(target.bundle.jobs)} jobs, nothing wrong")


def _deployed(target: Target) -> Finding:
    state = target.state()
    if state.exists:
        what = f"{len(state.jobs)} jobs, {len(state.files)} files"
        return Finding("deployment", True, f"{what}, by {state.by} at {state.at}")
    if numbers := target.job_ids(target.bundle.jobs):
        return Finding("deployment", True, f"{len(numbers)} jobs, by the Databricks CLI")
    text = f"not deployed yet; python -m connectors deploy -t {target.bundle.target}"
    return Finding("deployment", False, text, optional=True)


def _sparks(target: Target) -> Iterator[Finding]:
    """Whether the Spark of each job's compute has what its notebooks use; the jobs that are well in one line."""
    well = []
    for job in target.bundle.jobs.values():
        findings = Findings()
        try:
            notebooks = dict(notebooks_of(job, Findings()))  # the bundle's own findings say what is wrong with one
            check_compute(_with_known_clusters(target, job), notebooks, findings)
        except WorkspaceError as refused:
            yield Finding("spark", False, f"{job.key} {' '.join(str(refused).split())}")
            continue
        for problem in findings.problems:
            yield Finding("spark", False, f"{problem.option} {problem.text}")
        for note in findings.notes:
            yield Finding("spark", False, f"{note.option} {note.text}", optional=True)
        if not findings.problems and not findings.notes:
            well.append(job.key)
    if well:
        yield Finding("spark", True, f"new enough where it is pinned by {', '.join(well)}")


def _with_known_clusters(target: Target, job: Job) -> Job:
    """The job with the runtime of each existing cluster in place of the cluster's id."""
    config = copy.deepcopy(job.config)
    for entry in every_task(config):
        if number := entry.pop("existing_cluster_id", None):
            with refusals(f"cluster {number}"):
                entry["new_cluster"] = {"spark_version": target.client.clusters.get(str(number)).spark_version}
    return replace(job, config=config)


def _volumes(target: Target) -> Iterator[Finding]:
    """Each volume that a parameter or a variable names, with the schema and the catalog that hold it."""
    catalog_of = target.client.catalogs.get
    seen: dict[str, bool] = {}
    for catalog, schema, volume in sorted(volumes_of(target)):
        schema_name, full = f"{catalog}.{schema}", f"{catalog}.{schema}.{volume}"
        steps: list[tuple[str, str, Callable[[str], Any], str]] = [
            ("catalog", catalog, catalog_of, f"another one by --var catalog=…, or: CREATE CATALOG {catalog}"),
            ("schema", schema_name, target.client.schemas.get, f"CREATE SCHEMA {schema_name}"),
            ("volume", full, target.client.volumes.read, f"CREATE VOLUME {full}"),
        ]
        for kind, name, read, way_out in steps:
            if name not in seen:
                finding = _exists(kind, name, read, way_out)
                seen[name] = finding.ok
                yield finding
            if not seen[name]:
                break
        else:
            yield _writable(target, full)


def volumes_of(target: Target) -> set[tuple[str, str, str]]:
    """Catalog, schema and name of each volume in the settings of the jobs and pipelines."""
    return set(_VOLUME.findall(_configurations(target)))


def _configurations(target: Target) -> str:
    configs = [*(job.config for job in target.bundle.jobs.values()), *target.bundle.pipelines.values()]
    return json.dumps(configs, default=str)


def _exists(kind: str, name: str, read: Callable[[str], Any], way_out: str) -> Finding:
    try:
        with refusals(f"{kind} {name}"):
            try:
                read(name)
            except NotFound:
                return Finding(kind, False, f"{name} does not exist; {way_out}")
    except WorkspaceError as refused:
        return Finding(kind, False, " ".join(str(refused).split()))
    return Finding(kind, True, name)


def _writable(target: Target, full: str) -> Finding:
    way_out = f"GRANT WRITE VOLUME ON VOLUME {full} TO `{target.user}`"
    try:
        with refusals(f"the privileges on {full}"):
            path = f"/api/2.1/unity-catalog/effective-permissions/volume/{full}"
            answer: Any = target.client.api_client.do("GET", path, query={"principal": target.user})
    except WorkspaceError as refused:
        return Finding("volume", False, f"{full}: {' '.join(str(refused).split())}", optional=True)
    assignments = answer.get("privilege_assignments") or []
    privileges = {entry.get("privilege") for grant in assignments for entry in grant.get("privileges") or []}
    if privileges & _WRITES:
        return Finding("volume", True, f"{full} can be written")
    return Finding("volume", False, f"{full} cannot be written by {target.user}; {way_out}")


def _secrets(target: Target) -> Iterator[Finding]:
    """Each secret that a notebook or a job names, by a reference or by ``dbutils.secrets.get``."""
    with refusals("the secret scopes"):
        scopes = {str(scope.name) for scope in target.client.secrets.list_scopes()}
    keys: dict[str, set[str]] = {}
    for scope, key in sorted(_named_secrets(target)):
        if scope not in scopes:
            text = f'scope "{scope}" does not exist; databricks secrets create-scope {scope}'
            yield Finding("secret", False, f"{scope}/{key}: {text}")
            continue
        if scope not in keys:
            with refusals(f"the secret scope {scope}"):
                keys[scope] = {str(entry.key) for entry in target.client.secrets.list_secrets(scope)}
        text = "" if key in keys[scope] else f" does not exist; databricks secrets put-secret {scope} {key}"
        yield Finding("secret", not text, f"{scope}/{key}{text}")


def _named_secrets(target: Target) -> set[tuple[str, str]]:
    secrets = set()
    for job in target.bundle.jobs.values():
        for _, notebook in notebooks_of(job, Findings()):
            secrets |= notebook.secrets()
    secrets |= set(SECRET.findall(_configurations(target)))
    return secrets - {_PLACEHOLDER}


def _library_not_tried() -> Iterator[Finding]:
    text = "not tried; --compute starts the compute of each job and imports connectors there, which may cost a little"
    yield Finding("library", False, text, optional=True)


def _library(target: Target) -> Iterator[Finding]:
    """Imports the library, by a notebook of one cell that was deployed with it, on each kind of compute that a job has.

    The notebook also tries whether the volumes of the jobs can have ledgers, as their mounts are there.
    """
    probe = _exists("library", _probe_path(target), target.client.workspace.get_status, _DEPLOY_FIRST)
    if not probe.ok:
        yield probe
        return
    for names, request in _probes(target):
        what = ", ".join(names)
        try:
            with refusals("the probe"):
                answer: Any = target.client.api_client.do("POST", "/api/2.2/jobs/runs/submit", body=request)
            run = runs.status(target.client, int(answer["run_id"]))
            while not run.is_over:
                time.sleep(1)
                run = runs.status(target.client, run.run_id)
        except WorkspaceError as refused:
            yield Finding("library", False, f"{what}: {' '.join(str(refused).split())}")
            continue
        error, said = runs.failure(target.client, run.tasks[0]) if run.tasks else (run.message, "")
        if run.state != "SUCCESS":
            yield Finding("library", False, f"{what}: {' '.join(error.split())[:300]}  {run.link}")
            continue
        report = json.loads(said)
        spark = dotted(version_of(report["spark"]))
        yield Finding("library", True, f"{what}: Spark {spark}, Python {report['python']}, connectors imported")
        for problem in report["problems"]:
            yield Finding("volume", False, f"{what}: {' '.join(problem.split())}")


def _probe_path(target: Target) -> str:
    return uploaded_path(target.bundle, target.bundle.root / _PROBE)


def _probes(target: Target) -> Iterator[tuple[list[str], Config]]:
    """One request for each kind of compute, with the names of the jobs that have it."""
    path = _probe_path(target)
    folders = [f"/Volumes/{'/'.join(names)}" for names in sorted(volumes_of(target))]
    task_of_probe: Config = {"notebook_path": path, "base_parameters": {"folders": json.dumps(folders)}}
    kinds: dict[str, tuple[list[str], Config]] = {}
    for job in target.bundle.jobs.values():
        settings = job_settings(target.bundle, job, "")
        for task in settings["tasks"]:
            compute: Mapping[str, Any] = {name: task[name] for name in _COMPUTE if name in task}
            if "notebook_task" not in task:
                continue
            shared: Config = {name: settings[name] for name in ("environments", "job_clusters") if name in settings}
            libraries: Config = {"libraries": task["libraries"]} if task.get("libraries") else {}
            probe = {"task_key": "probe", "notebook_task": task_of_probe, **compute, **libraries}
            request: Config = {"run_name": "connectors doctor", "tasks": [probe], **shared, "timeout_seconds": 1800}
            names = kinds.setdefault(fingerprint(request), ([], request))[0]
            if job.key not in names:
                names.append(job.key)
    yield from kinds.values()
