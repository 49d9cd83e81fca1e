"""Conditions, loops, jobs within jobs, and the values that tasks hand on."""

from __future__ import annotations

from typing import Any

import pytest

from connectors_tools.bundle.model import compare

from .conftest import Workbench, condition, depending, outcome

GOT = 'print(dbutils.widgets.get("x"), end="")'


def sets(**values: Any) -> str:
    return "\n".join(f"dbutils.jobs.taskValues.set({key!r}, {value!r})" for key, value in values.items())


def loop(key: str, inputs: str, task: dict[str, Any], after: Any = (), **more: Any) -> dict[str, Any]:
    return depending({"task_key": key, "for_each_task": {"inputs": inputs, "task": task, **more}}, after)


@pytest.mark.parametrize(
    ("op", "left", "right", "result"),
    [
        ("EQUAL_TO", "12.0", "12", False),
        ("EQUAL_TO", "a", "a", True),
        ("NOT_EQUAL", "12.0", "12", True),
        ("NOT_EQUAL", "true", "true", False),
        ("GREATER_THAN", "10", "9", True),
        ("GREATER_THAN", "12.0", "12", False),
        ("GREATER_THAN_OR_EQUAL", "12.0", "12", True),
        ("LESS_THAN", "-1", "0.5", True),
        ("LESS_THAN", "2", "2", False),
        ("LESS_THAN_OR_EQUAL", "2", "2", True),
        ("LESS_THAN_OR_EQUAL", "3", "2", False),
    ],
)
def test_equality_compares_text_and_order_compares_numbers(op: str, left: str, right: str, result: bool) -> None:
    assert compare(op, left, right) is result


@pytest.mark.parametrize("text", ["many", "", "nan", "1,5"])
def test_an_order_of_what_is_no_number_fails_the_condition(bench: Workbench, text: str) -> None:
    bench.job("job", condition("c", "GREATER_THAN", text, 1))
    result = bench.run()
    assert result.states["c"] == "FAILED"
    assert f'GREATER_THAN compares numbers; "{text}" is none' in result.text


def test_only_the_branch_whose_outcome_was_met_runs(bench: Workbench) -> None:
    bench.job(
        "job",
        bench.task("count", sets(bad=3)),
        condition("any_bad", "GREATER_THAN", "{{tasks.count.values.bad}}", 0, after="count"),
        bench.task("repair", "1", after=[outcome("any_bad", "true")]),
        bench.task("go_on", "1", after=[outcome("any_bad", "false")]),
        bench.task("after_both", "1", after=["repair", "go_on"]),
    )
    result = bench.run()
    assert result.states == {
        "count": "SUCCESS", "any_bad": "SUCCESS", "repair": "SUCCESS", "go_on": "EXCLUDED", "after_both": "SUCCESS",
        "job": "SUCCESS",
    }  # fmt: skip


def test_what_follows_a_branch_that_was_not_taken_is_excluded(bench: Workbench) -> None:
    bench.job(
        "job",
        condition("c", "EQUAL_TO", "{{job.parameters.x}}", True),
        bench.task("yes", "1", after=[outcome("c", "true")], run_if="ALL_DONE"),
        bench.task("later", "1", after="yes", run_if="ALL_DONE"),
        parameters=[{"name": "x", "default": "false"}],
    )
    assert bench.run().states == {"c": "SUCCESS", "yes": "EXCLUDED", "later": "EXCLUDED", "job": "SUCCESS"}


def test_a_task_that_only_waits_for_a_condition_runs_whatever_it_came_to(bench: Workbench) -> None:
    bench.job("job", condition("c", "EQUAL_TO", "1", "2"), bench.task("a", "1", after="c"))
    assert bench.run().states["a"] == "SUCCESS"


def test_both_branches_of_a_failed_condition_are_upstream_failed(bench: Workbench) -> None:
    bench.job("job", condition("c", "LESS_THAN", "x", "2"), bench.task("a", "1", after=[outcome("c", "false")]))
    assert bench.run().states == {"c": "FAILED", "a": "UPSTREAM_FAILED", "job": "FAILED"}


def test_a_condition_is_not_tried_again(bench: Workbench) -> None:
    bench.job("job", condition("c", "LESS_THAN", "x", "2", max_retries=3))
    assert "trying again" not in bench.run().text


