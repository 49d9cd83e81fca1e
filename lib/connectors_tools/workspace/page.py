"""The page of a run in a workspace: the same as that of a local run.

It is made from what the Jobs service tells, and from the records that its notebooks have written on a volume.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from databricks.sdk import WorkspaceClient
from databricks.sdk.service.jobs import ViewsToExport

from ..bundle.configuration import as_text
from ..bundle.model import FOR_EACH, NOTEBOOK
from ..report.page import write_page
from ..report.records import AttemptRecord, DeadLetterRecord, RunRecord, TaskRecord
from . import runs
from .client import WorkspaceError, refusals
from .task_records import CLOCKS_SECONDS, TaskRecords
from .task_records import TaskRecord as NotebookRecord

if TYPE_CHECKING:
    from .target import Target


_NO_RECORDS: Final = "No record of queries, checks and dead letters was found{}: the notebooks show them, with their pictures."
_SIDE_BY_SIDE: Final = "Tasks ran side by side: what their notebooks have recorded is shown with the one that had begun last."


def write_run_page(target: Target, run: runs.RunStatus) -> Path:
    """Writes ``runs/<job>/<run>/index.html`` beside the bundle, the exported notebooks beside it; returns the page."""
    folder = target.bundle.root / "runs" / _key(target, run) / f"workspace-{run.run_id}"
    folder.mkdir(parents=True, exist_ok=True)
    return write_page(record_of(target, run, folder), folder / "index.html")


def record_of(target: Target, run: runs.RunStatus, folder: Path) -> RunRecord:
    """A run as its page shows it; the notebooks of its tasks are exported into ``folder``."""
    key = _key(target, run)
    job = target.bundle.jobs.get(key)
    start = run.started.timestamp()
    records = TaskRecords(target.client, dict(run.parameters), start, start + run.seconds)
    tasks = sorted(run.tasks, key=lambda task: task.started or float("inf"))
    recorded = [(record, above) for record in records.all() if (above := tasks_of(record.started, tasks))]
    own: dict[str, list[tuple[NotebookRecord, list[DeadLetterRecord]]]] = {task.key: [] for task in tasks}
    for number, (record, above) in enumerate(recorded, 1):
        own[above[-1].key].append((record, records.letters(record, [later for later, _ in recorded[number:]])))
    note = _SIDE_BY_SIDE if any(len(above) > 1 for _, above in recorded) else ""
    return RunRecord(
        job=key,
        run=str(run.run_id),
        state=run.state,
        started=run.started.timestamp(),
        seconds=run.seconds,
        tasks=[_task(target.client, task, folder, own[task.key]) for task in tasks],
        description=as_text(job.config.get("description") or "") if job else "",
        target=target.bundle.target,
        where=str(target.client.config.host),
        link=run.link,
        note=note if recorded else _NO_RECORDS.format(f" in {records.folder}" if records.folder else ""),
        parameters=dict(run.parameters),
        versions=recorded[-1][0].versions if recorded else {},
    )


def tasks_of(at: float, tasks: Sequence[runs.TaskStatus]) -> list[runs.TaskStatus]:
    """The tasks whose notebooks may have begun a record at ``at``, the likeliest last; none for a record of another run.

    They ran at that time; if none did, the clocks differ, and it is the one that began next.
    """
    starts = {
        (begin, task.key): task
        for task in tasks
        for begin, end in task.attempts
        if task.kind in (NOTEBOOK, FOR_EACH) and begin - CLOCKS_SECONDS <= at <= end
    }
    earlier = [starts[start] for start in sorted(starts) if start[0] <= at]
    return earlier or [starts[start] for start in sorted(starts)[:1]]


def _task(
    client: WorkspaceClient,
    task: runs.TaskStatus,
    folder: Path,
    own: Sequence[tuple[NotebookRecord, Sequence[DeadLetterRecord]]],
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
                queries=[query for record, _ in own for query in record.queries],
                quality=[report for record, _ in own for report in record.quality],
                letters=[found for _, letters in own for found in letters],
            )
        ]  # fmt: skip
    return TaskRecord(task.key, task.state, task.kind, dict(task.depends_on), attempts=attempts)


def _exported(client: WorkspaceClient, task: runs.TaskStatus, folder: Path) -> str:
    """The file with the notebook of a task as the service exports it; empty where it has none."""
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
