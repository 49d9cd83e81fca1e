"""Contexts describe an external system to the suites; the author of a connector writes one."""

from __future__ import annotations

import contextlib
import inspect
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from ..core.planning import Planner
from ..core.sink import Guarantee, Sink
from ..core.source import Source
from .compare import same_records
from .faults import Point


class SourceContext(ABC):
    """An external system to read from. Each test has its own context.

    A subclass sets ``source``, and ``schema``: the schema of the rows that :meth:`write` returns. It sets ``limit`` if the
    source's options have other names, and ``latest`` if the source can start at the newest record.
    """

    source: ClassVar[type[Source]]
    schema: ClassVar[pa.Schema]
    limit: ClassVar[Mapping[str, str]] = {"maxRowsPerTrigger": "7"}
    """Options that cut the data of one :meth:`write` into several batches."""
    latest: ClassVar[Mapping[str, str] | None] = None
    """Options that start at the newest record. ``None`` skips the case that such a start must not move."""
    unordered: ClassVar[str] = ""
    """Why the system has no order, such as "an index has no order of writing". Empty: the source reads the records of a
    partition in the order in which :meth:`write` returned them; all records, if :meth:`partition` names none."""
    never_empty: ClassVar[str] = ""
    """Why the system cannot be without records. Empty: a new context has no records."""

    undated: ClassVar[str] = ""
    """Why a query that ends may read records written while it runs, such as "an API does not say when a record came".
    Empty: it reads only the records present at its start."""

    short_lease: ClassVar[Mapping[str, str]] = {}
    """Options that lease a message for about a second. Empty skips the case of leases that end."""

    classes: ClassVar[Sequence[type]] = ()
    """Your own classes that the options name, for ``connectors.register``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """The planners of a case, closed with the case to end, for example, their threads that extend leases."""

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options that read everything."""

    @abstractmethod
    def write(self, count: int) -> list[dict[str, Any]]:
        """Adds ``count`` new records to the system and returns them as rows."""

    def partition(self, row: Mapping[str, Any]) -> str | None:
        """The partition of ``row``; the records of a partition have an order (see ``unordered``).

        ``None`` means one partition for everything, and skips the case of a limit that must be shared fairly.
        """
        return None

    def lose(self) -> bool:
        """Deletes the system's records, read or unread, as expiry or truncation does. False if it cannot."""
        return False

    @cached_property
    def planners(self) -> list[Planner]:
        """Inside, collects the planners of a case; closes them after it."""
        return []

    requests: ClassVar[Sequence[tuple[Any, str]]] = ()
    """The client's functions that send requests, each as its class or module and its name. A history
    (:class:`~connectors.testing.SimulationSuite`) may lose each of these requests and answers."""

    def set_time(self, now: float) -> None:  # noqa: B027
        """Sets the system's clock to ``now``, in seconds since 1970. Histories of a queue need it, since leases end."""

    def settle(self) -> None:  # noqa: B027 - a hook, not a duty
        """Waits until the system redelivers the messages that killed readers have held."""

    def close(self) -> None:  # noqa: B027
        """Ends what the context started."""


