"""The rest of the fake workspace that this library asks for: its users, secrets, compute, and the catalog."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

from .calls import Request, missing
from .tree import Volumes

RUNTIMES: Final = ("19.0.x-scala2.13", "18.0.x-scala2.13", "17.3.x-scala2.13")


class Catalog:
    """Catalogs, schemas and volumes, each with what the user may do there. By default everything is permitted."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self.catalogs = {"main", "system"}
        self.schemas = {"main.default"}
        self.privileges: dict[str, list[str]] = {}

    def make_volume(self, full_name: str) -> None:
        """Makes ``catalog.schema.volume`` with all that is above it."""
        catalog, schema, _ = full_name.split(".")
        self.catalogs.add(catalog)
        self.schemas.add(f"{catalog}.{schema}")
        self._volumes.make(full_name)

    def catalog(self, request: Request) -> dict[str, Any]:
        (name,) = request.names
        if name not in self.catalogs:
            raise missing(f"Catalog '{name}' does not exist.")
        return {"name": name, "full_name": name}

    def schema(self, request: Request) -> dict[str, Any]:
        (name,) = request.names
        if name not in self.schemas:
            raise missing(f"Schema '{name}' does not exist.")
        return {"name": name.split(".")[1], "full_name": name, "catalog_name": name.split(".")[0]}

    def volume(self, request: Request) -> dict[str, Any]:
        (name,) = request.names
        if not self._volumes.exists(name):
            raise missing(f"Volume '{name}' does not exist.")
        catalog, schema, volume = name.split(".")
        return {
            "name": volume,
            "full_name": name,
            "catalog_name": catalog,
            "schema_name": schema,
            "volume_type": "MANAGED",
        }

    def effective(self, request: Request) -> dict[str, Any]:
        """The user's privileges on something, granted there or above."""
        _, name = request.names
        granted = self.privileges.get(name, ["ALL_PRIVILEGES"])
        privileges = [{"privilege": privilege} for privilege in granted]
        return {"privilege_assignments": [{"principal": request.user, "privileges": privileges}] if privileges else []}


class Secrets:
    """Secret scopes and what is in them, and Unity Catalog's secrets by their names of three parts."""

    def __init__(self) -> None:
        self.scopes: dict[str, dict[str, str]] = {}
        self.catalog_secrets: dict[str, str] = {}
        self.unreadable: set[str] = set()
        """Names of secrets that the user may see, and not read."""

    def environment(self) -> dict[str, str]:
        """The variables from which a local run reads secrets."""
        pairs = ((scope, key, text) for scope, keys in self.scopes.items() for key, text in keys.items())
        return {re.sub(r"\W", "_", f"SECRET_{scope}_{key}").upper(): text for scope, key, text in pairs}

    def list_scopes(self, request: Request) -> dict[str, Any]:
        return {"scopes": [{"name": name, "backend_type": "DATABRICKS"} for name in self.scopes]}

    def list_keys(self, request: Request) -> dict[str, Any]:
        return {"secrets": [{"key": key} for key in self._scope(request.query.get("scope", ""))]}

    def get(self, request: Request) -> dict[str, Any]:
        scope, key = request.query.get("scope", ""), request.query.get("key", "")
        keys = self._scope(scope)
        if key not in keys:
            raise missing(f"Secret does not exist with scope: {scope} and key: {key}")
        return {"key": key, "value": base64.b64encode(keys[key].encode()).decode()}

    def get_from_catalog(self, request: Request) -> dict[str, Any]:
        """A secret of Unity Catalog, with its value where that is asked for and the user may read it."""
        (name,) = request.names
        if name not in self.catalog_secrets:
            raise missing(f"Secret '{name}' does not exist.")
        catalog, schema, key = name.split(".")
        described = {"full_name": name, "catalog_name": catalog, "schema_name": schema, "name": key}
        is_shown = request.query.get("include_value") == "true" and name not in self.unreadable
        return {**described, "effective_value": self.catalog_secrets[name]} if is_shown else described

    def _scope(self, name: str) -> dict[str, str]:
        if name not in self.scopes:
            raise missing(f"Secret Scope {name} does not exist!")
        return self.scopes[name]


class Clusters:
    """All-purpose clusters by id, each with the runtime that it has."""

    def __init__(self) -> None:
        self.runtimes: dict[str, str] = {}

    def get(self, request: Request) -> dict[str, Any]:
        number = request.query.get("cluster_id", "")
        if number not in self.runtimes:
            raise missing(f"Cluster {number} does not exist")
        return {
            "cluster_id": number,
            "cluster_name": number,
            "spark_version": self.runtimes[number],
            "state": "RUNNING",
        }

    def versions(self, request: Request) -> dict[str, Any]:
        return {"versions": [{"key": key, "name": key} for key in RUNTIMES]}
