"""The common parts of AWS's services: options, clients of boto3, what their errors mean, and sinks that put records."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar, Final

import pyarrow as pa

from ..batching import BatchingSink, BatchingWriter, Failure, FlowLimits, Throttled
from ..core import Batch, Choice, Fatal, Misconfigured, Options, Poison, Problem, Text, Transient, Values
from ..core.datasets import Dataset, of_server
from ..formats.documents import documents
from ..ground.clients import ClientPool, client_library
from ..ground.columns import TEXT_OR_BINARY, Column
from ..ground.identities import service_credential
from ..ground.state import digest, dumps

AWS_OPTIONS: Final = Options(
    {
        "databricks.serviceCredential": Text(
            None, excludes=("accessKeyId", "sessionToken"), meaning="a service credential of Unity Catalog, in a workspace"
        )
    },
    alias={"serviceCredential": "databricks.serviceCredential"},
    region=Text(None, meaning="default: the environment's"),
    endpoint=Text(
        None, ".*://.*", "a URL such as https://host:port", meaning="the URL of a service that is not Amazon's own"
    ),
    roleArn=Text(None, meaning="a role to assume"),
    accessKeyId=Text(None, needed_by="secretAccessKey", meaning="default: the environment's credentials, as boto3 finds them"),
    secretAccessKey=Text(None, needed_by="accessKeyId", meaning="of accessKeyId"),
    sessionToken=Text(None, meaning="of accessKeyId, where it is temporary"),
)
_INSTALL: Final = "boto3"
_CONNECT_SECONDS: Final = 10.0
_CREDENTIALS: Final = (
    "give accessKeyId and secretAccessKey, databricks.serviceCredential, or credentials by the environment or a profile"
)
_NO_CREDENTIALS: Final = (
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "TokenRetrievalError",
    "SSOTokenLoadError",
    "UnauthorizedSSOTokenError",
)
_REFUSED: Final = (
    "AccessDenied",
    "UnrecognizedClient",
    "InvalidSignature",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "MissingAuthenticationToken",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "IncompleteSignature",
    "OptInRequired",
    "NotAuthorized",
    "KMSAccessDenied",
)
_THROTTLED: Final = (
    "ProvisionedThroughputExceeded",
    "Throttl",
    "KMSThrottl",
    "LimitExceeded",
    "RequestLimitExceeded",
    "RequestThrottled",
    "TooManyRequests",
    "SlowDown",
)
_BUSY: Final = ("TransactionConflict", "TransactionInProgress", "ReplicatedWriteConflict")
_OUTAGES: Final = ("InternalFailure", "InternalServerError", "ServiceUnavailable", "RequestTimeout", "Unavailable")


class AwsClient:
    """A client of ``service``, which does not retry, and whose errors become the library's."""

    def __init__(self, connector: str, service: str, values: Values, seconds: float = 30.0) -> None:
        """A call without an answer for ``seconds`` is an outage."""
        self._errors = client_library("botocore.exceptions", _INSTALL, connector=connector)
        self._connector = connector
        with self.errors(service):
            self.client: Any = _session(connector, values).create_client(
                service, endpoint_url=values["endpoint"], config=_config(connector, seconds)
            )

    @contextlib.contextmanager
    def errors(self, name: str) -> Iterator[None]:
        """Raises errors of calls on the resource ``name`` as those of this library."""
        try:
            yield
        except self._errors.ClientError as error:
            raise failure(name, error.response["Error"].get("Code", ""), str(error)) from None
        except self._errors.NoRegionError:
            problem = Problem("region", "missing, and the environment names none; give one, such as eu-central-1.")
            raise Misconfigured(self._connector, [problem]) from None
        except (self._errors.HTTPClientError, self._errors.ConnectionError, self._errors.EventStreamError) as error:
            raise Transient(f"AWS does not answer for {name}: {error}") from None
        except self._errors.BotoCoreError as error:
            if type(error).__name__ in _NO_CREDENTIALS:
                raise Fatal(f"AWS gets no credentials for {name}: {error}", way_out=_CREDENTIALS) from None
            raise Fatal(f"a call of AWS for {name} failed: {error}") from None

    def close(self) -> None:
        self.client.close()


@contextlib.contextmanager
def aws_client(connector: str, service: str, values: Values) -> Iterator[AwsClient]:
    """A client of ``service`` with the user's account and ``request.timeout``, which outlives its user in this process."""
    names = (*AWS_OPTIONS.declared, "request.timeout")
    account = digest(service, dumps({name: values[name] for name in names}))
    client = _POOL.take(account) or AwsClient(connector, service, values, values["request.timeout"])
    try:
        yield client
    finally:
        _POOL.give_back(account, client)


def failure(name: str, code: str, text: str) -> Exception:
    """The error of an answer, or of one record of it, that has the error ``code``."""
    if code.startswith(_THROTTLED) or code.endswith("LimitExceededException"):
        return Throttled(f"AWS throttles {name}: {text}")
    if code.startswith(_BUSY):
        return Transient(f"another request writes to {name} at the same time: {text}")
    if code.startswith(_OUTAGES) or code in ("500", "502", "503", "504"):
        return Transient(f"AWS does not answer for {name}: {text}")
    if code.startswith("ResourceNotFound"):
        return Fatal(f"{name} does not exist: {text}", way_out="make it, or correct the name, the region or the account")
    if code.startswith(_REFUSED):
        way_out = "grant the role or user the action that the message names, or give other credentials"
        return Fatal(f"AWS refuses access to {name}: {text}", way_out=way_out)
    return Fatal(f"AWS refuses a call on {name}: {text}")


