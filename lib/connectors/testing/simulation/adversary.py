"""The adversary: it strikes at the steps of a history, by moves that have names.

Each history has moves of its own, and a rate for each of them (*swarm testing*: with all moves at once, one hides what another
would show). A move that happens has a number, by which :attr:`Adversary.spared` leaves it out when a history is repeated.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final, TypeVar

from ...ground.errors import Transient
from .scheduler import Scheduler

T = TypeVar("T")


class Move(Enum):
    """What the adversary can do."""

    KILL = "a process dies"
    PAUSE = "a process stands still, and goes on later"
    CLOCK = "the clock of a process is wrong"
    LOSE_REQUEST = "a request does not arrive"
    LOSE_ANSWER = "a request is done, and its answer is lost"
    REPEAT = "a request arrives twice"
    COPY = "a second copy of a task runs beside the first"
    GIVE_UP = "a task is given up, tried again, and goes on"
    SECOND_DRIVER = "a driver that stands still is replaced, and goes on"
    POWER = "the power fails: all processes die, and the disk forgets"
    DUPLICATE = "a message is delivered again although it is leased"
    TWIN = "a second driver starts at the same moment"
    OLD_CHECKPOINT = "a checkpoint is restored that lacks the newest batch"


_AT_FEW_STEPS: Final = (Move.COPY, Move.GIVE_UP, Move.SECOND_DRIVER, Move.TWIN, Move.DUPLICATE, Move.OLD_CHECKPOINT)


_RATES: Final = (0.0005, 0.003, 0.02)
_SELDOM: Final = (0.1, 0.3, 0.7)
"""The rates of moves for which there are few occasions."""
_MOST_OF_A_KIND: Final = 5
_PAUSES: Final = (0.5, 5.0, 60.0, 700.0)
_SKEWS: Final = (-30.0, -3.0, 3.0, 30.0)


class Adversary:
    """The adversary of one history, which makes some moves of each kind of ``moves``, and then rests."""

    def __init__(self, scheduler: Scheduler, moves: Collection[Move] = tuple(Move), spared: Collection[int] = ()) -> None:
        self.scheduler = scheduler
        self.spared = spared
        self.moves: Counter[Move] = Counter()
        """How often it made each."""
        self.count = 0
        """The number of moves, with those that are spared."""
        self._chance = random.Random(f"moves {scheduler.seed}")
        self._rests = False
        kinds = [move for move in Move if move in moves and self._chance.random() < 0.6]
        self._left = {move: self._chance.randrange(1, _MOST_OF_A_KIND + 1) for move in kinds}
        self._rates = {move: self._chance.choice(_SELDOM if move in _AT_FEW_STEPS else _RATES) for move in kinds}

    @property
    def rests(self) -> bool:
        """True when no move is left."""
        return self._rests or not any(self._left.values())

    def rest(self) -> None:
        """No move comes any more."""
        self._rests = True

    def strikes(self, move: Move, what: str, weight: float = 1.0) -> bool:
        """Whether ``move`` happens now, to ``what``; ``weight`` times as likely as usual."""
        if self._rests or not self._left.get(move) or self._chance.random() >= weight * self._rates[move]:
            return False
        self._left[move] -= 1
        self.count += 1
        if self.count - 1 in self.spared:
            return False
        self.moves[move] += 1
        self.scheduler.note(f"** {move.name} ({self.count - 1}): {what}")
        return True

    def touch(self, what: str, effect: Callable[[], T]) -> T:
        """``effect`` on the world, between two steps at which others may come, and the process may die or stand still."""
        self.disturb(f"before {what}")
        result = effect()
        self.disturb(f"after {what}")
        return result

    def request(self, what: str, effect: Callable[[], T], *, repeats: bool = False) -> T:
        """As :meth:`touch`, over a network. ``repeats``: it may arrive twice. Raises :class:`Transient`."""
        self.disturb(f"before {what}")
        if self.strikes(Move.LOSE_REQUEST, what):
            raise Transient(f"{what}: no connection")
        result = effect()
        if repeats and self.strikes(Move.REPEAT, what):
            effect()
        if self.strikes(Move.LOSE_ANSWER, what):
            raise Transient(f"{what}: no answer")
        self.disturb(f"after {what}")
        return result

    def disturb(self, what: str) -> None:
        """A step of the process that runs."""
        process = self.scheduler.thread.process
        if process.mortal:
            if self.strikes(Move.KILL, what, process.weight):
                self.scheduler.kill(process)
            if self.strikes(Move.PAUSE, what, process.weight):
                process.paused_until = self.scheduler.now + self._chance.choice(_PAUSES)
            if self.strikes(Move.CLOCK, what):
                process.skew = self._chance.choice(_SKEWS)
        self.scheduler.step()

    def chance(self) -> float:
        """A number between 0 and 1, of the adversary's own."""
        return self._chance.random()
