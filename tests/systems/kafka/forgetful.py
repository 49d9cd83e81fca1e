"""The sink without its memory, as a control: what it writes twice, the tests of killed runs must see."""

from __future__ import annotations

from typing import Any, ClassVar

from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.ledger import LedgerState, TransactionSettings
from connectors.systems.kafka.session import open_session

from .sink_contexts import DirectContext, KafkaContext


class Forgetful(KafkaSink):
    """Finds no batch in its ledger, in the driver and in tasks: it shuts out zombies, and writes every replay."""

    def transaction_settings(self) -> TransactionSettings:
        settings = super().transaction_settings()
        session = open_session(settings)
        if "read_ledger" not in vars(session):
            read = session.read_ledger
            session.read_ledger = lambda *partitions: [LedgerState() for _ in read(*partitions)]  # type: ignore[method-assign]
        return settings

    def committer(self) -> Any:
        committer = super().committer()
        if committer is not None:
            committer._session = lambda query="": open_session(self.transaction_settings())  # type: ignore[method-assign]
        return committer


class ForgetfulStaged(KafkaContext):
    sink = Forgetful
    extra: ClassVar[dict[str, str]] = {"onLostLedger": "notWritten"}


class ForgetfulDirect(DirectContext):
    sink = Forgetful
    extra: ClassVar[dict[str, str]] = {"onLostLedger": "notWritten"}
