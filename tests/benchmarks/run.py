"""All benchmarks on one page (``make bench``): ``python tests/benchmarks/run.py``.

It takes ``[--only kafka,redis] [--long] [--peers] [--record]``. Each benchmark runs in a process of its own, with as many rows
as fit into about a minute, or with ``--long`` as many as it has by itself; with ``--peers`` some run beside Flink, too. The
figures go to ``runs/bench/``: ``index.html``, ``figures.json`` and what each benchmark has printed. ``--record`` also puts them
into ``tests/stored/figures.json`` and the table of ``lib/docs/performance.md``; those of benchmarks that have not run stay.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from figures import RECORD, Figure, shown

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
STORED = ROOT / "tests" / "stored" / "figures.json"
PAGE = ROOT / "lib" / "docs" / "performance.md"
FIGURES, PAPER = ("figures", "paper")
"""The names of the tables of the page, as its comments have them; so are those of ``HEADS``."""
HEADS = {
    "beside Spark": (
        "Kafka → Spark, value", "Kafka → Spark, five columns", "Kafka → Spark, decoded in Python",
        "Spark → Kafka, exactly-once", "Kafka → Kafka, exactly-once",
        "Spark → PostgreSQL, exactly-once, commit=batch", "Spark → PostgreSQL, exactly-once, commit=prepared",
        "Spark → PostgreSQL, exactly-once, upserts", "PostgreSQL → Spark, 1 partition",
        "Spark → Parquet, exactly-once", "Spark → lines of JSON, exactly-once", "lines of JSON of 199 bytes → Spark",
        "Kafka → Kafka by format(), 1,000 records a second: median",
        "Kafka → lines of JSON by format(), 1,000 records a second: median",
        "Kafka → Delta by foreach_batch(), 1,000 records a second: median",
        "a batch of 1,000 changes → a table of 1,000,000 rows",
    ),
    "beside clients": (
        "Kinesis → Spark", "rows → Kinesis", "Pub/Sub → Spark",
        "Redis stream → Spark", "rows → Redis, one hash", "rows → Redis, a hash for each row",
        "rows → DynamoDB", "rows → DynamoDB, exactly-once", "rows → OpenSearch",
        "HTTP pages → Arrow", "HTTP children of each record → Arrow", "rows → HTTP, a request for each",
        "Cassandra → Spark", "rows → Cassandra, single rows", "HTTP calls by async_io",
        "lines of a file → Kafka", "Kafka → lines of a file", "lines of a file → Spark by a connector in Python",
        "changes of PostgreSQL → Spark by Debezium", "lines of a file → Spark by connect-file",
    ),
}  # fmt: skip
"""The figures that the page begins with."""
GOAL: Final = 20_000_000
"""The rows a second that the page asks of many machines."""
ALONE: Final = ("boto3", "redis-py", "urllib3", "opensearch-py", "Google's client", "PostgreSQL alone", "bare Arrow")
"""The peers that are the system or its client, without Spark."""
PIPE = "\\|"
SHORT = {
    "async_io": "--rounds 2",
    "cassandra": "500000",
    "connect": "--rounds 2",
    "connect_java": "500000 1000000",
    "file_stream": "--rounds 3",
    "files": "--rows 1000000 --batches 60 --commits 300",
    "jdbc": "--rounds 3 --rows 200000",
    "jdbc_read": "--rows 1000000",
    "kafka": "--rounds 2 --records 1000000",
    "kinesis": "200000",
    "latency": "--rounds 2 --seconds 15 --rates 1000",
    "lookups": "20000",
    "merge": "--rounds 3",
    "pubsub": "100000",
    "redis": "150000",
    "search": "100000",
}
"""The arguments of a short run by benchmark; the others are short."""
PEERS = ("kafka", "latency")
"""The benchmarks that Flink can be a peer of."""


@dataclass(frozen=True)
class Run:
    """A benchmark that has run: its summary, its figures, and how it ended."""

    benchmark: str
    title: str
    seconds: float
    code: int
    on: str
    machine: str
    figures: list[Figure] = field(default_factory=list)

    @staticmethod
    def of(record: dict[str, Any]) -> Run:
        return Run(**{**record, "figures": [Figure(**figure) for figure in record["figures"]]})


def machine() -> str:
    """What the figures depend on most."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}, Python {platform.python_version()}"


