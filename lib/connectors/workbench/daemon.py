"""Spark's Python daemon with the libraries loaded before it forks, so that a worker starts in milliseconds.

Set by the workbench as ``spark.python.daemon.module``. Spark starts one daemon per kind of worker and lets it fork; each
fork would otherwise import Arrow and this library anew, about half a second every time.
"""

from __future__ import annotations

import pyspark.daemon
import pyspark.worker

import connectors.spark.formats
import connectors.systems  # noqa: F401

if __name__ == "__main__":
    pyspark.daemon.manager()
