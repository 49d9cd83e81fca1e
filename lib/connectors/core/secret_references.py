"""Secrets by reference: ``{{secrets/scope/key}}`` stands for a secret that is looked up where it is used.

Every option that holds a secret may hold a reference instead, whatever the system (see :mod:`connectors.core.options`): what
is typed, planned by Spark and shown in its pages is the reference.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any, Final

_REFERENCE: Final = re.compile(r"\{\{\s*secrets/([^/{}\s]+)/([^/{}\s]+)\s*\}\}")


def filled(value: Any) -> Any:
    """``value``, text or JSON, with the secret in place of each reference in it: a JAAS configuration holds one in its middle.

    It comes from ``$SECRET_SCOPE_KEY``, else from a workspace's ``dbutils.secrets``. Raises ``ValueError``, which names scope
    and key, when there is no such secret.
    """
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    return _REFERENCE.sub(lambda found: _secret(found[1], found[2]), value) if isinstance(value, str) else value


def _secret(scope: str, key: str) -> str:
    variable = re.sub(r"\W", "_", f"SECRET_{scope}_{key}").upper()
    if variable in os.environ:
        return os.environ[variable]
    store = _store()
    if store is None:
        raise ValueError(f'a secret that is here; "{key}" of scope "{scope}" is read from ${variable} outside a workspace')
    try:
        return str(store.get(scope, key))
    except Exception as refused:  # the runtime has an exception of its own for each cause
        raise ValueError(f'a secret that can be read; "{key}" of scope "{scope}": {type(refused).__name__}') from None


def _store() -> Any:
    """``dbutils.secrets`` of a workspace; ``None`` elsewhere."""
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ:
        return None
    try:
        return import_module("databricks.sdk.runtime").dbutils.secrets
    except ImportError:
        return None