def test_values_go_to_tasks_downstream_by_reference_and_by_get(bench: Workbench) -> None:
    bench.job(
        "job",
        bench.task("a", sets(n=5, flag=True, text="hello", some=[1, "b"])),
        bench.task("b", "1", after="a"),
        bench.task(
            "c",
            GOT + '; print("|", dbutils.jobs.taskValues.get("a", "some"), end="")',
            after="b",
            base_parameters={
                "x": "{{tasks.a.values.n}} {{tasks.a.values.flag}} {{tasks.a.values.text}} {{tasks.a.values.some}}"
            },
        ),
    )
    assert bench.run().printed("c-1") == "5 true hello [1, \"b\"]| [1, 'b']"


def test_a_value_that_was_not_set_fails_the_task_that_asks_for_it(bench: Workbench) -> None:
    task = bench.task("b", "1", after="a", base_parameters={"x": "{{tasks.a.values.m}}"})
    bench.job("job", bench.task("a", sets(n=5)), task)
    result = bench.run()
    assert result.states["b"] == "FAILED"
    assert '{{tasks.a.values.m}}: "m" is no value that task "a" has set; known: n' in result.text


def test_get_without_a_value_takes_the_default_and_never_the_debug_value(bench: Workbench) -> None:
    get = 'dbutils.jobs.taskValues.get(taskKey="a", key="m", default="default", debugValue="debug")'
    bench.job("job", bench.task("a", "1"), bench.task("b", f"print({get}, end='')", after="a"))
    assert bench.run().printed("b-1") == "default"


def test_get_without_a_value_and_a_default_raises(bench: Workbench) -> None:
    get = 'dbutils.jobs.taskValues.get(taskKey="a", key="m", debugValue="debug")'
    bench.job("job", bench.task("a", sets(n=1)), bench.task("b", get, after="a"))
    result = bench.run()
    assert result.states["b"] == "FAILED"
    assert 'task "a" has set no value "m"; it has set: n' in result.text


def test_get_from_a_task_that_is_not_upstream_raises_even_with_a_default_missing(bench: Workbench) -> None:
    bench.job("job", bench.task("a", sets(n=1)), bench.task("b", 'dbutils.jobs.taskValues.get("a", "n")'))
    assert 'task "a" is not upstream of this one' in bench.run().text


def test_a_value_above_48_kib_of_json_is_refused(bench: Workbench) -> None:
    most = 'dbutils.jobs.taskValues.set("v", "x" * (48 * 1024 - 2))'
    bench.job("job", bench.task("a", most), bench.task("b", most.replace("- 2", "- 1")))
    result = bench.run()
    assert (result.states["a"], result.states["b"]) == ("SUCCESS", "FAILED")
    assert 'task value "v" has 49153 bytes of JSON; at most 49152 are allowed' in result.text


def test_a_value_that_json_cannot_hold_is_refused(bench: Workbench) -> None:
    bench.job("job", bench.task("a", 'dbutils.jobs.taskValues.set("v", {1, 2})'))
    assert 'task value "v" must be what JSON can hold; got set' in bench.run().text


def test_the_state_of_a_task_is_a_reference_in_lower_case(bench: Workbench) -> None:
    task = bench.task("b", GOT, after="a", run_if="ALL_DONE", base_parameters={"x": "{{tasks.a.result_state}}"})
    bench.job("job", bench.task("a", "1/0"), task)
    assert bench.run().printed("b-1") == "failed"


def test_references_tell_about_the_job_and_the_task(bench: Workbench) -> None:
    references = "{{job.name}}|{{job.trigger.type}}|{{task.name}}|{{task.execution_count}}|{{job.parameters.`a.b`}}"
    parameters = [{"name": "a.b", "default": "dotted"}]
    bench.job("job", bench.task("a", GOT, base_parameters={"x": references}), name="daily", parameters=parameters)
    assert bench.run().printed("a-1").endswith(" daily|one_time|a|1|dotted")


