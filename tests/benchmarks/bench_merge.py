"""What a batch of changes costs on its way into a Delta table: ``python tests/benchmarks/bench_merge.py [--rows 1000000]``.

Each batch has 1,000 changes of the newest rows, as most tables see them. It takes turns with Delta's own MERGE of the same rows
into a table as large. Then the table has a hundred times as many rows, and a history. Goals: a third slower than Delta
alone; with more rows, at most 1.5 times as long; with a history, 3 times.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[2])]

from figures import figure  # noqa: E402

from connectors import connect, workbench  # noqa: E402
from connectors.core import Batch  # noqa: E402

COLUMNS = "id BIGINT, name STRING, amount BIGINT, note STRING"
CHANGES = 1000
RECORD = """
'shop.public.orders' AS topic, to_json(named_struct('id', id)) AS key,
to_json(named_struct('after', struct(id, name, amount, note), 'op', '{op}', 'source', named_struct(
  'snapshot', '{snapshot}', 'sequence', format_string('["%d","%d"]', {lsn} + number, {lsn} + number), 'lsn', {lsn} + number,
  'ts_ms', 1767225600000 + {lsn} + number))) AS value,
CAST(NULL AS array<struct<key: string, value: binary>>) AS headers
"""


class Table:
    """A table that changes are merged into, and another one of the same rows."""

    def __init__(self, spark: Any, folder: Path, rows: int, **options: Any) -> None:
        self.spark, self.path, self.peer, self.size = spark, str(folder / "ours"), str(folder / "peer"), rows
        self.function: Any = connect.merge(self.path, schema=COLUMNS, **options)
        self.lsn, self.number = 1, 0
        self._merge(self._rows(0, rows, "first"), "r", "true")
        spark.read.format("delta").load(self.path).drop("_position").write.format("delta").save(self.peer)

    def batch(self) -> tuple[float, float]:
        """The seconds of a batch and of Delta's MERGE of its rows."""
        rows = self._rows(self.size - CHANGES // 2, CHANGES, f"change {self.number}").localCheckpoint()
        self.size += CHANGES // 2
        rows.createOrReplaceTempView("changes")
        merge = f"MERGE INTO delta.`{self.peer}` AS old USING changes AS new ON old.id = new.id WHEN MATCHED THEN UPDATE SET * "
        ours = seconds(lambda: self._merge(rows, "u", "false"))
        return ours, seconds(lambda: self.spark.sql(merge + "WHEN NOT MATCHED THEN INSERT *"))

    def _rows(self, first: int, count: int, name: str) -> Any:
        rows = self.spark.range(first, first + count).withColumnRenamed("id", "number")
        note = "repeat(sha2(string(number), 256), 2)"
        return rows.selectExpr("number AS id", f"'{name}' AS name", "number % 997 AS amount", f"{note} AS note", "number")

    def _merge(self, rows: Any, op: str, snapshot: str) -> None:
        rows.createOrReplaceTempView("rows")
        records = self.spark.sql(f"SELECT {RECORD.format(op=op, snapshot=snapshot, lsn=self.lsn)} FROM rows")
        self.function.write(records, Batch(self.function.sink.sink_id(), "q", self.number))
        self.lsn += 10 * self.size
        self.number += 1


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    spark, folder = workbench.session(master="local[2]"), Path(tempfile.mkdtemp())
    sizes = {"small": options.rows // 100, "large": options.rows}
    tables = {name: Table(spark, folder / name, rows) for name, rows in sizes.items()}
    tables["kept"] = Table(spark, folder / "kept", options.rows, history=True)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in tables}
    for _ in range(options.rounds + 1):
        for name, table in tables.items():
            times[name].append(table.batch())
    ours = {name: [batch[0] for batch in batches[1:]] for name, batches in times.items()}
    alone = {name: [batch[1] for batch in batches[1:]] for name, batches in times.items()}
    what = f"a batch of {CHANGES:,} changes → a table of"
    for name, rows in sizes.items():
        figure(f"{what} {rows:,} rows", "s", ours[name], "Delta's MERGE", alone[name], least=0.67)
    figure(f"{what} {options.rows:,} rows", "s", ours["large"], f"{sizes['small']:,} rows", ours["small"], least=0.67)
    figure(f"{what} {options.rows:,} rows, with its history", "s", ours["kept"], "without", ours["large"], least=0.33)
    figure(f"Delta's MERGE into {options.rows:,} rows", "s", alone["large"], f"{sizes['small']:,} rows", alone["small"])
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
