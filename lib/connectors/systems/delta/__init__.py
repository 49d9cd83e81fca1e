"""``connectors.delta``: a Delta table that is written once per batch, with the ledger in Delta's own transaction log.

Delta skips a batch whose ``txnAppId`` and ``txnVersion`` it has seen, silently, whatever the batch holds. Here the same
transaction also carries the ledger entry, so that a new or an older checkpoint is refused instead.
"""

from __future__ import annotations

from .routing import DeltaSink
from .sink import DeltaCommitter

__all__ = ["DeltaCommitter", "DeltaSink"]
