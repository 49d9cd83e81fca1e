"""The rules that lead from the states of dependencies to a task's, and from the tasks' to the job's."""

from __future__ import annotations

import pytest

from connectors_tools.bundle.model import RunIf, State, instead_of_running, job_state

from .conftest import Workbench

S, F, X, D = State.SUCCESS, State.FAILED, State.EXCLUDED, State.DISABLED
UF, UC, C, T = State.UPSTREAM_FAILED, State.UPSTREAM_CANCELED, State.CANCELED, State.TIMEDOUT
RUNS = None


@pytest.mark.parametrize(
    ("run_if", "dependencies", "expected"),
    [
        # all ran and succeeded, else UPSTREAM_FAILED; EXCLUDED counts as success
        ("ALL_SUCCESS", [S, S], RUNS),
        ("ALL_SUCCESS", [S, X], RUNS),
        ("ALL_SUCCESS", [S, F], UF),
        ("ALL_SUCCESS", [S, T], UF),
        ("ALL_SUCCESS", [S, UF], UF),
        ("ALL_SUCCESS", [S, UC], UC),
        ("ALL_SUCCESS", [C, F], UF),
        ("ALL_SUCCESS", [C, S], UC),
        # one succeeded, else UPSTREAM_FAILED
        ("AT_LEAST_ONE_SUCCESS", [S, F], RUNS),
        ("AT_LEAST_ONE_SUCCESS", [X, F], RUNS),
        ("AT_LEAST_ONE_SUCCESS", [F, F], UF),
        ("AT_LEAST_ONE_SUCCESS", [UF, T], UF),
        # none failed, at least one ran, else UPSTREAM_FAILED
        ("NONE_FAILED", [S, S], RUNS),
        ("NONE_FAILED", [S, X], RUNS),
        ("NONE_FAILED", [S, F], UF),
        ("NONE_FAILED", [X, UF], UF),
        # always
        ("ALL_DONE", [F, F], RUNS),
        ("ALL_DONE", [UF, X], RUNS),
        ("ALL_DONE", [S], RUNS),
        # one failed, else EXCLUDED
        ("AT_LEAST_ONE_FAILED", [S, F], RUNS),
        ("AT_LEAST_ONE_FAILED", [S, UF], RUNS),
        ("AT_LEAST_ONE_FAILED", [S, UC], RUNS),
        ("AT_LEAST_ONE_FAILED", [S, X], X),
        ("AT_LEAST_ONE_FAILED", [S, S], X),
        # all failed, else EXCLUDED
        ("ALL_FAILED", [F, T], RUNS),
        ("ALL_FAILED", [F, UF], RUNS),
        ("ALL_FAILED", [F, S], X),
        ("ALL_FAILED", [F, X], X),
        # a disabled task neither succeeded nor failed; what it alone prevents is disabled too
        ("ALL_SUCCESS", [S, D], D),
        ("ALL_SUCCESS", [F, D], UF),
        ("AT_LEAST_ONE_SUCCESS", [S, D], RUNS),
        ("AT_LEAST_ONE_SUCCESS", [F, D], D),
        ("NONE_FAILED", [S, D], RUNS),
        ("NONE_FAILED", [D], D),
        ("ALL_DONE", [D], RUNS),
        ("AT_LEAST_ONE_FAILED", [F, D], RUNS),
        ("AT_LEAST_ONE_FAILED", [S, D], D),
        ("ALL_FAILED", [D], D),
    ],
)
def test_a_task_runs_or_not_by_the_states_before_it(
    run_if: str, dependencies: list[State], expected: State | None
) -> None:
    assert instead_of_running(RunIf(run_if), dependencies) == expected


@pytest.mark.parametrize("run_if", list(RunIf))
def test_a_task_whose_dependencies_are_all_excluded_is_excluded_whatever_its_condition(run_if: RunIf) -> None:
    assert instead_of_running(run_if, [X, X]) is X


@pytest.mark.parametrize("run_if", list(RunIf))
def test_a_task_without_dependencies_runs_whatever_its_condition(run_if: RunIf) -> None:
    assert instead_of_running(run_if, []) is None


@pytest.mark.parametrize(
    ("leaves", "others", "expected"),
    [
        ([S, S], [S], S),
        ([S, X], [], S),
        ([S, D], [], S),
        ([S], [F], State.SUCCESS_WITH_FAILURES),
        ([X], [T], State.SUCCESS_WITH_FAILURES),
        ([S, F], [S], F),
        ([T], [], F),
        ([UF], [F], F),
        ([UC], [C], F),
    ],
)
def test_the_leaves_decide_about_the_job(leaves: list[State], others: list[State], expected: State) -> None:
    assert job_state(leaves, others) is expected


def test_after_a_failure_the_rest_is_upstream_failed_and_the_job_fails(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0"), bench.task("b", "1", after="a"), bench.task("c", "1", after="b"))
    result = bench.run()
    assert result.states == {"a": "FAILED", "b": "UPSTREAM_FAILED", "c": "UPSTREAM_FAILED", "job": "FAILED"}
    assert [path.name for path in result.folder.glob("*.ipynb")] == ["a-1.ipynb"]


def test_a_failure_that_is_cleaned_up_after_makes_a_success_with_failures(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0"), bench.task("b", "1", after="a", run_if="AT_LEAST_ONE_FAILED"))
    result = bench.run()
    assert result.states == {"a": "FAILED", "b": "SUCCESS", "job": "SUCCESS_WITH_FAILURES"}


def test_a_cleanup_that_is_not_needed_is_excluded_and_so_is_what_comes_after_it(bench: Workbench) -> None:
    bench.job(
        "job",
        bench.task("a", "1"),
        bench.task("b", "1", after="a", run_if="ALL_FAILED"),
        bench.task("c", "1", after="b", run_if="ALL_DONE"),
    )
    assert bench.run().states == {"a": "SUCCESS", "b": "EXCLUDED", "c": "EXCLUDED", "job": "SUCCESS"}


def test_a_disabled_task_is_skipped_and_what_needs_it_too(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0", disabled=True), bench.task("b", "1", after="a"), bench.task("c", "1"))
    assert bench.run().states == {"a": "DISABLED", "b": "DISABLED", "c": "SUCCESS", "job": "SUCCESS"}


def test_the_last_line_is_the_jobs_and_each_task_has_one(bench: Workbench) -> None:
    bench.job("job", bench.task("b", "1", after="a"), bench.task("a", "1"))
    lines = [line.split()[:2] for line in bench.run().lines if not line.startswith(("note", "/"))]
    assert lines == [["a", "SUCCESS"], ["b", "SUCCESS"], ["job", "SUCCESS"]]


def test_only_runs_just_these_tasks_without_conditions(bench: Workbench) -> None:
    bench.job("job", bench.task("a", "1/0"), bench.task("b", "1", after="a"), bench.task("c", "1", after="b"))
    assert bench.run(only=["b"]).states == {"b": "SUCCESS", "job": "SUCCESS"}
