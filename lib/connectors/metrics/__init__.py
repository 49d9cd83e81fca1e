"""Metrics of queries: what runs, how far it is, and what goes wrong, in a table of each query, kept over time, with alerts.

::

    from connectors import metrics

    metrics.table(query)                      # now, or after its end
    recording = metrics.record(spark, "metrics")   # … recording.stop()
    watch = metrics.watch(spark, rules=[metrics.LagAbove(records=100_000), metrics.NearTimeout()])

The numbers are written by a query's own processes into small files below ``$CONNECTORS_METRICS`` (by default a folder among
the temporary files of this machine; ``off`` for none). Where executors run on other machines, name a folder that they share
with the driver, such as a volume or ``s3://…``, in the environment of both: in the cluster's environment variables, or by
``spark.executorEnv.CONNECTORS_METRICS``. An object store is reached with the machine's own credentials; each task sends it
two requests. Positions and lag travel with the query's progress and need no folder. What runs inside ``foreachBatch`` on
Spark Connect is counted by its commits alone.
"""

from __future__ import annotations

from .alerts import Alert, ErrorsGrow, LagAbove, LagGrows, NearTimeout, NoData, Observation, SlotGrows, Stalled, warn
from .frame import as_frame, details, table
from .lineage import Lineage, lineage
from .record import MetricsRecorder, record
from .telemetry import Telemetry, telemetry
from .watch import Watch, watch
from .webhook import webhook

__all__ = [
    "Alert",
    "ErrorsGrow",
    "LagAbove",
    "LagGrows",
    "Lineage",
    "MetricsRecorder",
    "NearTimeout",
    "NoData",
    "Observation",
    "SlotGrows",
    "Stalled",
    "Telemetry",
    "Watch",
    "as_frame",
    "details",
    "lineage",
    "record",
    "table",
    "telemetry",
    "warn",
    "watch",
    "webhook",
]
