"""Spark's Python daemon with the libraries loaded before it forks, so that a worker starts in milliseconds.

Set by the workbench as ``spark.python.daemon.module``. Spark starts it once, for the workers of tasks, and lets it fork; each
fork would otherwise import Arrow, this library, and pandas (which Arrow asks for with its first array) anew, about a second
every time.

A worker collects garbage after each task. What is loaded here is none, so a collection does not look at it: that would take a
tenth of a second.
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

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
