"""The transforms of one connector, in the order of ``transforms``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...core.errors import Problem
from ..columns import Records
from ..tolerance import Tolerance


class Chain:
    """The transforms of a connector; each takes what the one before has given."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Chain:
        return cls()

    @classmethod
    def problems(cls, properties: Mapping[str, str]) -> Iterator[Problem]:
        return iter(())

    def apply(self, records: Records, tolerance: Tolerance) -> Sequence[Records]:
        return [records]
