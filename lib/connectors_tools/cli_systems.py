"""The commands that look at systems and queries: what connectors promise and take, where queries are, what sinks have left."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final

import click

from connectors.ground.errors import ConnectorError

_WATCH_SECONDS: Final = 2.0
_RECENT: Final = 20
"""The number of queries in the list without --all."""

in_json = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def echo_json(value: Any) -> None:
    """Prints ``value`` as JSON: dataclasses are objects, sets are lists in order, times are ISO 8601 with their zone.

    A number that JSON does not have (NaN, the infinities) is null.
    """
    click.echo(json.dumps(_plain(value), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, datetime.datetime):
        return (value if value.tzinfo else value.astimezone()).isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (str, int)) else str(value)


@click.command()
@click.option("--markdown", is_flag=True, help="As the README's table.")
@in_json
def guarantees(markdown: bool, as_json: bool) -> None:
    """Prints what each connector guarantees, and under which conditions."""
    import connectors

    from .reference import guarantee_table

    if markdown and as_json:
        raise click.UsageError("give one of --markdown and --json.")
    if markdown:
        click.echo(guarantee_table())
        return
    if as_json:
        echo_json(connectors.guarantees().to_dict("records"))
        return
    rows = [tuple(cell or "-" for cell in row) for row in connectors.guarantees().itertuples(index=False)]
    _show_table(("system", "source", "sink", "conditions"), rows)


@click.command()
@click.argument("system", required=False)
@click.option("--pages", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
              help="Write the options of all systems into the pages of FOLDER, lib/docs in the repository.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="As JSON schemas, by which editors complete and explain options.")
def options(system: str | None, pages: Path | None, as_json: bool) -> None:
    """Prints a line that uses SYSTEM, and every option of it: what it takes, its default, what it means."""
    from .reference import connectors_of, example, option_groups, option_schema, word_groups, write_pages

    if pages:
        for file in write_pages(pages):
            click.echo(f"written: {file}")
        return
    if system is None:
        raise click.UsageError("name a SYSTEM, such as files; python -m connectors guarantees lists them.")
    if as_json:
        echo_json({kind: option_schema(connector) for kind, connector in connectors_of(system)})
        return
    for kind, connector in connectors_of(system):
        (_, own), *shared = option_groups(connector)
        for heading, rows in [("", own), *word_groups(connector), *shared]:
            click.secho(f"\n{heading or f'connectors.{connector.name}, {kind}'}\n", bold=True)
            if not heading:
                click.echo(f"  {example(connector)}\n")
            for row in rows:
                default = f"; default: {row.default}" if row.default not in ("", "required") else row.default and ", required"
                click.echo(f"  {click.style(row.option, bold=True)}  {row.values}{default}")
                click.echo(click.wrap_text(row.meaning, shutil.get_terminal_size().columns, "      ", "      "))


@click.command()
@click.option("--all", "everything", is_flag=True,
              help=f"Also those of other checkouts, and what is older than the {_RECENT} newest.")  # fmt: skip
@click.option("--watch", is_flag=True, help="Again every two seconds, until Ctrl-C.")
@in_json
def status(everything: bool, watch: bool, as_json: bool) -> None:
    """Lists the queries of this checkout: those that run, then the newest, with their sinks, last commit and lag.

    A query is of this checkout if its session works in its folder, which is the nearest one with a databricks.yml, or else the
    current one. Sessions of the workbench say what state a query is in and how far behind it is; of other sessions the files of
    $CONNECTORS_METRICS tell sinks and commits alone.
    """
    if watch and as_json:
        raise click.UsageError("give one of --watch and --json.")
    if not watch:
        _show_queries(everything=everything, as_json=as_json)
        return
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            click.clear()
            _show_queries(everything=everything)
            time.sleep(_WATCH_SECONDS)


def _show_queries(*, everything: bool, as_json: bool = False) -> None:
    from connectors.metrics.queries import UNKNOWN, queries_of_machine

    from .bundle.configuration import find_root
    from .listing import query_lines

    try:
        root = find_root(Path.cwd()) or Path.cwd()
    except FileNotFoundError:  # the folder of this terminal is deleted
        root, everything = Path(), True
    queries = [query for query in queries_of_machine() if query.sinks or query.state != UNKNOWN]
    own = [query for query in queries if not query.is_elsewhere(root)]
    shown = queries if everything else own[:_RECENT]
    if as_json:
        echo_json(shown)
        return
    if not shown:
        click.echo(f"no query of {'this machine' if everything else root} has written metrics in the last 7 days")
    for query in shown:
        name, *lines = query_lines(query)
        click.secho(name, bold=True)
        click.echo("\n".join(lines), nl=bool(lines))
    more = {"older": len(own) - len(shown), "of other or unknown checkouts": len(queries) - len(own)}
    if not everything and any(more.values()):
        counts = ", ".join(f"{count} {which}" for which, count in more.items() if count)
        click.echo(f"and {counts}: python -m connectors status --all")


@click.group()
def ledger() -> None:
    """Looks into the ledgers of sinks."""


@ledger.command("show")
@click.argument("target")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the sink, such as a login.")
@click.option("--batches", default=3, show_default=True, help="So many of the newest batches of each query.")
@in_json
def ledger_show(target: str, options: tuple[str, ...], batches: int, as_json: bool) -> None:
    """Shows which batches the sinks have recorded in TARGET, a path or URL.

    TARGET is a folder (local, s3://, hdfs://), a Delta table, a database (its file, or a URL of JDBC or SQLAlchemy),
    kafka://broker:9092, redis://host:6379, or dynamodb://region. Options that reach it are those of the sink: user, password,
    dbtable (a table in the ledger's schema), storageOptions, kafka.*, ledgerTopic; a secret may be {{secrets/scope/key}}.
    """
    from connectors.core.ledger import txn_app_id
    from connectors.metrics.queries import UNKNOWN, standing_of
    from connectors.systems import ledgers_in

    from .listing import ledger_facts, ledger_lines

    contents = ledgers_in(target, pairs("--option", options))
    if not contents:
        raise click.ClickException(f"no sink has recorded anything in {target}, or nothing is there.")
    # A batch write has no name but its txnAppId, which may be longer than that of a file.
    queries = {entry.query for content in contents for entry in content.entries if txn_app_id(entry.query) is None}
    names = {query: standing.name for query in queries if (standing := standing_of(query)).state != UNKNOWN}
    facts = [ledger_facts(content, batches, names) for content in contents]
    if as_json:
        echo_json(facts)
        return
    for sink in facts:
        name, *lines = ledger_lines(sink)
        click.secho(name, bold=True)
        click.echo("\n".join(lines))


@click.group()
def files() -> None:
    """Looks after folders that connectors.files writes to."""


@files.command()
@click.argument("path")
@click.option("--storage-options", metavar="JSON", default="{}", help="As the sink's storageOptions.")
@click.option("--max-part-size", metavar="SIZE", default="256MB", help="The size of the largest file.")
def seal(path: str, storage_options: str, max_part_size: str) -> None:
    """Makes visible what waits in the folder PATH (rolling=policy). Harmless while a query writes there."""
    from connectors.ground.quantities import size
    from connectors.systems.files.rolling import seal_folder

    storage = json_object("--storage-options", storage_options)
    try:
        largest = size(max_part_size)
    except ValueError as wrong:
        raise click.UsageError(f"--max-part-size must be a size such as 256MB; {wrong}") from None
    count = seal_folder(path, storage, largest)
    click.echo(f"{count} {'file' if count == 1 else 'files'} sealed in {path}")


@click.command()
@click.argument("worker", type=click.Path(path_type=Path), metavar="WORKER.PROPERTIES")
@click.argument("connector", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="CONNECTOR.PROPERTIES…")
@click.option("--once", is_flag=True, help="End when everything that is there has been read.")
def connect(worker: Path, connector: tuple[Path, ...], once: bool) -> None:
    """Runs connectors as a standalone worker of Kafka Connect does, from the same files, on Spark.

    A source writes to the topics of bootstrap.servers, exactly-once; a sink reads its topics from there. Properties that mean
    something else here, or nothing, are listed first. Exit code: 2 for what cannot start, 1 if a connector failed, else 0.
    """
    from connectors.workbench import session

    from .standalone import read_files, remarks, run

    try:
        settings, assemblies = read_files(worker, connector)
    except ConnectorError as wrong:
        click.echo(str(wrong), err=True)
        sys.exit(2)
    for name, meaning in remarks(settings):
        click.echo(f"{worker.name}: {name} - {meaning}")
    sys.exit(0 if run(session(), settings, assemblies, once=once, echo=click.echo) else 1)


@click.group()
def kafka() -> None:
    """Looks after what connectors.kafka leaves in a cluster."""


@kafka.command()
@click.option("--bootstrap", required=True, metavar="HOST:PORT", help="Brokers, as kafka.bootstrap.servers.")
@click.option("--prefix", required=True, help="How the transactional ids begin: the sink's transactionalIdPrefix.")
@click.option("--abort", is_flag=True, help="End them: their records are never seen by readers with read_committed.")
@click.option(
    "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="More settings: name=value lines."
)
def transactions(bootstrap: str, prefix: str, abort: bool, config: Path | None) -> None:
    """Lists open transactions, which keep readers waiting, and with --abort ends them.

    The Python client has no calls for this (KIP-664). The list is read from the brokers' own topic __transaction_state, which
    its user must be allowed to read; a transaction is ended by taking over its id, as the next start of its query does. That
    also shuts out a query that is still running: it begins its batch again. If the brokers do not show the list, --abort takes
    the prefix itself for an id.
    """
    from connectors.systems.kafka.open_transactions import client_settings, report

    settings = client_settings(bootstrap, config.read_text() if config else "")
    for line in report(settings, prefix, abort=abort):
        click.echo(line)


def _show_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table as wide as the terminal, its long cells in several lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*(cell.replace("[", "\\[") for cell in row))
    Console().print(table)


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """The values by their names of an ``option`` that was given as NAME=VALUE, each time. Raises ``UsageError``."""
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f'{option} must be NAME=VALUE; got "{text}"')
        values[name] = value
    return values


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object that an ``option`` was given as. Raises ``UsageError``."""
    try:
        value = json.loads(text)
    except ValueError as wrong:
        raise click.UsageError(f"{option} must be JSON; {wrong}") from None
    if not isinstance(value, dict):
        raise click.UsageError(f"{option} must be a JSON object; got {text[:100]}")
    return value


COMMANDS: Final = (guarantees, options, status, ledger, files, connect, kafka)
