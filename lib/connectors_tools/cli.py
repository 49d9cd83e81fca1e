"""The command line: ``python -m connectors …``, or ``connectors …`` where the package is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from connectors.ground.errors import ConnectorError, Misconfigured

from .cli_backfill import backfill
from .cli_erase import erase
from .cli_letters import letters
from .cli_offsets import offsets
from .cli_prove import prove
from .cli_systems import COMMANDS, echo_json, in_json, pairs

if TYPE_CHECKING:
    from connectors.workbench.doctor import Finding

    from .bundle import Bundle
    from .workspace import Target

_CLI_MISSING = (
    "the Databricks CLI is not installed. Install it (https://docs.databricks.com/dev-tools/cli/install.html), "
    "log in by `databricks auth login`, and call this again; or leave --by out, and databricks-sdk does it."
)


class _Group(click.Group):
    """An error of this library is one message without a traceback: exit code 2 where a user can correct it, else 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConnectorError as wrong:
            click.echo(str(wrong), err=True)
            ctx.exit(2 if isinstance(wrong, Misconfigured) else 1)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the commands, each with its whole first sentence."""
        rows = [(name, self.commands[name].get_short_help_str(limit=200)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="connectors", message="connectors %(version)s")
def main() -> None:
    """Runs the jobs of this bundle, here or in a workspace, and looks after what they need."""


def _target(command: Callable[..., Any]) -> Callable[..., Any]:
    variable = click.option("--var", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the bundle.")
    target = click.option("-t", "--target", help="The bundle's target; by default the one marked so.")
    return target(variable(command))


@main.command()
@click.argument("job", required=False)
@_target
@click.option("--together", metavar="JOB,JOB", help="In place of JOB: the pipelines of these in one session, and their gates.")
@click.option("--param", "parameters", multiple=True, metavar="NAME=VALUE", help="Wins over the job's default.")
@click.option("--only", multiple=True, metavar="TASK", help="Run just this task, without looking at conditions.")
@click.option("--on", type=click.Choice(["here", "workspace"]), default="here", help="Where the job runs.")
@click.option("--runs", type=click.Path(path_type=Path), help="Folder for executed notebooks, by default runs/.")
@click.option("--open", "opens", is_flag=True, help="Open the page of the run in a browser when it has ended.")
@click.option("--quiet", is_flag=True, help="Only the line of each task and of the job.")
@click.option("--verbose", is_flag=True, help="Also what has no effect in a local run, and other notes of validate.")
def run(
    job: str | None,
    target: str | None,
    variables: tuple[str, ...],
    together: str | None,
    parameters: tuple[str, ...],
    only: tuple[str, ...],
    on: str,
    runs: Path | None,
    opens: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Runs JOB of this bundle on this machine, as the Jobs service would, or in the workspace where it is deployed.

    The page of the run, index.html in its folder below runs/, shows its graph, queries, quality, dead letters and notebooks.
    Exit code: 0 for SUCCESS and SUCCESS_WITH_FAILURES, 2 when the bundle or the command line is wrong, 130 when it
    was canceled, such as by Ctrl-C, else 1.
    """
    overrides = pairs("--param", parameters)
    if on == "workspace":
        _refuse_local_options(runs, opens)
    names = [name.strip() for name in (together or "").split(",") if name.strip()]
    if (job is None) is not bool(names):
        raise click.UsageError("give a JOB, or several by --together.")
    from .bundle import Reporter, run_job
    from .bundle.loading import TOGETHER, pipelines_of
    from .bundle.model import GOOD, State

    if names:
        job = TOGETHER
        overrides = {**overrides, "pipelines": pipelines_of(_bundle(target, variables), names, overrides)}
    assert job is not None

    reporter = Reporter(quiet=quiet, verbose=verbose)
    if on == "workspace":
        from .workspace.commands import run_there

        state = run_there(_target_of(target, variables), job, overrides, only, reporter)
    else:
        on_page = _open_page if opens else lambda page: None
        state = run_job(_bundle(target, variables), job, overrides, reporter, runs, only, on_page)
    sys.exit(0 if state in GOOD else 130 if state is State.CANCELED else 1)


@main.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]…")
@_target
def outputs(jobs: tuple[str, ...], target: str | None, variables: tuple[str, ...]) -> None:
    """Runs each JOB, or all jobs, and stores in their notebooks what the cells have shown.

    Exit code 1 when a job fails; its notebooks stay as they are.
    """
    from .bundle.outputs import store_outputs

    bundle = _bundle(target, variables)
    names = jobs or tuple(bundle.jobs)
    stored = store_outputs(bundle, names)
    for notebook in stored:
        click.echo(f"stored: {notebook.relative_to(bundle.root)}")
    expected = {task.notebook for name in names for task in bundle.job(name).tasks.values() if task.notebook}
    sys.exit(0 if expected <= set(stored) else 1)


