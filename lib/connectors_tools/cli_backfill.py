"""The command that runs a pipeline over slices of time that have passed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import click

from connectors.ground.errors import Misconfigured, Problem
from connectors.ground.state import digest
from connectors.workbench.pipeline import slice_folder
from connectors.workbench.settings import workdir

from .cli_systems import pairs

_FORMS: Final = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""How the begin of a slice is written, which is the slice's name."""


@dataclass(frozen=True)
class Slice:
    """A part of time: from ``begin`` until before ``end``."""

    name: str
    begin: datetime
    end: datetime

    def fill(self, text: str) -> str:
        """``text`` with the slice in the place of its marks."""
        marks = {"slice": self.name}
        for mark, at in (("from", self.begin), ("to", self.end)):
            marks |= {mark: f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{mark}_ms": str(round(at.timestamp() * 1000))}
        for mark, value in marks.items():
            text = text.replace(f"{{{mark}}}", value)
        return text


@click.command()
@click.argument("pipeline")
@click.option("--by", type=click.Choice([*_FORMS]), default="day", show_default=True, help="How long a slice is, in UTC.")
@click.option("--from", "begin", required=True, metavar="TIME", help="The first slice, such as 2026-03-01.")
@click.option("--to", "end", required=True, metavar="TIME", help="The begin of the first slice that is left out.")
@click.option("--parallel", type=click.IntRange(min=1), default=1, show_default=True, help="So many slices at once.")
@click.option("-t", "--target", help="The bundle's target; by default the one marked so.")
@click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the bundle.")
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUE",
              help="A parameter of the pipeline, with {slice}, {from}, {to}, {from_ms} or {to_ms}.")  # fmt: skip
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), help="Folder for executed notebooks.")
def backfill(
    pipeline: str, by: str, begin: str, end: str, parallel: int, target: str | None, variables: tuple[str, ...],
    parameters: tuple[str, ...], runs: Path,
) -> None:  # fmt: skip
    """Runs PIPELINE, a job of this bundle, for slices of time, on this machine, and then its gate for all of them.

    Each slice is a query of its own into the pipeline's table, exactly-once, with its state below that of the pipeline. Call it
    again: slices that are done are passed over, and a slice that failed goes on where it was. Exit code 1 when one fails.
    """
    from .bundle import load

    values = pairs("--param", parameters)
    slices = list(slices_of(by, begin, end))
    if all(slices[0].fill(text) == text for text in values.values()):
        text = "must have {slice}, {from}, {to}, {from_ms} or {to_ms}: else each slice reads all"
        raise click.UsageError(f"--param {text}. Give the source such as --param 'source=/orders/day={{slice}}'")
    job = load(Path.cwd(), target, pairs("--var", variables)).job(pipeline)
    known = {**job.parameters, **values}
    if missing := [name for name in ("name", "workdir") if name not in known]:
        raise Misconfigured(f"job {pipeline}", [Problem(name, "missing; a pipeline has this parameter.") for name in missing])
    options = [*(("--target", target) if target else ()), *(part for variable in variables for part in ("--var", variable))]
    call = [sys.executable, "-m", "connectors", "run", pipeline, "--quiet", *options]
    folder = workdir(f"{workdir(known['workdir'])}/{known['name']}")
    runs = runs / f"{pipeline}_backfill"

    def run(piece: Slice) -> bool:
        filled = {**{name: piece.fill(text) for name, text in values.items()}, "name": f"{known['name']}@{piece.name}"}
        state = _SliceState(Path(slice_folder(folder, piece.name)), filled)
        if state.is_done:
            click.echo(f"{piece.name}  done before{', by other parameters' if state.has_other_parameters else ''}")
            return True
        state.write(None)
        started, log = time.monotonic(), runs / f"{piece.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        command = [*call, "--only", "pipeline", "--runs", str(runs / piece.name), *_parameters(filled)]
        with log.open("wb") as file:
            code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
        seconds = time.monotonic() - started
        if code == 0:
            state.write(seconds)
        click.echo(f"{piece.name}  {'SUCCESS' if code == 0 else f'FAILED, see {log}'}  {seconds:.1f} s")
        return code == 0

    with ThreadPoolExecutor(parallel) as pool:
        outcomes = list(pool.map(run, slices))
    if not all(outcomes):
        click.echo(f"{outcomes.count(False)} of {len(outcomes)} slices failed. The same call runs these again.", err=True)
        sys.exit(1)
    whole = {name: text for name, text in values.items() if slices[0].fill(text) == text}
    sys.exit(subprocess.run([*call, "--only", "quality", *_parameters(whole)]).returncode)


def slices_of(by: str, begin: str, end: str) -> Iterator[Slice]:
    """The slices from ``begin`` until before ``end``. Raises ``UsageError``."""
    at, last = _time("--from", by, begin), _time("--to", by, end)
    if at >= last:
        raise click.UsageError(f"--to must be later than --from {begin}; got {end}")
    while at < last:
        after = at + timedelta(hours=1) if by == "hour" else at + timedelta(days=1)
        if by == "month":
            after = (at + timedelta(days=31)).replace(day=1)
        yield Slice(at.strftime(_FORMS[by]), at, after)
        at = after


def _time(option: str, by: str, text: str) -> datetime:
    try:
        return datetime.strptime(text, _FORMS[by]).replace(tzinfo=timezone.utc)
    except ValueError:
        example = datetime(2026, 3, 1, 5).strftime(_FORMS[by])
        raise click.UsageError(f"{option} must be the begin of a slice by {by}, such as {example}; got {text}") from None


def _parameters(values: Mapping[str, str]) -> Sequence[str]:
    return [part for name, text in values.items() for part in ("--param", f"{name}={text}")]


class _SliceState:
    """The record of a slice, in its ``folder``: the digest of the ``parameters`` of the last call, and the seconds it took."""

    def __init__(self, folder: Path, parameters: Mapping[str, str]) -> None:
        self._file, self._digest = folder / "slice.json", digest(json.dumps(parameters, sort_keys=True))
        self._known: dict[str, Any] = json.loads(self._file.read_text()) if self._file.exists() else {}

    @property
    def is_done(self) -> bool:
        return self._known.get("seconds") is not None

    @property
    def has_other_parameters(self) -> bool:
        return bool(self._known["parameters"] != self._digest)

    def write(self, seconds: float | None) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"parameters": self._digest, "seconds": seconds}))
        temporary.replace(self._file)
