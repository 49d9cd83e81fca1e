"""Settings that Connect itself has for every connector, of Python or Java: what it refuses, and what has no effect here."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Final

from ..ground.cache_folder import is_told
from ..ground.errors import Fatal, Problem
from .tolerance import error_problems

_REFERENCE: Final = re.compile(r"\$\{([^}:]*):[^}]*\}")
_VERSION: Final = "plugin.version"
_ROWS_FROM_SPARK: Final = "the rows come from Spark; only consumer.override.max.poll.records of a sink is read"
_DEAD_LETTERS: Final = "it is for the producer of dead letters, and there is none"
_SETTINGS: Final[Mapping[str, str]] = {
    "topic.creation.": "topics are created by the brokers",
    "admin.override.": "topics are created by the brokers",
    "consumer.override.": _ROWS_FROM_SPARK,
    "producer.override.": _DEAD_LETTERS,
    "offsets.storage.topic": "offsets are in Spark's checkpoint, in no topic",
    "config.action.reload": "the properties of a query do not change while it runs",
    "config.providers": "secrets are {{secrets/scope/key}}",
}
"""Beginnings of properties that have no effect, and why."""
_log = logging.getLogger("connectors.connect")


def names(text: str | None) -> list[str]:
    """The items of a comma-separated list."""
    return [name for part in (text or "").split(",") if (name := part.strip())]


def common_problems(properties: Mapping[str, str], *, sink: bool) -> Iterator[Problem]:
    """The problems for which Connect refuses properties, whatever the connector."""
    yield from error_problems(properties, sink=sink)
    yield from reference_problems(properties, properties.get("config.providers"))
    letters = (properties.get("errors.deadletterqueue.topic.name") or "").strip()
    if sink and letters and _reads(properties, letters):
        text = f'"{letters}" is among the topics that the sink reads: its dead letters would come back.'
        yield Problem("errors.deadletterqueue.topic.name", text)


def reference_problems(properties: Mapping[str, str], providers: str | None) -> Iterator[Problem]:
    """The references ``${provider:…}`` of properties to one of these config providers, none of which is here."""
    known = names(providers)
    for key, value in properties.items():
        for provider in sorted({match[1] for match in _REFERENCE.finditer(str(value))}.intersection(known)):
            text = f'refers to the config provider "{provider}", and there are none here; '
            yield Problem(key, text + "write {{secrets/scope/key}} in its place.")


def _reads(properties: Mapping[str, str], topic: str) -> bool:
    if topic in names(properties.get("topics")):
        return True
    try:
        return re.fullmatch(properties.get("topics.regex") or "(?!)", topic) is not None
    except re.error:  # another problem
        return False


def without_effect(properties: Mapping[str, str], *, sink: bool) -> dict[str, str]:
    """The properties that have no effect, and why."""
    has_producer = sink and bool(properties.get("errors.deadletterqueue.topic.name"))
    effective = {"consumer.override.max.poll.records"} if sink else set()
    ignored = {}
    for key in properties:
        why = next((why for start, why in _SETTINGS.items() if key.startswith(start)), None)
        if key == _VERSION or key.endswith(f".{_VERSION}"):
            why = "the classes are those that are here, in whatever version"
        if why and key not in effective and not (has_producer and why is _DEAD_LETTERS):
            ignored[key] = why
    return ignored


def note_without_effect(properties: Mapping[str, str], log: str, *, sink: bool) -> None:
    """Tells once, when a query starts, which properties have no effect."""
    by_reason: dict[str, list[str]] = {}
    for key, why in without_effect(properties, sink=sink).items():
        by_reason.setdefault(why, []).append(key)
    if by_reason:
        parts = [f"{', '.join(sorted(keys))} ({why})" for why, keys in by_reason.items()]
        text = f"{log} {properties.get('name', '')}".strip() + f": without effect: {'; '.join(parts)}"
        if not is_told(text):
            _log.warning("%s", text)


def check_task_count(count: int, properties: Mapping[str, str], log: str) -> None:
    """Raises :class:`Fatal` for more task configurations than ``tasks.max``; ``tasks.max.enforce=false`` only warns."""
    most = int(properties.get("tasks.max", "1"))
    if count <= most:
        return
    text = f"the connector gives {count} task configurations, and tasks.max is {most}"
    if properties.get("tasks.max.enforce", "true").strip().lower() != "false":
        raise Fatal(text, connector=log, way_out="raise tasks.max, or set tasks.max.enforce=false, as in Connect")
    _log.warning("%s: %s", log, text)
