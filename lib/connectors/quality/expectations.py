"""The expectations that the checks use: Great Expectations' own where they judge as the predicates do, and one of ours.
Imported only where one is used, because Great Expectations takes seconds to import.

The metric of ours is an aggregate, so Great Expectations computes all of them in one query. Its own
``UnexpectedRowsExpectation`` would run two queries for each and leave a temporary view in the user's session.
"""

from __future__ import annotations

from typing import Any, ClassVar

from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
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
from pyspark.sql import functions as sf

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
    """The number of failing rows, by an aggregate in Spark SQL."""

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
    """No row fails: ``failing``, an aggregate in Spark SQL that counts the rows that do, is 0."""

    failing: str
    metric_dependencies: ClassVar[tuple[str, ...]] = (_METRIC,)
    success_keys: ClassVar[tuple[str, ...]] = ("failing",)

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        count = metrics[_METRIC]
        return {"success": count == 0, "result": {"unexpected_count": count}}
