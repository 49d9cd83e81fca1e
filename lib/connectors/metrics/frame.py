"""The table of a query: what its files have counted, beside what its progress says of positions and lag."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..core.metrics import counted, outage_of, planned
from ..core.progress import unpacked

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = {
    "component": "object",
    "partition": "object",
    "position": "object",
    "latest": "object",
    "lag_records": "Int64",
    "lag_seconds": "Float64",
    "rows": "Int64",
    "bytes": "Int64",
    "errors": "Int64",
    "retries": "Int64",
    "dead_letters": "Int64",
    "in_flight": "Int64",
    "commit_ms": "Int64",
    "last_commit": "datetime64[us, UTC]",
    "skipped": "Int64",
    "waiting_for": "object",
    "waiting_since": "datetime64[us, UTC]",
    "transaction_ms": "Int64",
    "timeout_ms": "Int64",
    "slot_lag_bytes": "Int64",
    "wal_status": "object",
    "snapshot_rows": "Int64",
    "snapshot_total": "Int64",
}
"""The columns of :func:`table`, and pandas' types of them."""
_KINDS: Final = ("source", "async", "sink")
_SUMMED: Final = ("rows", "bytes", "errors", "retries", "dead_letters", "in_flight")

Row = dict[str, Any]


def table(query: Any) -> pd.DataFrame:
    """The table of ``query``: how far it is and what it has done, a row per component, and per partition of its sources.

    ``query`` is a streaming query, running or not, one of its progresses, or its id; an id alone tells no positions.
    Counts are totals of the query since it was first started. Columns:

    * ``component``: ``source file_stream``, ``sink delta``, ``async Lookup``; ``partition`` as the source names it
    * ``position``, ``latest``: where the newest batch ends and where the partition ended when that batch was planned, in
      the source's unit (numbers, offsets, bytes); ``lag_records``, ``lag_seconds``: what is between them, if it is known
    * ``rows``; ``bytes`` (of sources as read, of sinks as written by tasks; in memory, as Arrow)
    * ``errors``: bad records, failed calls, failed attempts at a task or commit; ``dead_letters``: bad ones set aside
    * ``retries``: further tries after an outage; ``in_flight``: calls at the same time, at most, in the newest batch
    * ``commit_ms``, ``last_commit``: duration and time (UTC) of the sink's newest commit
    * ``skipped``: what a source has passed over for good, in its unit: files that appeared later than ``maxFileAge``
    * ``waiting_for``, ``waiting_since``: the error of a system that is away and waited for (``outageTimeout``), since when
    * ``transaction_ms``, ``timeout_ms``: how long the sink's newest transaction was open, and how long the target lets it
    * ``slot_lag_bytes``, ``wal_status``: the write-ahead log that PostgreSQL kept for the replication slot of a Debezium source
      when the newest batch was planned, or up to 10 seconds before, and the state of that log in ``pg_replication_slots``
    * ``snapshot_rows``, ``snapshot_total``: the rows that a snapshot of Debezium has read since the source's start, and an
      estimate of the rows of its tables: what PostgreSQL's statistics say, null where a table has none

    What is not known is null. A query that has not finished a task yet has no rows.
    """
    query_id, progress = _query_and_progress(query)
    return as_frame(rows_of(query_id, progress))


def details(query: Any) -> pd.DataFrame:
    """All numbers of ``query`` in its files: component, partition, counter, value. Also percentiles of latency (seconds).

    Counts are sums over tasks; of what tells a state, such as ``latency_p95``, it is the largest. ``extended`` counts leases
    of messages that were extended because their batch took long.
    """
    import pandas as pd

    query_id, _ = _query_and_progress(query)
    totals: dict[tuple[str, str, str], float] = {}
    files = counted(query_id)
    for file in [*files, *planned((file["name"], file["id"]) for file in files if file["kind"] == "source")]:
        name = f"{file['kind']} {file['name']}"
        for counts, join in ((file["totals"], _sum), (file["events"], _sum), (file["state"], max)):
            for partition, numbers in counts.items():
                for counter, number in numbers.items():
                    key = (name, partition, counter)
                    totals[key] = join(totals[key], number) if key in totals else number
    rows = [(*key, value) for key, value in sorted(totals.items())]
    return pd.DataFrame(rows, columns=["component", "partition", "counter", "value"])


def as_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """``rows`` with the columns of :func:`table`, in their order and types."""
    import pandas as pd

    frame = pd.DataFrame(list(rows), columns=list(COLUMNS), dtype=object)  # whole numbers beside nulls stay whole
    for name in ("last_commit", "waiting_since"):
        # Not pandas' own Float64: what it holds in the place of a null is any number, and may overflow.
        frame[name] = pd.to_datetime(frame[name].astype("float64"), unit="s", utc=True)
    return frame.astype(COLUMNS)


def rows_of(query_id: str, progress: Mapping[str, Any] | None) -> list[Row]:
    """The rows of :func:`table` as plain values; times are seconds since 1970."""
    files = counted(query_id)
    offsets = list(_offsets(progress))
    names = _names(files, offsets)
    rows: dict[tuple[str, str], Row] = {}
    for file in files:
        component = names[file["kind"], file["name"], file["id"]]
        newest = max(other["batch"] for other in files if other["kind"] == file["kind"] and other["id"] == file["id"])
        _add_file(rows, component, file, newest)
    for offset in offsets:
        _add_offset(rows, names["source", offset["source"], offset["progress"]["id"]], offset)
    for file in planned(key[1:] for key in names if key[0] == "source"):
        _add_outage(rows, names["source", file["name"], file["id"]], file)
    return sorted(rows.values(), key=_place)


