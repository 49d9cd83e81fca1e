"""Everything that can be wrong with a job before it starts; much of it the Databricks CLI does not see."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from .configuration import Findings, did_you_mean, one_letter_apart, resource_references
from .loading import Bundle
from .model import CONDITION, FOR_EACH, NOTEBOOK, RUN_JOB, Job, Task, upstream
from .notebooks import Notebook, UnreadableNotebook, read_notebook
from .references import BadReference, Reference, Scope, lookup, misspelled, references

JOB_MEMBERS = ("id", "name", "run_id", "repair_count", "trigger.type")
TASK_MEMBERS = ("name", "run_id", "execution_count", "notebook_path")
ENDED_MEMBERS = ("run_id", "result_state", "execution_count", "notebook_path")


def check_job(bundle: Bundle, job: Job, given: Mapping[str, str] | None = None) -> Findings:
    """What is wrong with ``job`` when started with the parameters ``given``; the jobs that it runs are included."""
    found = Findings()
    for each in _with_jobs_run(bundle, job, found):
        notebooks = dict(_notebooks(each, found))
        _check_references(each, given or {} if each is job else {}, found)
        _check_resources(bundle, each, found)
        _check_parameters(each, notebooks, found)
        if each is job:
            _check_given(each, notebooks, given or {}, found)
    return found


def job_run_by(task: Task) -> str | None:
    """The key of the bundle's job that a run_job_task runs."""
    parts = str(task.spec.get("job_id", "")).removeprefix("${").removesuffix("}").split(".")
    return parts[2] if len(parts) == 4 and parts[:2] == ["resources", "jobs"] and parts[3] == "id" else None


def texts(task: Task) -> Iterator[tuple[str, str]]:
    """The texts of a task in which references are replaced, each with the name of its field."""
    if task.kind == NOTEBOOK:
        fields: dict[str, Any] = task.spec.get("base_parameters") or {}
    elif task.kind == RUN_JOB:
        fields = task.spec.get("job_parameters") or {}
    else:
        names = {CONDITION: ("left", "right"), FOR_EACH: ("inputs",)}[task.kind]
        fields = {name: task.spec.get(name) for name in names}
    yield from ((name, value) for name, value in fields.items() if isinstance(value, str))


def _with_jobs_run(bundle: Bundle, job: Job, found: Findings) -> list[Job]:
    jobs = {job.key: job}
    for each in (waiting := [job]):
        for task in (part for part in each.parts if part.kind == RUN_JOB):
            key = job_run_by(task)
            if key is None or key not in bundle.jobs:
                known = ", ".join(f"${{resources.jobs.{name}.id}}" for name in bundle.jobs)
                text = f"job_id {task.spec.get('job_id')!r} is no job of this bundle; one of {known}"
                found.problem(f"{each.key}.{task.key}", text)
            elif key == job.key or key == each.key:
                found.problem(f"{each.key}.{task.key}", f'runs the job "{key}" from within itself.')
            elif key not in jobs:
                jobs[key] = bundle.jobs[key]
                waiting.append(bundle.jobs[key])
    return list(jobs.values())


def _notebooks(job: Job, found: Findings) -> Iterator[tuple[str, Notebook]]:
    for task in job.parts:
        if task.notebook is None:
            continue
        where = f"{job.key}.{task.key}"
        try:
            notebook = read_notebook(task.notebook.resolve())
        except UnreadableNotebook as wrong:
            found.problem(where, str(wrong))
            continue
        for number, fault in notebook.faults():
            found.problem(where, f"{task.notebook.name}, cell {number}: {fault}")
        yield task.key, notebook


def _check_references(job: Job, given: Mapping[str, str], found: Findings) -> None:
    parameters = {**job.parameters, **given}
    scope = Scope(dict.fromkeys(JOB_MEMBERS), dict.fromkeys(parameters, ""), task=dict.fromkeys(TASK_MEMBERS))
    for name, default in parameters.items():
        _check_text(f"{job.key} parameter {name}", default, Scope(scope.job), job, set(), found)
    for task in job.tasks.values():
        above = upstream(job.tasks, task.key)
        scope.tasks = {key: {**dict.fromkeys(ENDED_MEMBERS), "values": _Anything()} for key in above}
        for part in task.parts:
            scope.in_loop, scope.input = part is not task, _Anything()
            for name, text in texts(part):
                _check_text(f"{job.key}.{part.key} {name}", text, scope, job, above, found)


