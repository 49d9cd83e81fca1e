"""By hand: what waits in a folder becomes visible (``connectors files seal PATH``), and where a consumer may resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import Misconfigured, Problem
from ...core.folder import SinkFolder
from ...core.ledger import Entry
from ...core.secret_references import filled
from ...storage import checked_storage
from .rolling import MAX_PART_SIZE, RollingPolicy
from .sealing import Sealer


def seal_folder(path: str, storage: Mapping[str, Any] | None = None, max_part_size: int = MAX_PART_SIZE) -> int:
    """Seals all hidden parts in the folder ``path``, whichever sink wrote them. Returns how many files appeared.

    Harmless while a query writes there, and when it is called twice. ``storage`` is ``storageOptions``;
    ``max_part_size`` bounds the files, in bytes. Raises :class:`Misconfigured` where no sink has ever written.
    """
    policy = RollingPolicy(max_part_size=max_part_size)
    return sum(Sealer(folder, policy).seal(ending=True) for folder in _folders(path, storage))


def source_offsets(path: str, storage: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Where the files in the folder ``path`` end in their sources: what any other consumer needs to go on from there.

    By the id of each streaming query: ``batch``, the newest one that has rows, and ``offsets``, one for each source, as
    Spark's checkpoint has them (of Kafka ``{"topic": {"0": 42}}``). They are recorded in one step with the batch, so they
    say neither more nor less than the files; where ``rolling=policy`` is used, seal first, to see those files.

    Only ``foreach_batch`` on a classic session knows them, and not for avro; a query is missing here whose newest hundred
    batches have none. Raises :class:`Misconfigured` where no sink has ever written.
    """
    ledgers = [folder.ledger() for folder in _folders(path, storage)]
    entries = [ledger.newest(query, _offsets) for ledger in ledgers for query in ledger.queries()]
    return {entry.query: {"batch": entry.batch, "offsets": _offsets(entry)} for entry in entries if entry}


def _offsets(entry: Entry) -> Any:
    return next((one["data"]["offsets"] for one in entry.committables if "offsets" in one.get("data", {})), None)


def _folders(path: str, storage: Mapping[str, Any] | None) -> list[SinkFolder]:
    try:
        options = filled(dict(storage or {}))
    except ValueError as wrong:
        raise Misconfigured("connectors.files", [Problem("storageOptions", f"must be {wrong}.")]) from None
    target = checked_storage("connectors.files", "path", path, options)
    sink_ids = SinkFolder.sink_ids(target)
    if not sink_ids:
        raise Misconfigured("connectors.files", [Problem("path", f'no sink has written to "{path}".')])
    return [SinkFolder(target, sink_id) for sink_id in sink_ids]
