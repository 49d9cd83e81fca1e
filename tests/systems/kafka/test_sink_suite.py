"""The sink passes every case of the kit on a real broker, read by a consumer that sees only what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from connectors.testing import SinkSuite
from connectors.testing.engine import in_a_child
from connectors.testing.faults import Action, Point
from connectors.testing.sink_cases import SinkQuery

from .forgetful import ForgetfulStaged
from .sink_contexts import AtLeastOnceContext, KafkaContext


class FewerKills(SinkSuite):
    """Two seeded kills a carrier, and few starts that fail; ``make soak`` has more."""

    seeds, starts = 2, 10


class TestStaged(FewerKills):
    context = KafkaContext


@pytest.mark.soak
class TestAtLeastOnce(FewerKills):
    class context(AtLeastOnceContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


def test_the_kit_sees_what_a_sink_without_memory_writes_twice(tmp_path: Path) -> None:
    target = ForgetfulStaged(tmp_path)
    writing = SinkQuery(target, tmp_path, "foreach_batch")
    writing.injector.arm(Point.COMMIT_AFTER, Action.KILL)
    assert in_a_child(writing.engine().run) == -9
    writing.engine().run()
    with pytest.raises(AssertionError, match="10 duplicated"):
        writing.expect()
