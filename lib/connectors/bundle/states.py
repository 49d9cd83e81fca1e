"""Result states in the words of the Jobs service, and the rules that lead from one task's state to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import Enum
from typing import Final


class State(str, Enum):
    """How a task or a job ended."""

    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    TIMEDOUT = "TIMEDOUT"
    CANCELED = "CANCELED"
    EXCLUDED = "EXCLUDED"
    DISABLED = "DISABLED"
    UPSTREAM_FAILED = "UPSTREAM_FAILED"
    UPSTREAM_CANCELED = "UPSTREAM_CANCELED"
    SUCCESS_WITH_FAILURES = "SUCCESS_WITH_FAILURES"
    MAXIMUM_CONCURRENT_RUNS_REACHED = "MAXIMUM_CONCURRENT_RUNS_REACHED"

    def __str__(self) -> str:
        return self.value


class RunIf(str, Enum):
    """When a task runs, judged by the states of the tasks it depends on."""

    ALL_SUCCESS = "ALL_SUCCESS"
    AT_LEAST_ONE_SUCCESS = "AT_LEAST_ONE_SUCCESS"
    NONE_FAILED = "NONE_FAILED"
    ALL_DONE = "ALL_DONE"
    AT_LEAST_ONE_FAILED = "AT_LEAST_ONE_FAILED"
    ALL_FAILED = "ALL_FAILED"


GOOD: Final = frozenset({State.SUCCESS, State.SUCCESS_WITH_FAILURES})
"""The states that the service counts as success."""

_PASSED: Final = GOOD | {State.EXCLUDED}  # "excluded" counts as success for the next condition
_CANCELED: Final = frozenset({State.CANCELED, State.UPSTREAM_CANCELED})
_WANTS_FAILURE: Final = frozenset({RunIf.AT_LEAST_ONE_FAILED, RunIf.ALL_FAILED})


def failed(state: State) -> bool:
    """True for every state that counts as a failure: also timeouts, and failures or cancellations upstream."""
    return state not in _PASSED and state is not State.DISABLED


def instead_of_running(run_if: RunIf, dependencies: Collection[State]) -> State | None:
    """The state of a task that does not run because of its dependencies' states; None when it runs."""
    if not dependencies:
        return None
    if all(state is State.EXCLUDED for state in dependencies):
        return State.EXCLUDED
    if _met(run_if, dependencies):
        return None
    if _could_be_met(run_if, dependencies):
        return State.DISABLED
    if run_if in _WANTS_FAILURE:
        return State.EXCLUDED
    bad = {state for state in dependencies if failed(state)}
    return State.UPSTREAM_CANCELED if bad and bad <= _CANCELED else State.UPSTREAM_FAILED


def _met(run_if: RunIf, states: Collection[State]) -> bool:
    passed = [state in _PASSED for state in states]
    bad = [failed(state) for state in states]
    return {
        RunIf.ALL_SUCCESS: all(passed),
        RunIf.AT_LEAST_ONE_SUCCESS: any(passed),
        RunIf.NONE_FAILED: any(passed) and not any(bad),
        RunIf.ALL_DONE: True,
        RunIf.AT_LEAST_ONE_FAILED: any(bad),
        RunIf.ALL_FAILED: all(bad),
    }[run_if]


def _could_be_met(run_if: RunIf, states: Collection[State]) -> bool:
    """True when only disabled tasks keep the condition from being met: had they run, it might have been."""
    if State.DISABLED not in states:
        return False
    return any(
        _met(run_if, [other if state is State.DISABLED else state for state in states])
        for other in (State.SUCCESS, State.FAILED)
    )


def job_state(leaves: Iterable[State], others: Iterable[State]) -> State:
    """A job's state by the tasks that nothing depends on; a failure elsewhere is named but does not fail the job."""
    if any(failed(state) for state in leaves):
        return State.FAILED
    return State.SUCCESS_WITH_FAILURES if any(failed(state) for state in others) else State.SUCCESS
