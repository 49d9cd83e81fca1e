"""The queries of this system that are killed: see :mod:`tests.systems.pipelines`."""

from __future__ import annotations

from typing import Any, ClassVar

from ..pipelines import CopyContext, Pipeline, Pipelines
from .contexts import SubscriptionContext


class ShortDeadlineContext(SubscriptionContext):
    """What a killed run has held is delivered again soon. Messages are compared by id, not by the time of publication."""

    def options(self) -> dict[str, str]:
        return {**super().options(), "ackDeadline": "10s"}


class KeysContext(ShortDeadlineContext):
    """Messages with ordering keys."""

    settings: ClassVar = {"enable_message_ordering": True}

    def message(self, number: int) -> dict[str, Any]:
        return {**super().message(number), "ordering_key": f"key {number % 3}"}


class MessagesContext(CopyContext):
    """Without the time of publication, which is the service's."""

    def rows(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name != "publishTime"} for row in super().rows()]


PIPELINES: Pipelines = {
    "copy of a subscription": Pipeline(MessagesContext, "foreach_batch", ShortDeadlineContext),
    "copy of a subscription by format": Pipeline(MessagesContext, "format", ShortDeadlineContext),
    "copy of a subscription with keys": Pipeline(MessagesContext, "foreach_batch", KeysContext),
}
QUICK = ()
SCHEDULES: dict[Any, Any] = {}
