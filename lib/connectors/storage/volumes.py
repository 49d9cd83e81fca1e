"""Volumes of a Databricks workspace, whose mount below ``/Volumes`` need not have hard links.

The Files API then creates a file only where there is none: ``PUT /api/2.0/fs/files/Volumes/…?overwrite=false``,
https://docs.databricks.com/api/files/v2/upload-file.md. That page promises an error where the file exists; of two uploads in
the same moment it says nothing. The package ``databricks-sdk`` logs in as the notebook does.
"""

from __future__ import annotations

import os
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem, Transient
from ..ground.runtime import in_workspace

VOLUMES: Final = "/Volumes/"


def is_on_volume(path: Path) -> bool:
    """True for a path of a volume in a workspace."""
    return str(path).startswith(VOLUMES) and in_workspace()


def upload_if_absent(source: Path, target: Path) -> None:
    """Creates the file ``target`` of a volume with the content of ``source``. Raises ``FileExistsError`` if it is there.

    Not if it has the same content: the SDK asks again where an answer was lost, and the file is then this call's own.
    """
    client, errors = _client(os.getpid()), import_module("databricks.sdk.errors")
    path = "/Volumes/" + str(target).removeprefix(VOLUMES)
    try:
        try:
            with source.open("rb") as content:
                client.files.upload(path, content, overwrite=False)
        except (errors.AlreadyExists, errors.ResourceAlreadyExists):
            with client.files.download(path).contents as existing:
                if existing.read() != source.read_bytes():
                    raise FileExistsError(17, "there is a file", str(target)) from None
    except FileExistsError:
        raise
    except (errors.PermissionDenied, errors.Unauthenticated, errors.BadRequest) as refused:
        raise _refused(target, refused) from None
    except (errors.DatabricksError, OSError) as failure:
        raise Transient(f"the Files API did not create {target}: {failure}") from None


@lru_cache(maxsize=1)
def _client(process: int) -> Any:
    """One client for each process."""
    sdk = client_library("databricks.sdk", "databricks-sdk", connector="connectors.storage", option="path")
    try:
        return sdk.WorkspaceClient()
    except ValueError as refused:
        raise _refused(Path(VOLUMES), refused) from None


def _refused(path: Path, refused: Exception) -> Misconfigured:
    text = f'"{path}" cannot be created by the Files API, which its mount makes necessary: {refused}'
    return Misconfigured("connectors.storage", [Problem("path", text)])
