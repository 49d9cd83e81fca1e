"""Where the workbench keeps things on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from connectors.core.errors import Misconfigured, Problem

VOLUMES = "/Volumes/"


def library() -> Path:
    """The folder that holds the package ``connectors``: what goes on the path of Spark's workers."""
    return Path(__file__).resolve().parents[2]


def cache(name: str) -> Path:
    """A folder that outlives the process: ``$CONNECTORS_CACHE/name``, by default below ``~/.cache/connectors``."""
    root = os.environ.get("CONNECTORS_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "connectors"
    folder = Path(root).expanduser() / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        text = f"cannot make {folder}: {refused.strerror}. Name a folder that can be written."
        raise Misconfigured("the workbench", [Problem("CONNECTORS_CACHE", text)]) from refused
    return folder


def in_workspace() -> bool:
    """True in a Databricks workspace, where the runtime brings Spark, ``dbutils`` and ``display``."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def workdir(value: str) -> str:
    """The folder for a notebook's data: ``value`` as it is, except that a volume has its place here when run locally.

    A volume (``/Volumes/catalog/schema/name/…``) exists only in a workspace; locally the same path below
    ``runs/`` of the repository stands for it, so that one parameter serves both. The folder is made.
    """
    if not value:
        raise Misconfigured("the notebook", [Problem("workdir", "missing; give a folder or a volume.")])
    local = value.startswith(VOLUMES) and not in_workspace() and not Path(VOLUMES).exists()
    folder = library().parent / "runs" / value.lstrip("/") if local else Path(value).expanduser()
    if "://" in value:
        return value
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder.absolute())
