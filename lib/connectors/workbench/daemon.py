"""Spark's Python daemon with the libraries loaded before it forks, so that a worker starts in milliseconds.

Set by the workbench as ``spark.python.daemon.module``. Spark starts it once, for the workers of tasks, and lets it fork; each
fork would otherwise import Arrow, this library, and pandas (which Arrow asks for with its first array) anew, about a second
every time.
"""

from __future__ import annotations

import pandas  # noqa: F401
import pyspark.daemon
import pyspark.worker
import tenacity  # noqa: F401

import connectors.spark.formats  # noqa: F401
from connectors.systems import all_systems

all_systems()

if __name__ == "__main__":
    pyspark.daemon.manager()