def _session(connector: str, values: Values) -> Any:
    """A session of botocore with the user's region and credentials, or those of the role.

    Times of answers stay numbers in it: the client would spend more on them than on all else of a record.
    """
    credentials = _credentials(connector, values)
    session = _plain_session(connector, values)
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=float)
    if credentials is not None:
        session._credentials = credentials  # there is no public way to give a session credentials that renew themselves
    return session


def _credentials(connector: str, values: Values) -> Any:
    kinds = client_library("botocore.credentials", _INSTALL, connector=connector)
    session = _plain_session(connector, values)
    if values["accessKeyId"] is not None:
        session.set_credentials(values["accessKeyId"], values["secretAccessKey"], values["sessionToken"])
    name = values["databricks.serviceCredential"]
    identity = session if name is None else service_credential(connector, name, "get_credentials")
    credentials = identity.get_credentials()  # those of a service credential renew themselves
    if values["roleArn"] is None or credentials is None:
        return credentials
    name = {"RoleSessionName": "connectors"}
    fetcher = kinds.AssumeRoleCredentialFetcher(session.create_client, credentials, values["roleArn"], extra_args=name)
    return kinds.DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")


def _plain_session(connector: str, values: Values) -> Any:
    session = client_library("botocore.session", _INSTALL, connector=connector).Session()
    session.register_component("data_loader", _models(session.get_config_variable("data_path")))
    if values["region"] is not None:
        session.set_config_variable("region", values["region"])
    return session


@lru_cache(maxsize=4)
def _models(path: str | None) -> Any:
    """The services as botocore knows them, in JSON: reading them is the most of the price of a client."""
    return import_module("botocore.loaders").create_loader(path)


def _config(connector: str, seconds: float) -> Any:
    config = client_library("botocore.config", _INSTALL, connector=connector)
    retries = {"total_max_attempts": 1, "mode": "standard"}
    return config.Config(
        retries=retries, connect_timeout=_CONNECT_SECONDS, read_timeout=seconds, tcp_keepalive=True, max_pool_connections=50
    )


RECORD_OPTIONS: Final = Options(
    {
        "dataColumn": Column(
            None, TEXT_OR_BINARY, meaning="the data of a record, binary or string; default: the row, by value.format"
        ),
        "value.format": Choice("json", among=("json",), meaning="the row as text, where no dataColumn is named"),
    }
)


class RecordSink(BatchingSink):
    """A sink that puts each row as a record of bytes, many to a request."""

    most_record_bytes: ClassVar[int]
    """Of a record, unless the user says that the service takes more."""


class AwsWriter(BatchingWriter):
    """Writes the rows of one task to a service, with a client that outlives the task."""

    def __init__(self, sink: BatchingSink, batch: Batch, service: str) -> None:
        self._values = sink.values
        self._opened = contextlib.ExitStack()
        self._client = self._opened.enter_context(aws_client(f"connectors.{sink.name}", service, sink.values))
        super().__init__(sink, batch)

    def close(self) -> None:
        super().close()
        self._opened.close()


class RecordWriter(AwsWriter):
    """Puts the rows of one task. An entry is a record as boto3 takes it."""

    def __init__(self, sink: RecordSink, batch: Batch, service: str) -> None:
        self._most_record_bytes = sink.most_record_bytes
        super().__init__(sink, batch, service)

    def limits_of(self, values: Values) -> FlowLimits:
        most = values["batch.maxRecordBytes"] or min(self._most_record_bytes, values["batch.maxBytes"])
        return replace(super().limits_of(values), record_bytes=most)

    def bodies(self, rows: pa.RecordBatch) -> list[bytes | Poison]:
        """The data of each record."""
        column = self._values["dataColumn"]
        if column is None:
            return documents(rows)
        null = Poison(f'the column "{column}" is null')
        return [null if data is None else data for data in rows.column(column).cast(pa.binary()).to_pylist()]

    def put(self, name: str, method: str, answers: str, **request: Any) -> Iterator[Failure]:
        """Calls ``method`` and gives the records that the service has not taken; ``answers`` names the list of outcomes."""
        with self._client.errors(name):
            answer = getattr(self._client.client, method)(**request)
        for place, outcome in enumerate(answer[answers]):
            if code := outcome.get("ErrorCode"):
                yield place, failure(name, code, f"{code}: {outcome.get('ErrorMessage', '')}")

    @abstractmethod
    def send(self, entries: list[Mapping[str, Any]]) -> Iterator[Failure]: ...


_POOL: Final[ClientPool[AwsClient]] = ClientPool(AwsClient.close)
"""Idle clients of this process: making one takes longer than many a task."""


def aws_dataset(service: str, values: Values, name: str) -> Dataset:
    """The dataset ``name`` of a service, which is told by its endpoint or its region."""
    return of_server(service, values["endpoint"] or values["region"] or "", name)
