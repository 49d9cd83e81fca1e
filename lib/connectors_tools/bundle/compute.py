"""Whether the compute that a job pins for a task has the Spark that the task's notebook needs.

The table of environments and runtimes is in :mod:`connectors.ground.runtime`. The local runner does not ask: it has a Spark of
its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from connectors.ground.runtime import ENVIRONMENTS, RUNTIMES, Feature, Version, compute_for, dotted, spark_of

from .configuration import Config, Findings
from .model import Job
from .notebooks import Notebook
from .resources import every_task

_CLUSTER: Final = re.compile(r"(\d+)\.[\dx]")
"""The start of a cluster's ``spark_version``, such as ``19.x-scala2.13``: a version of Databricks Runtime."""


def check_compute(job: Job, notebooks: Mapping[str, Notebook], findings: Findings) -> None:
    """Adds a problem for each task whose environment or cluster is too old for its notebook, a note where none is pinned."""
    for entry in every_task(job.config):
        notebook = notebooks.get(str(entry.get("task_key")))
        features = notebook.features() if notebook else []
        if not notebook or not features:
            continue
        where, newest = f"{job.key}.{entry['task_key']}", max(features, key=lambda feature: feature.spark)
        compute = _compute(job, entry)
        if compute is None:
            text = f"pins no environment_version and no spark_version for {notebook.path.name}; {_needs(newest)}."
            findings.note(where, text)
        elif compute[1] < newest.spark:
            name, spark = compute
            text = f"runs {notebook.path.name} in {name}, which has Spark {dotted(spark)}; {_needs(newest)}."
            findings.problem(where, f"{text} Take {compute_for(newest)}, or a later one.")


def _needs(feature: Feature) -> str:
    return f"{feature.name} needs Spark {dotted(feature.spark)} ({feature.need})"


def _compute(job: Job, entry: Config) -> tuple[str, Version] | None:
    """The name and the Spark of what a task runs on; ``None`` where the job does not say."""
    if key := entry.get("environment_key"):
        spec = _declared(job, "environments", "environment_key", key).get("spec") or {}
        version = str(spec.get("environment_version") or spec.get("client") or "")
        return (f'environment "{key}" (version {version})', spark_of(ENVIRONMENTS, int(version))) if version.isdigit() else None
    cluster = entry.get("new_cluster")
    if key := entry.get("job_cluster_key"):
        cluster = _declared(job, "job_clusters", "job_cluster_key", key).get("new_cluster")
    version = str((cluster or {}).get("spark_version") or "")
    match = _CLUSTER.match(version)
    return (f"a cluster of {version}", spark_of(RUNTIMES, int(match[1]))) if match else None


def _declared(job: Job, section: str, name: str, key: Any) -> Config:
    entries = [entry for entry in job.config.get(section) or [] if isinstance(entry, dict)]
    return next((entry for entry in entries if entry.get(name) == key), {})
