"""The ways in which pipelines read a source: what their notebooks say of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .pipeline_ends import ONCE


@dataclass(frozen=True)
class Query:
    """A way to read a source. Texts have places in braces, for what the two ends of a pipeline have.

    ``skeleton`` and ``outcome`` are those of the query and of what is shown at the end. A query with a ``sink`` follows a
    database and sets nothing aside; ``writer`` is the import of its function, and ``judged`` what its gate looks at. With
    ``options`` of a target, as Python code, the target is a schema of tables.
    """

    skeleton: str
    summary: str
    guarantee: str
    change: str
    words: str = ""
    outcome: str = "places"
    imports: str = ""
    writer: str = "from connectors import connect"
    sink: str = ""
    options: str = ""
    judged: str = "its table"
    alterations: str = ""


_ROWS: Final = (
    "How {plural} are read, and what happens to them. The file `checks` says what makes a row good; "
    "all other rows go to a table of their own. The gate reads the same file."
)
_LOG: Final = (
    "The first run takes a snapshot, later ones follow the log. The slot keeps the log until then: run it often."
)
_MODULES: Final = "import json\nimport re\n\n"
_SUMMARY: Final = "{records} are {decoded}checked against rules and {effect}."

QUERIES: Final = {
    "stream": Query("stream", _SUMMARY, "each {record} {promise}", _ROWS),
    "copy": Query(
        skeleton="copy",
        summary=_SUMMARY,
        guarantee="the table has the {plural} of one whole run; a run that is killed leaves the table as it was",
        change=_ROWS,
        words="The whole table is read once. Its rows stay in the folder `copy` until the next run.",
    ),
    "changes": Query(
        skeleton="changes",
        summary="{records} are merged into a table, which stays equal to that of the database.",
        guarantee=f"each change is in the table once, in the order of the log, {ONCE}",
        change="The properties of the connector. The gate judges the table by the rules in the file `checks`.",
        words=_LOG,
        outcome="merged",
        imports=_MODULES,
        sink="connect.merge(**pipeline.table)",
    ),
    "all_changes": Query(
        skeleton="changes",
        summary="{records} are merged into tables, which stay equal to those of the database. "
        "New tables are followed from their first row.",
        guarantee=f"each change is in its table once, in the order of the log, {ONCE}",
        change="""The properties of the connector; how tables are named, follow altered columns, delete rows, and keep
their history. With `evolve`, columns also go and change their names, as in the database.

A superuser makes the publication once: `CREATE PUBLICATION dbz_publication FOR TABLES IN SCHEMA public WITH
(publish_via_partition_root = true)`. The pipeline's own user needs `REPLICATION`, and `SELECT` on the tables. A publication
without the tables that are created later would lose their rows, so the query refuses it at its start.""",
        words=_LOG,
        outcome="merged_all",
        imports=_MODULES,
        sink="connect.merge_all(**pipeline.tables(target))",
        options="""{"routes": {}, "on_schema_change": "lenient", "deletes": "hard", "history": False}
target["database"] = debezium  # for "on_schema_change": "evolve\"""",
        judged="its tables: their keys, and their rules",
        alterations="""%% markdown
The table `_changes` tells of new tables and of altered columns.
%% code
display(pipeline.schema.alterations(spark), rows=5)""",
    ),
    "tables": Query(
        skeleton="changes",
        summary="{records} are copied, each table into its own. New tables and columns come by themselves.",
        guarantee="the copy of a table has each row once, in the newest version that a query has seen, "
        f"{ONCE}; a row that is deleted in the database stays",
        change="""Which column has the time of a row's last change. Rows go by the primary key of their table; with
`"keys": {{"orders": ["number"]}}` by other columns. The rules of a table are in the file `checks`, by its name.

Rows of PostgreSQL that commit late are found. Elsewhere set `timestampDelay` to more than the longest transaction takes.""",
        words="Rows are found by their time, and those of one moment by the primary key. `_batches` is the ledger.",
        outcome="merged_all",
        writer="from connectors.systems.jdbc import fan_out",
        sink="fan_out(**pipeline.tables(target))",
        options='{"operation": "upsert"}',
        judged="its tables: their keys, and their rules",
    ),
}
"""The ways, by the name that :class:`~connectors_tools.pipeline_ends.SourceEnd` gives."""
