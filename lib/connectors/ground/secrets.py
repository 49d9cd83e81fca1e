"""Secrets by reference: ``{{secrets/scope/key}}`` in an option, looked up where it is used and nowhere else.

``{{secrets/catalog.schema.secret}}`` is a secret of Unity Catalog. A secret comes from the environment variable
``SECRET_SCOPE_KEY`` or ``SECRET_CATALOG_SCHEMA_SECRET``; in a workspace from its ``dbutils.secrets``; and elsewhere from the
workspace that databricks-sdk is configured for, when there is one.
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

_IN_SCOPE, _IN_CATALOG = r"([^/{}\s]+)/([^/{}\s]+)", r"([^./{}\s]+)\.([^./{}\s]+)\.([^./{}\s]+)"
_REFERENCE: Final = re.compile(rf"\{{\{{\s*secrets/(?:{_IN_SCOPE}|{_IN_CATALOG})\s*\}}\}}")
"""The name of a scope may hold dots, that of a secret of Unity Catalog holds no slash."""
_CONFIGURED: Final = ("DATABRICKS_HOST", "DATABRICKS_CONFIG_PROFILE")
_WAIT_SECONDS: Final = 30
"""The seconds for which the SDK tries to reach a workspace for a secret, in place of its own five minutes."""


class SecretMissing(ValueError):
    """There is no such secret, or it cannot be read: the message, without it, ends a sentence that starts with "must be"."""


def filled(value: Any) -> Any:
    """``value``, text or JSON, with the secret in place of each reference in it: a JAAS configuration holds one in its middle.

    Raises ``ValueError``, which names the secret, when there is no such secret.
    """
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    return _REFERENCE.sub(lambda match: secret(*filter(None, match.groups())), value) if isinstance(value, str) else value


def secret(*name: str) -> str:
    """The secret of a ``scope, key``, or of a ``catalog, schema, key`` of Unity Catalog. Raises :class:`SecretMissing`."""
    variable = variable_of(*name)
    if variable in os.environ:
        return os.environ[variable]
    is_scoped = len(name) == 2
    what = f'"{name[1]}" of scope "{name[0]}"' if is_scoped else f'"{".".join(name)}" of Unity Catalog'
    store = _store()
    if store is None:
        ways = "or from a workspace that databricks-sdk is configured for (DATABRICKS_HOST or a profile)"
        raise SecretMissing(f"a secret that is here; {what} is read from ${variable} outside a workspace, {ways}")
    try:
        return str(store.get(*name) if is_scoped else store.get(**dict(zip(_PARTS, name, strict=True))))
    except Exception as refused:  # each runtime has exceptions of its own
        raise SecretMissing(f"a secret that can be read; {what}: {type(refused).__name__}") from None


_PARTS: Final = ("catalog", "schema", "key")
"""The arguments of ``dbutils.secrets.get`` for a secret of Unity Catalog."""


def variable_of(*name: str) -> str:
    """The environment variable that holds a secret: ``SECRET_KV_DB_PASSWORD`` for ``db-password`` of ``kv``."""
    return re.sub(r"\W", "_", "_".join(("SECRET", *name))).upper()


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

    def get(self, scope: str = "", key: str = "", *, catalog: str = "", schema: str = "") -> str:
        if self._client is None:
            config = self._sdk.core.Config(retry_timeout_seconds=_WAIT_SECONDS)
            self._client = self._sdk.WorkspaceClient(config=config)
        if not catalog:
            return base64.b64decode(self._client.secrets.get_secret(scope, key).value or "").decode()
        text = self._client.secrets_uc.get_secret(f"{catalog}.{schema}.{key}", include_value=True).effective_value
        if text is None:  # so the service answers who may see the secret, and not read it
            raise PermissionError("READ SECRET")
        return str(text)
