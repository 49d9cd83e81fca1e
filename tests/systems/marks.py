"""Marks for one case of a suite, in one of the classes that inherit it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

Suite = TypeVar("Suite", bound=type)

STAGES = "test_a_batch_that_fails_at_every_start_leaves_a_bounded_stage"


def marked(case: str, *marks: pytest.MarkDecorator) -> Callable[[Suite], Suite]:
    """Marks ``case`` of a suite, there and in what inherits it; a mark on the function would be one for all suites."""

    def decorate(suite: Suite) -> Suite:
        of: Any = getattr(suite, case)
        copy: Any = types.FunctionType(of.__code__, of.__globals__, case, of.__defaults__, of.__closure__)
        copy.pytestmark = [*of.pytestmark, *(mark.mark for mark in marks)]
        setattr(suite, case, copy)
        return suite

    return decorate
