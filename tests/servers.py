"""The servers that tests share, each started once in a run.

A test asks with ``required(PostgresServer)`` or ``optional(MariaDbServer)``, as the class of the server says. Without the
server, a test that needs a required one fails, and a test that needs an optional one is skipped.
"""

from __future__ import annotations

from typing import TypeVar

import pytest

from connectors.testing.servers import Server, Unavailable, shared_server

S = TypeVar("S", bound=Server)
_unavailable: dict[type[Server], Unavailable] = {}


def required(kind: type[S]) -> S:
    """The running server of ``kind``; the test fails if there cannot be one."""
    if not kind.required:
        raise TypeError(f"{kind.__name__} is not among the servers that every machine must have")
    return _running(kind)


def optional(kind: type[S]) -> S:
    """The running server of ``kind``; the test is skipped if there cannot be one."""
    if kind.required:
        raise TypeError(f"{kind.__name__} is not among the optional servers")
    return _running(kind)


def _running(kind: type[S]) -> S:
    if kind not in _unavailable:
        try:
            return shared_server(kind)
        except Unavailable as missing:
            _unavailable[kind] = missing
    if kind.required:
        pytest.fail(f"{kind.__name__} is required: {_unavailable[kind]}", pytrace=False)
    pytest.skip(f"{kind.__name__}: {_unavailable[kind]}")
