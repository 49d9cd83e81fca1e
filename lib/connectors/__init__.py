"""Connectors for Spark: sources, sinks, asynchronous I/O and quality checks, exactly-once where a target allows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, SparkSession

    from .core.sink import Sink

__all__ = ["foreach_batch", "guarantees", "register"]


def register(spark: SparkSession, *more: type) -> None:
    """Registers every ``connectors.<system>`` format with ``spark``, and ``more`` sources and sinks of your own.

    The library ships itself to Spark's workers, also on a Spark Connect server without it. It also ships classes that you
    define in a notebook. A module of your own must be on the workers' PYTHONPATH, except on Spark Connect, where it is
    shipped too. A format can do what this Spark supports: streaming sources need Spark 4.2, sinks by
    ``writeStream.format`` 4.1, the rest 4.0. Raises :class:`~connectors.ground.errors.MissingFeature` below that.
    """
    from .ground.runtime import LIBRARY
    from .spark.session import require

    require(LIBRARY, spark)
    from .spark.formats import register_formats
    from .spark.library import reach
    from .systems import add_system, all_systems

    for kind in more:
        add_system(kind)
    reach(spark, more)
    register_formats(spark, all_systems())


def guarantees() -> pd.DataFrame:
    """The guarantees of each system: a frame of ``system``, ``source``, ``sink`` (the strongest guarantee) and ``conditions``.

    A system whose conditions are not yet written (``"TODO …"``) guarantees nothing and has no row. For a source,
    exactly-once means that each record affects state and targets once; Spark may read it twice.
    """
    import pandas as pd

    from .systems import all_systems

    rows = []
    for name, (source, sink) in sorted(all_systems().items()):
        terms = [("source", source.conditions) if source else None, ("sink", sink.conditions) if sink else None]
        conditions = [(side, text) for side, text in filter(None, terms) if text]
        if any(text.startswith("TODO") for _, text in conditions):
            continue
        both = [f"{side}: {text}" for side, text in conditions]
        rows.append((name, "exactly-once" if source else "", sink.promise.value if sink else "", "; ".join(both)))
    return pd.DataFrame(rows, columns=["system", "source", "sink", "conditions"])


def foreach_batch(
    sink: str | type[Sink] | Sequence[tuple[str | type[Sink], Mapping[str, Any]]],
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Callable[[DataFrame, int], None]:
    """Returns a function for ``writeStream.foreachBatch`` that commits each micro-batch to one or several sinks.

    ``sink`` is a system's name (``"files"`` or ``"connectors.files"``) or a sink class of your own, with its ``options``.
    It may also be a list of such pairs: Spark then computes the batch once, and each sink commits it separately. One of several
    may be away with ``required=false``: its batches then wait in ``missedLocation``, and it gets them later, in their order.
    Options may also be keywords: ``file_format="json"`` is ``fileFormat``. This call checks everything without
    contacting the target: :class:`~connectors.ground.errors.Misconfigured` lists every problem, and
    :class:`~connectors.ground.errors.MissingFeature` names the Spark that the options need.
    """
    from .ground.runtime import LIBRARY
    from .spark.session import require

    require(LIBRARY)
    from .ground.errors import Misconfigured, Problem
    from .ground.options import with_keywords
    from .spark.foreach_batch import ForeachBatch, Several
    from .spark.optional_sink import one_of_several
    from .systems import sink_class

    typed = with_keywords(options, more)
    if isinstance(sink, str):
        return ForeachBatch(sink_class(sink).of(typed, placed=True))
    if isinstance(sink, type):
        return ForeachBatch(sink.of(typed, placed=True))
    problems: list[Problem] = []
    if not sink:
        problems.append(Problem("sink", 'is an empty list; give pairs such as [("files", {"path": …})].'))
    if typed:
        text = f"go with one sink, and several are given; put {', '.join(typed)} into the pair of the sink that they are for."
        problems.append(Problem("options", text))
    functions: list[Callable[..., None]] = []
    for number, (kind, options_of_kind) in enumerate(sink, start=1):
        try:
            function = one_of_several(options_of_kind, partial(foreach_batch, kind))
            place = getattr(function, "place", None)
            if place and place in {getattr(other, "place", None) for other in functions}:
                text = f"is that of another sink here, and both would miss their batches in {place}; give each its own."
                problems.append(Problem(f"sink {number}: sinkId", text))
            functions.append(function)
        except Misconfigured as error:
            where = f"sink {number}, {error.connector}"
            problems += [Problem(f"{where}: {problem.option}", problem.text) for problem in error.problems]
    if problems:
        raise Misconfigured("foreach_batch", problems)
    return Several(functions)
