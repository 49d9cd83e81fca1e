"""The page of a run in a workspace: the same as that of a local run.

It is made from what the Jobs service tells, and from the records that its notebooks have written on a volume.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..bundle.configuration import as_text
from ..report import AttemptRecord, RunRecord, TaskRecord, write_page
from . import runs
from .client import WorkspaceError, refusals
from .task_records import TaskRecord as NotebookRecord
from .task_records import TaskRecords

if TYPE_CHECKING:
    from databricks.sdk import WorkspaceClient

    from .target import Target


_NO_RECORDS: Final = "No record of queries, checks and dead letters was found{}: the notebooks show them, with their pictures."


def write_run_page(target: Target, run: runs.RunStatus) -> Path:
    """Writes ``runs/<job>/<run>/index.html`` beside the bundle, the exported notebooks beside it; returns the page."""
    folder = target.bundle.root / "runs" / _key(target, run) / f"workspace-{run.run_id}"
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(record_of(target, run, folder), folder / "index.html")


def record_of(target: Target, run: runs.RunStatus, folder: Path) -> RunRecord:
    """A run as its page shows it; the notebooks of its tasks are exported into ``folder``."""
    key = _key(target, run)
    job = target.bundle.jobs.get(key)
    records = TaskRecords(target.client, dict(run.parameters), run.started.timestamp())
    recorded = records.all()
    tasks = sorted(run.tasks, key=lambda task: task.started or float("inf"))
    own = {task.key: [record for record in recorded if _task_of(record, tasks) is task] for task in tasks}
    return RunRecord(
        job=key,
        run=str(run.run_id),
        state=run.state,
        started=run.started.timestamp(),
        seconds=run.seconds,
        tasks=[_task(target.client, task, folder, records, own[task.key]) for task in tasks],
        description=as_text(job.config.get("description") or "") if job else "",
        target=target.bundle.target,
        where=str(target.client.config.host),
        link=run.link,
        note="" if recorded else _NO_RECORDS.format(f" in {records.folder}" if records.folder else ""),
        parameters=dict(run.parameters),
        versions=recorded[-1].versions if recorded else {},
    )


def _task_of(record: NotebookRecord, tasks: list[runs.TaskStatus]) -> runs.TaskStatus | None:
    """The task whose notebook wrote ``record``: the last one that had begun by then."""
    begun = [task for task in tasks if task.started and task.started <= record.started]
    return begun[-1] if begun else next((task for task in tasks if task.started), None)


def _task(
    client: WorkspaceClient, task: runs.TaskStatus, folder: Path, records: TaskRecords, own: list[NotebookRecord]
) -> TaskRecord:
    """Tasks that never began have no attempt; of the others the service tells the last one."""
    attempts = []
    if task.started:
        error, said = runs.failure(client, task) if task.is_over else ("", "")
        error = "" if task.state in runs.GOOD_STATES else error or task.message
        exported = _exported(client, task, folder)
        label = f"the notebook of {task.key}" if exported else f"{task.key} in the workspace"
        link = exported or task.link
        attempts = [
            AttemptRecord(
                label, 1, task.state, task.started, task.seconds, error, said, link=link,
                queries=[query for record in own for query in record.queries],
                quality=[report for record in own for report in record.quality],
                letters=[letters for record in own for letters in records.letters(record)],
            )
        ]  # fmt: skip
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
