"""Great Expectations: the expectations that the checks use, and how they run on a Spark DataFrame.

Import this module only where it is used, because Great Expectations takes seconds to import.

Checks use its built-in expectations if these agree with the predicates. One expectation is defined here: its metric is an
aggregate, so Great Expectations computes all of them in one query. The built-in ``UnexpectedRowsExpectation`` would run two
queries for each and leave a temporary view in the user's session.

A run leaves nothing behind: it has an ephemeral context without data docs, progress bars or analytics, and then restores the
user's current context. It reads the columns once: it caches the frame for the run, unless the user has cached it or the
platform cannot.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from great_expectations.core.expectation_suite import ExpectationSuite
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.data_context.data_context.context_factory import project_manager
from great_expectations.data_context.data_context.ephemeral_data_context import EphemeralDataContext
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.exceptions.exceptions import DataContextRequiredError
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations.core.expect_column_values_to_be_in_set import ExpectColumnValuesToBeInSet
from great_expectations.expectations.core.expect_column_values_to_be_unique import ExpectColumnValuesToBeUnique
from great_expectations.expectations.core.expect_column_values_to_match_regex import ExpectColumnValuesToMatchRegex
from great_expectations.expectations.core.expect_column_values_to_not_be_null import ExpectColumnValuesToNotBeNull
from great_expectations.expectations.core.expect_compound_columns_to_be_unique import ExpectCompoundColumnsToBeUnique
from great_expectations.expectations.core.expect_table_row_count_to_be_between import ExpectTableRowCountToBeBetween
from great_expectations.expectations.expectation import BatchExpectation
from great_expectations.expectations.metrics.metric_provider import metric_partial
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from ..ground.errors import ConnectorError

if TYPE_CHECKING:
    from .check import Check

__all__ = [
    "ExpectColumnValuesToBeInSet",
    "ExpectColumnValuesToBeUnique",
    "ExpectColumnValuesToMatchRegex",
    "ExpectColumnValuesToNotBeNull",
    "ExpectCompoundColumnsToBeUnique",
    "ExpectNoRowToFail",
    "ExpectTableRowCountToBeBetween",
]

_METRIC = "table.connectors_failing_rows"


class FailingRows(TableMetricProvider):
    """The number of failing rows, as an aggregate in Spark SQL."""

    metric_name = _METRIC
    value_keys = ("failing",)

    @metric_partial(
        engine=SparkDFExecutionEngine,
        partial_fn_type=MetricPartialFunctionTypes.AGGREGATE_FN,
        domain_type=MetricDomainTypes.TABLE,
    )
    def _spark(  # The decorator makes it a class method.
        cls,  # noqa: N805
        execution_engine: SparkDFExecutionEngine,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> Any:
        return sf.expr(metric_value_kwargs["failing"]), metric_domain_kwargs, {}


class ExpectNoRowToFail(BatchExpectation):
    """Expects that no row fails: ``failing``, a Spark SQL aggregate that counts failing rows, is 0."""

    failing: str
    metric_dependencies: ClassVar[tuple[str, ...]] = (_METRIC,)
    success_keys: ClassVar[tuple[str, ...]] = ("failing",)

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        count = metrics[_METRIC]
        return {"success": count == 0, "result": {"unexpected_count": count}}


_one_project = threading.Lock()
"""Great Expectations has one project in a process, whatever the thread."""


def judge(df: DataFrame, checks: Sequence[Check], name: str) -> Any:
    """Great Expectations' ``ExpectationSuiteValidationResult`` of ``checks``, each under ``meta["check"]``."""
    with _one_project, _quiet(), _own_context() as context:
        source = context.data_sources.add_spark("connectors", persist=False)
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("whole")
        suite = _suite(name, checks)
        # Counts only: samples are fetched as rows, and only for failing checks.
        detail = {"result_format": "BASIC", "partial_unexpected_count": 0}
        result = batch.get_batch({"dataframe": df}).validate(suite, result_format=detail)
    _raise_errors(result, name)
    return result


def _suite(name: str, checks: Sequence[Check]) -> Any:
    return ExpectationSuite(name=name, expectations=[check.expectation() for check in checks])


@contextlib.contextmanager
def _own_context() -> Iterator[Any]:
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False),
    )
    try:
        before = project_manager.get_current_project()
    except DataContextRequiredError:
        before = None
    context = EphemeralDataContext(project_config=config)
    project_manager.set_project(context)
    try:
        yield context
    finally:
        project_manager.set_project(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    log = logging.getLogger("great_expectations")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _raise_errors(result: Any, name: str) -> None:
    """Raises the error of a check that could not be computed: that is a verdict on neither good nor bad data."""
    for outcome in result.results:
        error = _message(outcome.exception_info or {})
        if error:
            check = outcome.expectation_config.meta["check"]
            raise ConnectorError(f"{check} could not be judged: {error}", connector="quality", where=name)


def _message(info: dict[str, Any]) -> str:
    if "raised_exception" in info:
        return str(info.get("exception_message") or "no message") if info["raised_exception"] else ""
    return next((message for nested in info.values() if (message := _message(nested))), "")
