"""``python -m connectors erase``: the places from which a person's rows can be erased.

A place is erased by the function of its kind, which may die anywhere and be called again. None of them stops a query that
runs: what a query may still need is left, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from connectors.ground.errors import ConnectorError, Misconfigured, Problem, StateError
from connectors.ground.messages import message_in
from connectors.spark.session import errors_of_spark
from connectors.storage.location import checked_storage

from .erasure import Erasure, Report, letters, staged, state
from .erasure_delta import delta
from .erasure_systems import COMMAND, SYSTEMS, sink_of

if TYPE_CHECKING:
    from connectors.storage.base import Storage

_UNFINISHED_SECONDS: Final = 3600.0
"""A file that is not finished after so long is of a process that died."""
_TOPIC: Final = "a topic keeps its records: wait for its retention, or delete its head with kafka-delete-records"
_STREAM: Final = "the service keeps a record until its retention is over: shorten that"
_FILES: Final = "others read published files: write them again without the rows; staging:PATH erases what waits there"
BEYOND_REACH: Final = {
    **dict.fromkeys(("kafka", "event_hubs"), _TOPIC),
    **dict.fromkeys(("kinesis", "firehose", "pubsub"), _STREAM),
    **dict.fromkeys(("files", "file_stream", "buffered", "parquet"), _FILES),
    "http": "the service has it: erase by its own interface",
    "missed": "the batches wait for a sink that is away: let the query run until it has them, and erase there",
    "checkpoint": "Spark's state store keeps rows and keys until a watermark drops them: wait, or take a new checkpoint",
    "backup": "copies and logs of a database are the server's own: wait for their retention",
}
"""Places that nothing here can change: why, and the way out."""
_FOLDERS: Final[Mapping[str, Callable[[Erasure, Storage, str], Iterator[Report]]]] = {
    "letters": letters, "staging": staged, "state": state,
}  # fmt: skip

Place = Callable[[Erasure], Iterator[Report]]


def place_of(text: str) -> Place:
    """The place that ``text`` names. Raises :class:`Misconfigured` for a kind that there is not, and for wrong options."""
    kind, _, rest = text.partition(":")
    if kind in BEYOND_REACH:
        name = kind if "{" in rest else text  # options may hold a password
        return lambda erasure: iter([Report(name, None, 0, [f"cannot be reached: {BEYOND_REACH[kind]}."])])
    if kind in SYSTEMS:
        sink, report = sink_of(kind, rest)
        return _guarded(report, lambda erasure: SYSTEMS[kind](erasure, sink, report()))
    if kind == "delta" and rest:
        return _guarded(lambda: Report(f"delta:{rest}"), lambda erasure: delta(erasure, rest))
    if kind in _FOLDERS and rest:
        return _guarded(lambda: Report(f"{kind}:{rest}"), lambda erasure: _folder(erasure, kind, rest))
    known = ", ".join(sorted(("delta", *_FOLDERS, *SYSTEMS, *BEYOND_REACH)))
    text = f'must be one of {known}, a colon and what it is, such as delta:/data/orders; got "{kind}:{rest and "…"}".'
    raise Misconfigured(COMMAND, [Problem("--in", text)])


def _guarded(report: Callable[[], Report], erase: Place) -> Place:
    """The place; an error is what is left of it, so that the other places are erased nevertheless."""

    def run(erasure: Erasure) -> Iterator[Report]:
        try:
            yield from erase(erasure)
        except Exception as error:
            if not isinstance(error, (ConnectorError, OSError, *errors_of_spark())):
                raise
            failed = report()
            text = erasure.without_values(message_in(str(error)).strip())
            failed.found, failed.left = None, [f"{text} Mend that, and call this again"]
            yield failed

    return run


def _folder(erasure: Erasure, kind: str, location: str) -> Iterator[Report]:
    storage = checked_storage(COMMAND, "--in", location, erasure.storage_options)
    if storage.item("") is None:
        raise StateError(f"there is no folder {location}", way_out="give the folder as the options of the query do")
    yield from _FOLDERS[kind](erasure, storage, location)
    if not erasure.dry_run:
        storage.sweep_temporaries("", _UNFINISHED_SECONDS)
