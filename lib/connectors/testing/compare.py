"""Compares the records in a target with the expected ones, record by record."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from ..ground.state import dumps

_SHOWN = 5


def same_records(expected: Iterable[Any], actual: Iterable[Any], *, repeats: bool = False) -> None:
    """Raises ``AssertionError``, which names missing, duplicated and unexpected records; their order does not matter.

    ``repeats`` allows records to come more than once (at-least-once), but none may be missing or unexpected.
    """
    expected_counts, actual_counts = Counter(map(key_of, expected)), Counter(map(key_of, actual))
    extra = actual_counts - expected_counts
    unexpected = {record: extra[record] for record in extra if record not in expected_counts}
    wrong = {"missing": expected_counts - actual_counts, "unexpected": unexpected}
    if not repeats:
        wrong["duplicated"] = {record: extra[record] for record in extra if record in expected_counts}
    lines = [_line(problem, records) for problem, records in wrong.items() if records]
    if lines:
        raise AssertionError(f"{expected_counts.total()} records expected, {actual_counts.total()} found\n" + "\n".join(lines))


def same_order(
    written: Sequence[Any], batches: Sequence[Sequence[Sequence[Any]]], partition: Callable[[Any], Hashable]
) -> None:
    """As :func:`same_records`, but also raises if a record came after a newer record of its partition.

    ``batches`` are the batches of a query in order, each as the records of its tasks. The tasks of a batch run in
    parallel, so the order matters within each task and from one batch to the next.
    """
    same_records(written, [record for tasks in batches for task in tasks for record in task])
    places: dict[str, deque[int]] = defaultdict(deque)
    for place, record in enumerate(written):
        places[key_of(record)].append(place)
    newest: dict[Hashable, int] = {}
    for number, tasks in enumerate(batches):
        before = dict(newest)
        for task in tasks:
            last = dict(before)
            for record in task:
                name, place = partition(record), places[key_of(record)].popleft()
                if place < last.get(name, -1):
                    newer = key_of(written[last[name]])
                    raise AssertionError(f"batch {number}, partition {name}: {key_of(record)} came after the newer {newer}")
                last[name] = place
                newest[name] = max(place, newest.get(name, -1))


def key_of(record: Any) -> str:
    """The text that identifies a record."""
    if isinstance(record, Mapping):
        return dumps(dict(record))
    return dumps(record.asDict(recursive=True)) if hasattr(record, "asDict") else dumps(record)


def _line(problem: str, records: Mapping[str, int]) -> str:
    shown = ", ".join(f"{record} (x{count})" if count > 1 else record for record, count in sorted(records.items())[:_SHOWN])
    more = f" and {len(records) - _SHOWN} more" if len(records) > _SHOWN else ""
    return f"  {sum(records.values())} {problem}: {shown}{more}"