def test_the_parts_of_the_start_time_are_those_of_utc(bench: Workbench) -> None:
    parts = ("iso_date", "iso_datetime", "year", "month", "day", "hour", "minute", "second", "timestamp_ms",
             "iso_weekday", "is_weekday")  # fmt: skip
    references = {part: f"{{{{job.start_time.{part}}}}}" for part in parts}
    bench.job("job", bench.task("a", "import json; print(json.dumps(dbutils.widgets.getAll()))", base_parameters=references))
    got = bench.run().shown("a-1")
    from datetime import datetime, timezone

    at = datetime.fromtimestamp(int(got["timestamp_ms"]) / 1000, timezone.utc)
    assert got["iso_date"] == at.date().isoformat()
    assert got["iso_datetime"][:19] == at.isoformat()[:19]
    assert [int(got[part]) for part in parts[2:8]] == [at.year, at.month, at.day, at.hour, at.minute, at.second]
    assert (got["iso_weekday"], got["is_weekday"]) == (str(at.isoweekday()), str(at.isoweekday() < 6).lower())


def test_a_loop_runs_its_task_once_per_input(bench: Workbench) -> None:
    inner = bench.task("inner", GOT, base_parameters={"x": "{{input}}"})
    bench.job("job", loop("each", '["a", 2, true, {"k": 1}]', inner))
    result = bench.run()
    assert [result.printed(f"each-{n}-1") for n in (1, 2, 3, 4)] == ["a", "2", "true", '{"k": 1}']
    assert result.states["each"] == "SUCCESS"


def test_a_loop_takes_its_inputs_from_a_task_value_and_hands_on_their_keys(bench: Workbench) -> None:
    inner = bench.task("inner", GOT, base_parameters={"x": "{{input.table}}/{{tasks.list.values.n}}"})
    tables = [{"table": "a"}, {"table": "b"}]
    bench.job(
        "job",
        bench.task("list", sets(tables=tables, n=2)),
        loop("each", "{{tasks.list.values.tables}}", inner, after="list"),
    )
    result = bench.run()
    assert [result.printed(f"each-{n}-1") for n in (1, 2)] == ["a/2", "b/2"]


def test_a_failed_iteration_fails_the_loop_after_the_others_had_their_turn(bench: Workbench) -> None:
    inner = bench.task("inner", 'assert dbutils.widgets.get("x") != "2"', base_parameters={"x": "{{input}}"})
    bench.job("job", loop("each", "[1, 2, 3]", inner), bench.task("next", "1", after="each"))
    result = bench.run()
    assert result.states == {
        "each-1": "SUCCESS", "each-2": "FAILED", "each-3": "SUCCESS", "each": "FAILED", "next": "UPSTREAM_FAILED",
        "job": "FAILED",
    }  # fmt: skip
    assert "1 of 3 iterations failed" in result.text


def test_an_iteration_is_tried_again_by_itself(bench: Workbench) -> None:
    inner = bench.task("inner", 'assert dbutils.widgets.get("n") == "2"', max_retries=1,
                       base_parameters={"n": "{{task.execution_count}}"})  # fmt: skip
    bench.job("job", loop("each", "[1, 2]", inner))
    result = bench.run()
    assert result.states["each"] == "SUCCESS"
    assert {path.stem for path in result.folder.glob("*.ipynb")} == {"each-1-1", "each-1-2", "each-2-1", "each-2-2"}


def test_a_loop_over_nothing_succeeds(bench: Workbench) -> None:
    bench.job("job", loop("each", "[]", bench.task("inner", "1/0")))
    assert bench.run().states["each"] == "SUCCESS"


@pytest.mark.parametrize("inputs", ['{"a": 1}', "1, 2", "[1, 2"])
def test_inputs_that_are_no_json_array_fail_the_loop(bench: Workbench, inputs: str) -> None:
    bench.job("job", loop("each", inputs, bench.task("inner", "1")))
    result = bench.run()
    assert result.states["each"] == "FAILED"
    assert f"the inputs of the loop must be a JSON array; got {inputs}" in result.text


def test_written_inputs_have_at_most_ten_thousand_characters(bench: Workbench) -> None:
    bench.job("job", loop("each", f"[{' ' * 9_999}]", bench.task("inner", "1")))
    assert "the inputs of the loop are longer than 10000 characters" in bench.run().text


def test_inputs_from_a_task_value_may_be_longer(bench: Workbench) -> None:
    bench.job(
        "job",
        bench.task("list", 'dbutils.jobs.taskValues.set("some", ["x" * 20_000])'),
        loop("each", "{{tasks.list.values.some}}", bench.task("inner", "1"), after="list"),
    )
    assert bench.run().states["each"] == "SUCCESS"


def test_a_loop_in_a_loop_is_refused(bench: Workbench) -> None:
    bench.job("job", loop("each", "[1]", loop("inner", "[2]", bench.task("a", "1"))))
    assert "job.each.inner: for_each_task is not supported inside a for_each_task" in bench.problems()