def ran(file: Path, arguments: list[str], folder: Path) -> Run:
    """Runs a benchmark, whose output goes to the terminal and to a file."""
    name = file.stem.removeprefix("bench_")
    title = file.read_text().split('"""')[1].splitlines()[0].replace("``", "").partition(": python")[0].rstrip(".")
    record, log = folder / f"{name}.jsonl", folder / f"{name}.txt"
    record.write_text("")
    print(f"== {title}", flush=True)
    path = os.pathsep.join(filter(None, (str(ROOT / "lib"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, RECORD: str(record), "PYTHONPATH": path}
    start = time.monotonic()
    command = [sys.executable, "-u", str(file), *arguments]
    with log.open("w") as output, subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            output.write(line)
    seconds, today = time.monotonic() - start, datetime.date.today().isoformat()
    figures = [Figure(**json.loads(line)) for line in record.read_text().splitlines()]
    record.unlink()
    return Run(name, title, seconds, process.returncode, today, machine(), figures)


def html_of(runs: Iterable[Run]) -> str:
    """The page of all figures."""
    from connectors_tools.report.page import templates

    template = templates().from_string((FOLDER / "figures.html").read_text())
    runs = list(runs)
    verdicts = [figure.verdict for run in runs for figure in run.figures]
    words = {"reached": ("goals reached", ""), "missed": ("goals missed", "bad"), "no verdict": ("without a verdict", "fair")}
    numbers = [(len(verdicts), "figures", "")]
    for verdict, (text, look) in words.items():
        numbers.append((verdicts.count(verdict), text, look if verdict in verdicts else ""))
    return str(template.render(runs=runs, numbers=numbers, shown=shown, median=median, bar=bar))


def bar(figure: Figure) -> tuple[float, float, float]:
    """The begin, the length and the median of a ratio's range, in percent of a bar that ends at twice the peer's speed."""
    low, high = (min(max(value, 0.0), 2.0) * 50 for value in (min(figure.values), max(figure.values)))
    return low, max(high - low, 0.8), min(median(figure.values), 2.0) * 50


def table(runs: Iterable[Run]) -> str:
    """A row of Markdown for each figure."""
    rows = []
    for run in runs:
        for figure in run.figures:
            measured = shown(median(figure.values))
            beside = f"of {figure.peer}" if figure.peer else figure.unit
            spread = f"{shown(min(figure.values))} to {shown(max(figure.values))}" if len(figure.values) > 1 else ""
            cells = figure.what, f"{measured} {beside}", spread, figure.goal, figure.verdict, run.on
            rows.append(f"| {' | '.join(cell.replace('|', PIPE) for cell in cells)} |")
    return "| what | median | rounds | goal | | on |\n|---|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def head(runs: Iterable[Run], names: Iterable[str]) -> str:
    """A row of Markdown for each of ``names``, with all peers of its figures."""
    rows = []
    for name in names:
        figures = [figure for run in runs for figure in run.figures if figure.what == name]
        peers = "; ".join(f"{shown(median(figure.values))} of {figure.peer}" for figure in figures)
        measured = "".join(f"{shown(median(figure.rounds))} {figure.unit}" for figure in figures[:1])
        rows.append(f"| {name.replace('|', PIPE)} | {peers} | {measured} |")
    return "| what | times as fast as | |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def paper(runs: Iterable[Run]) -> str:
    """A row of Markdown for each figure that says how much passes, with the machines that ``GOAL`` would take."""
    rates = [figure for run in runs for figure in run.figures if figure.unit.endswith("/s") and "→" in figure.what]
    rows = {}
    for figure in sorted(rates, key=lambda figure: figure.peer in ALONE):  # the last of several is beside the system alone
        rate, limit = median(figure.rounds), ""
        if figure.peer in ALONE:
            limit = "the system, or its client" if median(figure.values) >= 0.8 else "this library"
        cells = figure.what.replace("|", PIPE), f"{shown(rate)} {figure.unit}", f"{math.ceil(GOAL / rate):,}", limit
        rows[figure.what] = f"| {' | '.join(cells)} |"
    rows = {figure.what: rows[figure.what] for figure in rates}
    return "| what | on two cores | machines of two cores | limit |\n|---|---|---|---|\n" + "\n".join(rows.values()) + "\n"


def record(runs: Iterable[Run], stored: Path = STORED, page: Path = PAGE) -> None:
    """Puts ``runs`` into the record and the page, in place of earlier ones of these benchmarks."""
    earlier = json.loads(stored.read_text()) if stored.exists() else {}
    newer = {run.benchmark: asdict(run) for run in runs if run.code == 0}
    known = dict(sorted({**earlier, **newer}.items()))
    stored.write_text(json.dumps(known, indent=1) + "\n")
    every = [Run.of(run) for run in known.values()]
    text = page.read_text()
    heads = {name: head(every, figures) for name, figures in HEADS.items()}
    for name, content in {**heads, FIGURES: table(every), PAPER: paper(every)}.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{content}{end}{rest.partition(end)[2]}"
    page.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(" (")[0])
    names = sorted(file.stem.removeprefix("bench_") for file in FOLDER.glob("bench_*.py"))
    parser.add_argument("--only", default=",".join(names), help="names with commas: " + ", ".join(names))
    parser.add_argument("--long", action="store_true", help="with as many rows as each benchmark has by itself")
    parser.add_argument("--peers", action="store_true", help="beside Flink, too: " + ", ".join(PEERS))
    parser.add_argument("--record", action="store_true", help="put the figures into the documentation, too")
    options = parser.parse_args()
    only = options.only.split(",")
    if unknown := sorted({*only} - {*names}):
        parser.error(f"--only names {', '.join(unknown)}; the benchmarks are {', '.join(names)}")
    folder = ROOT / "runs" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    runs = []
    for name in only:
        arguments = ("" if options.long else SHORT.get(name, "")).split()
        arguments += ["--peers"] if options.peers and name in PEERS else []
        runs.append(ran(FOLDER / f"bench_{name}.py", arguments, folder))
        (folder / "figures.json").write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
        (folder / "index.html").write_text(html_of(runs))
        if options.record:
            record(runs[-1:])
    print(f"The page is {folder / 'index.html'}")
    failed = [run.benchmark for run in runs if run.code]
    if failed:
        print(f"did not end well: {', '.join(failed)}", file=sys.stderr)
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main())
