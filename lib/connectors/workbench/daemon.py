"""Spark's Python daemon, which loads the libraries before it forks, so that a worker starts in milliseconds.

The workbench sets it as ``spark.python.daemon.module``. Spark starts it once, and it forks the workers of tasks. Otherwise
each fork would import Arrow, this library, and pandas (which Arrow needs for its first array) again, which takes about a
second.

A worker collects garbage after each task. Objects loaded here are excluded from that: to look at them would take a tenth of a
second.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyspark.daemon
import pyspark.worker
import tenacity  # noqa: F401

import connectors.spark.formats  # noqa: F401
from connectors.systems import all_systems

all_systems()


def serve() -> None:
    """Forks workers until Spark ends this process."""
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()


if __name__ == "__main__":
    serve()