class SinkContext(ABC):
    """A target, empty at first. Each test has its own context.

    A subclass sets ``sink``. If it has other columns, it sets ``schema``, overrides :meth:`row`, and gives the same rows
    in ``select``, as SQL over a column ``value`` that holds the number.
    """

    sink: ClassVar[type[Sink]]
    schema: ClassVar[pa.Schema] = pa.schema([("id", pa.int64()), ("name", pa.string())])
    carriers: ClassVar[Sequence[str]] = ("foreach_batch", "format")
    select: ClassVar[Sequence[str]] = ("value AS id", "concat('row ', value) AS name")
    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    """The guarantee that the suite checks."""
    classes: ClassVar[Sequence[type]] = ()
    """Your own classes that the options name, for ``connectors.register``."""
    offsets_in_target: ClassVar[bool] = False
    """True if the target has the offsets of its rows, as with ``keeps_offsets`` of Connect: a new checkpoint is not refused,
    since the target leaves out what it has. Such a sink runs on Spark only."""
    sweeping: ClassVar[Mapping[str, Any]] = {"stagingRetention": "0s"}
    """Options that make all staging old enough for a sweep."""
    requests: ClassVar[Sequence[tuple[Any, str]]] = ()
    """As those of :class:`SourceContext`."""
    most_leftovers: ClassVar[int] = 8
    """The most staged items, however often a batch has failed: as many as four starts of two tasks leave."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def options(self) -> dict[str, str]:
        """The options that write to the target."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The rows that a reader of the target sees now."""

    def take_away(self) -> list[dict[str, Any]] | None:
        """Moves the visible rows out of the target, as an archive job does, and returns them.

        ``None`` skips the case that a recovery must not restore them.
        """
        return None

    def leftovers(self) -> list[str] | None:
        """The names of everything that is staged now; ``None`` skips the cases of staging that must be removed."""
        return None

    def disks(self) -> Sequence[Path]:
        """The local folders that the sink writes to: a power failure loses changes there that are not synced.

        An empty sequence skips the cases of power failures.
        """
        return ()

    def lose_stage(self) -> bool:
        """Removes all staging, as a wrong clean-up does, or a folder that executors do not share. False if it cannot."""
        return False

    def row(self, number: int) -> dict[str, Any]:
        """The ``number``-th row that the suite writes; the same at each call."""
        return {"id": number, "name": f"row {number}"}

    def points(self) -> tuple[Point, ...]:
        """The points that a batch of this sink passes."""
        sink = self.sink.of(self.options())
        commit = (Point.COMMIT_BEFORE, Point.COMMIT_AFTER) if sink.committer() is not None else ()
        recorded = (Point.RECORDED, Point.PUBLISHED) if sink.ledger() is not None else ()
        return (Point.TASK_ROW, Point.TASK_STAGED, *commit, *recorded, Point.BATCH_DONE)

    def expect(self, last: int, first: int = 1) -> None:
        """Raises ``AssertionError`` unless the target holds the rows ``first`` to ``last``, each as often as it may."""
        same_records([self.row(number) for number in range(first, last + 1)], self.rows(), repeats=self.repeats())

    def repeats(self) -> bool:
        """True if the target may hold a row more than once."""
        return self.guarantee is Guarantee.AT_LEAST_ONCE

    def close(self) -> None:  # noqa: B027
        """Ends what the context started."""


class FolderContext(SinkContext):
    """A local folder as the target, which the sink writes by :class:`~connectors.core.folder.SinkFolder`."""

    def options(self) -> dict[str, str]:
        return {"path": str(self.folder)}

    def files(self) -> list[Path]:
        """The files that a reader lists: all that are not hidden."""
        files = (file for file in self.folder.rglob("*") if file.is_file())
        return sorted(file for file in files if not any(part[0] in "._" for part in file.relative_to(self.folder).parts))

    def take_away(self) -> list[dict[str, Any]]:
        rows = self.rows()
        for file in self.files():
            file.rename(self.folder.parent / f"taken-{file.name}")
        return rows

    def disks(self) -> Sequence[Path]:
        return [self.folder]

    def lose_stage(self) -> bool:
        for stage in self._stages():
            shutil.rmtree(stage)
        return True

    def leftovers(self) -> list[str]:
        return sorted(stage.name for stage in self._stages())

    def _stages(self) -> list[Path]:
        return list(self.folder.glob(".connectors/*/stage/*"))


ContextT = TypeVar("ContextT", SourceContext, SinkContext)


@contextlib.contextmanager
def open_context(kind: type[ContextT], folder: Path) -> Iterator[ContextT]:
    """A new context of ``kind`` with its folder; closes it at the end."""
    with contextlib.closing(kind(folder)) as context:
        context.folder.mkdir(parents=True)
        yield context


def todo_lines(kind: type) -> list[str]:
    """The open tasks in the module of a connector: each ``TODO:`` with the line below it."""
    try:
        file, text = inspect.getsourcefile(kind), inspect.getsource(inspect.getmodule(kind) or kind)
    except (OSError, TypeError):  # a class of a notebook has no file
        return []
    lines = [*map(str.strip, text.splitlines()), ""]
    return [f"{file}:{n}: {lines[n - 1]} {lines[n]}" for n in range(1, len(lines)) if "TODO:" in lines[n - 1]]
