"""Every case for a source over a queue, in addition to :class:`~connectors.testing.epoch_suite.EpochSourceSuite`::

    class TestOrders(QueueSuite):
        context = OrdersContext
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pytest

from ..core.epoch_source import EpochSource
from ..core.epochs import ID, Messages, Receiver
from ..core.source import Source
from .compare import same_records
from .contexts import SourceContext
from .epoch_suite import EpochSourceSuite
from .source_suite import COUNT, Log, SourceQuery

_WAIT_SECONDS: Final = 10.0
_QUIET_SECONDS: Final = 0.5
"""The seconds that a case waits to see that no message comes."""


class QueueSuite(EpochSourceSuite):
    """The cases of an :class:`~connectors.core.epoch_source.EpochSource`: its receiver, and redelivered messages."""

    @pytest.fixture
    def receiver(self, system: SourceContext) -> Iterator[Receiver]:
        """The receiver of a task, open."""
        with _receiver(system) as receiver:
            yield receiver

    def test_a_receiver_gives_as_many_messages_as_it_may_and_names_each(
        self, system: SourceContext, receiver: Receiver
    ) -> None:
        system.write(5)
        messages = _received(receiver, 3, at_least=1)
        assert all(1 <= part.rows.num_rows <= 3 for part in messages)
        for part in messages:
            assert len(part.leases) == part.rows.num_rows
            for column in (part.ids, part.published):
                assert column is None or len(column) == part.rows.num_rows
        receiver.release(_leases(messages))

    def test_a_receiver_that_gets_nothing_returns_in_time(self, system: SourceContext, receiver: Receiver) -> None:
        self.needs_empty(system)
        begin = time.monotonic()
        assert receiver.receive(10, 0.2) is None
        assert time.monotonic() - begin < 5.0

    def test_a_released_message_comes_again(self, system: SourceContext, receiver: Receiver) -> None:
        written = system.write(3)
        receiver.release(_leases(_received(receiver, 3)))
        messages = _received(receiver, 3)
        columns = system.schema.names
        same_records(written, [row for part in messages for row in part.rows.select(columns).to_pylist()])

    def test_an_acknowledged_message_does_not_come_again_and_may_be_acknowledged_twice(
        self, system: SourceContext, receiver: Receiver
    ) -> None:
        system.write(3)
        leases = _leases(_received(receiver, 3))
        receiver.acknowledge(leases)
        receiver.acknowledge(leases)
        receiver.release(leases)
        assert receiver.receive(3, _QUIET_SECONDS) is None

    def test_a_leased_message_comes_to_nobody_else(self, system: SourceContext, receiver: Receiver) -> None:
        system.write(3)
        leases = _leases(_received(receiver, 3))
        with _receiver(system) as other:
            assert other.receive(3, _QUIET_SECONDS) is None
        receiver.release(leases)

    def test_a_lease_that_ends_gives_the_message_to_others_and_an_extended_one_does_not(self, system: SourceContext) -> None:
        if not system.short_lease:
            pytest.skip("short_lease of the context has no options")
        system.write(2)
        with _receiver(system, **system.short_lease) as receiver, _receiver(system, **system.short_lease) as other:
            seconds = receiver.lease_seconds
            assert seconds is not None, f"{dict(system.short_lease)} must give the receiver lease_seconds"
            assert receiver.lease_option in (None, *system.short_lease), "lease_option must name what makes a lease longer"
            extended, ended = (_leases([part]) for part in _received(receiver, 1, count=2))
            end = time.monotonic() + 2.5 * seconds
            while time.monotonic() < end:
                receiver.extend(extended)
                time.sleep(seconds / 4)
            again = _received(other, 2, count=1)
            assert other.receive(2, seconds / 4) is None, "a message came again whose lease was extended"
            assert len(_leases(again)) == len(ended) == 1

    def test_a_message_that_comes_again_before_its_acknowledgement_counts_once(
        self, system: SourceContext, receiver: Receiver, log: Log
    ) -> None:
        written = system.write(COUNT)
        query = SourceQuery(system, **system.limit)
        rows = query.next(log) or []
        source: Any = query.source
        if any(record is None or record[1][ID].null_count for record in [source.log().table(1, 0)]):
            pytest.skip("the system's messages have no ids")
        receiver.release(source.log().leases(1)[0])
        same_records(written, rows + SourceQuery(system).rest(log))

    def test_what_is_published_while_a_run_reads_a_backlog_comes_to_it_once_and_to_the_next_run_at_once(
        self, system: SourceContext, log: Log
    ) -> None:
        if system.undated:
            pytest.skip(system.undated)
        written, late = system.write(COUNT), list[dict[str, Any]]()
        deliveries = Counter[str]()
        query = SourceQuery(system, _counted(system.source, deliveries), **system.limit)
        query.planner.freeze()
        rows = query.next(log) or []
        late += system.write(5)
        while (batch := query.next(log)) is not None:
            rows += batch
            late += system.write(1)
        query.planner.close()
        same_records(written, rows)
        assert {id: count for id, count in deliveries.items() if count > 1} == {}
        same_records(late, SourceQuery(system).rest(log))

    def test_a_run_that_begins_again_waits_for_what_its_dead_task_had_received(self, system: SourceContext, log: Log) -> None:
        if not system.short_lease:
            pytest.skip("short_lease of the context has no options")
        options = {**system.short_lease, "maxEpochTime": "500ms"}
        written = system.write(5)
        assert SourceQuery(system, **options).plan(log) == 0
        with _receiver(system, **options) as dead:
            _received(dead, 5)
        query = SourceQuery(system, **options)
        query.planner.freeze()
        rows = query.batch(log, 0)
        while (batch := query.next(log)) is not None:
            rows += batch
        same_records(written, rows)
        assert len(log) < 8, "the readers wait, in place of one epoch after the other"


def _counted(kind: type[Source], deliveries: Counter[str]) -> type[Source]:
    """``kind`` with receivers that count in ``deliveries`` how often they get each message that has an id."""

    class CountedSource(kind):  # type: ignore[valid-type, misc]
        def receiver(self, schema: pa.Schema | None) -> Receiver:
            receiver: Receiver = super().receiver(schema)
            receive = receiver.receive

            def count(rows: int, seconds: float) -> Messages | None:
                messages = receive(rows, seconds)
                if messages is not None and messages.ids is not None:
                    deliveries.update(messages.ids.drop_null().to_pylist())
                return messages

            receiver.receive = count  # type: ignore[method-assign]
            return receiver

    return CountedSource


@contextlib.contextmanager
def _receiver(system: SourceContext, **options: str) -> Iterator[Receiver]:
    source = system.source.of({**system.options(), **options}, streaming=True)
    assert isinstance(source, EpochSource)
    source.begin()
    receiver = source.receiver(system.schema)
    receiver.open()
    with contextlib.closing(receiver):
        yield receiver


def _received(receiver: Receiver, rows: int, *, count: int | None = None, at_least: int | None = None) -> list[Messages]:
    """``count`` messages (default: ``rows``), at most ``rows`` at a time. Fails if they do not come."""
    expected, messages, have = at_least or count or rows, [], 0
    end = time.monotonic() + _WAIT_SECONDS
    while have < expected:
        assert time.monotonic() < end, f"{have} of {expected} messages came within {_WAIT_SECONDS:g} s"
        if (part := receiver.receive(min(rows, expected - have) if at_least is None else rows, 1.0)) is not None:
            messages.append(part)
            have += part.rows.num_rows
    return messages


def _leases(messages: list[Messages]) -> list[str]:
    return [lease for part in messages for lease in part.leases.to_pylist()]
