"""The source: ``connectors.kafka`` with what follows from a connection string."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ...core.source import Source
from ...ground.errors import Problem
from ...ground.options import Values
from ..kafka.cluster import Cluster
from ..kafka.source import KafkaSource
from .connection import CONNECTION, check_access, check_hub, with_derived

_TOPIC_OPTIONS: Final = ("subscribe", "subscribePattern", "assign")


class EventHubsSource(KafkaSource):
    """The events of an event hub, each offset once. Columns are those of ``connectors.kafka``.

    Options are those of ``connectors.kafka``, too. The connection string gives ``kafka.bootstrap.servers``, the login, and how
    long connections may be idle; a ``kafka.*`` option of the user wins.

    Guarantee: exactly-once. A key that the service refuses is an error at the start.
    """

    name = "event_hubs"
    conditions = "events stay in the event hub until their batch is done"
    options = KafkaSource.options | CONNECTION

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, streaming: bool = False) -> Source:
        return super().of(with_derived(typed, *_TOPIC_OPTIONS), streaming=streaming)

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        problems = list(check_hub(values, *_TOPIC_OPTIONS, required=True))
        yield from problems
        yield from (problem for problem in super().check(values) if not (problems and problem.option in _TOPIC_OPTIONS))

    def cluster(self) -> Cluster:
        check_access(self.values["connectionString"], self.config())
        return super().cluster()