def test_the_task_inside_a_loop_is_not_for_others_to_name(bench: Workbench) -> None:
    bench.job(
        "job",
        loop("each", "[1]", bench.task("inner", "1")),
        bench.task("b", "1", after="inner"),
        bench.task("c", "1", after="each", base_parameters={"x": "{{tasks.inner.values.n}}"}),
    )
    assert 'depends on "inner", which is inside a loop; name the loop, "each"' in bench.problems()
    assert '"inner" is inside a loop; name the loop, "each"' in bench.problems()


def test_more_iterations_at_once_are_noted_as_one_at_a_time(bench: Workbench) -> None:
    bench.job("job", loop("each", "[1]", bench.task("inner", "1"), concurrency=5))
    assert "iterations run one at a time, whatever the concurrency of each" in bench.run().text


def test_a_job_runs_another_one_with_its_parameters(bench: Workbench) -> None:
    own = {"x": "{{job.parameters.day}}", "y": "own"}
    runs = {"task_key": "child", "run_job_task": {"job_id": "${resources.jobs.inner.id}", "job_parameters": own}}
    bench.job("job", runs, parameters=[{"name": "day", "default": "monday"}, {"name": "y", "default": "pushed"}])
    show = "import json; print(json.dumps(dbutils.widgets.getAll()))"
    bench.job("inner", bench.task("a", show), parameters=[{"name": "x", "default": "?"}, {"name": "z", "default": "z"}])
    result = bench.run()
    assert result.states == {"a": "SUCCESS", "inner": "SUCCESS", "child": "SUCCESS", "job": "SUCCESS"}
    assert result.shown("a-1") == {"x": "monday", "y": "pushed", "z": "z", "day": "monday"}


def test_a_job_whose_inner_job_fails_fails(bench: Workbench) -> None:
    bench.job("job", {"task_key": "child", "run_job_task": {"job_id": "${resources.jobs.inner.id}"}})
    bench.job("inner", bench.task("a", "1/0"))
    result = bench.run()
    assert result.states == {"a": "FAILED", "inner": "FAILED", "child": "FAILED", "job": "FAILED"}
    assert 'job "inner" ended with FAILED' in result.text


def test_an_inner_job_with_failures_that_still_succeeds_is_a_success(bench: Workbench) -> None:
    bench.job("job", {"task_key": "child", "run_job_task": {"job_id": "${resources.jobs.inner.id}"}})
    bench.job("inner", bench.task("a", "1/0"), bench.task("b", "1", after="a", run_if="ALL_DONE"))
    assert bench.run().states["child"] == "SUCCESS"


def test_jobs_that_run_each_other_are_refused(bench: Workbench) -> None:
    bench.job("job", {"task_key": "a", "run_job_task": {"job_id": "${resources.jobs.other.id}"}})
    bench.job("other", {"task_key": "b", "run_job_task": {"job_id": "${resources.jobs.job.id}"}})
    assert 'other.b: runs the job "job" from within itself' in bench.problems()


def test_an_iteration_and_a_task_of_its_name_have_notebooks_of_their_own(bench: Workbench) -> None:
    loop = {"task_key": "load", "for_each_task": {"inputs": "[1]", "task": bench.task("in", "print('loop')")}}
    bench.job("job", loop, bench.task("load-1", "print('task')", after="load"))
    result = bench.run()
    assert (result.printed("load-iteration-1-1"), result.printed("load-1-1")) == ("loop\n", "task\n")


def test_a_circle_of_jobs_that_does_not_hold_the_first_is_refused(bench: Workbench) -> None:
    for key, other in (("job", "b"), ("b", "c"), ("c", "b")):
        bench.job(key, {"task_key": "t", "run_job_task": {"job_id": f"${{resources.jobs.{other}.id}}"}})
    [problem] = bench.check({}).problems
    assert (problem.option, problem.text) == ("c.t", 'runs the job "b" from within itself: b -> c -> b.')


def test_a_job_that_is_not_of_this_bundle_cannot_be_run(bench: Workbench) -> None:
    bench.job("job", {"task_key": "a", "run_job_task": {"job_id": 123}})
    assert "job.a: job_id 123 is no job of this bundle; one of ${resources.jobs.job.id}" in bench.problems()