def _check_text(where: str, text: str, scope: Scope, job: Job, above: Collection[str], found: Findings) -> None:
    for reference in references(text):
        try:
            _check_task_named(reference, job, above)
            lookup(reference, scope)
        except BadReference as wrong:
            found.problem(where, str(wrong))
    for literal in misspelled(text):
        found.note(where, f"{literal} is no reference and stays as it is; names with other letters go in backticks.")


def _check_resources(bundle: Bundle, job: Job, found: Findings) -> None:
    """``${resources.…}`` in parameters: known after a deployment only, but what it names must be in the bundle."""
    texts_of_job = [(f"{job.key} parameter {name}", default) for name, default in job.parameters.items()]
    for task in job.parts:
        texts_of_job += [(f"{job.key}.{task.key} {name}", text) for name, text in texts(task)]
    known: Mapping[str, Mapping[str, Any]] = bundle.config.get("resources") or {}
    for where, text in texts_of_job:
        for kind, key in resource_references(text):
            if key not in (known.get(kind) or {}):
                hint = did_you_mean(key, known.get(kind) or {})
                found.problem(where, f"${{resources.{kind}.{key}…}} names nothing in resources.{kind} of this bundle{hint}")


def _check_task_named(reference: Reference, job: Job, above: Collection[str]) -> None:
    if reference.path[0] != "tasks" or len(reference.path) < 2:
        return
    key = reference.path[1]
    loops = {task.nested.key: task.key for task in job.tasks.values() if task.nested}
    if key in loops and key not in job.tasks:
        raise BadReference(f'{reference.text}: "{key}" is inside a loop; name the loop, "{loops[key]}".')
    if key not in job.tasks:
        raise BadReference(f'{reference.text}: "{key}" is no task of this job{did_you_mean(key, job.tasks)}')
    if key not in above:
        raise BadReference(f'{reference.text}: task "{key}" is not upstream of this one; add it to depends_on.')


def _check_parameters(job: Job, notebooks: Mapping[str, Notebook], found: Findings) -> None:
    for task in (part for part in job.parts if part.key in notebooks):
        notebook = notebooks[task.key]
        for name in task.spec.get("base_parameters") or {}:
            where = f"{job.key}.{task.key}"
            if name in job.parameters:
                found.note(where, f'base parameter "{name}" never counts: the job parameter of that name wins.')
            elif name not in notebook.widgets() and not notebook.takes_any():
                known = did_you_mean(name, notebook.widgets())
                found.note(where, f'parameter "{name}" has no widget in {notebook.path.name}{known}')
    used = _used(job, notebooks)
    for name in job.parameters if used is not None else ():
        if name not in (used or ()):
            found.note(job.key, f'no task uses the parameter "{name}": no widget and no reference names it.')


def _used(job: Job, notebooks: Mapping[str, Notebook]) -> set[str] | None:
    """The names of the parameters that some task uses; None when that cannot be told."""
    if any(part.kind == RUN_JOB for part in job.parts) or any(book.takes_any() for book in notebooks.values()):
        return None
    widgets = {name for notebook in notebooks.values() for name in notebook.widgets()}
    named = {
        reference.path[2]
        for part in job.parts
        for _, text in texts(part)
        for reference in references(text)
        if reference.path[:2] == ("job", "parameters") and len(reference.path) == 3
    }
    return widgets | named


def _check_given(job: Job, notebooks: Mapping[str, Notebook], given: Mapping[str, str], found: Findings) -> None:
    bases = {name for part in job.parts for name in part.spec.get("base_parameters") or {}}
    declared = {*job.parameters, *bases, *(name for book in notebooks.values() for name in book.widgets())}
    for name in given:
        if name in job.parameters:
            continue
        near = sorted(other for other in declared if one_letter_apart(name, other))
        if near and name not in declared:
            found.problem(f"--param {name}", f'is no parameter of this job; did you mean "{near[0]}"?')
        else:
            known = ", ".join(sorted(job.parameters)) or "none"
            found.note(f"--param {name}", f"is not declared by this job and is passed on as it is; declared: {known}.")


