"""Errors say what to do, and say it again in another process."""

from __future__ import annotations

import logging
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from connectors.core import (
    CommitRefused,
    ConnectorError,
    DataLoss,
    Fatal,
    Misconfigured,
    Poison,
    Problem,
    StateError,
    Transient,
)

CONTEXT = {"connector": "connectors.toy", "where": "split 3", "way_out": "turn it off and on"}
ERRORS = [
    Transient("away", retry_after=2.5, **CONTEXT),
    Poison("rotten", record=b"\xff\x00", **CONTEXT),
    Fatal("over", **CONTEXT),
    DataLoss("gone", **CONTEXT),
    StateError("unreadable", **CONTEXT),
    CommitRefused("contradiction", **CONTEXT),
    Misconfigured("connectors.toy", [Problem("path", "missing."), Problem("topics", "is no option.")]),
]


class Peculiar(Fatal):
    """An error of a connector's author, with a constructor of its own."""

    def __init__(self, table: str, row: int) -> None:
        super().__init__(f"row {row} of {table}")
        self.table, self.row = table, row


def fail(error: ConnectorError) -> None:
    raise error


def kinds() -> list[ConnectorError]:
    return [*ERRORS, Peculiar("orders", 7)]


@pytest.mark.parametrize("error", kinds(), ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_attributes_when_it_is_pickled(error: ConnectorError) -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        copy = pickle.loads(pickle.dumps(error, protocol))
        assert type(copy) is type(error)
        assert vars(copy) == vars(error)
        assert str(copy) == str(error)
        assert copy.args == error.args


@pytest.mark.parametrize("error", kinds(), ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_attributes_through_cloudpickle(error: ConnectorError) -> None:
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    copy = pickle.loads(cloudpickle.dumps(error))
    assert (type(copy), vars(copy), str(copy)) == (type(error), vars(error), str(error))


def test_errors_raised_in_another_process_arrive_whole() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        for error in kinds():
            arrived = pool.submit(fail, error).exception()
            assert type(arrived) is type(error)
            assert {name: value for name, value in vars(arrived).items() if name != "__notes__"} == vars(error)


def test_the_problems_of_a_configuration_stand_in_a_table() -> None:
    assert str(Misconfigured("connectors.toy", [Problem("path", "missing."), Problem("topics", "is no option.")])) == (
        "connectors.toy cannot start; 2 problems:\n  path     missing.\n  topics   is no option."
    )


def test_one_problem_is_one_problem() -> None:
    assert "; 1 problem:\n" in str(Misconfigured("connectors.toy", [Problem("path", "missing.")]))


def test_a_message_tells_where_what_and_the_way_out() -> None:
    assert str(Fatal("it broke", **CONTEXT)) == "connectors.toy, split 3: it broke\n  Way out: turn it off and on"
    assert str(Fatal("it broke")) == "it broke"
    assert str(Fatal("it broke", where="split 3")) == "split 3: it broke"


def test_an_outer_layer_does_not_overwrite_what_an_inner_one_said() -> None:
    error = Fatal("it broke", where="row 5").located("connectors.toy", "split 3")
    assert (error.connector, error.where) == ("connectors.toy", "row 5")


def test_every_error_is_caught_by_what_to_do_next() -> None:
    assert issubclass(DataLoss, Fatal)
    assert issubclass(StateError, Fatal)
    assert issubclass(CommitRefused, Fatal)
    assert not issubclass(Transient, Fatal)
    assert all(isinstance(error, ConnectorError) for error in kinds())


def test_a_loss_is_an_error_or_a_warning_that_gives_no_advice_which_was_taken(caplog: pytest.LogCaptureFixture) -> None:
    loss = DataLoss("gone", connector="connectors.kafka", way_out="set failOnDataLoss=false")
    with pytest.raises(DataLoss, match=r"(?s)gone.*failOnDataLoss"):
        loss.report(logging.getLogger("connectors"), fails=True)
    loss.report(logging.getLogger("connectors"), fails=False)
    assert caplog.messages == ["connectors.kafka: gone"]
