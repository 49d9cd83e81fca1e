"""The page of a run: one HTML file that needs nothing else, made from a plain description of the run.

::

    page = write_page(RunRecord(job="quickstart", run="20260101-060000", state="SUCCESS", started=…, seconds=…, tasks=…), file)

Whoever has run something, here or in a workspace, describes it by :class:`RunRecord`; where nothing is known, a field
keeps its default, and the page leaves its section out.
"""

from .page import html_of, write_page
from .records import AttemptRecord, DeadLetterRecord, LetterSample, QualityRecord, QueryRecord, RunRecord, TaskRecord

__all__ = [
    "AttemptRecord",
    "DeadLetterRecord",
    "LetterSample",
    "QualityRecord",
    "QueryRecord",
    "RunRecord",
    "TaskRecord",
    "html_of",
    "write_page",
]
