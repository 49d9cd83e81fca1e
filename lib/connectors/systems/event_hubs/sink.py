"""The sink: ``connectors.kafka`` with what follows from a connection string, as far as the service has transactions."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from ...core.batch import Batch
from ...core.sink import Guarantee, Sink, SinkWriter
from ...ground.errors import Misconfigured, Problem
from ...ground.options import Values
from ..kafka.committer import KafkaCommitter
from ..kafka.sink import KafkaSink
from .connection import CONNECTION, LARGEST_REQUEST, check_access, check_hub, missing_transactions, with_derived

_log = logging.getLogger("connectors.event_hubs")


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
