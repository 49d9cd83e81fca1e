"""Several sessions of a database, driven in one order that a seed gives, also where a statement waits for another session.

One thread draws and hands out statements, so that the same seed gives the same statements in the same order. Each session
runs its own in a thread; a statement that waits for a lock is left alone until it is through. A *plan* is a generator: it
yields the statements of a transaction, and gets the error of each, or ``None``.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.systems.cdc.values import shown

_LOOK_SECONDS = 0.003
_PATIENCE_SECONDS = 60.0


@dataclass
class Statement:
    """SQL with its parameters; with ``rows``, a bulk load of them. ``sort`` is what a report counts it as."""

    sql: str
    parameters: Sequence[Any] | None = None
    rows: Sequence[Sequence[Any]] | None = None
    sort: str = ""
    is_ddl: bool = False

    def __str__(self) -> str:
        values = "" if not self.parameters else f"  {[shown(value, 40) for value in self.parameters]}"
        keys = "" if self.rows is None else f"  {len(self.rows)} rows, {shown(self.rows[0], 60)} … {shown(self.rows[-1], 60)}"
        return f"{self.sql}{values}{keys}"


Plan = Generator[Statement, "Exception | None", Any]
Execute = Callable[[Any, Statement], int]
"""Runs a statement on a connection and returns the number of rows that it has changed."""


@dataclass
class Session:
    """A connection and the thread of its statements."""

    number: int
    connection: Any
    execute: Execute
    is_waiting: Callable[[Session], bool]
    plan: Plan | None = None
    statement: Statement | None = None
    future: Future[int] | None = None
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def run(self, statement: Statement) -> bool:
        """Starts a statement; true once it is through, false as soon as it waits for another session."""
        self.statement = statement
        self.future = self.pool.submit(self.execute, self.connection, statement)
        return self.settles()

    def settles(self, seconds: float = _PATIENCE_SECONDS) -> bool:
        """True once the statement is through, false as soon as it waits for another session."""
        if self.future is None:
            return True
        until = time.monotonic() + seconds
        while not wait([self.future], _LOOK_SECONDS).done:
            if self.is_waiting(self):
                return False
            assert time.monotonic() < until, f"a statement takes too long: {self.statement}"
        return True

    def ends(self, seconds: float) -> bool:
        """True if the statement is through within this time, whether it waits meanwhile or not."""
        assert self.future is not None
        return bool(wait([self.future], seconds).done)

    @property
    def is_blocked(self) -> bool:
        return self.future is not None and not self.future.done()

    def close(self) -> None:
        self.connection.close()
        self.pool.shutdown(wait=False)


class Scheduler:
    """Lets sessions run their plans by turns. ``expected`` are the errors that a workload of this sort brings about.

    ``new_plan`` makes the plan of a session that has none. The counts are rows and statements by sort, transactions, errors.
    """

    def __init__(
        self, sessions: Sequence[Session], expected: tuple[type[Exception], ...], log: Path, chance: random.Random
    ) -> None:
        self.sessions = list(sessions)
        self.expected = expected
        self.chance = chance
        self.counts: Counter[str] = Counter()
        self._log = log.open("a")

    def is_hurried(self) -> bool:
        """True while a change of a table waits for transactions to end."""
        return any(s.is_blocked and s.statement is not None and s.statement.is_ddl for s in self.sessions)

    def step(self, new_plan: Callable[[], Plan]) -> None:
        """Lets one session go on by one statement."""
        ready = [session for session in self.sessions if session.settles()]
        if not ready:  # a deadlock: the database ends it
            time.sleep(_LOOK_SECONDS)
            return
        session = self.chance.choice(ready)
        if session.plan is None:
            session.plan = new_plan()
        self._advance(session)

    def finish(self, seconds: float = _PATIENCE_SECONDS) -> None:
        """Ends all transactions, by the ends that their plans choose."""
        until = time.monotonic() + seconds
        while busy := [session for session in self.sessions if session.plan is not None]:
            for session in busy:
                if session.settles():
                    self._advance(session)
            assert time.monotonic() < until, [str(session.statement) for session in busy]

    def run(self, session: Session, statement: Statement) -> Exception | None:
        """Runs one statement of a script outside of all plans to its end. Returns its error."""
        session.run(statement)
        assert session.ends(_PATIENCE_SECONDS), f"a script waits for ever: {statement}"
        return self.collect(session)

    def collect(self, session: Session) -> Exception | None:
        """The error of the statement that is through, ``None`` for none. Raises what nobody expects."""
        if session.future is None:
            return None
        statement, future = session.statement, session.future
        assert statement is not None
        session.future = None
        try:
            rows = future.result()
        except self.expected as error:
            self.counts["errors"] += 1
            self.note(f"{session.number} {type(error).__name__}: {statement}")
            return error
        except Exception as error:
            self.note(f"{session.number} UNEXPECTED {error!r}: {statement}")
            raise AssertionError(f"{error!r} of {statement}") from error
        self.note(f"{session.number} {rows}: {statement}")
        self.counts["rows"] += rows if statement.sort else 0
        self.counts[statement.sort] += 1 if statement.sort else 0
        return None

    def note(self, text: str) -> None:
        self._log.write(text + "\n")
        self._log.flush()

    def close(self) -> None:
        for session in self.sessions:
            session.close()
        self._log.close()

    def _advance(self, session: Session) -> None:
        assert session.plan is not None
        is_first = session.future is None and session.statement is None
        error = self.collect(session)
        try:
            statement = next(session.plan) if is_first else session.plan.send(error)
        except StopIteration:
            session.plan = session.statement = None
            return
        session.run(statement)
