"""The client of a workspace: databricks-sdk, which finds its own way to log in, and errors in words that help.

The SDK waits for a service that is busy or away (429, 503, a connection that breaks) and calls again, for five minutes. That is
right for each call that may come twice. :func:`once` is the client for the one that may not.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from databricks.sdk import WorkspaceClient
from databricks.sdk.errors import PermissionDenied, Unauthenticated
from databricks.sdk.errors.base import DatabricksError
from databricks.sdk.service.workspace import ImportFormat

from connectors.ground.errors import ConnectorError, Misconfigured, Problem

if TYPE_CHECKING:
    from ..bundle import Bundle

_LOGIN: Final = (
    "log in by `databricks auth login`, or set DATABRICKS_HOST and DATABRICKS_TOKEN (or DATABRICKS_CONFIG_PROFILE); "
    "DATABRICKS_AUTH_TYPE and the variables of OAuth work too."
)
_ONE_TRY: Final = 1
"""Seconds for which the SDK tries again, whole ones. After a broken connection it pauses for longer, so it never does."""


class WorkspaceError(ConnectorError):
    """A call that a workspace has refused, or did not answer in time; the SDK has tried again where that could help."""


def connect(bundle: Bundle | None = None) -> WorkspaceClient:
    """The workspace that the SDK finds: by the bundle's own ``profile`` and ``host``, the environment, or a profile.

    Raises :class:`Misconfigured` where it finds no way to log in.
    """
    declared = bundle.config["workspace"] if bundle else {}
    names = {name: declared[name] for name in ("profile", "host") if declared.get(name)}
    try:
        client = WorkspaceClient(**names, product="connectors", product_version=_version())
    except ValueError as refused:
        raise _not_logged_in(refused) from None
    return client


def once(client: WorkspaceClient) -> WorkspaceClient:
    """The same workspace, by a client that sends each request once: an answer that is lost is a ``TimeoutError``."""
    return _twin(client, retry_timeout_seconds=_ONE_TRY)


def brief(client: WorkspaceClient, seconds: int) -> WorkspaceClient:
    """The same workspace, by a client that waits about so many seconds for a service that is slow, busy or away."""
    return _twin(client, retry_timeout_seconds=seconds, http_timeout_seconds=seconds)


def _twin(client: WorkspaceClient, **settings: int) -> WorkspaceClient:
    config: Any = client.config
    config = config.copy()
    for name, value in settings.items():
        setattr(config, name, value)
    return WorkspaceClient(config=config)


def user_of(client: WorkspaceClient) -> str:
    """The name of the user who is logged in."""
    with refusals("who is logged in"):
        return str(client.current_user.me().user_name)


def write_file(client: WorkspaceClient, path: str, content: bytes, *, overwrite: bool = True) -> None:
    """Writes a file or notebook of the workspace. The SDK sends this call again; it never does so with ``workspace.upload``."""
    text = base64.b64encode(content).decode()
    client.workspace.import_(path, content=text, format=ImportFormat.AUTO, overwrite=overwrite)


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turns the SDK's errors inside into :class:`WorkspaceError`, which say what was being done and what to do now."""
    try:
        yield
    except Unauthenticated as refused:
        raise WorkspaceError(_words(refused), connector="the workspace", where=what, way_out=_LOGIN) from None
    except PermissionDenied as refused:
        way_out = "ask an administrator, or the owner of it, for the permission; then call this again: it goes on where it was."
        raise WorkspaceError(_words(refused), connector="the workspace", where=what, way_out=way_out) from None
    except DatabricksError as refused:
        raise WorkspaceError(_words(refused), connector="the workspace", where=what) from None
    except (TimeoutError, OSError) as away:
        cause = away.__cause__ or away
        way_out = "call this again when the workspace answers; what was done is not done twice."
        raise WorkspaceError(_words(cause), connector="the workspace", where=what, way_out=way_out) from None
    except ValueError as refused:  # a login that fails later than at the start
        raise _not_logged_in(refused) from None


def _words(error: BaseException) -> str:
    """The service's own words, without the settings of the client that the SDK adds."""
    text = re.split(r"\.? Config: ", str(error), maxsplit=1)[0]
    code = getattr(error, "error_code", None)
    words = " ".join(text.split())[:600] or type(error).__name__
    return f"{code}: {words}" if code and code not in words else words


def _not_logged_in(refused: ValueError) -> Misconfigured:
    text = " ".join(re.split(r"\.? Config: ", str(refused), maxsplit=1)[0].split())
    return Misconfigured("the workspace", [Problem("login", f"is not to be had: {text[:300]} To mend it, {_LOGIN}")])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("connectors")
    except PackageNotFoundError:
        return "0.0.0"
