"""Which of several values of a parameter a notebook sees."""

from __future__ import annotations

import pytest

from connectors.ground.errors import Misconfigured

from .conftest import Workbench

SHOW_ALL = "import json; print(json.dumps(dbutils.widgets.getAll()))"
WIDGET = 'dbutils.widgets.text("x", "widget")'


def test_a_widgets_default_counts_when_nothing_else_is_given(bench: Workbench) -> None:
    bench.job("job", bench.task("a", WIDGET, SHOW_ALL))
    assert bench.run().shown("a-1") == {"x": "widget"}


def test_a_base_parameter_beats_the_widget(bench: Workbench) -> None:
    bench.job("job", bench.task("a", WIDGET, SHOW_ALL, base_parameters={"x": "base"}))
    assert bench.run().shown("a-1") == {"x": "base"}


def test_a_job_parameter_beats_the_base_parameter_of_the_same_name(bench: Workbench) -> None:
    task = bench.task("a", WIDGET, SHOW_ALL, base_parameters={"x": "base"})
    bench.job("job", task, parameters=[{"name": "x", "default": "job"}])
    assert bench.run().shown("a-1") == {"x": "job"}


def test_a_parameter_of_the_run_beats_all_others(bench: Workbench) -> None:
    task = bench.task("a", WIDGET, SHOW_ALL, base_parameters={"x": "base"})
    bench.job("job", task, parameters=[{"name": "x", "default": "job"}])
    assert bench.run(parameters={"x": "run"}).shown("a-1") == {"x": "run"}


def test_without_job_parameters_those_of_the_run_are_merged_over_the_base_parameters(bench: Workbench) -> None:
    bench.job("job", bench.task("a", WIDGET, SHOW_ALL, base_parameters={"x": "base", "y": "base"}))
    assert bench.run(parameters={"x": "run"}).shown("a-1") == {"x": "run", "y": "base"}


def test_a_job_parameter_reaches_a_notebook_that_declares_no_widget_for_it(bench: Workbench) -> None:
    bench.job("job", bench.task("a", SHOW_ALL), parameters=[{"name": "new", "default": "1"}])
    assert bench.run().shown("a-1") == {"new": "1"}


def test_numbers_and_booleans_arrive_as_text(bench: Workbench) -> None:
    bench.job("job", bench.task("a", SHOW_ALL, base_parameters={"n": 1000, "f": 1.5, "yes": True, "no": False}))
    assert bench.run().shown("a-1") == {"n": "1000", "f": "1.5", "yes": "true", "no": "false"}


def test_a_parameter_one_letter_off_a_declared_one_is_refused_with_a_suggestion(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "damage", "default": "1"}])
    with pytest.raises(Misconfigured, match=r'--param damge .*did you mean "damage"'):
        bench.run(parameters={"damge": "0"})
    assert not (bench.root / "runs").exists(), "nothing may start"


@pytest.mark.parametrize("mistyped", ["amage", "damagee", "damaxe", "adamage", "dmaage", "damaeg"])
def test_a_letter_more_or_less_or_changed_or_swapped_is_a_typing_error(bench: Workbench, mistyped: str) -> None:
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "damage", "default": "1"}])
    (problem,) = bench.check({mistyped: "0"}).problems
    assert "damage" in problem.text


@pytest.mark.parametrize("other", ["dosage", "dam", "color", "rows"])
def test_an_undeclared_parameter_is_passed_on_with_a_note(bench: Workbench, other: str) -> None:
    bench.job("job", bench.task("a", SHOW_ALL), parameters=[{"name": "damage", "default": "1"}])
    result = bench.run(parameters={other: "7"})
    assert result.shown("a-1")[other] == "7"
    assert f"note: --param {other}: is not declared by this job and is passed on" in result.text


def test_a_widget_that_the_job_does_not_declare_may_be_given_by_the_run(bench: Workbench) -> None:
    bench.job("job", bench.task("a", WIDGET, SHOW_ALL), parameters=[{"name": "y", "default": "1"}])
    assert bench.run(parameters={"x": "run"}).shown("a-1") == {"x": "run", "y": "1"}


def test_a_parameter_that_nobody_gives_or_declares_fails_the_task_and_names_the_way_out(bench: Workbench) -> None:
    bench.job("job", bench.task("a", 'dbutils.widgets.get("nothing")'))
    result = bench.run()
    assert result.states["a"] == "FAILED"
    assert 'there is no widget "nothing"' in result.text
    assert 'dbutils.widgets.text("nothing"' in result.text


def test_a_job_parameter_without_a_default_is_refused(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1"), parameters=[{"name": "x"}])
    assert "each job parameter needs a name and a default" in bench.problems()


def test_a_default_may_be_a_reference(bench: Workbench) -> None:
    bench.job(
        "job", bench.task("a", SHOW_ALL), parameters=[{"name": "day", "default": "d={{job.start_time.iso_date}}"}]
    )
    day = bench.run().shown("a-1")["day"]
    assert len(day) == len("d=2026-01-01")
    assert day[:2] == "d="


def test_a_resource_that_is_not_in_the_bundle_is_refused_by_name(bench: Workbench) -> None:
    bench.job("other", bench.task("b", "1"))
    names = {"good": "${resources.jobs.other.id}", "bad": "x ${resources.jobs.othr.id}", "no": "${resources.pipelines.p.id}"}
    task = bench.task("a", *(f'dbutils.widgets.text("{name}", "")' for name in (*names, "top")), base_parameters=names)
    bench.job("job", task, parameters=[{"name": "top", "default": "${resources.jobs.nope.id}"}])
    problems = bench.problems().splitlines()
    assert len(problems) == 3
    assert any(p.startswith("job.a bad: ${resources.jobs.othr") and 'did you mean "other"' in p for p in problems)
    assert any("resources.pipelines.p" in p for p in problems)
    assert any(p.startswith("job parameter top: ${resources.jobs.nope") for p in problems)


def test_a_base_parameter_that_a_job_parameter_hides_is_noted(bench: Workbench) -> None:
    task = bench.task("a", WIDGET, base_parameters={"x": "base"})
    bench.job("job", task, parameters=[{"name": "x", "default": "job"}])
    assert 'base parameter "x" never counts' in bench.notes()


def test_a_base_parameter_without_a_widget_is_noted(bench: Workbench) -> None:
    bench.job("job", bench.task("a", 'dbutils.widgets.text("rows", "1")', base_parameters={"row": "1"}))
    assert 'parameter "row" has no widget in a.ipynb; did you mean "rows"?' in bench.notes()


def test_a_widget_that_falls_back_to_a_volume_needs_a_parameter(bench: Workbench) -> None:
    widget = 'dbutils.widgets.text("workdir", "/Volumes/main/sales/data", "Folder")'
    bench.job("job", bench.task("a", widget))
    assert 'a: "workdir" falls back to /Volumes/main/sales/data, whatever the target' in bench.problems()
    assert bench.check({"workdir": "/tmp/x"}).problems == []
    bench.job("job", bench.task("a", widget, base_parameters={"workdir": "/tmp/x"}))
    assert bench.problems() == ""


def test_a_job_parameter_that_nothing_uses_is_noted(bench: Workbench) -> None:
    bench.job("job", bench.task("a", WIDGET), parameters=[{"name": "lonely", "default": "1"}])
    assert 'no task uses the parameter "lonely"' in bench.notes()