def offset_rows(progress: Mapping[str, Any]) -> list[Row]:
    """The rows of :func:`table` that a progress alone tells: positions and lag of its sources."""
    rows: dict[tuple[str, str], Row] = {}
    offsets = list(_offsets(progress))
    names = _names([], offsets)
    for offset in offsets:
        _add_offset(rows, names["source", offset["source"], offset["progress"]["id"]], offset)
    return list(rows.values())


def _add_offset(rows: dict[tuple[str, str], Row], component: str, offset: Mapping[str, Any]) -> None:
    for state in unpacked(offset):
        row = _row(rows, component, state.partition)
        row.update(position=state.position, latest=state.latest, skipped=state.skipped)
        row.update(lag_records=state.lag_records, lag_seconds=state.lag_seconds, **state.facts)


def abouts_of(query_id: str) -> dict[str, Mapping[str, str]]:
    """Facts for people about a query's components, with their ids, from its files, by the components' names in its table."""
    files = counted(query_id)
    names = _names(files, [])
    return {names[file["kind"], file["name"], file["id"]]: {**file.get("about", {}), "id": file["id"]} for file in files}


def _place(row: Row) -> tuple[int, str, str]:
    return _KINDS.index(row["component"].partition(" ")[0]), row["component"], row["partition"]


def _add_file(rows: dict[tuple[str, str], Row], component: str, file: Mapping[str, Any], newest: int) -> None:
    for partition in {**file["totals"], **file["events"], **file["state"]}:
        row = _row(rows, component, partition)
        counts, events = file["totals"].get(partition, {}), file["events"].get(partition, {})
        state = file["state"].get(partition, {})
        errors = counts.get("errors", 0) + events.get("failures", 0)
        flying = {"in_flight": state["in_flight"]} if "in_flight" in state and file["batch"] == newest else {}
        for name, number in {**counts, **flying, "errors": errors, "retries": events.get("retries", 0)}.items():
            if name in _SUMMED:
                row[name] = (row[name] or 0) + int(number)
        if state.get("last_commit", 0) > (row["last_commit"] or 0):
            row.update({name: state.get(name) for name in ("last_commit", "commit_ms", "transaction_ms", "timeout_ms")})
    _add_outage(rows, component, file)


def _add_outage(rows: dict[tuple[str, str], Row], component: str, file: Mapping[str, Any]) -> None:
    if outage := outage_of(file):
        row = _row(rows, component, outage["partition"])
        if row["waiting_since"] is None or outage["since"] < row["waiting_since"]:
            row["waiting_for"], row["waiting_since"] = outage["error"], outage["since"]


def _row(rows: dict[tuple[str, str], Row], component: str, partition: str) -> Row:
    row = rows.setdefault((component, partition), dict.fromkeys(COLUMNS))
    row["component"], row["partition"] = component, partition
    return row


def _names(files: Sequence[Mapping[str, Any]], offsets: Sequence[Mapping[str, Any]]) -> Mapping[tuple[str, str, str], str]:
    """A name for each component, told apart where a query has several of one system at the same time.

    A source whose options have changed has another id, but it is the same source as long as the query reads one of its
    name; two sinks are two targets in any case.
    """
    reading = {("source", offset["source"], offset["progress"]["id"]): None for offset in offsets}
    components = {(file["kind"], file["name"], file["id"]): None for file in files} | reading
    writing = {key for key in components if key[0] != "source"}
    several = Counter(key[:2] for key in (*reading, *writing))
    return {key: _name(key, several[key[:2]] > 1 and key in {*reading, *writing}) for key in components}


def _name(key: tuple[str, str, str], told_apart: bool) -> str:
    kind, name, own = key
    return f"{kind} {name} ({own})" if told_apart else f"{kind} {name}"


def _query_and_progress(query: Any) -> tuple[str, Mapping[str, Any] | None]:
    """The id and the newest progress of whatever the user has of a query."""
    if isinstance(query, str):
        return query, None
    if isinstance(query, Mapping):
        return str(query["id"]), query
    if hasattr(query, "lastProgress"):
        return str(query.id), as_dict(query.lastProgress)
    if hasattr(query, "batchId"):
        return str(query.id), as_dict(query)
    raise TypeError(f"metrics.table takes a streaming query, its progress or its id; got {type(query).__name__}")


def as_dict(progress: Any) -> dict[str, Any] | None:
    """A query's progress as JSON, in whatever form Spark hands it out."""
    if progress is None or isinstance(progress, dict):
        return progress
    return dict(json.loads(progress.json))


def _offsets(progress: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The end offsets of our sources that tell of partitions."""
    for source in (progress or {}).get("sources", []):
        end = source.get("endOffset")
        if isinstance(end, str):
            try:
                end = json.loads(end)
            except ValueError:
                continue
        if isinstance(end, Mapping) and isinstance(end.get("progress"), Mapping) and "source" in end:
            yield end


def _sum(left: float, right: float) -> float:
    return left + right
