"""The command that proves a pipeline on the user's own systems."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from connectors.ground import machine
from connectors.ground.errors import Misconfigured, Problem

from .cli_systems import pairs


@click.command()
@click.argument("pipeline", required=False)
@click.option("--source", metavar="SYSTEM", help="In place of PIPELINE, with --sink: any pair, such as kafka and jdbc.")
@click.option("--sink", metavar="SYSTEM", help="See --source.")
@click.option("-t", "--target", help="The bundle's target; by default the one marked so.")
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUE",
              help="A parameter of the pipeline, such as an address; without one, a demonstration is proven.")  # fmt: skip
@click.option("--kills", type=click.IntRange(min=1), default=10, show_default=True, help="Rounds, each with one fault.")
@click.option("--rows", type=click.IntRange(min=10), default=10_000, show_default=True, help="Rows that are fed.")
@click.option("--faults", metavar="FAULT,FAULT", default="", help="Some of them; by default all, which --list explains.")
@click.option("--list", "lists", is_flag=True, help="List the faults, and end.")
@click.option("--seed", default=0, show_default=True, help="Another one: other faults, at other points.")
@click.option("--control", is_flag=True, help="Take the sink's protection away, to see that the proof finds doubles.")
@click.option("--latency", is_flag=True, help="Also tell how long rows take while the pipeline runs without an end.")
@click.option("--folder", type=click.Path(path_type=Path), help="For the page and the report, by default in runs/proofs/.")
@click.option("--keep", is_flag=True, help="Do not remove what the proof has made.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON at the end.")
def prove(
    pipeline: str | None, source: str | None, sink: str | None, target: str | None, parameters: tuple[str, ...],
    kills: int, rows: int, faults: str, lists: bool, seed: int, control: bool, latency: bool, folder: Path | None, keep: bool,
    yes: bool, as_json: bool,
) -> None:  # fmt: skip
    """Breaks PIPELINE again and again on your own systems, in names of its own, and compares every row.

    PIPELINE is a job of this bundle. Each round feeds rows and lets a fault strike. In the end the same notebook reads the same
    source once more, undisturbed, and both targets must be equal, row by row. Touches no name that exists. Exit code: 0 when
    every promise was kept, 1 when not, 2 when the command line is wrong.
    """
    from .proof.latency import PORTIONS
    from .proof.page import ProofRecord, write_proof
    from .proof.proof import Proof
    from .proof.rounds import FAULTS

    if lists:
        click.echo("\n".join(f"{name:<18}{what}" for name, what in FAULTS.items()))
        return
    if (pipeline is None) is not bool(source and sink):
        raise click.UsageError("give a PIPELINE, or --source and --sink.")
    token = f"prove_{machine.token()[:8]}"
    place = (folder or Path("runs") / "proofs").absolute() / token
    if pipeline:
        notebook, known = _of_bundle(pipeline, target)
    else:
        pipeline = f"{source}_to_{sink}"
        notebook, known = _of_pair(pipeline, place)
    own = pairs("--param", parameters)
    if unknown := [name for name in own if name not in known]:
        text = f"{unknown[0]} is no parameter of {pipeline}; it has {', '.join(known)}."
        raise Misconfigured("connectors prove", [Problem("--param", text)])
    chosen = [name.strip() for name in faults.split(",") if name.strip()] or list(FAULTS)
    proof = Proof(notebook, {**known, **own}, place, kills, rows, chosen, seed, control, latency, token)
    tell = partial(click.echo, err=as_json)
    for line in proof.plan():
        tell(line)
    if not (yes or proof.is_demonstration) and not click.confirm("Go on?", err=as_json):
        sys.exit(1)
    start, on_end = machine.monotonic(), signal.signal(signal.SIGTERM, _end)
    try:
        verdict = proof.run(tell)
    finally:
        if keep:
            tell(f"kept: {', '.join(proof.names())}; {place}")
        else:
            for name in proof.clean():
                tell(f"not removed: {name}")
        signal.signal(signal.SIGTERM, on_end)
    hidden = "".join(f" --param {name}=…" for name in own)  # their values may be secrets
    flags = " --control" * control + " --latency" * latency
    options = f"--seed {seed} --kills {kills} --rows {rows} --faults {','.join(chosen)}{hidden}{flags}"
    record = ProofRecord(
        pipeline=pipeline,
        command=f"python -m connectors prove {pipeline} {options}",
        started=proof.started,
        seconds=machine.monotonic() - start,
        outcomes=proof.outcomes,
        verdict=verdict,
        delivered=proof.delivered,
        demonstrations=proof.subject.demonstrations,
        unprotected=control,
        latencies=proof.latencies,
    )
    page = write_proof(record, place)
    if latency:
        times = f": {median(proof.latencies):,.2f} s (median), at most {max(proof.latencies):,.2f} s" if proof.latencies else ""
        tell(f"latency of {len(proof.latencies)} of {PORTIONS} portions of rows{times}")
    click.echo(record.as_json() if as_json else f"{record.title}: {record.judgement}. The page: {page}")
    sys.exit(0 if record.ok else 1)


def _end(number: int, _: Any) -> None:
    """Ends the command by the way of its errors, so that names and drivers go as well."""
    sys.exit(128 + number)


def _of_bundle(name: str, target: str | None) -> tuple[Path, Mapping[str, str]]:
    """The first notebook of a job, and the job's parameters."""
    from .bundle import load

    job = load(Path.cwd(), target).job(name)
    notebook = next((task.notebook for task in job.tasks.values() if task.notebook), None)
    if notebook is None:
        raise Misconfigured("connectors prove", [Problem("PIPELINE", f"{name} has no task with a notebook.")])
    return notebook.resolve(), job.parameters


def _of_pair(kind: str, folder: Path) -> tuple[Path, Mapping[str, str]]:
    """The notebook of the pair, written into ``folder``, and the parameters of its job."""
    import yaml

    from .pipelines import ends_of, files_of

    if ends_of(kind) is None:
        text = f"{kind} is no pipeline; `python -m connectors new --help` tells what there is."
        raise Misconfigured("connectors prove", [Problem("--source, --sink", text)])
    files = {folder / path: text for path, text in files_of(kind, "pair").items()}
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (job,) = yaml.safe_load((folder / "jobs" / "pair.yml").read_text())["resources"]["jobs"].values()
    defaults = {parameter["name"]: str(parameter["default"]) for parameter in job["parameters"]}
    own = {name: text for name, text in defaults.items() if "${" not in text}
    return folder / "notebooks" / "pipelines" / "pair.ipynb", {**dict.fromkeys(defaults, ""), **own}
