"""Rounds in which several ways of reading or writing take turns, shared by the benchmarks of databases."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).parents[2] / "lib"
DRIVER = "org.postgresql:postgresql:42.7.4"


def arguments(doc: str | None, *, rounds: int, rows: int, **more: int) -> argparse.Namespace:
    """The options of the command line, with ``more`` options of whole numbers and their defaults."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    for name, default in {"rounds": rounds, "rows": rows, **more}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


@contextlib.contextmanager
def postgresql_and_spark() -> Iterator[tuple[Any, Any]]:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), os.environ.get("PYTHONPATH", "")])
    sys.path.insert(0, str(LIBRARY))
    from connectors.testing.servers import PostgresServer
    from connectors.testing.session import session

    # Java as users have it, with the second compiler, which the tests do without.
    conf = {"spark.jars.packages": DRIVER, "spark.driver.memory": "2g", "spark.driver.extraJavaOptions": ""}
    spark = session("local[2,4]", conf)
    with PostgresServer() as server:
        yield server, spark
        spark.stop()


def in_turns(ways: Iterable[str], rounds: int, rate: Callable[[str], float]) -> dict[str, list[float]]:
    """The rates of all ways in each round; one more round comes first and warms up."""
    names = list(ways)
    results = [{name: rate(name) for name in names} for _ in range(rounds + 1)]
    return {name: [result[name] for result in results[1:]] for name in names}
