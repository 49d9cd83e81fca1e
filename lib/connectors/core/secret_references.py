"""Secrets by reference: ``{{secrets/scope/key}}`` stands for a secret that is looked up where it is used."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import Any, Final

_REFERENCE: Final = re.compile(r"\{\{\s*secrets/([^/{}\s]+)/([^/{}\s]+)\s*\}\}")


def resolved(text: str) -> str:
    """``text``, or the secret that it refers to: from ``$SECRET_SCOPE_KEY``, else from a workspace's ``dbutils.secrets``.

    Raises ``ValueError``, which names scope and key, when there is no such secret.
    """
    reference = _REFERENCE.fullmatch(text.strip())
    return text if reference is None else _secret(reference[1], reference[2])


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
