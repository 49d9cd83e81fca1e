"""The commands that show where the sources of a query stand, and move them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import click

from connectors.ground.state import dumps
from connectors.metrics.words import moment

from .cli_systems import echo_json, in_json, json_object

if TYPE_CHECKING:
    from connectors.core.epochs import EpochLog

    from .offsets import Checkpoint, Entry, SourceOffset

_END_SECONDS: Final = 5.0
"""So much later than a query ends its session says so, at most."""

Positions = Sequence[tuple["SourceOffset", Any]]
"""The sources of a query, each with its position; ``None`` before the first record."""

_MEANING: Final = (
    "Sinks, ledgers and batch numbers stay. What goes back is delivered again: a sink that appends has it twice, one that "
    "upserts has it once. What is passed over is never delivered."
)
_STATE: Final = (
    "The state of its aggregates, joins and deduplication stays, and its watermark: what goes back counts there a second time, "
    "or is left out as known or late."
)


@click.group()
def offsets() -> None:
    """Shows where the sources of a query stand, and moves them."""


def _place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what says where a query's positions are."""
    for option in (
        click.option("--source", metavar="NAME", help="One source of several, as show names it."),
        click.option("--state-location", metavar="FOLDER", help="The query's stateLocation, if the positions are there."),
        click.option("--storage-options", metavar="JSON", default="{}", help="Logins and keys, as the query's storageOptions."),
    ):
        command = option(command)
    return click.argument("location", metavar="CHECKPOINT")(command)


def _confirmation(command: Callable[..., Any]) -> Callable[..., Any]:
    dry_run = click.option("--dry-run", is_flag=True, help="Show the move, and change nothing.")
    again = click.option("--accept-duplicates", is_flag=True, help="With --yes: also go back, so that rows come again.")
    asks = "The source's options, where Kafka or a connector is asked."
    options = click.option("--options", metavar="JSON", default="{}", help=asks)
    return options(dry_run(click.option("--yes", is_flag=True, help="Do not ask.")(again(command))))


@offsets.command()
@_place
@in_json
def show(
    location: str, storage_options: str, state_location: str | None, source: str | None, as_json: bool
) -> None:
    """Shows the position and lag of each source behind the last committed batch of CHECKPOINT, a query's checkpointLocation."""
    storage = json_object("--storage-options", storage_options)
    checkpoint = _checkpoint_at(location, storage)
    batch = checkpoint.committed if checkpoint.committed is not None else checkpoint.planned
    entry = None if batch is None else checkpoint.entry(batch)
    sources = () if entry is None else entry.sources if source is None else (entry.source(source),)
    positions = [(offset, _position(offset, state_location, storage)) for offset in sources]
    if as_json:
        echo_json(_facts(checkpoint, entry, positions))
        return
    click.echo("\n".join(_lines(checkpoint, entry, positions)))


@offsets.command("set")
@_place
@_confirmation
@click.option("--to-offset", metavar="JSON", help='What changes of the position, as show prints it: {"orders": {"0": 1200}}.')
@click.option("--shift-by", type=int, metavar="N", help="Each partition of Kafka by so many offsets, such as -1000.")
@click.option("--to-earliest", is_flag=True, help="Each partition of Kafka to its first record.")
@click.option("--to-latest", is_flag=True, help="Each partition of Kafka to its end.")
@click.option("--to-datetime", metavar="TIME", help="Each to its first record of then or later: 2026-11-28T10:00:00, in UTC.")
def set_offset(
    to_offset: str | None, shift_by: int | None, to_earliest: bool, to_latest: bool, to_datetime: str | None, **about: Any
) -> None:
    """Moves a source of a query that does not run: the next batch begins there. Kafka's names are topic and partition."""
    own = json_object("--options", about["options"])
    moves: dict[str, Callable[[SourceOffset, EpochLog | None], SourceOffset]] = {}

    def ask(flag: str, start: Mapping[str, str]) -> None:
        if not own:
            raise click.UsageError(f'{flag} asks Kafka; give the options of the source: --options \'{{"subscribe": …}}\'.')
        moves[flag] = lambda offset, log: offset.begin(start, own, flag)

    if to_offset is not None:
        to = json_object("--to-offset", to_offset)
        moves["--to-offset"] = lambda offset, log: offset.move(to, log)
    if shift_by is not None:
        moves["--shift-by"] = lambda offset, log: offset.shift(shift_by)
    if to_earliest:
        ask("--to-earliest", {"startingOffsets": "earliest"})
    if to_latest:
        ask("--to-latest", {"startingOffsets": "latest"})
    if to_datetime is not None:
        time = {"startingTimestamp": str(_milliseconds(to_datetime)), "startingOffsetsByTimestampStrategy": "latest"}
        ask("--to-datetime", time)
    if len(moves) != 1:
        raise click.UsageError("give one of --to-offset, --shift-by, --to-earliest, --to-latest and --to-datetime.")
    (move,) = moves.values()
    _move(move, **about)


