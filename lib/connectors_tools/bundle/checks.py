"""Everything that can be wrong with a job before it starts, and ``validate``, which checks every job of a bundle.

Much of it the Databricks CLI does not see, also not by ``bundle validate --strict``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from .compute import check_compute
from .configuration import Findings, did_you_mean, one_letter_apart, resource_references
from .declarative import Pipeline, pipeline
from .loading import Bundle
from .model import CONDITION, FOR_EACH, NOTEBOOK, PIPELINE, RUN_JOB, SERVICE_KINDS, Job, Task, upstream
from .notebooks import Notebook, UnreadableNotebook, read_notebook
from .references import BadReference, Reference, Scope, lookup, misspelled, references
from .resources import WORKSPACE, every_task, library_paths

JOB_MEMBERS = ("id", "name", "run_id", "repair_count", "trigger.type")
TASK_MEMBERS = ("name", "run_id", "execution_count", "notebook_path")
ENDED_MEMBERS = ("run_id", "result_state", "execution_count", "notebook_path")


def check_job(bundle: Bundle, job: Job, overrides: Mapping[str, str] | None = None) -> Findings:
    """The findings on ``job`` when started with the parameters ``overrides``; the jobs that it runs are included."""
    findings = Findings()
    for part in with_jobs_run(bundle, job, findings):
        findings.add(part.findings)
        notebooks = dict(notebooks_of(part, findings))
        _check_references(part, overrides or {} if part is job else {}, findings)
        _check_resources(bundle, part, findings)
        for task in (task for task in part.parts if task.kind == PIPELINE):
            pipeline_run_by(bundle, task, findings)
        _check_parameters(part, notebooks, (overrides or {}) if part is job else {}, findings)
        if part is job:
            _check_overrides(part, notebooks, overrides or {}, findings)
    return findings


def check_only(job: Job, only: Collection[str]) -> None:
    """Raises :class:`Misconfigured` for a name in ``only`` that is no task of ``job``."""
    findings = Findings()
    for key in only:
        if key not in job.tasks:
            findings.problem(f"--only {key}", f"is no task of this job{did_you_mean(key, job.tasks)}")
    findings.enforce(f"job {job.key}")


def job_run_by(task: Task) -> str | None:
    """The key of the bundle's job that a run_job_task runs."""
    return _key_of("jobs", str(task.spec.get("job_id", "")))


def pipeline_run_by(bundle: Bundle, task: Task, findings: Findings) -> Pipeline | None:
    """The bundle's pipeline that a pipeline_task runs."""
    key = _key_of("pipelines", str(task.spec.get("pipeline_id", "")))
    if key is None or key not in bundle.pipelines:
        known = ", ".join(f"${{resources.pipelines.{name}.id}}" for name in bundle.pipelines) or "none"
        text = f"pipeline_id {task.spec.get('pipeline_id')!r} is no pipeline of this bundle; there is {known}"
        findings.problem(task.key, text)
        return None
    return pipeline(key, bundle.pipelines[key], findings)


def _key_of(kind: str, reference: str) -> str | None:
    match = re.fullmatch(rf"\$\{{resources\.{kind}\.([\w-]+)\.id\}}", reference)
    return match[1] if match else None


def texts(task: Task) -> Iterator[tuple[str, str]]:
    """The texts of a task in which references are replaced, each with the name of its field."""
    if task.kind == NOTEBOOK:
        fields: dict[str, Any] = task.spec.get("base_parameters") or {}
    elif task.kind == RUN_JOB:
        fields = task.spec.get("job_parameters") or {}
    else:
        names = {CONDITION: ("left", "right"), FOR_EACH: ("inputs",)}.get(task.kind, ())
        fields = {name: task.spec.get(name) for name in names}
    yield from ((name, value) for name, value in fields.items() if isinstance(value, str))


def with_jobs_run(bundle: Bundle, job: Job, findings: Findings) -> list[Job]:
    """The job and all jobs that its run starts. A job that is none of the bundle's, and a circle, are in ``findings``."""
    jobs = {job.key: job}

    def visit(outer: Job, path: tuple[str, ...]) -> None:
        for task in (part for part in outer.parts if part.kind == RUN_JOB):
            key = job_run_by(task)
            if key is None or key not in bundle.jobs:
                known = ", ".join(f"${{resources.jobs.{name}.id}}" for name in bundle.jobs)
                text = f"job_id {task.spec.get('job_id')!r} is no job of this bundle; one of {known}"
                findings.problem(f"{outer.key}.{task.key}", text)
            elif key in path:
                circle = " -> ".join([*path[path.index(key) :], key])
                findings.problem(f"{outer.key}.{task.key}", f'runs the job "{key}" from within itself: {circle}.')
            elif key not in jobs:
                jobs[key] = bundle.jobs[key]
                visit(bundle.jobs[key], (*path, key))

    visit(job, (job.key,))
    return list(jobs.values())


