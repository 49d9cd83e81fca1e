"""The content of a MERGE's transaction beside the rows: the application's version, and the ledger entry."""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from ...core import Batch
from ...core.ledger import is_stream
from .sink import TransactionMark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SESSIONS: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)
"""A lock for the session of each stream, and one for all others: the settings of a transaction hold for the whole session."""
_TRANSACTION: Final = "spark.databricks.delta.write"
_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"


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


class MergeTransaction:
    """Sets what Delta writes into the transaction of a MERGE: the application's version, and the ledger entry.

    False where Spark takes no such settings (serverless compute), or all queries of a user share a session (Spark Connect): the
    entry then follows the merge, which does no harm when it is done again.
    """

    def __init__(self, spark: SparkSession, mark: TransactionMark, batch: Batch | None = None) -> None:
        """Without ``batch``, ``spark`` is an :func:`own_session`, which no other thread uses now."""
        self._conf = spark.conf
        lock = threading.Lock() if batch is None else _SESSIONS[batch.query if is_stream(batch.query) else ""]
        self._lock = None if _is_shared(spark) else lock
        self._settings = {
            f"{_TRANSACTION}.txnAppId": mark.app,
            f"{_TRANSACTION}.txnVersion": str(mark.version),
            _METADATA: mark.metadata,
        }

    def __enter__(self) -> bool:
        if self._lock is None:
            return False
        self._lock.acquire()
        try:
            for key, value in self._settings.items():
                self._conf.set(key, value)
        except Exception:  # the class of the refusal is the platform's own
            self._unset()
            return False
        return True

    def __exit__(self, *error: object) -> None:
        if self._lock is not None:
            self._unset()
            self._lock.release()

    def _unset(self) -> None:
        with contextlib.suppress(Exception):
            for key in self._settings:
                self._conf.unset(key)
