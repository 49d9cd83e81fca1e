"""The sink without its memory, as a control: what it writes twice, the tests of killed runs must see."""

from __future__ import annotations

from typing import Any, ClassVar

from connectors.systems.kafka import KafkaSink
from connectors.systems.kafka.ledger import Address, Book
from connectors.systems.kafka.transactions import session

from .sink_contexts import DirectContext, KafkaContext


class Forgetful(KafkaSink):
    """Finds no batch in its ledger, in the driver and in tasks: it shuts out zombies, and writes every replay."""

    def address(self) -> Address:
        address = super().address()
        ours = session(address)
        if "books" not in vars(ours):
            asked = ours.books
            ours.books = lambda *places: [Book() for _ in asked(*places)]  # type: ignore[method-assign]
        return address

    def committer(self) -> Any:
        made = super().committer()
        if made is not None:
            made._session = lambda: session(self.address())  # type: ignore[method-assign]
        return made


class ForgetfulStaged(KafkaContext):
    sink = Forgetful
    extra: ClassVar[dict[str, str]] = {"onLostLedger": "notWritten"}


class ForgetfulDirect(DirectContext):
    sink = Forgetful
    extra: ClassVar[dict[str, str]] = {"onLostLedger": "notWritten"}