def notebooks_of(job: Job, findings: Findings) -> Iterator[tuple[str, Notebook]]:
    """The notebooks of a job by the keys of their tasks. What is wrong with one is in ``findings``."""
    for task in job.parts:
        if task.notebook is None:
            continue
        where = f"{job.key}.{task.key}"
        try:
            notebook = read_notebook(task.notebook.resolve())
        except UnreadableNotebook as wrong:
            findings.problem(where, str(wrong))
            continue
        for number, fault in notebook.faults():
            findings.problem(where, f"{task.notebook.name}, cell {number}: {fault}")
        yield task.key, notebook


def _check_references(job: Job, overrides: Mapping[str, str], findings: Findings) -> None:
    parameters = {**job.parameters, **overrides}
    scope = Scope(dict.fromkeys(JOB_MEMBERS), dict.fromkeys(parameters, ""), task=dict.fromkeys(TASK_MEMBERS))
    for name, default in parameters.items():
        _check_text(f"{job.key} parameter {name}", default, Scope(scope.job), job, set(), findings)
    for task in job.tasks.values():
        above = upstream(job.tasks, task.key)
        scope.tasks = {key: {**dict.fromkeys(ENDED_MEMBERS), "values": _Anything()} for key in above}
        for part in task.parts:
            scope.in_loop, scope.input = part is not task, _Anything()
            for name, text in texts(part):
                _check_text(f"{job.key}.{part.key} {name}", text, scope, job, above, findings)


def _check_text(where: str, text: str, scope: Scope, job: Job, above: Collection[str], findings: Findings) -> None:
    for reference in references(text):
        try:
            _check_task_named(reference, job, above)
            lookup(reference, scope)
        except BadReference as wrong:
            findings.problem(where, str(wrong))
    for literal in misspelled(text):
        findings.note(where, f"{literal} is no reference and stays as it is; names with other letters go in backticks.")


def _check_resources(bundle: Bundle, job: Job, findings: Findings) -> None:
    """``${resources.…}`` in parameters: known after a deployment only, but what it names must be in the bundle."""
    texts_of_job = [(f"{job.key} parameter {name}", default) for name, default in job.parameters.items()]
    for task in job.parts:
        texts_of_job += [(f"{job.key}.{task.key} {name}", text) for name, text in texts(task)]
    known: Mapping[str, Mapping[str, Any]] = bundle.config.get("resources") or {}
    for where, text in texts_of_job:
        for kind, key in resource_references(text):
            if key not in (known.get(kind) or {}):
                hint = did_you_mean(key, known.get(kind) or {})
                findings.problem(where, f"${{resources.{kind}.{key}…}} names nothing in resources.{kind} of this bundle{hint}")


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


def _check_parameters(
    job: Job, notebooks: Mapping[str, Notebook], overrides: Mapping[str, str], findings: Findings
) -> None:
    for task in (part for part in job.parts if part.key in notebooks):
        notebook = notebooks[task.key]
        for name in task.spec.get("base_parameters") or {}:
            where = f"{job.key}.{task.key}"
            if name in job.parameters:
                findings.note(where, f'base parameter "{name}" never counts: the job parameter of that name wins.')
            elif name not in notebook.widgets() and not notebook.takes_any():
                known = did_you_mean(name, notebook.widgets())
                findings.note(where, f'parameter "{name}" has no widget in {notebook.path.name}{known}')
        parameters = {*job.parameters, *overrides, *(task.spec.get("base_parameters") or {})}
        for name, place in notebook.volumes().items():
            if name not in parameters:
                text = f'"{name}" falls back to {place}, whatever the target; give the job a parameter of that name.'
                findings.problem(f"{job.key}.{task.key}", text)
    used = _used(job, notebooks)
    for name in job.parameters if used is not None else ():
        if name not in (used or ()):
            findings.note(job.key, f'no task uses the parameter "{name}": no widget and no reference names it.')


def _used(job: Job, notebooks: Mapping[str, Notebook]) -> set[str] | None:
    """The names of the parameters that some task uses; None when that is not known."""
    takes_any = (RUN_JOB, *SERVICE_KINDS)
    if any(part.kind in takes_any for part in job.parts) or any(notebook.takes_any() for notebook in notebooks.values()):
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


def _check_overrides(job: Job, notebooks: Mapping[str, Notebook], overrides: Mapping[str, str], findings: Findings) -> None:
    bases = {name for part in job.parts for name in part.spec.get("base_parameters") or {}}
    declared = {*job.parameters, *bases, *(name for notebook in notebooks.values() for name in notebook.widgets())}
    for name in overrides:
        if name in job.parameters:
            continue
        near = sorted(other for other in declared if one_letter_apart(name, other))
        if near and name not in declared:
            findings.problem(f"--param {name}", f'is no parameter of this job; did you mean "{near[0]}"?')
        else:
            known = ", ".join(sorted(job.parameters)) or "none"
            findings.note(f"--param {name}", f"is not declared by this job and is passed on as it is; declared: {known}.")


