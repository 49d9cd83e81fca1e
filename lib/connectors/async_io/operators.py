"""The operators as DataFrame functions. They check everything on the driver, before any call to a service."""

from __future__ import annotations

import difflib
import logging
import pickle
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypedDict

import pyarrow as pa
import pyspark.cloudpickle
from pyspark.sql.functions import broadcast
from pyspark.sql.types import ArrayType, MapType, StructType

from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from ..ground.options import Duration, Int, Option, Options, Values
from ..ground.quantities import duration
from ..spark.session import arrow_schema
from .batches import EngineSettings
from .calls import Cache, CircuitBreaker, Retry
from .function import AsyncFunction, as_function
from .task import Plan, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack



class Tuning(TypedDict, total=False):
    """The settings of an operator's calls; every entry has a default.

    * ``timeout`` ("30s"; None: none) for one row with all its retries; after it the row gets ``timeout(row)``
    * ``capacity`` (100): the most calls in flight per task
    * ``retry`` (:class:`Retry`), ``cache`` (:class:`Cache`), ``circuit_breaker`` (:class:`CircuitBreaker`): none
    * ``rate_limit`` (none): calls per second and task; waiting for it does not count as the row's time
    * ``batch_size`` (1): rows per call; the function then takes a list and returns a list with one entry for each row.
      A call waits ``batch_time`` ("100ms") at most for its list to fill
    * ``close_timeout`` ("5s") for ``close()``, for the calls in flight of a failed task, and for a call that ignores
      its cancel, before another call gets its place in the capacity
    * ``report`` (none): a function called at the end of each task with the task's counters, by name
    """

    timeout: str | float | None
    capacity: int
    retry: Retry | None
    cache: Cache | None
    rate_limit: float | None
    circuit_breaker: CircuitBreaker | None
    batch_size: int
    batch_time: str | float
    close_timeout: str | float
    report: Callable[[Mapping[str, float]], None] | None


def unordered_wait(
    df: DataFrame,
    function: Any,
    *,
    schema: str | StructType,
    keep: Sequence[str] | None = None,
    **tuning: Unpack[Tuning],
) -> DataFrame:
    """``df`` enriched by concurrent calls of a service; rows leave as they finish. For streams and batches.

    ``function`` is an :class:`AsyncFunction`, an ``async def`` of a row, or a ``def`` that blocks (it runs on threads).
    The output has the columns ``keep`` of the input (None: all), then the columns ``schema`` of the results. The
    rest is :class:`Tuning`. Use it as ``df.transform(unordered_wait, Lookup(), schema="name string")``.

    Each row has at least one call: Spark repeats a failed task. Raises :class:`Misconfigured` with every problem
    when it is called. A task fails with ``Transient`` or ``Poison`` for a row without result or fallback.
    """
    return _wait("async_io.unordered_wait", df, function, schema, keep, dict(tuning))


def ordered_wait(
    df: DataFrame,
    function: Any,
    *,
    schema: str | StructType,
    keep: Sequence[str] | None = None,
    **tuning: Unpack[Tuning],
) -> DataFrame:
    """:func:`unordered_wait`, but each partition's rows keep their order: a slow row holds back those after it."""
    return _wait("async_io.ordered_wait", df, function, schema, keep, dict(tuning))


class _Rate(Option):
    def parse(self, text: str) -> float:
        try:
            rate = float(text)
        except ValueError:
            rate = 0.0
        if not 0 < rate < inf:
            raise ValueError("a number of calls per second above 0")
        return rate


class _Time(Duration):
    def parse(self, text: str) -> float:
        seconds = super().parse(text)
        if not seconds:
            raise ValueError("more than 0 seconds")
        return seconds


_CLOUDPICKLE: Final[Any] = pyspark.cloudpickle
_POLICIES: Final = {"retry": Retry, "cache": Cache, "circuit_breaker": CircuitBreaker}
_TUNING: Final = Options(
    timeout=_Time(30.0),
    capacity=Int(100, at_least=1),
    rate_limit=_Rate(None),
    batch_size=Int(1, at_least=1),
    batch_time=Duration(0.1),
    close_timeout=_Time(5.0),
)


