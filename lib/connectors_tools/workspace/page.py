"""The page of a run in a workspace: the same as that of a local run, made from what the Jobs service tells."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..bundle.configuration import as_text
from ..report import AttemptRecord, RunRecord, TaskRecord, write_page
from . import runs
from .client import WorkspaceError, refusals

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

    from .target import Target


_NOTE: Final = "The service tells nothing of queries, checks and dead letters: the notebooks show them, with their pictures."


def write_run_page(target: Target, run: runs.RunStatus) -> Path:
    """Writes ``runs/<job>/<run>/index.html`` beside the bundle, the exported notebooks beside it; returns the page."""
    folder = target.bundle.root / "runs" / _key(target, run) / f"workspace-{run.run_id}"
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(record_of(target, run, folder), folder / "index.html")


def record_of(target: Target, run: runs.RunStatus, folder: Path) -> RunRecord:
    """A run as its page shows it; the notebooks of its tasks are exported into ``folder``."""
    key = _key(target, run)
    job = target.bundle.jobs.get(key)
    return RunRecord(
        job=key,
        run=str(run.run_id),
        state=run.state,
        started=run.started.timestamp(),
        seconds=run.seconds,
        tasks=[_task(target.client, task, folder) for task in sorted(run.tasks, key=lambda task: task.started or float("inf"))],
        description=as_text(job.config.get("description") or "") if job else "",
        target=target.bundle.target,
        where=str(target.client.config.host),
        link=run.link,
        note=_NOTE,
        parameters=dict(run.parameters),
    )


def _task(client: WorkspaceClient, task: runs.TaskStatus, folder: Path) -> TaskRecord:
    """Tasks that never began have no attempt; of the others the service tells the last one."""
    attempts = []
    if task.started:
        error, said = runs.failure(client, task) if task.is_over else ("", "")
        error = "" if task.state in runs.GOOD_STATES else error or task.message
        exported = _exported(client, task, folder)
        label = f"the notebook of {task.key}" if exported else f"{task.key} in the workspace"
        link = exported or task.link
        attempts = [AttemptRecord(label, 1, task.state, task.started, task.seconds, error, said, link=link)]
    return TaskRecord(task.key, task.state, task.kind, dict(task.depends_on), attempts=attempts)


def _exported(client: WorkspaceClient, task: runs.TaskStatus, folder: Path) -> str:
    """The file with the notebook of a task as the service exports it; empty where it has none."""
    from databricks.sdk.service.jobs import ViewsToExport

    try:
        with refusals(f"the notebook of {task.key}"):
            views = client.jobs.export_run(task.run_id, views_to_export=ViewsToExport.CODE).views or []
    except WorkspaceError:  # a condition or a loop, or a task that is still running
        return ""
    content = next((view.content for view in views if view.content), None)
    if content is None:
        return ""
    file = folder / f"{task.key}.html"
    file.write_text(content, encoding="utf-8")
    return file.name


def _key(target: Target, run: runs.RunStatus) -> str:
    """The job's key in the bundle; for a run of no job of this target, the number of its job."""
    names = {job.name: key for key, job in target.bundle.jobs.items()}
    return names.get(run.name, f"job-{run.job_id}")