class _Anything(dict[str, Any]):
    """Stands for values that are known only when the job runs: every key is there."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return ""


def validate(bundle: Bundle) -> Findings:
    """All problems and notes of the bundle. What only a local run cannot do is a note."""
    findings = Findings(list(bundle.findings.problems), list(bundle.findings.notes))
    if not bundle.jobs:
        findings.problem("resources.jobs", "there is no job in this bundle.")
    _check_workspace(bundle, findings)
    _check_sync(bundle, findings)
    for job in bundle.jobs.values():
        findings.add(check_job(bundle, job))
        _check_pause(bundle, job, findings)
        _check_environments(bundle, job, findings)
        check_compute(job, dict(notebooks_of(job, Findings())), findings)
    for key, config in bundle.pipelines.items():
        lines = (config.get("environment") or {}).get("dependencies") or []
        _check_requirements(bundle, f"{key}.environment", lines, findings)
    findings.problems = list(dict.fromkeys(findings.problems))
    findings.notes = list(dict.fromkeys([*findings.notes, *findings.local_problems]))
    return findings


def _check_workspace(bundle: Bundle, findings: Findings) -> None:
    if bundle.config["workspace"].get("host"):
        findings.problem("workspace.host", "stands in the bundle and beats DATABRICKS_HOST of the environment; remove it.")


def _check_pause(bundle: Bundle, job: Job, findings: Findings) -> None:
    for trigger in ("schedule", "trigger", "continuous"):
        status = (job.config.get(trigger) or {}).get("pause_status")
        if status == "UNPAUSED" and bundle.development:
            findings.problem(
                f"{job.key}.{trigger}",
                "pause_status UNPAUSED stays so in a development target; write none: the target's mode sets it.",
            )


def _check_sync(bundle: Bundle, findings: Findings) -> None:
    library = bundle.root / "lib" / "connectors"
    if library.is_dir() and not _synced(bundle, library):
        findings.problem("sync.paths", "leaves lib/connectors out, so that notebooks in a workspace do not find it.")
    for job in bundle.jobs.values():
        for task in job.parts:
            if task.notebook is not None and not _synced(bundle, task.notebook):
                findings.problem(f"{job.key}.{task.key}", f"{task.notebook.name} lies outside of sync.paths.")
    for key, config in bundle.pipelines.items():
        for entry, name in library_paths(config):
            is_there = entry[name].startswith(WORKSPACE) and not Path(entry[name]).is_relative_to(bundle.root)
            if not is_there and not _synced(bundle, Path(entry[name])):
                findings.problem(f"{key}.libraries", f"{Path(entry[name]).name} lies outside of sync.paths.")


def _synced(bundle: Bundle, path: Path) -> bool:
    paths: list[Any] = (bundle.config.get("sync") or {}).get("paths") or ["."]
    return any(path.resolve().is_relative_to((bundle.root / str(folder)).resolve()) for folder in paths)


def _check_environments(bundle: Bundle, job: Job, findings: Findings) -> None:
    declared = [entry for entry in job.config.get("environments") or [] if isinstance(entry, dict)]
    environments = {str(entry.get("environment_key")): entry for entry in declared}
    for task in every_task(job.config):
        key = task.get("environment_key")
        if key is not None and key not in environments:
            where = f"{job.key}.{task.get('task_key')}"
            findings.problem(where, f'environment "{key}" is not declared by this job{did_you_mean(key, environments)}')
    lines = [line for entry in declared for line in (entry.get("spec") or {}).get("dependencies") or []]
    _check_requirements(bundle, job.key, lines, findings)


def _check_requirements(bundle: Bundle, where: str, lines: list[Any], findings: Findings) -> None:
    """Reports the requirement files of ``lines`` that a deployment does not upload, or cannot."""
    folder = bundle.job_files.get(where, bundle.root / "x").parent
    uploaded = f"{bundle.config['workspace']['file_path']}/"
    for line in lines:
        match = re.fullmatch(r"-r\s+(\S+)", str(line).strip())
        if not match or (match[1].startswith("/") and not match[1].startswith(uploaded)):
            continue
        is_uploaded = match[1].startswith(uploaded)
        requirements = bundle.root / match[1].removeprefix(uploaded) if is_uploaded else (folder / match[1]).resolve()
        if not requirements.is_file():
            findings.problem(where, f"{requirements} does not exist.")
        elif not _synced(bundle, requirements):
            findings.problem(where, f"{requirements.name} is not uploaded by itself; add it to sync.paths.")
