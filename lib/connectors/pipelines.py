"""Sources and sinks in the definition files of a declarative pipeline (``pyspark.pipelines``).

The page ``declarative.md`` has an example. The folder ``connectors.state`` of the pipeline's ``configuration`` holds what must
outlive a run beside Spark's checkpoints: per dataset the log of a source that cannot be read twice, and the dead letters of a
source or sink.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import connectors

from .core.sink import Sink
from .core.source import Source
from .ground.errors import Misconfigured, Problem
from .ground.options import with_keywords
from .ground.runtime import DECLARATIVE
from .spark.session import is_connect, pass_over_counts, require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["create_sink", "read_stream", "register"]

STATE: Final = "connectors.state"


def register(spark: SparkSession, *more: type) -> None:
    """:func:`connectors.register`, once in each definition file: inside a function of a table or flow Spark refuses it."""
    require(DECLARATIVE, spark)
    connectors.register(spark, *more)
    if is_connect(spark):
        pass_over_counts(spark)


def read_stream(
    dataset: str, system: str | type[Source], options: Mapping[str, Any] | None = None, **more: Any
) -> DataFrame:
    """The rows of ``system``, as a stream, for the table, view or flow called ``dataset``.

    ``system``, ``options`` and ``more`` are those of :func:`connectors.foreach_batch`; a ``schema`` which is no option of the
    system is that of Spark's reader. Below ``connectors.state`` are ``stateLocation``, by default, and the records
    that cannot be decoded, unless ``errors`` says otherwise. Raises :class:`~connectors.ground.errors.Misconfigured`, with all
    that is wrong.
    """
    from .systems import source_class

    spark = _session()
    kind = source_class(system) if isinstance(system, str) else system
    values = _options(options, more)
    known = kind.known_options()
    if known.knows("stateLocation") and "stateLocation" not in values:
        values["stateLocation"] = _state(spark, dataset, "log")
    if "value.format" in values:
        _set_aside(spark, values, dataset, "letters")
    reader = spark.readStream.format(f"connectors.{kind.name}")
    if "schema" in values and not known.knows("schema"):
        reader = reader.schema(values.pop("schema"))
    kind.of(values, streaming=True)
    return reader.options(**_texts(values)).load()


def create_sink(name: str, system: str | type[Sink], options: Mapping[str, Any] | None = None, **more: Any) -> None:
    """Makes ``system`` the target of append flows under ``name``, which is also the default of ``sinkId``.

    ``system``, ``options`` and ``more`` are those of :func:`connectors.foreach_batch`. Rows that the target refuses are set
    aside in ``connectors.state``, unless ``errors`` says otherwise. A full refresh begins a new query, which a written target
    stops: ``onNewQuery`` decides. Several flows into one sink are as many queries, and need ``onNewQuery=continue``.
    Raises :class:`~connectors.ground.errors.Misconfigured`, with all that is wrong.
    """
    from pyspark.pipelines import create_sink as create

    from .systems import sink_class

    spark = _session()
    kind = sink_class(system) if isinstance(system, str) else system
    values = {"sinkId": name, **_options(options, more)}
    if kind.known_options().knows("errors"):
        _set_aside(spark, values, name, "refused")
    kind.of(values)
    create(name, f"connectors.{kind.name}", _texts(values))


def _session() -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession.active()


def _set_aside(spark: SparkSession, values: dict[str, Any], dataset: str, part: str) -> None:
    if str(values.setdefault("errors", "deadLetter")).lower() == "deadletter":
        values.setdefault("deadLetterPath", _state(spark, dataset, part))


def _state(spark: SparkSession, dataset: str, part: str) -> str:
    folder = spark.conf.get(STATE, None)
    if not folder:
        text = f"is needed in the configuration of the pipeline: a folder for what {dataset} must remember, such as "
        text += '"/Volumes/main/shop/data/state".'
        raise Misconfigured("connectors.pipelines", [Problem(STATE, text)])
    return f"{folder.rstrip('/')}/{dataset}/{part}"


def _options(options: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """All options but those of ``None``, which is no value: the text of it would be one."""
    return {name: value for name, value in with_keywords(options, more).items() if value is not None}


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """``values`` as Spark carries options."""
    as_json = (bool, dict, list, tuple)
    return {name: json.dumps(value) if isinstance(value, as_json) else str(value) for name, value in values.items()}
