"""The modules of a Databricks runtime by which code asks for secrets and service credentials, in this process.

They keep to the documentation of Unity Catalog's secrets and service credentials. What it leaves open, such as the classes of
errors, is unlike anything that code could rely on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from connectors.ground.runtime import in_task
from connectors_tools.fake_workspace.catalog import Secrets

_MODULES: Final = ("databricks.sdk.runtime", "databricks.service_credentials")


class RuntimeRefusal(Exception):
    """A refusal of the runtime, whose text tells more than a log should hold."""


class FakeRuntime:
    """A runtime, with the clouds of its service ``credentials`` by name: ``aws``, ``gcp`` or ``azure``.

    What a provider gives out ends after ``seconds``, and :meth:`accepts` refuses it then; the provider renews it before (the
    libraries of clouds do so minutes before, so at each request where ``seconds`` are few). Tasks
    have no ``dbutils``, and ``databricks.service_credentials`` is of use in tasks alone.
    """

    def __init__(self, credentials: dict[str, str], secrets: Secrets | None = None, seconds: float = 60) -> None:
        self.credentials, self.secrets, self.seconds = credentials, secrets or Secrets(), seconds
        self.issued: list[tuple[str, datetime]] = []
        """The keys and tokens that were given out, each with its end."""

    @contextmanager
    def installed(self) -> Iterator[FakeRuntime]:
        """This process is one of the runtime."""
        version = os.environ.get("DATABRICKS_RUNTIME_VERSION")
        before = {name: sys.modules.get(name) for name in _MODULES}
        runtime, tasks = map(ModuleType, _MODULES)
        runtime.__getattr__ = self._driver  # type: ignore[method-assign]
        tasks.getServiceCredentialsProvider = self._in_a_task  # type: ignore[attr-defined]
        sys.modules |= dict(zip(_MODULES, (runtime, tasks), strict=True))
        os.environ["DATABRICKS_RUNTIME_VERSION"] = "19.0"
        try:
            yield self
        finally:
            for name, module in before.items():
                sys.modules.pop(name)
                sys.modules |= {name: module} if module else {}
            os.environ.pop("DATABRICKS_RUNTIME_VERSION")
            os.environ |= {"DATABRICKS_RUNTIME_VERSION": version} if version else {}

    def end(self) -> None:
        """Ends what was given out until now."""
        self.issued = [(key, datetime.now(timezone.utc)) for key, _ in self.issued]

    def accepts(self, text: str) -> bool:
        """True where ``text``, a header, has a key or token that has not ended."""
        return any(key in text and end > datetime.now(timezone.utc) for key, end in self.issued)

    def _driver(self, name: str) -> Any:
        if name != "dbutils" or in_task():
            raise AttributeError(name)
        return SimpleNamespace(
            secrets=SimpleNamespace(get=self._secret),
            credentials=SimpleNamespace(getServiceCredentialsProvider=self._provider),
        )

    def _secret(
        self, scope: str | None = None, key: str | None = None, *, catalog: str | None = None, schema: str | None = None
    ) -> str:
        name = f"{catalog}.{schema}.{key}"
        text = self.secrets.scopes.get(scope, {}).get(str(key)) if scope else self.secrets.catalog_secrets.get(name)
        if text is None or name in self.secrets.unreadable:
            raise RuntimeRefusal(f"no such secret beside {self.secrets.scopes} {self.secrets.catalog_secrets}")
        return text

    def _in_a_task(self, name: str) -> Any:
        if not in_task():
            raise RuntimeRefusal("service credentials are for user-defined functions")
        return self._provider(name)

    def _provider(self, name: str) -> Any:
        if name not in self.credentials:
            raise RuntimeRefusal(f"no such credential: {name}; the last key was {self.issued[-1:]}")
        return {"aws": self._of_aws, "gcp": self._of_gcp, "azure": self._of_azure}[self.credentials[name]]()

    def _issue(self) -> tuple[str, datetime]:
        self.issued.append(
            (f"ASIA{len(self.issued):016}", datetime.now(timezone.utc) + timedelta(seconds=self.seconds))
        )
        return self.issued[-1]

    def _of_aws(self) -> Any:
        credentials, session = import_module("botocore.credentials"), import_module("botocore.session").Session()

        def renew() -> dict[str, str]:
            key, end = self._issue()
            return {
                "access_key": key,
                "secret_key": f"secret-{key}",
                "token": f"t-{key}",
                "expiry_time": end.isoformat(),
            }

        session._credentials = credentials.RefreshableCredentials.create_from_metadata(renew(), renew, "unity-catalog")
        return session

    def _of_gcp(self) -> Any:
        from google.auth.credentials import Credentials

        runtime = self

        class Provider(Credentials):
            def refresh(self, request: Any) -> None:
                self.token, end = runtime._issue()
                self.expiry = end.replace(tzinfo=None)

        return Provider()  # type: ignore[no-untyped-call]

    def _of_azure(self) -> Any:
        return SimpleNamespace(get_token=lambda *scopes, **_: SimpleNamespace(token=self._issue()[0]))
