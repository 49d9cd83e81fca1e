"""How long it takes to find the tables of a database, and what a poll costs: ``python tests/benchmarks/bench_jdbc_stream.py``.

Seconds, and their ratio to asking each table by itself for its columns, in the same run on PostgreSQL. Goal: 1,000 tables in
under 2 seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[2])]

from connectors.core import UNLIMITED  # noqa: E402
from connectors.systems.jdbc.dialects import Table  # noqa: E402
from connectors.systems.jdbc.source import JdbcSource  # noqa: E402
from connectors.testing.servers import PostgresServer  # noqa: E402


def seconds(work: Callable[[], object], rounds: int) -> float:
    """The median of some rounds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server = PostgresServer().start()
        stack.callback(server.stop)
        address = {"url": server.jdbc, "user": server.user}
        source = JdbcSource.of({**address, "tables": "t.*", "discoveryInterval": "1h"}, streaming=True)
        assert isinstance(source, JdbcSource)
        with contextlib.closing(source.dialect().connect()) as connection:
            connection.execute("BEGIN")
            for n in range(options.tables):
                columns = "name text, price numeric(9, 2), changed timestamptz"
                connection.execute(f"CREATE TABLE t{n} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, {columns})")
            connection.execute("COMMIT")

            def discovered() -> None:
                with contextlib.closing(source.enumerator()) as enumerator:
                    assert len(enumerator.head().tables) == options.tables

            def one_by_one() -> None:
                for n in range(options.tables):
                    assert source.dialect().columns(connection, Table(f"t{n}"))

            discovery, singly = seconds(discovered, options.rounds), seconds(one_by_one, 1)
            with contextlib.closing(source.enumerator()) as enumerator:
                at = enumerator.advance(enumerator.start(), enumerator.head(), UNLIMITED)
                poll = seconds(lambda: enumerator.advance(at, enumerator.head(), UNLIMITED), options.rounds)
        ratio = f"{singly / discovery:.0f} times faster than asking for the columns of one table after the other"
        print(f"{options.tables} tables: found in {discovery:.2f} s, {ratio}; a poll without news takes {poll:.2f} s")


if __name__ == "__main__":
    main()
