"""``connectors.event_hubs``: Azure Event Hubs by its Kafka protocol. It needs no more than a connection string."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from ...core.batch import Batch
from ...core.sink import Guarantee, Sink, SinkWriter
from ...core.source import Source
from ...ground.errors import Misconfigured, Problem
from ...ground.options import Values
from ..kafka.cluster import Cluster
from ..kafka.committer import KafkaCommitter
from ..kafka.sink import KafkaSink
from ..kafka.source import KafkaSource
from .connection import CONNECTION, LARGEST_REQUEST, check_access, check_hub, missing_transactions, with_derived

__all__ = ["EventHubsSink", "EventHubsSource"]

_log = logging.getLogger("connectors.event_hubs")
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


class EventHubsSink(KafkaSink):
    """Writes events to an event hub. Columns are those of ``connectors.kafka``.

    Options are those of ``connectors.kafka``, too. The string gives the same as for the source; a request has at most the 1 MB
    that the service takes (``kafka.max.request.size``).

    Guarantee: at-least-once, by an idempotent producer. With ``transactionalIdPrefix`` the service is asked at the start
    whether it has transactions. If so, the sink is exactly-once as ``connectors.kafka``. If not, it logs that, and refuses
    ``guarantee=exactly-once`` and options that need it.
    """

    name = "event_hubs"
    promise = Guarantee.AT_LEAST_ONCE
    conditions = "exactly-once with transactionalIdPrefix where the service proves at the start that it has transactions"
    options = KafkaSink.options | CONNECTION

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, placed: bool = False) -> Sink:
        return super().of(with_derived(typed, "topic", max_request_size=str(LARGEST_REQUEST)), placed=placed)

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_hub(values, "topic", required=False)
        yield from super().check(values)

    def guarantee(self) -> Guarantee:
        """The guarantee that the user asked for; else exactly-once if it can be. Asks the service, once in a process."""
        guarantee = super().guarantee()
        if guarantee is Guarantee.EXACTLY_ONCE and (reason := self._missing_transactions()):
            self._refuse_less(reason)
            return Guarantee.AT_LEAST_ONCE
        return guarantee

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        check_access(self.values["connectionString"], self.config())
        return super().writer(batch, schema, subtask)

    def committer(self) -> KafkaCommitter | None:
        check_access(self.values["connectionString"], self.config())
        return super().committer()

    def _missing_transactions(self) -> str:
        """Why there are no transactions; empty if there are."""
        check_access(self.values["connectionString"], self.config())
        return missing_transactions(tuple(sorted(self.config().items())), self.values["transactionalIdPrefix"])

    def _refuse_less(self, reason: str) -> None:
        """Raises ``Misconfigured`` if the user asked by name for more than at-least-once."""
        for option in ("guarantee", "operation", "slots"):
            if self.values.is_set(option) and self.values[option] not in (1, "append"):
                text = f"{self.values[option]} needs transactions, which this service does not have: {reason}."
                raise Misconfigured(f"connectors.{self.name}", [Problem(option, text)])
        _log.warning("connectors.event_hubs: at-least-once, for the service has no transactions: %s", reason)
