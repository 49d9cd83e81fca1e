"""What is wrong with a bundle, and what is merely worth knowing."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field

from connectors.core.errors import Misconfigured, Problem


@dataclass
class Findings:
    """``problems`` keep a job from starting; ``notes`` do not."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)

    def problem(self, where: str, text: str) -> None:
        self.problems.append(Problem(where, text))

    def note(self, where: str, text: str) -> None:
        self.notes.append(Problem(where, text))

    def add(self, other: Findings) -> None:
        self.problems += other.problems
        self.notes += other.notes

    def enforce(self, what: str) -> None:
        """Raises :class:`Misconfigured` with every problem, if there is one."""
        if self.problems:
            raise Misconfigured(what, list(dict.fromkeys(self.problems)))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence: ``; did you mean "…"?`` with the known name nearest to ``name``, else a full stop."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
    return f'; did you mean "{close[0]}"?' if close else "."


def one_letter_apart(name: str, other: str) -> bool:
    """True when one letter added, dropped, changed, or two neighbours swapped, turn one name into the other."""
    if name == other or abs(len(name) - len(other)) > 1:
        return False
    differ = (i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b)
    start = next(differ, min(len(name), len(other)))
    left, right = name[start:], other[start:]
    same_after = left[1:] == right[1:] or left[1:] == right or left == right[1:]
    return same_after or (left[:2] == right[1::-1] and left[2:] == right[2:])