@main.command()
@_target
@in_json
def jobs(target: str | None, variables: tuple[str, ...], as_json: bool) -> None:
    """Lists the jobs of this bundle with their tasks, parameters and schedule."""
    from .bundle.loading import job_facts, job_list

    bundle = _bundle(target, variables)
    bundle.findings.enforce("the bundle")
    if as_json:
        echo_json(job_facts(bundle))
        return
    click.echo(job_list(bundle))


@main.command()
@_target
def validate(target: str | None, variables: tuple[str, ...]) -> None:
    """Checks the bundle, its notebooks and widgets, also what the Databricks CLI does not see."""
    bundle = _bundle(target, variables)
    from .bundle import validate as check

    findings = check(bundle)
    for note in findings.notes:
        click.echo(f"note: {note.option}: {note.text}")
    findings.enforce(f"target {bundle.target} of the bundle")
    click.echo(f"target {bundle.target}: {len(bundle.jobs)} jobs, nothing wrong")


def _deployer(command: Callable[..., Any]) -> Callable[..., Any]:
    by = click.option("--by", type=click.Choice(["cli", "sdk"]), help="By default the Databricks CLI where it is installed.")
    plan = click.option("--plan", is_flag=True, help="Only list what would change.")
    force = click.option("--force-lock", is_flag=True, help="Take the lock of a deployment that has died.")
    return _target(by(plan(force(command))))


@main.command()
@_deployer
def deploy(target: str | None, variables: tuple[str, ...], by: str | None, plan: bool, force_lock: bool) -> None:
    """Deploys this bundle to a workspace: by the Databricks CLI where it is installed, else by databricks-sdk.

    A second call changes nothing. A job or pipeline that has left the bundle is deleted.
    """
    if _is_by_cli(by):
        options = [] if plan or not force_lock else ["--force-lock"]
        _by_databricks_cli("plan" if plan else "deploy", target, variables, *options)
    from .workspace.commands import deploy_there

    deploy_there(_target_of(target, variables, every_job=True), plan=plan, force_lock=force_lock)


@main.command()
@_deployer
@click.option("--auto-approve", is_flag=True, help="Do not ask.")
def destroy(
    target: str | None, variables: tuple[str, ...], by: str | None, plan: bool, force_lock: bool, auto_approve: bool
) -> None:
    """Removes from a workspace what was deployed: jobs, pipelines with their tables, files. Other data stays."""
    if _is_by_cli(by):
        flags = {"--auto-approve": auto_approve, "--force-lock": force_lock}
        options = [] if plan else [flag for flag, is_set in flags.items() if is_set]
        _by_databricks_cli("summary" if plan else "destroy", target, variables, *options)
    from .workspace.commands import destroy_there

    destroy_there(_target_of(target, variables, every_job=True), plan=plan, force_lock=force_lock, auto_approve=auto_approve)


@main.group(invoke_without_command=True)
@_target
@click.option("--limit", default=20, show_default=True, help="How many, the newest first.")
@in_json
@click.pass_context
def runs(context: click.Context, target: str | None, variables: tuple[str, ...], limit: int, as_json: bool) -> None:
    """Lists the latest runs of the target's jobs in the workspace."""
    context.obj = (target, variables)
    if context.invoked_subcommand is None:
        from .workspace.commands import list_runs
        from .workspace.runs import recent

        opened = _target_of(target, variables)
        if as_json:
            echo_json(recent(opened, limit))
            return
        list_runs(opened, limit)