def _wait(
    name: str,
    df: DataFrame,
    function: Any,
    schema: str | StructType,
    keep: Sequence[str] | None,
    tuning: dict[str, Any],
) -> DataFrame:
    problems: list[Problem] = []
    policies = {option: tuning.pop(option, None) for option in (*_POLICIES, "report")}
    problems += _policy_problems(policies)
    values = _read_tuning(name, tuning, problems)
    resolved = _function(function, problems)
    problems += resolved.check_columns(df.columns) if resolved is not None else ()
    columns, key = _columns(df, keep, policies["cache"], problems)
    result = _result_schema(df, schema, columns, problems)
    if problems or resolved is None or values is None or result is None:
        raise Misconfigured(name, problems)
    output = StructType([*(df.schema[column] for column in columns), *result.fields])
    plan = Plan(
        name=name,
        operator_id=machine.token(),
        function=resolved,
        settings=_settings(name, values, tuning),
        keep=tuple(columns),
        results=arrow_schema(result),
        retry=policies["retry"],
        cache=Cache(key, policies["cache"].size, policies["cache"].ttl) if policies["cache"] else None,
        rate_limit=values["rate_limit"],
        circuit_breaker=policies["circuit_breaker"],
        report=policies["report"],
    )
    return df.mapInArrow(_task(plan), output)


def _read_tuning(name: str, tuning: dict[str, Any], problems: list[Problem]) -> Values | None:
    try:
        return _TUNING.parse(name, tuning, kind="operator")
    except Misconfigured as wrong:
        problems += wrong.problems
        return None


def _settings(name: str, values: Values, tuning: Mapping[str, Any]) -> EngineSettings:
    return EngineSettings(
        capacity=values["capacity"],
        timeout=inf if "timeout" in tuning and tuning["timeout"] is None else values["timeout"],
        ordered=name.endswith(".ordered_wait"),
        batch_size=values["batch_size"],
        batch_time=values["batch_time"],
        close_timeout=values["close_timeout"],
    )


def _policy_problems(policies: Mapping[str, Any]) -> list[Problem]:
    problems = [
        Problem(option, f"must be an async_io.{kind.__name__}(…); got {policies[option]!r}")
        for option, kind in _POLICIES.items()
        if policies[option] is not None and not isinstance(policies[option], kind)
    ]
    if policies["report"] is not None and not callable(policies["report"]):
        problems.append(Problem("report", f"must be a function of the counters; got {policies['report']!r}"))
    return problems


def _function(function: Any, problems: list[Problem]) -> AsyncFunction | None:
    try:
        return as_function(function)
    except ValueError as wrong:
        problems.append(Problem("function", f"must be {wrong}; got {function!r}"))
        return None


def _columns(
    df: DataFrame, keep: Sequence[str] | None, cache: Any, problems: list[Problem]
) -> tuple[list[str], list[str]]:
    columns = _named("keep", df.columns if keep is None else [keep] if isinstance(keep, str) else keep, df, problems)
    key = _named("cache.key", cache.key, df, problems) if isinstance(cache, Cache) else []
    nested = [name for name in key if isinstance(df.schema[name].dataType, (ArrayType, MapType, StructType))]
    problems += [Problem("cache.key", f"column {name} is nested; a key is of simple columns") for name in nested]
    return columns, key


def _named(option: str, columns: Sequence[str], df: DataFrame, problems: list[Problem]) -> list[str]:
    """``columns`` as the input spells them; as in Spark, case does not matter."""
    spelled = {name.lower(): name for name in df.columns} | {name: name for name in df.columns}
    names = []
    for name in columns:
        column = spelled.get(name) or spelled.get(name.lower())
        if column is None:
            close = difflib.get_close_matches(name.lower(), spelled, n=1)
            hint = f'; did you mean "{spelled[close[0]]}"?' if close else f" ({', '.join(df.columns)})"
            problems.append(Problem(option, f'"{name}" is no column of the input{hint}'))
        else:
            names.append(column)
    return names


def _result_schema(
    df: DataFrame, schema: str | StructType, columns: Sequence[str], problems: list[Problem]
) -> StructType | None:
    try:
        # an empty frame parses a DDL string both in a classic session and on Connect
        parsed = schema if isinstance(schema, StructType) else df.sparkSession.createDataFrame([], schema).schema
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        problems.append(Problem("schema", f'must be such as "name string, age int"; got {schema!r}: {first}'))
        return None
    taken = {name.lower() for name in columns}
    for name in parsed.names:
        if name.lower() in taken:
            problems.append(
                Problem("schema", f'has "{name}", and so have the kept columns. Rename it, or name others in keep.')
            )
        taken.add(name.lower())
    return parsed


