"""Dead letters as rows of the library and as headers of Connect."""

from __future__ import annotations

from typing import Any, Final

from ..ground.state import dumps
from .host import DeadLetter

PREFIX: Final = "__connect.errors."


def context_headers(letter: DeadLetter, connector: str) -> list[tuple[str, bytes | None]]:
    """The headers that Connect puts on a dead letter: what failed and why."""
    fields: dict[str, Any] = {
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "connector.name": connector,
        "task.id": letter.task,
        "stage": letter.stage,
        "class.name": letter.executing_class,
        "exception.class.name": letter.error_class,
        "exception.message": letter.message,
        "exception.stacktrace": letter.stacktrace,
    }
    return [(PREFIX + name, None if value is None else str(value).encode()) for name, value in fields.items()]


def letter_fields(letter: DeadLetter, connector: str, position: dict[str, Any] | None = None) -> dict[str, Any]:
    """The columns of a dead letter in ``deadLetterPath``; its headers hold those of the record and the context."""
    place = position or {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset}
    return {
        "source": f"connectors.connect {connector}".strip(),
        "position": dumps(place),
        "error_class": letter.error_class,
        "error": letter.message,
        "record": letter.value,
        "key": letter.key,
        "headers": [
            {"key": key, "value": value} for key, value in [*letter.headers, *context_headers(letter, connector)]
        ],
        "timestamp": None if letter.timestamp is None else letter.timestamp * 1000,
    }
