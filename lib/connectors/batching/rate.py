"""How many records may be under way: more by and by while all goes well, far fewer when the target is overrun."""

from __future__ import annotations


class Aimd:
    """Additive increase, multiplicative decrease: ``limit`` records, never below 1 nor above ``most``."""

    def __init__(self, first: int, most: int, step: int, factor: float = 0.5) -> None:
        self.most, self.step, self.factor = most, max(1, step), factor
        self.limit = max(1, min(first, most))

    def up(self) -> None:
        """A request went through whole."""
        self.limit = min(self.most, self.limit + self.step)

    def down(self) -> None:
        """The target refused a request, or a part of it, for now."""
        self.limit = max(1, int(self.limit * self.factor))
