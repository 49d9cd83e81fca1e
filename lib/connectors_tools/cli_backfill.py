"""The command that runs a pipeline over slices of time that have passed."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from connectors.ground.errors import Misconfigured, Problem
from connectors.ground.state import digest
from connectors.workbench.batch_record import slice_folder
from connectors.workbench.settings import workdir

from .cli_systems import pairs

if TYPE_CHECKING:
    from .bundle.model import Job

_FORMS: Final = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "month": "%Y-%m"}
"""How the begin of a slice is written, which is the slice's name."""
_END: Final = "availableNow"
"""The trigger of a query that ends."""
_SHARED: Final = ("name", "workdir", "target", "checks")
"""The parameters of the gate, which judges all slices together."""


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
    if not _is_cut(values.values()):
        text = "must have {slice}, or both ends, {from} or {from_ms} and {to} or {to_ms}: else several slices read the same"
        raise click.UsageError(f"--param {text}. Give the source such as --param 'source=/orders/day={{slice}}'")
    if slices[-1].end > datetime.now(timezone.utc):
        text = f"the slice {slices[-1].name} has not ended, and its later rows would be read by none"
        raise click.UsageError(f"--to must not be later than now: {text}; got {end}")
    job = load(Path.cwd(), target, pairs("--var", variables)).job(pipeline)
    known = {**job.parameters, **values}
    marked = [name for name, text in values.items() if slices[0].fill(text) != text]
    if problems := [*_problems(job, known, slices[0]), *_unknown(job, marked)]:
        raise Misconfigured(f"job {pipeline}", problems)
    options = [*(("--target", target) if target else ()), *(part for variable in variables for part in ("--var", variable))]
    call = [sys.executable, "-m", "connectors", "run", pipeline, "--quiet", *options]
    folder = workdir(f"{workdir(known['workdir'])}/{known['name']}")
    _refuse_overlap(Path(slice_folder(folder, "")), by, slices)
    runs = runs / f"{pipeline}_backfill"

    def run(piece: Slice) -> bool:
        filled = {**{name: piece.fill(text) for name, text in values.items()}, "name": f"{known['name']}@{piece.name}"}
        if job.parameters.get("trigger", _END) != _END:  # a slice ends, also one of a job that goes on
            filled.setdefault("trigger", _END)
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
        outcome = f"FAILED, see {log}"
        if code == 0:
            outcome = "SUCCESS" if state.has_batch else "SUCCESS, but there was nothing to read: the same call looks again"
        if code == 0 and state.has_batch:
            state.write(seconds)
        click.echo(f"{piece.name}  {outcome}  {seconds:.1f} s")
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
        yield Slice(at.strftime(_FORMS[by]), at, _end(by, at))
        at = _end(by, at)


def _end(by: str, begin: datetime) -> datetime:
    """The end of the slice by ``by`` from ``begin`` on."""
    if by == "month":
        return (begin + timedelta(days=31)).replace(day=1)
    return begin + (timedelta(hours=1) if by == "hour" else timedelta(days=1))


def _is_cut(texts: Collection[str]) -> bool:
    """Whether ``texts`` have the marks by which slices are apart."""
    name, *ends = ({f"{{{mark}}}", f"{{{mark}_ms}}"} for mark in ("slice", "from", "to"))
    present = {mark for mark in name.union(*ends) for text in texts if mark in text}
    return bool(name & present) or all(end & present for end in ends)


def _unknown(job: Job, marked: Collection[str]) -> Iterator[Problem]:
    """The parameters with marks that ``job`` has not: its slices would read the same."""
    for name in marked:
        if name not in job.parameters:
            yield Problem(name, f"has a mark, and is no parameter of the job; it has {', '.join(job.parameters)}.")


def _problems(job: Job, parameters: Mapping[str, str], piece: Slice) -> Iterator[Problem]:
    """Why ``job`` with ``parameters`` has no slices, such as ``piece``."""
    for task in ("pipeline", "quality"):
        if task not in job.tasks:
            yield Problem("tasks", f"must have {task}, as the job of a pipeline with its gate.")
    for name in _SHARED:
        text = parameters.get(name, "")
        if not text and name in ("name", "workdir"):
            yield Problem(name, "missing; a pipeline has this parameter.")
        elif piece.fill(text) != text:
            yield Problem(name, f"must be one for all slices, without marks such as {{slice}}; got {text}")
    if "@" in parameters.get("name", ""):
        yield Problem("name", f'must have no "@", which comes before the name of a slice; got {parameters["name"]}')
    folder = parameters.get("workdir", "")
    if "://" in folder:
        yield Problem("workdir", "must be a folder or a volume, no URL: the state of slices is there.")
    elif folder and not Path(folder).expanduser().is_absolute():
        yield Problem("workdir", f"must be an absolute path: for the notebook it begins elsewhere; got {folder}")


def _refuse_overlap(folder: Path, by: str, slices: Sequence[Slice]) -> None:
    """Raises ``UsageError`` if slices of another length, with their state in ``folder``, have read a part of ``slices``."""
    names = {path.parent.name for path in folder.glob("*/checkpoint")}
    for other, form in _FORMS.items():
        for name in sorted(names if other != by else ()):
            try:
                begin = datetime.strptime(name, form).replace(tzinfo=timezone.utc)
            except ValueError:
                continue
            if begin < slices[-1].end and _end(other, begin) > slices[0].begin:
                text = f"would read again what the slice {name} has read. Go on with --by {other}, or leave its span out"
                raise click.UsageError(f"--by {by} {text}")


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

    @property
    def has_batch(self) -> bool:
        """False as long as nothing was read: the path may be misspelt, or its files are late."""
        return (self._file.parent / "counts").exists()

    def write(self, seconds: float | None) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"parameters": self._digest, "seconds": seconds}))
        temporary.replace(self._file)
