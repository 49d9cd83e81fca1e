"""What is refused before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.ground.errors import Misconfigured
from connectors_tools.bundle.loading import job_list
from connectors_tools.bundle.model import SERVICE_KINDS

from .conftest import TARGETS, Workbench, condition, outcome


def test_a_dependency_on_no_task_is_an_error_with_a_suggestion(bench: Workbench) -> None:
    bench.job("job", bench.task("ingest", "1"), bench.task("b", "1", after="ingst"))
    assert 'job.b: depends on "ingst", which is no task of this job; did you mean "ingest"?' in bench.problems()


def test_a_circle_of_tasks_is_an_error_that_shows_it(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1", after="c"), bench.task("b", "1", after="a"), bench.task("c", "1", after="b"))
    assert "tasks depend on each other in a circle: a -> c -> b -> a" in bench.problems()


def test_a_task_that_waits_for_itself_is_a_circle(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1", after="a"))
    assert "circle: a -> a" in bench.problems()


@pytest.mark.parametrize("kind", SERVICE_KINDS)
def test_a_task_type_that_only_the_service_runs_is_refused_by_a_run_here_and_noted_else(
    bench: Workbench, kind: str
) -> None:
    bench.job("job", {"task_key": "a", kind: {"x": 1}}, bench.task("b", "1", after="a"))
    text = f"{kind} is not supported locally; supported are notebook_task"
    assert (bench.problems(), f"job.a: {text}" in bench.notes()) == ("", True)
    with pytest.raises(Misconfigured, match=rf"job\.a +{text}"):
        bench.run()


def test_what_is_wrong_with_one_job_keeps_no_other_from_running(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    bench.job("query", {"task_key": "q", "sql_task": {"warehouse_id": "w"}})
    bench.job("circle", bench.task("c", "1", after="c"))
    assert bench.run("job").states["job"] == "SUCCESS"
    with pytest.raises(Misconfigured, match="c -> c"):
        bench.run("circle")
    assert "circle" in job_list(bench.load())


def test_what_is_wrong_with_a_job_that_another_runs_keeps_both_from_running(bench: Workbench) -> None:
    bench.job("job", {"task_key": "a", "run_job_task": {"job_id": "${resources.jobs.query.id}"}})
    bench.job("query", {"task_key": "q", "sql_task": {"warehouse_id": "w"}})
    with pytest.raises(Misconfigured, match=r"query\.q +sql_task is not supported locally"):
        bench.run("job")


@pytest.mark.parametrize("entry", [{"group_name": "x"}, {"level": "CAN_VIEW"}, "x"])
def test_a_permission_says_who_may_do_what(bench: Workbench, entry: Any) -> None:
    bench.job("job", bench.task("a", "1"), permissions=[entry])
    text = f"each entry of permissions needs a level and one of user_name, group_name, service_principal_name; got {entry!r}"
    assert bench.problems() == f"job: {text}"
    bench.job("job", bench.task("a", "1"))
    bench.write("more.yml", {"permissions": [entry]})
    bench.write("databricks.yml", {"bundle": {"name": "x"}, "include": ["*.yml", "jobs/*.yml"], "targets": TARGETS})
    assert bench.problems() == f"the bundle: {text}"


def test_an_environment_that_is_not_declared_is_found_in_a_loop_too(bench: Workbench) -> None:
    inner = {**bench.task("in", "1"), "environment_key": "defalt"}
    environments = [{"environment_key": "default", "spec": {"environment_version": "6"}}]
    bench.job("job", {"task_key": "a", "for_each_task": {"inputs": "[1]", "task": inner}}, environments=environments)
    assert 'job.in: environment "defalt" is not declared by this job; did you mean "default"?' in bench.problems()


def test_a_mistyped_field_is_refused_with_a_suggestion(bench: Workbench) -> None:
    bench.job("job", {"task_key": "a", "notbook_task": {}}, scheduel={})
    assert '"notbook_task" is no field here; did you mean "notebook_task"?' in bench.problems()
    assert "job.a: has no task type" in bench.problems()
    assert '"scheduel" is no field here; did you mean "schedule"?' in bench.problems()


def test_a_task_of_two_types_is_refused(bench: Workbench) -> None:
    bench.job("job", {**bench.task("a", "1"), "condition_task": {"op": "EQUAL_TO", "left": "1", "right": "1"}})
    assert "has several task types, notebook_task, condition_task" in bench.problems()


def test_git_sources_are_refused(bench: Workbench) -> None:
    task = bench.task("a", "1")
    task["notebook_task"]["source"] = "GIT"
    bench.job("job", task, git_source={"git_url": "x"})
    assert "job.a: source: GIT is not supported locally" in bench.problems()
    assert "job: git_source is not supported locally" in bench.problems()


def test_a_missing_notebook_is_an_error_with_its_path(bench: Workbench) -> None:
    bench.job("job", {"task_key": "a", "notebook_task": {"notebook_path": "../notebooks/none.ipynb"}})
    assert f"job.a: {bench.root}/notebooks/none.ipynb does not exist" in bench.problems()


def test_a_notebook_path_without_its_ending_gets_a_suggestion(bench: Workbench) -> None:
    bench.notebook("there", "1")
    bench.job("job", {"task_key": "a", "notebook_task": {"notebook_path": "../notebooks/there"}})
    assert 'does not exist; did you mean "there.ipynb"?' in bench.problems()


def test_a_file_that_is_no_notebook_is_an_error(bench: Workbench) -> None:
    bench.write("notebooks/a.ipynb", "not a notebook")
    bench.job("job", {"task_key": "a", "notebook_task": {"notebook_path": "../notebooks/a.ipynb"}})
    assert "a.ipynb is no notebook of nbformat 4" in bench.problems()


def test_a_cell_that_is_no_python_is_found_before_the_run(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "%matplotlib inline\nx = 1", "if x\n  pass"))
    assert "a.ipynb, cell 2: expected ':' (line 1)" in bench.problems()


def test_references_are_followed_to_the_tasks_they_name(bench: Workbench) -> None:
    def asks(reference: str) -> dict[str, Any]:
        return {"base_parameters": {"x": reference}}

    bench.job(
        "job",
        bench.task("a", "1"),
        bench.task("b", "1", after="a", **asks("{{tasks.c.values.x}}")),
        bench.task("c", "1", after="b", **asks("{{tasks.a.values.x}}")),
        bench.task("d", "1", after="c", **asks("{{tasks.bb.values.x}}")),
        bench.task("e", "1", **asks("{{tasks.a.result_state}}")),
    )
    problems = bench.problems()
    assert 'job.b x: {{tasks.c.values.x}}: task "c" is not upstream of this one; add it to depends_on' in problems
    assert 'job.e x: {{tasks.a.result_state}}: task "a" is not upstream' in problems
    assert 'job.d x: {{tasks.bb.values.x}}: "bb" is no task of this job' in problems
    assert "job.c" not in problems


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("{{job.naem}}", '"naem" is no member of job'),
        ("{{job.parameters.y}}", '"y" is no job parameter; known: x'),
        ("{{job.start_time.iso}}", "is no part of a time"),
        ("{{task.nothing}}", "is no member of task"),
        ("{{tasks.a}}", "needs a task and what of it"),
        ("{{input}}", "has a value inside a for_each_task only"),
        ("{{workspace.name}}", "is no member of workspace"),
        ("{{backfill.iso_date}}", "in a backfill run only"),
        ("{{job_id}}", "is outdated; write {{job.id}}"),
        ("{{run_id}}", "is outdated"),
    ],
)
def test_an_unknown_member_of_a_known_namespace_is_an_error(bench: Workbench, reference: str, text: str) -> None:
    task = bench.task("b", "1", after="a", base_parameters={"p": f"before {reference} after"})
    bench.job("job", bench.task("a", "1"), task, parameters=[{"name": "x", "default": "1"}])
    assert text in bench.problems()


@pytest.mark.parametrize("text", ["{{unknown.thing}}", "{{job.id}", "{{ job.id }}", "{{secrets/scope/key}}", "{{ds}}"])
def test_what_is_no_reference_stays_as_it_is(bench: Workbench, text: str) -> None:
    bench.job("job", bench.task("a", 'print(dbutils.widgets.get("p"), end="")', base_parameters={"p": text}))
    assert bench.problems() == ""
    assert bench.run().printed("a-1") == text


def test_a_spaced_reference_is_noted_because_it_looks_like_one(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1", base_parameters={"p": "{{ job.id }}", "q": "{{tasks.my-task.values.x}}"}))
    assert "{{ job.id }} is no reference and stays as it is" in bench.notes()
    assert "{{tasks.my-task.values.x}} is no reference" in bench.notes()


def test_an_outcome_is_asked_of_conditions_only(bench: Workbench) -> None:
    bench.job(
        "job",
        bench.task("a", "1"),
        bench.task("b", "1", after=[outcome("a", "true")]),
        condition("c", "EQUAL_TO", "1", "1"),
        bench.task("d", "1", after=[outcome("c", "maybe")]),
    )
    assert 'job.b: asks for the outcome "true" of "a", which is no condition_task' in bench.problems()
    assert 'asks for the outcome "maybe" of "c"; a condition comes to "true" or "false"' in bench.problems()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("max_retries", -2, "max_retries must be a whole number, -1 or more; got -2"),
        ("timeout_seconds", "soon", "timeout_seconds must be a whole number, 0 or more; got 'soon'"),
        ("min_retry_interval_millis", -1, "min_retry_interval_millis must be a whole number"),
        ("run_if", "SOMETIMES", "run_if must be one of ALL_SUCCESS"),
        ("depends_on", "a", "depends_on must be a list"),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_with_the_right_one(
    bench: Workbench, field: str, value: Any, text: str
) -> None:
    bench.job("job", {**bench.task("a", "1"), field: value})
    assert text in bench.problems()


def test_all_problems_are_told_at_once(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1", after="b"), {"task_key": "c", "sql_task": {}}, parameters=[{"name": "x"}])
    with pytest.raises(Misconfigured) as raised:
        bench.run()
    assert len(raised.value.problems) == 3


def test_an_unknown_job_is_an_error_with_the_known_ones(bench: Workbench) -> None:
    bench.job("quickstart", bench.task("a", "1"))
    with pytest.raises(Misconfigured, match=r'quickstrat   is no job of this bundle; did you mean "quickstart"\?'):
        bench.run("quickstrat")


def test_problems_of_another_job_do_not_keep_this_one_from_running(bench: Workbench) -> None:
    bench.job("other", {"task_key": "a", "notebook_task": {"notebook_path": "../none.ipynb"}})
    bench.job("job", bench.task("a", "1"))
    assert bench.run().states["job"] == "SUCCESS"


def test_what_the_cli_does_not_see_is_found(bench: Workbench) -> None:
    bench.write("lib/connectors/__init__.py", "")
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["jobs/*.yml"], "sync": {"paths": ["jobs"]},
                                   "targets": TARGETS, "workspace": {"host": "https://x"}})  # fmt: skip
    bench.job(
        "job",
        {**bench.task("a", "1"), "environment_key": "defalt"},
        schedule={"quartz_cron_expression": "0 0 6 * * ?", "timezone_id": "UTC", "pause_status": "UNPAUSED"},
        environments=[{"environment_key": "default", "spec": {"dependencies": ["-r ../requirements-jobs.txt"]}}],
    )
    problems = bench.problems()
    assert "workspace.host: stands in the bundle" in problems
    assert "sync.paths: leaves lib/connectors out" in problems
    assert "job.a: a.ipynb lies outside of sync.paths" in problems
    assert "job.schedule: pause_status UNPAUSED stays so in a development target" in problems
    assert 'environment "defalt" is not declared by this job; did you mean "default"?' in problems
    assert "requirements-jobs.txt does not exist" in problems
    assert "pause_status" not in bench.problems("prod")


def test_a_requirements_file_that_is_not_uploaded_is_found(bench: Workbench) -> None:
    bench.write("requirements-jobs.txt", "")
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["jobs/*.yml"], "targets": TARGETS,
                                   "sync": {"paths": ["notebooks"]}})  # fmt: skip
    environment = {"environment_key": "e", "spec": {"dependencies": ["-r ../requirements-jobs.txt"]}}
    bench.job("job", bench.task("a", "1"), environments=[environment])
    assert "requirements-jobs.txt is not uploaded by itself; add it to sync.paths" in bench.problems()


def test_an_environment_that_all_jobs_share_names_its_requirements_by_the_uploaded_folder(bench: Workbench) -> None:
    default = [{"environment_key": "e", "spec": {"dependencies": ["-r ${workspace.file_path}/requirements-jobs.txt"]}}]
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["jobs/*.yml"], "targets": TARGETS,
                                   "variables": {"environments": {"type": "complex", "default": default}}})  # fmt: skip
    bench.job("job", {**bench.task("a", "1"), "environment_key": "e"}, environments="${var.environments}")
    assert "requirements-jobs.txt does not exist" in bench.problems()
    bench.write("requirements-jobs.txt", "")
    assert "requirements" not in bench.problems()
