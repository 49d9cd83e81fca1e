"""Runs Great Expectations on a Spark DataFrame so that nothing of it is left behind.

Ephemeral context without data docs, no progress bars, no analytics; the user's own current context is put back.
The columns are read once: the frame is cached for the run, unless the user already did or the platform cannot.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from ..core.errors import ConnectorError
from .check import Check

_log = logging.getLogger("connectors.quality")
_MISSING = "Great Expectations is not installed; `pip install great-expectations` (1.24 or later) provides it."


@contextlib.contextmanager
def cached(df: DataFrame) -> Iterator[DataFrame]:
    """``df``, kept in memory or on disk inside the ``with``; what a user cached stays cached afterwards."""
    try:
        level = df.storageLevel
        ours = not (level.useMemory or level.useDisk)
        if ours:
            df.persist()
    except PySparkException as refused:  # Serverless compute has no cache; there the plan is computed again.
        _log.info("not cached, so read more than once: %s", refused)
        ours = False
    try:
        yield df
    finally:
        if ours:
            df.unpersist()


def judge(df: DataFrame, checks: Sequence[Check], name: str) -> Any:
    """Great Expectations' ``ExpectationSuiteValidationResult`` of ``checks``, each under ``meta["check"]``."""
    with _quiet(), _own_context() as context:
        source = context.data_sources.add_spark("connectors", persist=False)
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("whole")
        suite = _suite(name, checks)
        # Counts only: samples are fetched for failing checks alone, as rows.
        detail = {"result_format": "BASIC", "partial_unexpected_count": 0}
        result = batch.get_batch({"dataframe": df}).validate(suite, result_format=detail)
    _raise_errors(result, name)
    return result


def _suite(name: str, checks: Sequence[Check]) -> Any:
    from great_expectations.core.expectation_suite import ExpectationSuite

    return ExpectationSuite(name=name, expectations=[check.expectation() for check in checks])


@contextlib.contextmanager
def _own_context() -> Iterator[Any]:
    try:
        from great_expectations.data_context.data_context.ephemeral_data_context import EphemeralDataContext
    except ImportError:
        raise ConnectorError("cannot validate", connector="quality", way_out=_MISSING) from None
    from great_expectations.data_context.data_context.context_factory import project_manager
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )
    from great_expectations.exceptions.exceptions import DataContextRequiredError

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
    """A check that could not be computed is no verdict: neither good nor bad data."""
    for outcome in result.results:
        error = _message(outcome.exception_info or {})
        if error:
            check = outcome.expectation_config.meta["check"]
            raise ConnectorError(f"{check} could not be judged: {error}", connector="quality", where=name)


def _message(info: dict[str, Any]) -> str:
    if "raised_exception" in info:
        return str(info.get("exception_message") or "no message") if info["raised_exception"] else ""
    return next((found for nested in info.values() if (found := _message(nested))), "")
