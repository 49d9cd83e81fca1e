"""The page of a run: one HTML file that needs nothing else, made from a plain description of the run.

::

    page = write_page(RunRecord(job="quickstart", run="20260101-060000", state="SUCCESS", started=…, seconds=…, tasks=…), file)

Whoever has run something, here or in a workspace, describes it by a :class:`~.records.RunRecord`, from which
:func:`~.page.write_page` makes the page. Where nothing is known, a field keeps its default, and the page leaves its section
out.
"""
