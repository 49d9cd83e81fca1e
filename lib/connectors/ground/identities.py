"""Identities that Unity Catalog keeps: service credentials, by their names, and connections, which a connector cannot use."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from .errors import Misconfigured, Problem
from .runtime import in_task, in_workspace

SERVICE_CREDENTIAL: Final = "databricks.serviceCredential"
REFUSED: Final = {
    "databricks.connection": "names a connection of Unity Catalog, whose login only Spark's own readers get, and this "
    "connector has a client of its own. Give address and login by its options, secrets as {{secrets/catalog.schema.secret}}.",
    SERVICE_CREDENTIAL: "is not taken: this connector logs in to no service of a cloud by a credential of Unity Catalog. Give "
    "the login by the connector's options, secrets as {{secrets/catalog.schema.secret}}.",
}
"""The reasons for every connector; one that declares an option takes it all the same."""


def service_credential(connector: str, name: str, method: str) -> Any:
    """The provider of the service credential ``name``: a session of botocore, or credentials of google-auth or azure-identity.

    A provider renews what it holds: give the client the provider, or the credentials object of it, and never keys or a token.
    ``method`` is one that the providers of the right cloud have. Raises :class:`Misconfigured`, without ``name``: who gives a
    reference to a secret in its place would find the secret there.
    """
    try:
        provider = _providers().getServiceCredentialsProvider(name)
    except Exception as refused:  # each runtime has exceptions of its own, whose texts may hold what is secret
        place = "in a task" if in_task() else "on the driver" if in_workspace() else "outside a Databricks workspace"
        text = f"cannot be had {place} ({type(refused).__name__}). It needs compute of Unity Catalog with Databricks "
        text += "Runtime 16.2 or above, and ACCESS on the credential; elsewhere, give a login by other options."
        raise Misconfigured(connector, [Problem(SERVICE_CREDENTIAL, text)]) from None
    if not hasattr(provider, method):
        text = f"names a credential of another cloud (its provider is a {type(provider).__name__})."
        raise Misconfigured(connector, [Problem(SERVICE_CREDENTIAL, text)])
    return provider


def _providers() -> Any:
    """What gives providers in this process: tasks have no dbutils, and the driver may not use the module of the tasks."""
    if in_task():
        return import_module("databricks.service_credentials")
    if in_workspace():
        return import_module("databricks.sdk.runtime").dbutils.credentials
    raise ModuleNotFoundError("dbutils")
