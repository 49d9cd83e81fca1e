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
        address = super().transaction_settings()
        ours = open_session(address)
        if "read_ledger" not in vars(ours):
            asked = ours.read_ledger
            ours.read_ledger = lambda *places: [LedgerState() for _ in asked(*places)]  # type: ignore[method-assign]
        return address

    def committer(self) -> Any:
        made = super().committer()
        if made is not None:
            made._session = lambda: open_session(self.transaction_settings())  # type: ignore[method-assign]
        return made


class ForgetfulStaged(KafkaContext):
    sink = Forgetful
    extra: ClassVar[dict[str, str]] = {"onLostLedger": "notWritten"}


class ForgetfulDirect(DirectContext):
    sink = Forgetful
    extra: ClassVar[dict[str, str]] = {"onLostLedger": "notWritten"}
