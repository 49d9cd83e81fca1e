"""The sink passes every case of the kit on a real broker, read by a consumer that sees only what is committed."""

from __future__ import annotations

from typing import ClassVar

import pytest

from connectors.testing import SinkSuite

from .sink_contexts import AtLeastOnceContext, KafkaContext


class FewerKills(SinkSuite):
    """Two seeded kills a carrier; the long run has more."""

    @pytest.mark.parametrize("seed", range(2))
    def test_a_killed_run_is_finished_by_the_next_ones(self, writing, seed):  # type: ignore[no-untyped-def]
        super().test_a_killed_run_is_finished_by_the_next_ones(writing, seed)


class TestStaged(FewerKills):
    context = KafkaContext


class TestAtLeastOnce(FewerKills):
    class context(AtLeastOnceContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestEverySeed(SinkSuite):
    context = KafkaContext