@runs.command("show")
@click.argument("run", type=int)
@click.option("--html", is_flag=True, help="Write its page, with the executed notebooks, below runs/.")
@_target
@in_json
@click.pass_obj
def runs_show(
    of_group: tuple[str | None, tuple[str, ...]], run: int, html: bool, target: str | None, variables: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Shows the RUN of a workspace: its tasks, their states and links, and why one failed."""
    from .workspace.commands import show_run
    from .workspace.runs import status

    if html and as_json:
        raise click.UsageError("give one of --html and --json.")
    opened = _target_of(target or of_group[0], (*of_group[1], *variables))
    if as_json:
        echo_json(status(opened.client, run))
        return
    show_run(opened, run, html=html)


@main.command()
@click.argument("run", type=int)
@_target
def cancel(run: int, target: str | None, variables: tuple[str, ...]) -> None:
    """Cancels the RUN of a workspace."""
    from .workspace.commands import cancel_run

    cancel_run(_target_of(target, variables), run)


@main.command()
@click.argument("name")
@click.option("--pipeline", metavar="FROM_to_TO", help="A pipeline, such as kafka_to_delta.")
@click.option("--kind", type=click.Choice(["source", "sink", "async"]), help="A connector: what it is.")
@click.option("--for", "example", default="table", metavar="EXAMPLE",
              help="What it stands on at first: table; connector; queue or api (source); storage (sink).")  # fmt: skip
@click.option("--into", type=click.Path(file_okay=False, path_type=Path),
              help="The folder of a bundle of your own that gets the files; it is made where there is none.")  # fmt: skip
def new(name: str, pipeline: str | None, kind: str | None, example: str, into: Path | None) -> None:
    """Writes the pipeline NAME, or the connector NAME: a module, its tests, a pipeline, its proof and its jobs."""
    from .bundle import load
    from .bundle import validate as check
    from .pipelines import write_pipeline
    from .scaffold import missing_dependencies, write_connector

    root = into or Path.cwd()
    if (kind is None) == (pipeline is None):
        raise click.UsageError("give --pipeline FROM_to_TO for a pipeline, or --kind for a connector.")
    if pipeline:
        files = write_pipeline(root, name, pipeline, is_foreign=into is not None)
    else:
        files = write_connector(root, name, str(kind), example, is_foreign=into is not None)
    for file in files:
        click.echo(f"written: {file.relative_to(root)}")
    for problem in check(load(into)).problems if into else ():
        click.echo(f"In your bundle:   {problem.option}: {problem.text}")
    place = f"cd {into} && " if into else ""
    for line in missing_dependencies(into, name, kind, example) if kind and into else ():
        click.echo(f"In your bundle:   the new jobs need this in the dependencies of their environment: {line}")
    if kind and into:
        click.echo(f"\nMake it known:    {place}pip install -e .")
    if kind:
        click.echo(f"Run its tests:    {place}pytest {'tests' if into else 'tests/systems'}/test_{name}.py")
    click.echo(f"Run its job:      {place}python -m connectors run {name}")
    if pipeline:
        click.echo(f"Prove it:         {place}python -m connectors prove {name}")


@main.command()
@_target
@click.option("--fetch", is_flag=True, help="Also get what makes a start faster: Delta's jars, an archive of classes.")
@click.option("--compute", is_flag=True, help="With -t: also try the library and the volumes on what the jobs run on.")
@click.option("--folder", "folders", multiple=True, help="Only: can a sink or a stateLocation be in this folder, mount or URL?")
@in_json
def doctor(
    target: str | None, variables: tuple[str, ...], fetch: bool, compute: bool, folders: tuple[str, ...], as_json: bool
) -> None:
    """Says what this machine lacks, or with -t what the workspace of that target does. Exit code 1 when a run would fail."""
    findings = []
    for finding in _examined(target, variables, fetch, compute, folders):
        if not as_json:
            click.echo(finding)
        findings.append(finding)
    if as_json:
        echo_json(findings)
    sys.exit(0 if all(finding.ok or finding.optional for finding in findings) else 1)


def _refuse_local_options(runs: Path | None, opens: bool) -> None:
    local = {f"--runs {runs}": runs is not None, "--open": opens}
    options = ", ".join(option for option, is_set in local.items() if is_set)
    if options:
        text = "is for a run on this machine; leave it out with --on workspace."
        raise click.UsageError(f"{options} {text} The page of a run there is written by runs show RUN --html.")


def _open_page(page: Path) -> None:
    """Opens a page in the browser; where there is none, says where the page is."""
    if click.launch(page.resolve().as_uri()) != 0:
        click.echo(f"no browser here; the page of the run: {page}")


def _bundle(target: str | None, variables: tuple[str, ...]) -> Bundle:
    from .bundle import load

    return load(Path.cwd(), target, pairs("--var", variables))


def _target_of(target: str | None, variables: tuple[str, ...], *, every_job: bool = False) -> Target:
    from .workspace import open_target

    return open_target(Path.cwd(), target, pairs("--var", variables), every_job=every_job)


def _examined(
    target: str | None, variables: tuple[str, ...], fetch: bool, compute: bool, folders: tuple[str, ...]
) -> Iterable[Finding]:
    if folders:
        from connectors.workbench.doctor import examine_folders

        return examine_folders(folders)
    if target is None and not compute:
        from connectors.workbench.doctor import examine

        return examine(fetch)
    from .workspace.doctor import examine_target

    return examine_target(_target_of(target, variables), compute=compute)


def _is_by_cli(by: str | None) -> bool:
    return by == "cli" or (by is None and shutil.which("databricks") is not None)


def _by_databricks_cli(command: str, target: str | None, variables: tuple[str, ...], *more: str) -> NoReturn:
    from .bundle import validate as check

    bundle = _bundle(target, variables)
    check(bundle).enforce(f"target {bundle.target} of the bundle")
    databricks = shutil.which("databricks")
    if databricks is None:
        raise click.UsageError(_CLI_MISSING)
    options = [option for variable in variables for option in ("--var", variable)]
    done = subprocess.run([databricks, "bundle", command, "-t", bundle.target, *options, *more], cwd=bundle.root)
    sys.exit(done.returncode)


for command in (*COMMANDS, offsets, letters, erase, prove, backfill):
    main.add_command(command)
