"""A MERGE beside other writers, and what its transaction holds: the application's version, and the ledger entry."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ...formats.base import quoted
from ...ground import machine
from .sink import TablePlace, TransactionMark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
_log = logging.getLogger("connectors.delta")
_TRANSACTION: Final = "spark.databricks.delta.write"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


_CONFLICTS: Final = (
    "DELTA_CONCURRENT_APPEND", "DELTA_CONCURRENT_DELETE_READ", "DELTA_CONCURRENT_DELETE_DELETE", "DELTA_METADATA_CHANGED",
)  # fmt: skip
"""The errors of a statement behind whose back another writer has altered the table: nothing of it is written."""
_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.5


def beside_others(work: Callable[[], T]) -> T:
    """The result of ``work``, one statement of SQL, which is done again where another writer was faster."""
    for left in reversed(range(_TRIES)):
        try:
            return work()
        except Exception as error:  # each environment has classes of its own
            if not left or not any(f"[{name}" in str(error) for name in _CONFLICTS):
                raise
            _log.info("another writer was faster, so once more: %s", next(iter(str(error).splitlines()), ""))
        machine.sleep(machine.uniform(0, _PAUSE_SECONDS))
    raise AssertionError


def own_session(spark: SparkSession) -> SparkSession:
    """A session with the settings of ``spark``, whose MERGE waits for no other one; ``spark`` where sessions are shared."""
    if _is_shared(spark):
        return spark
    session = spark.newSession()
    known = session.conf.getAll
    for key, value in spark.conf.getAll.items():
        if value != known.get(key):  # also what Spark has no entry for, such as the key of a storage
            with contextlib.suppress(Exception):  # one that no session may alter
                session.conf.set(key, value)
    return session


def _is_shared(spark: SparkSession) -> bool:
    return ".connect." in type(spark).__module__


class Merges:
    """Merges that may go on side by side: the settings of a transaction hold for a session, so each has one of its own."""

    def __init__(self) -> None:
        self._sessions = SimpleQueue[Any]()
        """The sessions of merges that are over: at most as many as merges go on side by side."""

    def merge(
        self, rows: DataFrame, view: str, place: TablePlace, mark: TransactionMark | None, statement: Callable[[str, str], str]
    ) -> bool:
        """Runs the MERGE that ``statement`` makes of the names of the table at ``place`` and of ``rows``, a ``view``.

        True if the ledger entry, ``mark``, is in its transaction. False where Spark takes no such settings (serverless
        compute), or all queries of a user share a session (Spark Connect): the entry then follows, which does no harm when it
        is done again. A MERGE without a mark has no entry.
        """
        if _is_shared(rows.sparkSession):
            rows.createOrReplaceTempView(view)
            try:
                beside_others(lambda: rows.sparkSession.sql(statement(place.sql, view)))
            finally:
                rows.sparkSession.catalog.dropTempView(view)
            return False
        try:
            session = self._sessions.get_nowait()
        except Empty:
            session = own_session(rows.sparkSession)
        target = place.sql if place.is_path else _full_name(rows.sparkSession, place.sql)
        rows.createOrReplaceGlobalTempView(view)
        try:
            with _transaction(session, mark) as has_entry:
                source = f"{quoted(session.conf.get('spark.sql.globalTempDatabase'))}.{view}"
                beside_others(lambda: session.sql(statement(target, source)))
        finally:
            rows.sparkSession.catalog.dropGlobalTempView(view)
            self._sessions.put(session)
        return has_entry


def _full_name(spark: SparkSession, table: str) -> str:
    """The name of ``table`` for a session with another current catalog."""
    known = spark.catalog.getTable(table)
    return ".".join(quoted(part) for part in (known.catalog, *(known.namespace or ()), known.name) if part)


@contextlib.contextmanager
def _transaction(session: SparkSession, mark: TransactionMark | None) -> Iterator[bool]:
    """Sets ``mark`` for the next statement of ``session``; gives False where Spark takes no such settings."""
    if mark is None:
        yield False
        return
    settings = {
        f"{_TRANSACTION}.txnAppId": mark.app,
        f"{_TRANSACTION}.txnVersion": str(mark.version),
        _METADATA: mark.metadata,
    }
    has_entry = True
    try:
        for key, value in settings.items():
            session.conf.set(key, value)
    except Exception:  # the class of the refusal is the platform's own
        _unset(session, settings)
        has_entry = False
    try:
        yield has_entry
    finally:
        _unset(session, settings)


def _unset(session: SparkSession, keys: Iterable[str]) -> None:
    with contextlib.suppress(Exception):
        for key in keys:
            session.conf.unset(key)
