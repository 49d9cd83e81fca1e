"""The one table, which everything asks, of what each feature needs of Spark and which Spark the runtimes of a workspace have.

A serverless environment is a client of the Databricks Runtime that its Databricks Connect names (environment 6:
Databricks Connect 19), so both have one Spark. The numbers are those of the release notes of runtimes and environments; a
number above the last one in the table is taken to have a later Spark.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

Version = tuple[int, int]
"""Major and minor version of Spark."""


@dataclass(frozen=True)
class Feature:
    """Something that the library offers: its ``name`` in a sentence, its ``need``, and the first ``spark`` that has it."""

    name: str
    spark: Version
    need: str


LIBRARY: Final = Feature("connectors", (4, 0), "data sources in Python")
"""Batch reads, ``df.write``, ``foreach_batch``, asynchronous I/O, quality checks and metrics."""
STREAM_SINK: Final = Feature("a sink by writeStream.format", (4, 1), "stream writers that take Arrow")
PLACED_ROWS: Final = Feature("a sink that places rows (slots above 1)", (4, 1), "repartitionById")
DECLARATIVE: Final = Feature("a declarative pipeline", (4, 1), "pyspark.pipelines")
STREAM_SOURCE: Final = Feature("a source by readStream.format", (4, 2), "admission control of Python sources")

RUNTIMES: Final[Mapping[int, Version]] = {13: (3, 4), 14: (3, 5), 15: (3, 5), 16: (3, 5), 17: (4, 0), 18: (4, 1), 19: (4, 2)}
"""The Spark of a Databricks Runtime, by its major version."""
ENVIRONMENTS: Final[Mapping[int, Version]] = {1: (3, 5), 2: (3, 5), 3: (3, 5), 4: (4, 0), 5: (4, 1), 6: (4, 2)}
"""The Spark of a serverless environment, by its version."""


def version_of(text: str) -> Version:
    """Major and minor version of ``text``, such as ``4.2.0.dev3``."""
    numbers = [int(part) for part in re.findall(r"\d+", text)[:2]]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[0], 0) if numbers else (0, 0)


def dotted(version: Version) -> str:
    """A version as it is written: ``4.2``."""
    return ".".join(map(str, version))


def spark_of(versions: Mapping[int, Version], number: int) -> Version:
    """The Spark of the runtime, or environment, with this number; a number that is above the table is one of its newest."""
    return versions.get(number, (0, 0) if number < max(versions) else versions[max(versions)])


def compute_for(feature: Feature) -> str:
    """The first environment and the first runtime that have ``feature``, as the end of a sentence."""
    environment, runtime = (
        min(number for number, spark in versions.items() if spark >= feature.spark) for versions in (ENVIRONMENTS, RUNTIMES)
    )
    return f"serverless environment {environment} or Databricks Runtime {runtime}"


def in_workspace() -> bool:
    """True in a Databricks workspace, where the runtime brings Spark, ``dbutils`` and ``display``."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def in_task() -> bool:
    """True in a process that runs a task of Spark, which has loaded PySpark to do so."""
    spark = sys.modules.get("pyspark")
    return spark is not None and spark.TaskContext.get() is not None


def refusal(feature: Feature, running: str, *, on_server: bool = False) -> str:
    """The sentence for a ``feature`` that the ``running`` version of Spark lacks; ``on_server``: of a Spark Connect server."""
    spark = dotted(feature.spark)
    if in_workspace():
        way_out = f"take {compute_for(feature)}"
    else:
        way_out = f"connect to a server with Spark {spark}" if on_server else f"pip install pyspark=={spark}.0"
    what = "the server has" if on_server else "this is"
    return f"{feature.name} needs Spark {spark} ({feature.need}), and {what} Spark {running}: {way_out}"
