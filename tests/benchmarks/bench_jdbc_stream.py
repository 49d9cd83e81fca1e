"""How long it takes to find the tables of a database, and what a poll costs: ``python tests/benchmarks/bench_jdbc_stream.py``.

On PostgreSQL, in turns with asking each table by itself for its columns. Goal: 1,000 tables in at most 2 seconds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2] / "lib"), str(Path(__file__).parents[2])]

from figures import figure  # noqa: E402

from connectors.core import UNLIMITED  # noqa: E402
from connectors.systems.jdbc.dialects import Table  # noqa: E402
from connectors.systems.jdbc.source import JdbcSource  # noqa: E402
from connectors.testing.servers import PostgresServer  # noqa: E402


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


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

            rounds = range(options.rounds)
            discovery, singly = zip(*((seconds(discovered), seconds(one_by_one)) for _ in rounds), strict=True)
            with contextlib.closing(source.enumerator()) as enumerator:
                at = enumerator.advance(enumerator.start(), enumerator.head(), UNLIMITED)
                polls = [seconds(lambda: enumerator.advance(at, enumerator.head(), UNLIMITED)) for _ in rounds]
    what = f"{options.tables:,} tables of PostgreSQL"
    figure(f"{what}, found with their columns: seconds", "s", discovery, most=2)
    figure(f"{what}, found with their columns", "s", discovery, "one table after the other", singly)
    figure(f"{what}: a poll without news", "s", polls)


if __name__ == "__main__":
    main()
