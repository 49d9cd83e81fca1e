"""The servers that tests share, each started once in a run, and which of them a machine must have.

A test asks with ``required(PostgresServer)`` or ``optional(MariaDbServer)``. Without the server, a test that needs a required
one fails, and one that needs an optional one is skipped.
"""

from __future__ import annotations

from typing import TypeVar

import pytest

from connectors.testing.servers import (
    AzuriteServer,
    GcsServer,
    HdfsServer,
    KafkaServer,
    MariaDbServer,
    MotoServer,
    OpenSearchServer,
    PostgresServer,
    Server,
    Unavailable,
)

S = TypeVar("S", bound=Server)

REQUIRED: tuple[type[Server], ...] = (PostgresServer, MotoServer, OpenSearchServer, KafkaServer, HdfsServer)
"""From package registries on any machine: a run without one of these proves too little."""
OPTIONAL: tuple[type[Server], ...] = (MariaDbServer, AzuriteServer, GcsServer)
"""Only where somebody has installed them, or what builds them: node, go."""

_started: dict[type[Server], Server | Unavailable] = {}


def required(kind: type[S]) -> S:
    """The running server of ``kind``; the test fails if there cannot be one."""
    if kind not in REQUIRED:
        raise TypeError(f"{kind.__name__} is not among the servers that every machine must have")
    found = _start(kind)
    if isinstance(found, Unavailable):
        pytest.fail(f"{kind.__name__} is required: {found}", pytrace=False)
    return found


def optional(kind: type[S]) -> S:
    """The running server of ``kind``; the test is skipped if there cannot be one."""
    if kind not in OPTIONAL:
        raise TypeError(f"{kind.__name__} is not among the optional servers")
    found = _start(kind)
    if isinstance(found, Unavailable):
        pytest.skip(f"{kind.__name__}: {found}")
    return found


def _start(kind: type[S]) -> S | Unavailable:
    if kind not in _started:
        try:
            _started[kind] = kind().start()
        except Unavailable as missing:
            _started[kind] = missing
    return _started[kind]  # type: ignore[return-value]
