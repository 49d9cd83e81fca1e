"""The commands that work in a workspace, and what they say."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import click

from ..bundle import Reporter, State
from ..bundle.progress import message
from ..bundle.tasks import short_path
from . import runs
from .deployment import Deployment
from .target import Target


def deploy_there(target: Target, *, plan: bool, force_lock: bool) -> None:
    """Deploys the target, or with ``plan`` lists what would change."""
    deployment = Deployment(target.client, target.bundle, target.user, click.echo)
    deployment.check()
    changes = deployment.plan() if plan else deployment.deploy(force_lock=force_lock)
    if plan:
        for step in changes.steps():
            click.echo(step)
    click.echo(f"target {target.bundle.target}: {changes if not changes.is_empty else 'nothing to change'}")


def destroy_there(target: Target, *, plan: bool, force_lock: bool, auto_approve: bool) -> None:
    """Destroys the target, after a question; with ``plan`` lists what would go."""
    deployment = Deployment(target.client, target.bundle, target.user, click.echo)
    state = deployment.store.read()
    if state.exists and (plan or not auto_approve):
        for what, memory in state.resources.items():
            tables = " and its tables" if deployment.cascades(what) else ""
            click.echo(f"delete  {what}, {memory.name}{tables}")
        click.echo(f"delete  {len(state.files)} files in {target.bundle.config['workspace']['root_path']}")
        if plan:
            return
        try:
            click.confirm("Delete all this from the workspace? Data in volumes and other tables stays.", abort=True)
        except click.Abort:
            raise click.ClickException("nothing is deleted; --auto-approve says yes without a question.") from None
    deployment.destroy(force_lock=force_lock)


def run_there(
    target: Target, job: str, parameters: Mapping[str, str], only: Collection[str], reporter: Reporter
) -> State:
    """Starts a job in the workspace and watches it to its end."""
    run = runs.start(target, job, parameters, only, reporter.note)
    while True:
        try:
            state = runs.watch(target.client, run, job, reporter)
        except KeyboardInterrupt:
            if not runs.is_terminal() or not click.confirm(f"\nCancel run {run} in the workspace?"):
                again = f"python -m connectors runs show {run} -t {target.bundle.target}"
                reporter.line(f"{job}  run {run} goes on in the workspace; {again}")
                return State.CANCELED
            runs.cancel(target.client, run)
        else:
            try:
                _tell_page(target, runs.status(target.client, run), reporter)
            except Exception as error:  # the state of the run is known all the same
                reporter.note(f"the page of the run cannot be written: {message(error)}")
            return state


def _tell_page(target: Target, run: runs.RunStatus, reporter: Reporter) -> None:
    from .page import write_run_page

    page = write_run_page(target, run)
    exported = len(list(page.parent.glob("*.html"))) - 1
    reporter.files(short_path(page, Path.cwd()), {"exported notebook": exported})


def list_runs(target: Target, limit: int) -> None:
    """Lists runs, one a line."""
    listed = runs.recent(target, limit)
    width = max((len(run.name) for run in listed), default=0)
    for run in listed:
        seconds = f"{run.seconds:.0f} s"
        click.echo(f"{run.run_id}  {run.name:<{width}}  {run.started:%Y-%m-%d %H:%M:%S}  {seconds:>7}  {run.state}")
    if not listed:
        click.echo(f"target {target.bundle.target}: no runs")


def show_run(target: Target, run: int, *, html: bool) -> None:
    """Shows one run, as lines or as the page that it writes."""
    status = runs.status(target.client, run)
    if html:
        from .page import write_run_page

        click.echo(f"the page of the run: {write_run_page(target, status)}")
        return
    for line in runs.description(target.client, status):
        click.echo(line)


def cancel_run(target: Target, run: int) -> None:
    """Cancels one run."""
    runs.cancel(target.client, run)
    click.echo(f"run {run}: the workspace was asked to cancel it")
