"""The commands that show, send and drop the dead letters of a folder."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from connectors.ground.messages import message_in
from connectors.metrics.words import count, moment

from .cli_systems import echo_json, in_json, json_object, pairs

if TYPE_CHECKING:
    from connectors.core.letter_files import Letter

    from .letters import Filter, Kind, Letters

_TIME: Final = click.DateTime(["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"])
_SHOWN: Final = 500
_CONDITION: Final = re.compile(r"\[[A-Z][A-Z_.]+\] ")
"""The name of an error of Spark, before its text."""


@click.group()
def letters() -> None:
    """Shows dead letters, sends them again, drops them."""


def _choice(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what says which letters."""
    for option in (
        click.option("--until", metavar="TIME", type=_TIME, help="Before then: 2026-03-01T12:00:00Z, or in local time."),
        click.option("--since", metavar="TIME", type=_TIME, help="Written then or later."),
        click.option("--source", metavar="NAME", default="", help="Of one source or sink, as list names it."),
        click.option("--error", metavar="TEXT", default="", help="With this text in their error."),
        click.option("--storage-options", metavar="JSON", default="{}", help="Logins and keys, as the query's storageOptions."),
    ):
        command = option(command)
    return click.argument("path")(command)


@letters.command("list")
@_choice
@in_json
def list_kinds(path: str, as_json: bool, **choice: Any) -> None:
    """Counts the letters in PATH, a deadLetterPath, by kind of error, with the times of the first and the last."""
    folder, chosen = _opened(path, **choice)
    kinds = folder.kinds(chosen)
    if as_json:
        echo_json(kinds)
        return
    click.echo("\n".join(line for kind in kinds for line in _kind_lines(kind)) or f"no dead letters in {path}")


@letters.command()
@_choice
@click.option("--limit", type=click.IntRange(min=1), default=5, show_default=True, help="How many.")
@click.option("--plain", is_flag=True, help="With the values of the records, which are masked otherwise.")
def show(path: str, limit: int, plain: bool, **choice: Any) -> None:
    """Shows some letters in PATH. Of the values it shows how they look, such as "xxxx@xxxx.xx"."""
    folder, chosen = _opened(path, **choice)
    for _, letter in itertools.islice(folder.letters(chosen), limit):
        click.echo("\n".join(_letter_lines(letter, plain=plain)))


@letters.command()
@_choice
@click.option("--to", "sink", metavar="SINK", required=True, help="Such as kafka, file_stream, jdbc, delta.")
@click.option("--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the sink.")
@click.option("--value", metavar="SQL", default="", help="An expression over the letter's columns that mends its record.")
@click.option("--schema", metavar="DDL", default="", help="The record is JSON with these columns, as that of a sink's letter.")
@click.option("--select", multiple=True, metavar="SQL", help="What the sink gets; by default the columns of --schema, or key, "
              "value (the record), headers and timestamp.")  # fmt: skip
@click.option("--max-sends", type=click.IntRange(min=1), default=3, show_default=True,
              help="A letter that was refused so often stays, as in quarantine.")  # fmt: skip
@click.option("--anew", is_flag=True, help="Forget a send that was interrupted; what it has written may be there twice.")
@click.option("--dry-run", is_flag=True, help="Show the first rows, and send nothing.")
def send(
    path: str, sink: str, options: tuple[str, ...], value: str, schema: str, select: tuple[str, ...], anew: bool,
    max_sends: int, dry_run: bool, **choice: Any,
) -> None:  # fmt: skip
    """Sends letters in PATH to a SINK, and takes them out of PATH. Called again after a crash, it goes on.

    A sink that is exactly-once has each of them once. What it refuses is a letter in PATH again, with the new error; list
    says how often it was sent.
    """
    from connectors import workbench
    from connectors.spark.session import errors_of_spark

    from .letters import Target

    folder, chosen = _opened(path, **choice)
    to = Target(sink, pairs("--option", options), value, schema, select)
    spark = workbench.session()
    try:
        if dry_run:
            folder.rows(spark, chosen, to, max_sends).show(truncate=80)
            return
        sent = folder.send(spark, chosen, to, anew=anew, max_sends=max_sends)
    except errors_of_spark() as error:
        text = str(error)
        condition = _CONDITION.search(text)  # an error of a task is told behind the stack of the call that waited for it
        raise click.ClickException(message_in(text[condition.start() :] if condition else text)) from None
    click.echo(f"sent: {count(sent, 'dead letter')}")
    if left := sum(kind.count for kind in folder.kinds(chosen) if kind.sends >= max_sends):
        click.echo(f"not sent again: {count(left, 'dead letter')}, refused {count(max_sends, 'time')} or more")


@letters.command()
@_choice
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(path: str, yes: bool, **choice: Any) -> None:
    """Removes letters in PATH for good."""
    folder, chosen = _opened(path, **choice)
    if not yes:
        number = sum(kind.count for kind in folder.kinds(chosen))
        click.confirm(f"Drop {count(number, 'dead letter')}?", abort=True)
    click.echo(f"dropped: {count(folder.drop(chosen), 'dead letter')}")


def _opened(
    path: str, storage_options: str, error: str, source: str,
    since: datetime.datetime | None, until: datetime.datetime | None,
) -> tuple[Letters, Filter]:  # fmt: skip
    from .letters import Filter, Letters

    chosen = Filter(error, source, since and _in_zone(since), until and _in_zone(until))
    return Letters(path, json_object("--storage-options", storage_options)), chosen


def _in_zone(time: datetime.datetime) -> datetime.datetime:
    """The time in its own zone, or in that of this machine."""
    try:
        return time if time.tzinfo else time.astimezone()
    except (OverflowError, ValueError):  # the years 1 and 9999, for no beginning and no end
        return time.replace(tzinfo=datetime.timezone.utc)


def _kind_lines(kind: Kind) -> Iterator[str]:
    again = f", sent again {count(kind.sends, 'time')}" if kind.sends else ""
    yield f"{count(kind.count, 'dead letter')} of {kind.source}, {kind.error_class}{again}"
    yield f"    {kind.error}"
    times = [moment(time.timestamp()) for time in (kind.first, kind.last)]
    yield f"    {' to '.join(dict.fromkeys(times))}"


def _letter_lines(letter: Letter, *, plain: bool) -> Iterator[str]:
    from .letters import error_without_values

    yield f"{letter['source']} at {letter['position']}, {moment(letter['at'].timestamp())}"
    yield f"    {letter['error_class']}: {letter['error'] if plain else error_without_values(letter)}"
    for name in ("key", "record"):
        if letter[name] is not None:
            text = letter[name][:_SHOWN].decode(errors="replace")
            yield f"    {name}  {text if plain else _masked(text)}"


def _masked(text: str) -> str:
    """The text with an x for each letter and a 9 for each digit of a value; the names of fields stay."""
    from .letters import NAME

    return re.sub(rf"{NAME}|\w", lambda match: match[0] if len(match[0]) > 1 else "9" if match[0].isdigit() else "x", text)
