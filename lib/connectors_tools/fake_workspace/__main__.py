"""``python -m connectors_tools.fake_workspace``: a workspace on this machine, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
from pathlib import Path
from typing import Final

import click

from .server import FakeWorkspace

_VOLUME: Final = "main.dev_user_connectors.data"
"""The volume that the jobs of target dev write to, for the user of this workspace."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--port", default=8471, show_default=True, help="Its port on 127.0.0.1; 0 takes a free one.")
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Keeps volumes and executed notebooks there; else they go."
)
@click.option("--volume", "volumes", multiple=True, metavar="CATALOG.SCHEMA.NAME", default=[_VOLUME], show_default=True,
              help="Makes this volume.")  # fmt: skip
@click.option("--secret", "secrets", multiple=True, metavar="SCOPE/KEY=TEXT", help="Puts a secret into a scope.")
def main(port: int, folder: Path | None, volumes: tuple[str, ...], secrets: tuple[str, ...]) -> None:
    """Starts a workspace that runs what is deployed to it on this machine, and prints how to reach it."""
    with FakeWorkspace(folder, port) as workspace:
        for name in volumes:
            workspace.catalog.make_volume(name)
        for secret in secrets:
            name, _, text = secret.partition("=")
            scope, _, key = name.partition("/")
            workspace.secrets.scopes.setdefault(scope, {})[key] = text
        click.echo("A workspace for trying things out is here until Ctrl-C. In another terminal:\n")
        for name, value in workspace.environment.items():
            click.echo(f"  export {name}={shlex.quote(value)}")
        click.echo("", nl=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            click.echo("The workspace has ended; what was deployed to it is gone.")


if __name__ == "__main__":
    main()
