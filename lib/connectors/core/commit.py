"""The commit protocol, on the driver: stage, decide, publish, and finish the batches that an earlier run decided.

The carriers (``foreach_batch``, ``df.writeStream``, ``df.write``) learn of a batch at different moments; they share this
module. It holds no state between batches that a restart would miss.

During an outage of the target (:class:`~connectors.ground.errors.Transient`) the commit waits as ``retry.*`` and
``outageTimeout`` say. Before it tries again, it asks the ledger whether the first try succeeded after all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Final

from ..ground import machine
from ..ground.errors import CommitRefused, ConnectorError, Transient
from ..ground.retry import Backoff, Contact, RetrySettings
from ..ground.state import dumps
from .batch import Batch, Committable
from .dead_letters import staged_letters
from .ledger import (
    OWNER,
    Entry,
    Ledger,
    ReplayPolicy,
    Verdict,
    check_claim,
    check_recipe,
    compare_replay,
    decide,
    is_stream,
)
from .metrics import active_meter
from .sink import Committer, Frame, FrameCommitter, GlobalCommitter, Sink

SWEEP_SECONDS: Final = 3600.0
"""The seconds between two sweeps of staging that dead attempts have left, since a run may last for months."""


class Commit:
    """Commits the batches of one sink. A carrier that can calls ``begin`` before it writes the rows."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.policy = ReplayPolicy.of(sink.values)
        self.ledger: Ledger | None = sink.ledger()
        self.committer: Committer | GlobalCommitter | None = sink.committer()
        self.contact = Contact(RetrySettings.of(sink.values))
        self.letters = sink.letters()
        self._claims: dict[str, int | None] = {}
        """By query, the number of the claim that its newest batch makes; :meth:`begin` sets it."""
        self._replacements: set[str] = set()
        """The queries whose newest batch (of the last :meth:`begin`) replaces the rows of other queries."""
        self._swept: float | None = None

    def begin(self, batch: Batch) -> Verdict:
        """Decides what to do with ``batch``, after it has finished the batches that an earlier run decided."""
        self._expect_contact(batch)
        if self.committer is None:
            return Verdict.WRITE
        if self._swept is None or machine.monotonic() - self._swept > SWEEP_SECONDS:
            self.recover(batch)
        last = self.last(batch.query)
        with self._located(batch):
            verdict = self._decide(batch, last)
        if verdict is Verdict.SKIP:  # a replay may follow a publication that failed half-way in this very run
            self.recover(batch)
        return verdict

    def _decide(self, batch: Batch, last: Entry | None) -> Verdict:
        """Also finds out whether the batch makes a claim: a query's first batch does, unless the ledger is lost."""
        owner, others = None, frozenset[str]()
        if last is None and is_stream(batch.query):
            owner = self.last(OWNER)
            named = owner.owner if owner is not None else None  # a user's committer may record the number only
            others = (self._queries() if named is None else frozenset([named])) - {batch.query, OWNER}
        verdict = decide(batch.sink_id, batch.query, batch.number, last, others, self.policy)
        is_first = last is None and is_stream(batch.query) and (batch.number == 0 or bool(others))
        is_owner = owner is not None and owner.owner == batch.query
        self._claims[batch.query] = (0 if owner is None else owner.batch + 1) if is_first and not is_owner else None
        self._replacements.discard(batch.query)
        if verdict is Verdict.WRITE and is_first and self._replaces(batch.query, owner, others):
            self._replacements.add(batch.query)
        return verdict

    def _replaces(self, query: str, owner: Entry | None, others: frozenset[str]) -> bool:
        """True if the first batch of ``query`` replaces the rows of other queries.

        An earlier run may have recorded its claim and then died. That claim still decides, whatever the policy is now.
        """
        claim = owner if owner is not None and owner.owner == query else None
        if claim is not None and claim.replace:
            return True
        return self.policy.on_new_query == "replace" and bool(others or (claim and self._queries() - {query, OWNER}))

    def commit_frame(self, frame: Frame, batch: Batch) -> None:
        """Writes and records ``frame`` by the sink's :class:`FrameCommitter`, after :meth:`begin`."""
        assert isinstance(self.committer, FrameCommitter)
        self.committer.commit_frame(frame, replace(self._with_replacement(batch), claim=self._claims[batch.query]))

    def _with_replacement(self, batch: Batch) -> Batch:
        """``batch``, with ``replace`` if :meth:`begin` has decided that it replaces the rows of other queries."""
        return replace(batch, replace=batch.replace or batch.query in self._replacements)

    def finish(
        self,
        batch: Batch,
        committables: Sequence[Committable],
        rows: int | None = None,
        checksum: str | None = None,
    ) -> None:
        """Decides and publishes ``batch``. If it is already committed, compares the replay with it and removes the stage."""
        if self.committer is None:
            self._decide_letters(batch, committables)
            self._publish_letters(batch, committables)
            return
        self.contact.reached = True  # the tasks have reached the target
        total = rows if rows is not None else sum(staged.rows + staged.rejected for staged in committables)
        verdict = self.begin(batch)
        if verdict is Verdict.SKIP:
            self.replayed(batch, total, checksum)
            self.discard(committables)
            return
        if verdict is Verdict.RECORD_ONLY:
            self.discard(committables)
            committables = ()
        elif isinstance(self.committer, Committer):
            self._check(batch, self.committer, committables, total)
        staged = tuple(asdict(committable) for committable in committables)
        claim = self._claims[batch.query]
        batch = self._with_replacement(batch)
        entry = Entry(
            batch.query, batch.number, total, checksum, staged, replace=batch.replace, claim=claim, recipe=batch.recipe
        )
        if isinstance(self.committer, Committer):
            with self._located(batch):
                self.contact.call(lambda: self._claim_sink(batch, entry))
        self._decide_letters(batch, committables)
        if isinstance(self.committer, GlobalCommitter):
            self._commit_in_target(self.committer, batch, entry, committables)
            self._publish_letters(batch, committables)
        elif self.contact.call(lambda: self._record(batch, entry)):
            self._publish(entry, batch)
            self._publish_letters(batch, committables)
        else:  # another driver recorded its attempt at this batch first, and may die before it publishes it
            self.recover(batch)
            self.replayed(batch, total, checksum)
            self.discard(committables)

    def _check(self, batch: Batch, committer: Committer, committables: Sequence[Committable], rows: int) -> None:
        with self._located(batch):
            self.contact.call(lambda: committer.check(committables, rows))

    def _claim_sink(self, batch: Batch, entry: Entry) -> None:
        """Makes the claim of a query's first batch. Raises :class:`CommitRefused` if another query was faster."""
        claim = entry.ownership()
        if claim is not None and not self._ledger().record(claim):  # or an earlier answer was lost
            check_claim(batch.sink_id, entry, self._ledger().last(OWNER))

    def _commit_in_target(
        self, committer: GlobalCommitter, batch: Batch, entry: Entry, committables: Sequence[Committable]
    ) -> None:
        tried = False

        def attempt() -> None:
            nonlocal tried
            last = committer.last(entry.query) if tried else None
            if last is not None and last.batch >= entry.batch:
                return
            tried = True
            committer.rejects = self.sink.rejects(batch, staged_letters(committables))
            committer.commit(entry, committables)

        self.contact.call(attempt)
        rejected = committer.rejects.count if committer.rejects else 0  # of the try that went through
        # The carrier counts all rows that were staged.
        active_meter().count(rows=-rejected, errors=rejected, dead_letters=rejected if self.letters else 0)

    def _record(self, batch: Batch, entry: Entry) -> bool:
        """Records ``entry``. Also true if an earlier try recorded it and only the answer was lost.

        Raises :class:`CommitRefused` if another run of the query has committed later batches. The ledger does not refuse such
        an entry by itself: it keeps the newest batches only, and records a batch that it has forgotten a second time.
        """
        recorded, last = self._ledger().record(entry), self._ledger().last(entry.query)
        if last is not None and last.batch > entry.batch:
            if recorded:
                self._mark_published(entry)
            self._decide_letters(batch, ())
            raise CommitRefused(
                f"batch {entry.batch} is recorded after batch {last.batch}: this driver stood still while another run of the "
                "query went on; nothing of this batch is published",
                connector=f"connectors.{self.sink.name}",
                way_out="let only one run of a query be active",
            )
        return recorded or (last is not None and dumps(last.committables) == dumps(entry.committables))

    def recorded(self, batch: Batch) -> list[Committable]:
        """The committables of the committed ``batch`` as the ledger has them; empty if it does not record committables."""
        last = self.last(batch.query)
        return [Committable(**state) for state in last.committables] if last and last.batch == batch.number else []

    def replayed(self, batch: Batch, rows: int | None, checksum: str | None) -> None:
        """Checks that the replay of ``batch``, which is already committed, holds the same rows."""
        last = self.last(batch.query)
        if last is not None and is_stream(batch.query):
            check_recipe(last, batch.recipe, self.policy)
            compare_replay(last, rows, checksum, self.policy)

    def abort(self, batch: Batch, committables: Sequence[Committable | None]) -> None:
        """Removes the stage of a failed batch, except committables that the ledger has recorded: they will be published."""
        last = self.last(batch.query)
        if last is None or last.batch != batch.number:
            self.discard(committables)
        elif isinstance(self.committer, Committer):
            decided = {dumps(state) for state in last.committables}
            self.discard([staged for staged in committables if staged and dumps(asdict(staged)) not in decided])

    def recover(self, batch: Batch) -> None:
        """Publishes batches that are recorded and not yet published, and sweeps old staging."""
        if self.committer is None:
            return
        live = frozenset({batch.prefix()})
        if self.letters:  # before the ledger drops the entries of df.write: they say that their letters are due
            self.contact.call(self.letters.storage.check, reaches=False)
            self.contact.call(partial(self.letters.recover, self._last_number), reaches=False)
            self.contact.call(partial(self.letters.sweep, live), reaches=False)
        if isinstance(self.committer, Committer):
            self.contact.call(self._ledger().check)
            for entry in self.contact.call(self._ledger().unpublished):
                self._publish_pending(entry, batch.sink_id)
        self.contact.call(partial(self.committer.sweep, live), reaches=False)
        self._swept = machine.monotonic()

    def _publish_pending(self, entry: Entry, sink_id: str) -> None:
        """Publishes a recorded batch that may not be published yet.

        A batch below its query's newest is already published, since the next batch is recorded only after that. Or a driver
        recorded it after the ledger had forgotten it; then it must never be published.
        """
        last = self.last(entry.query)
        if last is not None and last.batch > entry.batch:
            self._mark_published(entry)
        else:
            self._publish(entry, Batch(sink_id, entry.query, entry.batch, entry.replace))

    def _publish(self, entry: Entry, batch: Batch) -> None:
        committer = self.committer
        if isinstance(committer, Committer):
            staged = [Committable(**state) for state in entry.committables]
            self.contact.call(lambda: committer.publish(batch, staged))
            self._mark_published(entry)

    def _mark_published(self, entry: Entry) -> None:
        self.contact.call(lambda: self._ledger().mark_published(entry))

    def _decide_letters(self, batch: Batch, committables: Sequence[Committable]) -> None:
        if self.letters:
            self.contact.call(partial(self.letters.decide, batch, staged_letters(committables)), reaches=False)

    def _publish_letters(self, batch: Batch, committables: Sequence[Committable]) -> None:
        if self.letters:
            self.contact.call(partial(self.letters.publish, batch, staged_letters(committables)), reaches=False)

    def drop_attempts(self, batch: Batch, *, failed: bool = False) -> None:
        """Removes the stage of earlier runs for ``batch``; with ``failed`` also the stage of this run.

        A recorded batch keeps its stage, since a run may have died before it published. If tasks run before the driver's
        code, a later run may get here before the recovery.
        """
        self._expect_contact(batch)
        if isinstance(self.committer, Committer) and self._last_number(batch.query) >= batch.number:
            return
        for part in (self.committer, self.letters):
            if part is not None:
                self.contact.call(partial(part.drop_attempts, batch, failed=failed))

    def discard(self, committables: Sequence[Committable | None]) -> None:
        """Removes the stage of a batch that is not recorded."""
        for committable in committables:
            if committable is not None and self.committer is not None:
                self.committer.discard(committable)
        if self.letters:
            self.letters.discard(staged_letters(committables))

    def await_target(self, batch: Batch, outage: Transient) -> None:
        """Returns when the target answers again after ``outage``; raises the outage if the target stays away.

        For a task whose rows cannot be read again: the engine's next attempt helps only when the target is back.
        """
        self._expect_contact(batch)
        backoff = Backoff(self.contact.retry)
        while True:
            backoff.sleep(backoff.pause(outage))
            try:
                if history := self._history():
                    history.last(batch.query)
                backoff.reset()
                return
            except Transient as still_away:
                outage = still_away

    def _expect_contact(self, batch: Batch) -> None:
        """Notes that a query with a finished batch has reached its target, so an outage is no wrong address."""
        self.contact.reached |= batch.number > 0

    @contextlib.contextmanager
    def _located(self, batch: Batch) -> Iterator[None]:
        """Adds the connector and the batch to errors raised inside."""
        try:
            yield
        except ConnectorError as error:
            raise error.located(f"connectors.{self.sink.name}", str(batch)) from None

    def _ledger(self) -> Ledger:
        if self.ledger is None:
            raise TypeError(f"{type(self.sink).__name__} has a Committer and therefore needs a ledger()")
        return self.ledger

    def last(self, query: str) -> Entry | None:
        """The highest batch of ``query`` that the target has recorded."""
        history = self._history()
        return self.contact.call(lambda: history.last(query)) if history else None

    def _last_number(self, query: str) -> int:
        last = self.last(query)
        return last.batch if last is not None else -1

    def _queries(self) -> frozenset[str]:
        history = self._history()
        return self.contact.call(history.queries) if history else frozenset()

    def _history(self) -> Ledger | GlobalCommitter | None:
        """The committer or ledger that knows which batches are committed; ``None`` if the sink has neither."""
        return self.committer if isinstance(self.committer, GlobalCommitter) else self.ledger
