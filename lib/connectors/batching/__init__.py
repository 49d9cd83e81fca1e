"""Sinks that send requests: one engine for search, streams, HTTP and key-value stores; a system adds ``send(batch)``.

=========================  =====================================================================================
part                       what it does
=========================  =====================================================================================
:class:`BatchingSink`      the description: the common options ``batch.*``, ``request.*``, ``circuitBreaker.*``
:class:`BatchingWriter`    a task's writer; a system adds ``send(entries) -> failed entries``
:mod:`.flow`               decides what to send, to retry and to reject: no threads, no time
:mod:`.sink`               the description and the writer, with threads and a clock
=========================  =====================================================================================

If the target refuses entries for now, the engine sends only these again, first and in their order, after a growing pause.
Entries that the target refuses for good are bad rows (``errors``). The rate follows the target: it grows slowly while
requests succeed, and halves after a failure. An outage that outlasts the tries fails the batch.
"""

from .flow import Failure, FlowLimits, Throttled, batching_options
from .sink import BatchingSink, BatchingWriter

__all__ = ["BatchingSink", "BatchingWriter", "Failure", "FlowLimits", "Throttled", "batching_options"]