def _milliseconds(text: str) -> int:
    """A time in ISO form as milliseconds since 1970; without a zone it is in UTC, as for Kafka's own command."""
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise click.UsageError(f'--to-datetime must be like 2026-11-28T10:00:00; got "{text}".') from None
    return max(0, round((time if time.tzinfo else time.replace(tzinfo=timezone.utc)).timestamp() * 1000))


@offsets.command()
@_place
@_confirmation
def reset(**about: Any) -> None:
    """Lets a source of a query that does not run begin anew, where its options say (startingOffsets, startingPosition …)."""
    _move(lambda offset, log: offset.reset(log), **about)


def _position(offset: SourceOffset, state_location: str | None, storage: Mapping[str, Any]) -> Any:
    from .offsets import epoch_log

    if offset.position is None or state_location is None:
        return offset.position
    return offset.log_positions(epoch_log(offset, state_location, storage)) or offset.position


def _move(
    change: Callable[[SourceOffset, EpochLog | None], SourceOffset], location: str, storage_options: str,
    state_location: str | None, source: str | None, options: str, dry_run: bool, yes: bool, accept_duplicates: bool,
) -> None:  # fmt: skip
    """Shows the move that ``change`` makes of a source's offset, asks, and does it."""
    from .offsets import epoch_log, is_behind

    storage = json_object("--storage-options", storage_options)
    checkpoint = _checkpoint_at(location, storage)
    entry = checkpoint.movable()
    before = entry.source(source)
    log = epoch_log(before, state_location, storage)
    after, own = change(before, log), json_object("--options", options)
    if after.has_connector and not own:
        text = "has a connector, which is asked about the move: give --options of the source."
        raise click.UsageError(f"source {before.name} {text}")
    click.echo(f"{_heading(checkpoint, entry)}, source {before.name}")
    click.echo(f"    from  {dumps(before.position)}\n    to    {_target(after)}")
    click.echo(_MEANING)
    if checkpoint.keeps_state():
        click.echo(_STATE)
    if dry_run:
        return
    if yes and not accept_duplicates and is_behind(after.position, before.position):
        raise click.UsageError("the move may go back, and rows come again: give --accept-duplicates beside --yes.")
    _refuse_running(checkpoint.query)
    if not yes:
        click.confirm("Move it?", abort=True)
    if not after.ask(log, own):
        click.echo("note: the connector has not looked at the position (alterOffsets).")
    checkpoint.move(entry, after)
    click.echo("moved: the next batch begins there.")


def _target(offset: SourceOffset) -> str:
    position = offset.position
    return "where its options say" if position is None else dumps(position.get("positions", position))


def _refuse_running(query: str) -> None:
    from connectors.metrics.history import RUNNING
    from connectors.metrics.queries import standing_of

    latest = time.monotonic() + _END_SECONDS
    while (running := standing_of(query)).state == RUNNING:
        if time.monotonic() > latest:
            raise click.ClickException(f"query {running.name} runs, in process {running.process}. Stop it first.")
        time.sleep(0.2)


def _lines(checkpoint: Checkpoint, entry: Entry | None, positions: Positions) -> Iterator[str]:
    yield _heading(checkpoint, entry)
    if checkpoint.planned is not None:
        yield f"    batch {checkpoint.planned} is planned and not committed"
    for source, position in positions:
        yield f"source {source.name}{f'  connectors.{source.system}' if source.system else ''}"
        yield f"    {dumps(position) if position is not None else 'has not read anything yet'}"
        for progress in source.partitions():
            lag = progress.behind()
            facts = [f"at {progress.position}", f"{lag:,} behind {progress.latest}" if lag else "no lag"]
            yield f"    {progress.partition or 'all'}  {', '.join(facts)}"


def _heading(checkpoint: Checkpoint, entry: Entry | None) -> str:
    from connectors.metrics.queries import standing_of

    name = standing_of(checkpoint.query).name
    has_name = not checkpoint.query.startswith(name)
    title = f"query {name} ({checkpoint.query})" if has_name else f"query {checkpoint.query}"
    return f"{title}: no batch yet" if entry is None else f"{title}: batch {entry.batch}, planned {moment(entry.time)}"


def _facts(checkpoint: Checkpoint, entry: Entry | None, positions: Positions) -> dict[str, Any]:
    sources = [
        {
            "source": source.name,
            "connector": f"connectors.{source.system}" if source.system else None,
            "position": position,
            "partitions": [vars(progress) for progress in source.partitions()],
        }
        for source, position in positions
    ]
    return {
        "query": checkpoint.query,
        "committed": checkpoint.committed,
        "planned": checkpoint.planned,
        "time": None if entry is None else entry.time,
        "sources": sources,
    }


def _checkpoint_at(location: str, storage_options: Mapping[str, Any]) -> Checkpoint:
    from .offsets import Checkpoint

    return Checkpoint(location, storage_options)
