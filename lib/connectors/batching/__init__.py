"""Sinks that send requests: one engine for search, streams, HTTP and key-value stores; a system adds ``send(batch)``.

=========================  =====================================================================================
part                       what it does
=========================  =====================================================================================
:class:`BatchingSink`      the description: the common options ``batch.*``, ``request.*``, ``circuitBreaker.*``
:class:`BatchingWriter`    a task's writer; a system gives ``send(entries) -> failed entries``
:mod:`.flow`               what waits, what is sent, what failed means: no threads, no time
:mod:`.sink`               the description and the writer, with threads and a clock
=========================  =====================================================================================

Entries that a target refuses for now are sent again, alone, at the front of the queue and in their order, after a pause that
grows; those that it refuses for ever are bad rows (``errors``). The rate follows what the target takes: more by and by while
all goes well, half after a failure. An outage that outlives the tries fails the batch.
"""

from .flow import Failure, FlowLimits, Throttled, batching_options
from .sink import BatchingSink, BatchingWriter

__all__ = ["BatchingSink", "BatchingWriter", "Failure", "FlowLimits", "Throttled", "batching_options"]