def _task(plan: Plan) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    payload = _pickled(plan)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pickle

        run, plan = pickle.loads(payload)
        yield from run(plan, batches)

    return task


def _pickled(plan: Plan) -> bytes:
    """``run`` and ``plan`` in one pickle. The user's code goes by value: workers cannot import a notebook or a test."""
    function = plan.function
    classes = [
        *type(function).__mro__,
        getattr(function, "function", None),
        plan.report,
        plan.retry and plan.retry.when,
    ]
    names = {getattr(thing, "__module__", None) or "" for thing in classes}
    by_value = [sys.modules[name] for name in names if name in sys.modules and _is_users(sys.modules[name])]
    known = _CLOUDPICKLE.list_registry_pickle_by_value()
    added = [module for module in by_value if module.__name__ not in known]
    try:
        for module in added:
            _CLOUDPICKLE.register_pickle_by_value(module)
        return bytes(_CLOUDPICKLE.dumps((run, plan)))
    except (TypeError, pickle.PicklingError) as error:
        text = f"cannot be sent to the workers: {error}. Make clients in open(), not in __init__ or at module level."
        raise Misconfigured(plan.name, [Problem("function", text)]) from error
    finally:
        for module in added:
            _CLOUDPICKLE.unregister_pickle_by_value(module)


def _is_users(module: ModuleType) -> bool:
    """True for code that is not installed: a test, a script, a module beside a notebook."""
    source = getattr(module, "__file__", None)
    if not source or module.__name__ == "__main__" or module.__name__.split(".")[0] == __name__.split(".")[0]:
        return False
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return not any(Path(source).resolve().is_relative_to(Path(folder).resolve()) for folder in installed if folder)


_LOG: Final = logging.getLogger(__name__)


def preload(
    df: DataFrame, lookup: DataFrame, *, on: str | Sequence[str], refresh: str | float | None = None, how: str = "left"
) -> DataFrame:
    """``df`` joined with ``lookup``, which is read once, kept in memory and sent to every worker.

    ``on`` names the columns that both have, ``how`` is ``left`` (rows without match get nulls) or ``inner``. For a
    stream, ``refresh`` (none) is how often to read the table again, such as ``"10 minutes"``: the first micro-batch
    after that sees the complete new table. This needs a table whose new read shows changes (Delta, JDBC; not an earlier
    listing of files). Refreshing ends with the session. Raises :class:`Misconfigured`.
    """
    keys = [on] if isinstance(on, str) else list(on)
    seconds = _checked(df, lookup, keys, refresh, how)
    table = lookup.persist()
    if seconds is not None and df.isStreaming:
        machine.thread(partial(_refresh, table, seconds), "async_io-preload").start()
    return df.join(broadcast(table), keys, how)


def _checked(df: DataFrame, lookup: DataFrame, keys: list[str], refresh: str | float | None, how: str) -> float | None:
    problems = [
        Problem("on", f'"{key}" is no column of the {side} ({", ".join(frame.columns)})')
        for side, frame in (("input", df), ("lookup table", lookup))
        for key in keys
        if key.lower() not in {name.lower() for name in frame.columns}
    ]
    if lookup.isStreaming:
        problems.append(Problem("lookup", "must be a table, not a stream; read it with spark.read"))
    if how not in ("left", "inner"):
        problems.append(Problem("how", f"must be left or inner; got {how!r}"))
    seconds = None
    try:
        seconds = None if refresh is None else duration(refresh)
    except ValueError as wrong:
        problems.append(Problem("refresh", f"must be {wrong}; got {refresh!r}"))
    if problems:
        raise Misconfigured("async_io.preload", problems)
    return seconds


def _refresh(table: DataFrame, seconds: float) -> None:
    """Drops the cached rows, so that the next micro-batch reads the table again and caches it."""
    pause = machine.event()
    while not pause.wait(seconds):
        try:
            table.unpersist()
            table.persist()
        except Exception as error:  # the session has ended: whatever the error, there is nothing left to refresh
            _LOG.info("preload: refreshing has ended: %s", error)
            return
