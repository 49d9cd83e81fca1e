"""The sink passes every case of the kit on a real broker, read by a consumer that sees only what is committed."""

from __future__ import annotations

from typing import ClassVar

import pytest

from connectors.testing import SinkSuite

from .sink_contexts import AtLeastOnceContext, KafkaContext


class FewerKills(SinkSuite):
    """Two seeded kills a carrier; the long run has more."""

    seeds = 2


class TestStaged(FewerKills):
    context = KafkaContext


class TestAtLeastOnce(FewerKills):
    class context(AtLeastOnceContext):  # noqa: N801
        carriers: ClassVar[tuple[str, ...]] = ("format",)


@pytest.mark.soak
class TestEverySeed(SinkSuite):
    context = KafkaContext
