"""``connectors.event_hubs``: Azure Event Hubs by its Kafka protocol; a connection string is all that it needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from ...core.errors import Misconfigured, Problem
from ...core.options import Values
from ...core.sink import Batch, Guarantee, Sink, SinkWriter
from ...core.source import Source
from ..kafka.cluster import Cluster
from ..kafka.committer import KafkaCommitter
from ..kafka.sink import KafkaSink
from ..kafka.source import KafkaSource
from .connection import CONNECTION, LARGEST_REQUEST, check_hub, let_in, missing_transactions, with_derived

__all__ = ["EventHubsSink", "EventHubsSource"]

_log = logging.getLogger("connectors.event_hubs")
_SOURCE_NAMING: Final = ("subscribe", "subscribePattern", "assign")


class EventHubsSource(KafkaSource):
    """The events of an event hub, each offset once. Columns are those of ``connectors.kafka``.

    Options: ``connectionString`` (required; or a reference to a secret, ``{{secrets/scope/key}}``), ``eventHub`` (required
    unless the string has an EntityPath), and those of ``connectors.kafka``. The string gives ``kafka.bootstrap.servers``, the
    way to be let in, and how long connections may rest; a ``kafka.*`` option that is given wins.

    Guarantee: exactly-once. A key that the service does not take is told at the start.
    """

    name = "event_hubs"
    conditions = "events stay in the event hub until their batch is done"
    options = KafkaSource.options | CONNECTION

    @classmethod
    def of(cls, typed: Mapping[str, Any], *, streaming: bool = False) -> Source:
        return super().of(with_derived(typed, *_SOURCE_NAMING), streaming=streaming)

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        named = list(check_hub(values, *_SOURCE_NAMING, required=True))
        yield from named
        yield from (problem for problem in super().check(values) if not (named and problem.option in _SOURCE_NAMING))

    def cluster(self) -> Cluster:
        let_in(self.values["connectionString"], self.config())
        return super().cluster()


class EventHubsSink(KafkaSink):
    """Writes events to an event hub. Columns are those of ``connectors.kafka``.

    Options: ``connectionString`` (required; or a reference to a secret, ``{{secrets/scope/key}}``), ``eventHub`` (or the
    string's EntityPath, or a column ``topic``), and those of ``connectors.kafka``. What the string gives is as for the
    source; a request has at most the 1 MB that the service takes (``kafka.max.request.size``).

    Guarantee: at-least-once, by an idempotent producer. With ``transactionalIdPrefix`` the service is asked at the start
    whether it has transactions: if so, exactly-once as ``connectors.kafka``; if not, that is logged, and refused where
    ``guarantee=exactly-once`` or an option that needs it is given.
    """

    name = "event_hubs"
    promise = Guarantee.AT_LEAST_ONCE
    conditions = "exactly-once with transactionalIdPrefix where the service proves at the start that it has transactions"
    options = KafkaSink.options | CONNECTION

    @classmethod
    def of(cls, typed: Mapping[str, Any]) -> Sink:
        return super().of(with_derived(typed, "topic", max_request_size=str(LARGEST_REQUEST)))

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_hub(values, "topic", required=False)
        yield from super().check(values)

    def guarantee(self) -> Guarantee:
        """What was asked for; else exactly-once if it can be. Asks the service, once in a process."""
        wished = super().guarantee()
        if wished is Guarantee.EXACTLY_ONCE and (why := self._missing()):
            self._refuse_less(why)
            return Guarantee.AT_LEAST_ONCE
        return wished

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> SinkWriter:
        let_in(self.values["connectionString"], self.config())
        return super().writer(batch, schema, subtask)

    def committer(self) -> KafkaCommitter | None:
        let_in(self.values["connectionString"], self.config())
        return super().committer()

    def _missing(self) -> str:
        """Why there are no transactions; empty if there are."""
        let_in(self.values["connectionString"], self.config())
        return missing_transactions(tuple(sorted(self.config().items())), self.values["transactionalIdPrefix"])

    def _refuse_less(self, why: str) -> None:
        """At-least-once is less than was asked for; says so if that was by name."""
        for option in ("guarantee", "operation", "slots"):
            if self.values.is_set(option) and self.values[option] not in (1, "append"):
                text = f"{self.values[option]} needs transactions, which this service does not have: {why}."
                raise Misconfigured(f"connectors.{self.name}", [Problem(option, text)])
        _log.warning("connectors.event_hubs: at-least-once, for the service has no transactions: %s", why)
