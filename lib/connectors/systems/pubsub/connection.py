"""The connection of source and sink: its options, a channel of gRPC, and what its errors mean.

gRPC does not survive a fork, so nothing here is imported before a task or the driver's planner opens a client.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

from ...core import REQUIRED, Fatal, Options, Poison, Problem, Text, Transient, Values
from ...ground.clients import client_library
from ...ground.identities import service_credential

CONNECTION: Final = Options(
    {
        "databricks.serviceCredential": Text(
            None, excludes="credentialsSecret", meaning="a service credential of Unity Catalog, in a workspace"
        )
    },
    projectId=Text(REQUIRED, meaning="the project of the subscription or topic"),
    endpoint=Text(
        None,
        "(?!https://[^:]*$).*:.*",
        "host:port, or https://host:port",
        meaning="host:port of an emulator, without TLS and credentials; or of a region: https://host:port",
    ),
    credentialsSecret=Text(None, meaning="a service account's key as JSON; default: the environment's credentials"),
)
_INSTALL: Final = "google-cloud-pubsub"
_SERVICE: Final = "pubsub.googleapis.com:443"
_LARGEST: Final = 64 << 20
_WRONG_NAME: Final = "resource name"
_NO_TOKEN: Final = "invalid_grant"
_CREDENTIALS: Final = (
    "give a service account's key by credentialsSecret, or name its file by the environment's GOOGLE_APPLICATION_CREDENTIALS"
)


def check_connection(values: Values) -> Iterator[Problem]:
    """The problem of the credentials."""
    if values["credentialsSecret"] is not None:
        try:
            json.loads(values["credentialsSecret"])
        except ValueError:
            yield Problem("credentialsSecret", "must be the JSON of a service account's key.")


class PubSubClient:
    """The service's calls, by its generated client: no retries and no threads but gRPC's own."""

    def __init__(self, connector: str, values: Values, kind: str) -> None:
        library = client_library("google.pubsub_v1", _INSTALL, connector=connector)
        errors = self._errors = client_library("google.api_core.exceptions", _INSTALL, connector=connector)
        self._outages = (errors.ServerError, errors.TooManyRequests, errors.Aborted, errors.Cancelled)
        self._is_publisher = kind == "publisher"
        self.types = library.types
        transports = client_library(f"google.pubsub_v1.services.{kind}.transports", _INSTALL, connector=connector)
        transport = getattr(transports, f"{kind.capitalize()}GrpcTransport")
        self._channel = _channel(connector, values, transport)
        self.client: Any = getattr(library, f"{kind.capitalize()}Client")(transport=transport(channel=self._channel))

    @contextlib.contextmanager
    def errors(self, name: str) -> Iterator[None]:
        """Raises errors of calls on the resource ``name`` as those of this library."""
        errors = self._errors
        try:
            yield
        except errors.NotFound as error:
            raise Fatal(f"{name} does not exist: {error.message}", way_out="make it, or correct the name") from None
        except (errors.PermissionDenied, errors.Unauthenticated) as error:
            text = f"Pub/Sub refuses access to {name}: {error.message}"
            raise Fatal(text, way_out="grant the account the role that the message names, or give other credentials") from None
        except errors.GoogleAPICallError as error:
            if _NO_TOKEN in str(error):
                raise Fatal(f"Pub/Sub accepts no credentials: {error.message}", way_out=_CREDENTIALS) from None
            if self._is_publisher and isinstance(error, errors.InvalidArgument) and _WRONG_NAME not in error.message:
                raise Poison(f"{name} takes no such message: {error.message}") from None
            if isinstance(error, self._outages) or "TRANSIENT" in self._reasons(error):
                raise Transient(f"Pub/Sub does not answer for {name}: {error}") from None
            raise Fatal(f"Pub/Sub refuses a call on {name}: {error.message}") from None

    def is_expired(self, error: Exception) -> bool:
        """True where a subscription with exactly-once delivery refuses ids because their leases have ended."""
        return self._reasons(error) == {"PERMANENT"}

    def _reasons(self, error: Exception) -> set[str]:
        """The kinds of failures of acknowledgement ids, such as ``PERMANENT``.

        The metadata has a reason for each id, such as PERMANENT_FAILURE_INVALID_ACK_ID.
        """
        metadata = error.metadata if isinstance(error, self._errors.GoogleAPICallError) else None
        return {reason.partition("_FAILURE_")[0] for reason in (metadata or {}).values() if "_FAILURE_" in reason}

    def has_ended(self, error: Exception) -> bool:
        """True for the error of a call that has waited for as long as it may."""
        return isinstance(error, (self._errors.DeadlineExceeded, self._errors.Cancelled))

    def close(self) -> None:
        self._channel.close()


def _channel(connector: str, values: Values, transport: Any) -> Any:
    grpc = client_library("grpc", _INSTALL, connector=connector)
    options = [("grpc.max_receive_message_length", _LARGEST), ("grpc.max_send_message_length", _LARGEST)]
    endpoint = values["endpoint"]
    if endpoint is not None and not endpoint.startswith("https://"):
        return grpc.insecure_channel(endpoint, options)
    auth = client_library("google.auth.exceptions", _INSTALL, connector=connector)
    host = endpoint.removeprefix("https://") if endpoint else _SERVICE
    credentials: dict[str, Any] = {}
    try:
        if values["credentialsSecret"] is not None:
            accounts = client_library("google.oauth2.service_account", _INSTALL, connector=connector)
            key = json.loads(values["credentialsSecret"])
            credentials["credentials"] = accounts.Credentials.from_service_account_info(key)
        elif values["databricks.serviceCredential"] is not None:
            name = values["databricks.serviceCredential"]
            credentials["credentials"] = service_credential(connector, name, "before_request")
        return transport.create_channel(host, scopes=transport.AUTH_SCOPES, options=options, **credentials)
    except (auth.GoogleAuthError, ValueError) as error:
        raise Fatal(f"Pub/Sub has no credentials: {error}", way_out=_CREDENTIALS) from None
