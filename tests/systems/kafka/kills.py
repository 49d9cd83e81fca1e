"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from connectors.testing.sink_cases import SinkQuery

from ..pipelines import CopyContext, DeltaCopyContext, Pipeline, Pipelines
from . import sink_contexts as kafka
from . import source_contexts as kafka_source
from .slot_contexts import SlotsContext, StagedSlotsContext

PIPELINES: Pipelines = {
    "Kafka by foreach_batch": Pipeline(kafka.DirectContext, "foreach_batch"),
    "Kafka by one task": Pipeline(kafka.TaskContext, "foreach_batch"),
    "Kafka": Pipeline(kafka.KafkaContext, "format"),
    "Kafka, staged by foreach_batch": Pipeline(kafka.KafkaContext, "foreach_batch"),
    "Kafka in slots": Pipeline(SlotsContext, "foreach_batch"),
    "Kafka to Kafka": Pipeline(kafka.KafkaCopyContext, "foreach_batch", kafka_source.CopiedContext),
    "Kafka to Delta": Pipeline(DeltaCopyContext, "foreach_batch", kafka_source.KafkaContext),
    "copy of Kafka": Pipeline(CopyContext, "format", kafka_source.KafkaContext),
    "copy of Kafka in transactions": Pipeline(CopyContext, "foreach_batch", kafka_source.TransactionalContext),
}
QUICK = ("Kafka by foreach_batch", "Kafka by one task", "copy of Kafka")
SCHEDULES = {kafka.KafkaContext: SinkQuery, StagedSlotsContext: SinkQuery}
