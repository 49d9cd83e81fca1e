"""The command that erases a person's rows from the places that pipelines write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .cli_systems import echo_json, in_json, json_object, pairs

if TYPE_CHECKING:
    from .erasure import Report


@click.command()
@click.option("--key", "keys", multiple=True, required=True, metavar="COLUMN=VALUE",
              help="What the person's rows have; of several, all.")  # fmt: skip
@click.option("--in", "places", multiple=True, required=True, metavar="PLACE",
              help="delta:PATH, delta:TABLE, letters:PATH, state:PATH, staging:PATH, or SYSTEM:JSON.")  # fmt: skip
@click.option(
    "--retention", metavar="DURATION", help="So long Delta tables keep earlier versions; default: as they say."
)
@click.option("--storage-options", metavar="JSON", default="{}", help="Logins and keys, as the query's storageOptions.")
@click.option("--dry-run", is_flag=True, help="Count, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@in_json
def erase(
    keys: tuple[str, ...], places: tuple[str, ...], retention: str | None, storage_options: str, dry_run: bool, yes: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Erases the rows of one person (the right to be forgotten), and says what is left, and why.

    PLACE is a Delta table, a deadLetterPath, a stateLocation, a folder in which a sink stages, or jdbc, elasticsearch, redis,
    dynamodb or cassandra with the options of the sink. Erase in the source first, which would bring the rows again. Queries
    go on meanwhile. Called again, it goes on where it was. Exit code 1: something is left.
    """
    from connectors.ground.quantities import duration

    from .erasure import Erasure
    from .erasure_places import place_of

    try:
        seconds = None if retention is None else duration(retention)
    except ValueError as wrong:
        raise click.UsageError(f"--retention must be a duration such as 7 days; {wrong}") from None
    opened = [place_of(place) for place in places]
    names = [text.partition("=")[0] for text in keys]
    if len(set(names)) < len(names):
        raise click.UsageError("--key must name each column once; erase one person after the other")
    key, storage = pairs("--key", keys), json_object("--storage-options", storage_options)
    if dry_run or not yes:
        reports = [report for place in opened for report in place(Erasure(key, seconds, storage, dry_run=True))]
        if dry_run and as_json:
            echo_json(reports)
        else:
            click.echo("\n".join(line for report in reports for line in _lines(report)), err=as_json)
        if dry_run:
            return
        click.confirm("Erase them for good?", abort=True, err=as_json)
    reports = [report for place in opened for report in place(Erasure(key, seconds, storage))]
    if as_json:
        echo_json(reports)
    else:
        click.echo("\n".join(line for report in reports for line in _lines(report)))
    if any(report.left for report in reports):
        click.get_current_context().exit(1)


def _lines(report: Report) -> Iterator[str]:
    number = "unknown" if report.found is None else f"{report.found:,}"
    yield f"{report.place}  found {number}, erased {report.erased:,}"
    yield from (f"    left: {reason}" for reason in report.left)
