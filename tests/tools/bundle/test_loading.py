"""How a bundle's files become one configuration, and what is refused on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.ground.errors import Misconfigured
from connectors_tools.bundle import load

from .conftest import TARGETS, Workbench


def variables(bench: Workbench, declared: object, target: object = None, **job: object) -> None:
    targets = {"dev": {**TARGETS["dev"], **({"variables": target} if target else {})}}
    bench.write("databricks.yml", {"bundle": {"name": "test"}, "include": ["jobs/*.yml"], "targets": targets,
                                   "variables": declared})  # fmt: skip
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "p", "default": "${var.x}"}], **job)


def resolved(bench: Workbench, **more: object) -> str:
    bundle = bench.load(**more)  # type: ignore[arg-type]
    bundle.findings.enforce("the bundle")
    return bundle.job("job").parameters["p"]


def test_a_variables_default_counts_when_nothing_else_is_given(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "default"}})
    assert resolved(bench) == "default"


def test_the_target_beats_the_default(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "default"}}, target={"x": "target"})
    assert resolved(bench) == "target"


def test_the_overrides_file_beats_the_target(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "default"}}, target={"x": "target"})
    bench.write(".databricks/bundle/dev/variable-overrides.json", '{"x": "file"}')
    assert resolved(bench) == "file"


def test_the_environment_beats_the_target_and_the_file(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(bench, {"x": {"default": "default"}}, target={"x": "target"})
    bench.write(".databricks/bundle/dev/variable-overrides.json", '{"x": "file"}')
    monkeypatch.setenv("BUNDLE_VAR_x", "environment")
    assert resolved(bench) == "environment"


def test_the_command_line_beats_all(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    variables(bench, {"x": {"default": "default"}}, target={"x": "target"})
    monkeypatch.setenv("BUNDLE_VAR_x", "environment")
    assert resolved(bench, variables={"x": "given"}) == "given"


def test_a_default_may_hold_other_variables_and_the_user(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "/${var.y}/${bundle.target}"},
                      "y": {"default": "${workspace.current_user.short_name}_s"}})  # fmt: skip
    assert resolved(bench, user="Ann.B@example.com") == "/ann_b_s/dev"


def test_a_reference_that_stands_alone_keeps_its_type_and_one_in_a_text_becomes_text(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "${var.n} and ${var.flag}"}, "n": {"default": 7}, "flag": {"default": True}})
    assert resolved(bench) == "7 and true"
    bench.job("job", {**bench.task("a", "1"), "disabled": "${var.flag}", "timeout_seconds": "${var.n}"})
    config = bench.load().config["resources"]["jobs"]["job"]["tasks"][0]
    assert (config["disabled"], config["timeout_seconds"]) == (True, 7)


def test_a_flag_may_come_as_text_from_the_command_line(bench: Workbench) -> None:
    variables(bench, {"x": {"default": ""}, "flag": {"default": False}})
    bench.job("job", {**bench.task("a", "1"), "disabled": "${var.flag}"})
    assert bench.load(variables={"flag": "true"}).job("job").tasks["a"].disabled
    assert not bench.load().job("job").tasks["a"].disabled


def test_workspace_paths_are_those_of_the_user_and_the_target(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "p", "default": "${workspace.file_path}/x"}])
    assert resolved(bench, user="ann@example.com") == "/Workspace/Users/ann@example.com/.bundle/test/dev/files/x"


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("${var.catalogue}", 'names no variable; did you mean "catalog"?'),
        ("${var.nothing}", "names no variable."),
        ("${workspace.nothing}", 'there is no "nothing"'),
        ("${bundle.tarGet}", 'did you mean "target"'),
        ("${other.thing}", "is no reference"),
    ],
)
def test_an_unknown_reference_is_an_error(bench: Workbench, reference: str, text: str) -> None:
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["jobs/*.yml"], "targets": TARGETS,
                                   "variables": {"catalog": {"default": "1"}}})  # fmt: skip
    bench.job("job", bench.task("a", "1"), description=reference)
    assert text in bench.problems()
    assert "resources.jobs.job.description" in bench.problems()


def test_variables_that_need_each_other_are_an_error_with_the_circle(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "${var.y}"}, "y": {"default": "${var.x}"}})
    assert "refers to itself: var.x -> var.y -> var.x" in bench.problems()


def test_a_variable_without_a_value_is_an_error_with_the_way_out(bench: Workbench) -> None:
    variables(bench, {"x": {"description": "needed"}})
    assert "variable x: has no value and no default; give one by --var x=… or BUNDLE_VAR_x." in bench.problems()


def test_a_variable_that_is_given_but_not_declared_is_an_error(bench: Workbench) -> None:
    variables(bench, {"x": {"default": "1"}, "catalog": {"default": "1"}}, target={"catalogue": "2"})
    assert 'variable catalogue: is not declared; did you mean "catalog"?' in bench.problems()


def test_yes_and_dates_stay_text(bench: Workbench) -> None:
    bench.write(
        "jobs/job.yml",
        "resources: {jobs: {job: {parameters: [{name: a, default: yes}, {name: b, default: 2024-01-02}], tasks: []}}}",
    )
    assert bench.load().job("job").parameters == {"a": "yes", "b": "2024-01-02"}


def test_an_absolute_include_is_refused(bench: Workbench) -> None:
    bench.write("databricks.yml", {"bundle": {"name": "x"}, "include": ["/etc/x/*.yml"], "targets": TARGETS})
    assert 'include: "/etc/x/*.yml" is an absolute path; give one relative to databricks.yml.' in bench.problems()


def test_a_user_without_a_name_is_its_number(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_name() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", no_name)
    variables(bench, {"x": {"default": "${workspace.current_user.short_name}"}})
    assert resolved(bench) == f"user_{os.getuid()}"


def test_times_stay_text_and_numbers_are_numbers(bench: Workbench) -> None:
    values = "[12:30, 1:00:30.5, 12, -7, 0x1f, 0b11, 017, 1_000, 1.5, .5, -1.5e+3, .inf]"
    bench.write("databricks.yml", f"bundle: {{name: test}}\ntargets: {{dev: {{}}}}\nsync: {{paths: {values}}}")
    infinity = float("inf")
    expected = ["12:30", "1:00:30.5", 12, -7, 31, 3, 15, 1000, 1.5, 0.5, -1500.0, infinity]
    assert bench.load().config["sync"]["paths"] == expected


def test_the_default_target_is_taken_when_none_is_named(bench: Workbench) -> None:
    assert bench.load().target == "dev"
    assert bench.load("prod").target == "prod"


def test_the_only_target_needs_no_mark(bench: Workbench) -> None:
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "targets": {"one": {}}})
    assert bench.load().target == "one"


def test_several_targets_without_a_default_are_an_error(bench: Workbench) -> None:
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "targets": {"one": {}, "two": {}}})
    with pytest.raises(Misconfigured, match="please name one by -t; known: one, two"):
        bench.load()


def test_an_unknown_target_is_an_error_with_a_suggestion(bench: Workbench) -> None:
    with pytest.raises(Misconfigured, match='there is no target "prd"; did you mean "prod"'):
        bench.load("prd")


def test_a_folder_without_a_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"databricks\.yml   is missing"):
        load(tmp_path)


def test_the_bundle_of_a_folder_above_is_found(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"))
    assert load(bench.root / "notebooks").root == bench.root


def test_a_development_target_marks_the_names_of_jobs(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), name="daily")
    assert bench.load(user="ann@x.org").job("job").name == "[dev ann] daily"
    assert bench.load("prod").job("job").name == "daily"


def test_a_target_overrides_one_task_and_one_parameter_of_a_job(bench: Workbench) -> None:
    override = {"tasks": [{"task_key": "a", "timeout_seconds": 7}], "parameters": [{"name": "p", "default": "prod"}]}
    targets = {**TARGETS, "prod": {"resources": {"jobs": {"job": override}}}}
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["jobs/*.yml"], "targets": targets})
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "p", "default": "dev"}])
    job = bench.load("prod").job("job")
    assert (job.tasks["a"].timeout, job.parameters) == (7, {"p": "prod"})
    assert bench.problems("prod") == ""
    assert bench.load("dev").job("job").parameters == {"p": "dev"}


def test_two_tasks_of_one_key_are_an_error(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), bench.task("a", "2"))
    assert 'job: 2 tasks have the key "a"' in bench.problems()
    with pytest.raises(Misconfigured, match='2 tasks have the key "a"'):
        bench.run()


def test_two_tasks_of_one_key_in_two_files_are_an_error(bench: Workbench) -> None:
    for file in ("jobs/one.yml", "jobs/two.yml"):
        bench.write(file, {"resources": {"jobs": {"job": {"tasks": [bench.task("a", "1")]}}}})
    assert 'job: 2 tasks have the key "a"' in bench.problems()
    assert "job: is defined in two files, jobs/one.yml and jobs/two.yml" in bench.problems()


def test_a_key_that_stands_twice_in_a_map_is_an_error(bench: Workbench) -> None:
    bench.write("jobs/job.yml", "resources:\n  jobs:\n    job: {tasks: []}\n    job: {tasks: []}\n")
    assert 'jobs/job.yml: cannot be read: the key "job" stands here twice' in bench.problems()


def test_a_file_that_is_no_yaml_is_an_error_with_its_line(bench: Workbench) -> None:
    bench.write("jobs/job.yml", "resources: {jobs: [}")
    assert "jobs/job.yml: cannot be read" in bench.problems()
    assert "line 1" in bench.problems()


def test_an_include_that_names_no_file_is_an_error(bench: Workbench) -> None:
    bench.write("databricks.yml", {"bundle": {"name": "t"}, "include": ["bundle.yml"], "targets": TARGETS})
    assert 'include: "bundle.yml" names no file' in bench.problems()


def test_notebook_paths_are_relative_to_their_file_or_to_the_uploaded_files(bench: Workbench) -> None:
    uploaded = bench.task("b", "1")
    uploaded["notebook_task"]["notebook_path"] = "${workspace.file_path}/notebooks/b.ipynb"
    bench.job("job", bench.task("a", "1"), uploaded)
    tasks = bench.load().job("job").tasks
    assert [tasks[key].notebook for key in "ab"] == [bench.root / "notebooks" / f"{key}.ipynb" for key in "ab"]
