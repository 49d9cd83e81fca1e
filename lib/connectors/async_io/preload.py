"""The alternative to asking: the whole table with every task, for tables that fit and rates that no service stands."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import broadcast

from ..core.errors import Misconfigured, Problem
from ..core.options import duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOG: Final = logging.getLogger(__name__)


def preload(
    df: DataFrame, lookup: DataFrame, *, on: str | Sequence[str], refresh: str | float | None = None, how: str = "left"
) -> DataFrame:
    """``df`` joined with ``lookup``, which is read once, kept in memory and sent to every worker.

    ``on`` names the columns that both have, ``how`` is ``left`` (rows without match get nulls) or ``inner``. For a
    stream, ``refresh`` (none) is how often the table is read again, such as ``"10 minutes"``: the first micro-batch
    after that sees the new one whole. It is read again only where it shows changes to a new read (Delta, JDBC; not a
    listing of files made before). The refreshing ends with the session. Raises :class:`Misconfigured`.
    """
    keys = [on] if isinstance(on, str) else list(on)
    seconds = _checked(df, lookup, keys, refresh, how)
    kept = lookup.persist()
    if seconds is not None and df.isStreaming:
        threading.Thread(target=_refresh, args=(kept, seconds), name="async_io-preload", daemon=True).start()
    return df.join(broadcast(kept), keys, how)


def _checked(df: DataFrame, lookup: DataFrame, keys: list[str], refresh: str | float | None, how: str) -> float | None:
    problems = [
        Problem("on", f'"{key}" is no column of the {side} ({", ".join(frame.columns)})')
        for side, frame in (("input", df), ("lookup table", lookup))
        for key in keys
        if key.lower() not in {name.lower() for name in frame.columns}
    ]
    if lookup.isStreaming:
        problems.append(Problem("lookup", "must be a table, not a stream; read it with spark.read"))
    if how not in ("left", "inner"):
        problems.append(Problem("how", f"must be left or inner; got {how!r}"))
    seconds = None
    try:
        seconds = None if refresh is None else duration(refresh)
    except ValueError as wrong:
        problems.append(Problem("refresh", f"must be {wrong}; got {refresh!r}"))
    if problems:
        raise Misconfigured("async_io.preload", problems)
    return seconds


def _refresh(kept: DataFrame, seconds: float) -> None:
    """Forgets the cached rows, so that the next micro-batch reads the table again and caches it anew."""
    pause = threading.Event()
    while not pause.wait(seconds):
        try:
            kept.unpersist()
            kept.persist()
        except Exception as error:  # the session has ended; whatever it raises, there is nothing left to refresh
            _LOG.info("preload: refreshing has ended: %s", error)
            return