class _Anything(dict[str, Any]):
    """Stands for values that are known only when the job runs: every key is there."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return ""


# MERGED ``validate``: every job of a bundle, and what the CLI's own ``bundle validate --strict`` does not see.

def validate(bundle: Bundle) -> Findings:
    """All problems and notes of the bundle."""
    found = Findings(list(bundle.findings.problems), list(bundle.findings.notes))
    if not bundle.jobs:
        found.problem("resources.jobs", "there is no job in this bundle.")
    _check_workspace(bundle, found)
    _check_sync(bundle, found)
    for job in bundle.jobs.values():
        found.add(check_job(bundle, job))
        _check_pause(bundle, job, found)
        _check_environments(bundle, job, found)
    found.problems = list(dict.fromkeys(found.problems))
    found.notes = list(dict.fromkeys(found.notes))
    return found


def _check_workspace(bundle: Bundle, found: Findings) -> None:
    if bundle.config["workspace"].get("host"):
        found.problem("workspace.host", "stands in the bundle and beats DATABRICKS_HOST of the environment; remove it.")


def _check_pause(bundle: Bundle, job: Job, found: Findings) -> None:
    for trigger in ("schedule", "trigger", "continuous"):
        status = (job.config.get(trigger) or {}).get("pause_status")
        if status == "UNPAUSED" and bundle.development:
            found.problem(
                f"{job.key}.{trigger}",
                "pause_status UNPAUSED stays so in a development target; write none: the target's mode sets it.",
            )


def _check_sync(bundle: Bundle, found: Findings) -> None:
    library = bundle.root / "lib" / "connectors"
    if library.is_dir() and not _synced(bundle, library):
        found.problem("sync.paths", "leaves lib/connectors out, so that notebooks in a workspace do not find it.")
    for job in bundle.jobs.values():
        for task in job.parts:
            if task.notebook is not None and not _synced(bundle, task.notebook):
                found.problem(f"{job.key}.{task.key}", f"{task.notebook.name} lies outside of sync.paths.")


def _synced(bundle: Bundle, path: Path) -> bool:
    paths: list[Any] = (bundle.config.get("sync") or {}).get("paths") or ["."]
    return any(path.resolve().is_relative_to((bundle.root / str(folder)).resolve()) for folder in paths)


def _check_environments(bundle: Bundle, job: Job, found: Findings) -> None:
    declared = [entry for entry in job.config.get("environments") or [] if isinstance(entry, dict)]
    environments = {str(entry.get("environment_key")): entry for entry in declared}
    for task in job.config.get("tasks") or []:
        key = task.get("environment_key") if isinstance(task, dict) else None
        if key is not None and key not in environments:
            where = f"{job.key}.{task.get('task_key')}"
            found.problem(where, f'environment "{key}" is not declared by this job{did_you_mean(key, environments)}')
    for requirements in _requirement_files(bundle, job, environments):
        if not requirements.is_file():
            found.problem(job.key, f"{requirements} does not exist.")
        elif not _synced(bundle, requirements):
            found.problem(job.key, f"{requirements.name} is not uploaded by itself; add it to sync.paths.")


def _requirement_files(bundle: Bundle, job: Job, environments: Mapping[str, Any]) -> Iterator[Path]:
    """The requirement files that a job names, relative to its own file or below the folder that a deployment uploads."""
    folder = bundle.job_files.get(job.key, bundle.root / "x").parent
    uploaded = f"{bundle.config['workspace']['file_path']}/"
    for environment in environments.values():
        for line in (environment.get("spec") or {}).get("dependencies") or []:
            match = re.fullmatch(r"-r\s+(\S+)", str(line).strip())
            if match and match[1].startswith(uploaded):
                yield bundle.root / match[1].removeprefix(uploaded)
            elif match and not match[1].startswith("/"):
                yield (folder / match[1]).resolve()
