"""Secrets by reference: ``{{secrets/scope/key}}`` in an option, looked up where it is used and nowhere else.

A secret comes from the environment variable ``SECRET_SCOPE_KEY``; in a workspace from its ``dbutils.secrets``; and elsewhere
from the workspace that databricks-sdk is configured for, when there is one.
"""

from __future__ import annotations

import base64
import os
import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from .runtime import in_workspace

_REFERENCE: Final = re.compile(r"\{\{\s*secrets/([^/{}\s]+)/([^/{}\s]+)\s*\}\}")
_CONFIGURED: Final = ("DATABRICKS_HOST", "DATABRICKS_CONFIG_PROFILE")
_WAIT_SECONDS: Final = 30
"""The seconds for which the SDK tries to reach a workspace for a secret, in place of its own five minutes."""


class SecretMissing(ValueError):
    """There is no such secret, or it cannot be read: the message, without it, ends a sentence that starts with "must be"."""


def filled(value: Any) -> Any:
    """``value``, text or JSON, with the secret in place of each reference in it: a JAAS configuration holds one in its middle.

    Raises ``ValueError``, which names scope and key, when there is no such secret.
    """
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    return _REFERENCE.sub(lambda match: secret(match[1], match[2]), value) if isinstance(value, str) else value


def secret(scope: str, key: str) -> str:
    """The secret ``key`` of ``scope``. Raises :class:`SecretMissing`."""
    variable = variable_of(scope, key)
    if variable in os.environ:
        return os.environ[variable]
    what = f'"{key}" of scope "{scope}"'
    store = _store()
    if store is None:
        ways = "or from a workspace that databricks-sdk is configured for (DATABRICKS_HOST or a profile)"
        raise SecretMissing(f"a secret that is here; {what} is read from ${variable} outside a workspace, {ways}")
    try:
        return str(store.get(scope, key))
    except Exception as refused:  # each runtime has exceptions of its own
        raise SecretMissing(f"a secret that can be read; {what}: {type(refused).__name__}") from None


def variable_of(scope: str, key: str) -> str:
    """The environment variable that holds a secret: ``SECRET_KV_DB_PASSWORD`` for ``db-password`` of ``kv``."""
    return re.sub(r"\W", "_", f"SECRET_{scope}_{key}").upper()


def _store() -> Any:
    """``dbutils.secrets`` of a workspace, or what stands for it; ``None`` where there is neither."""
    try:
        if in_workspace():
            return import_module("databricks.sdk.runtime").dbutils.secrets
        return _remote_store(os.getpid()) if _is_configured() else None
    except ImportError:
        return None


def _is_configured() -> bool:
    file = os.environ.get("DATABRICKS_CONFIG_FILE") or "~/.databrickscfg"
    return any(os.environ.get(name) for name in _CONFIGURED) or Path(file).expanduser().is_file()


@lru_cache(maxsize=1)
def _remote_store(process: int) -> Any:
    """The secrets of a workspace by its API; one client in each process."""
    return _RemoteStore(import_module("databricks.sdk"))


class _RemoteStore:
    """Logs in at the first secret, in the SDK's own way."""

    def __init__(self, sdk: Any) -> None:
        self._sdk = sdk
        self._client: Any = None

    def get(self, scope: str, key: str) -> str:
        if self._client is None:
            config = self._sdk.core.Config(retry_timeout_seconds=_WAIT_SECONDS)
            self._client = self._sdk.WorkspaceClient(config=config)
        answer = self._client.secrets.get_secret(scope, key)
        return base64.b64decode(answer.value or "").decode()
