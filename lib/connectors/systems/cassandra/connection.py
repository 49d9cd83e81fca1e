"""The connection of source and sink: its options, a session of the driver, and what its errors mean."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ...core import Choice, Duration, Fatal, Misconfigured, Names, Options, Problem, Text, Transient, Values
from ...core.datasets import Dataset, of_server
from ...ground.clients import ClientPool, client_library
from ...ground.state import digest, dumps
from .pages import Page, page_handler

NAME: Final = "connectors.cassandra"
_OF_BUNDLE: Final = "secureConnectBundle: it brings its own"
CONNECTION: Final = Options(
    {
        "contactPoints": Names(
            (), alternatives=("secureConnectBundle",),
            meaning="nodes to ask for the others: host, or host:port; the port is 9042 by default",
        ),
        "localDatacenter": Text(
            None, excludes=_OF_BUNDLE, meaning="the datacenter to talk to; default: that of the contact points"
        ),
        "secureConnectBundle": Text(None, meaning="in place of contactPoints: the path of a secure bundle, as Astra gives it"),
        "keyspace": Text(None, meaning="the keyspace"),
        "user": Text(
            None, needed_by="password", meaning="the login, where the cluster wants one; of Astra the client id, or token"
        ),
        "password": Text(None, needed_by="user", meaning="its password; of Astra the client secret, or the token"),
        "tls": Choice("false", among=("true", "false"), meaning="connect by TLS; set by the options that follow"),
        "caCert": Text(
            None, excludes=_OF_BUNDLE,
            meaning="path of the certificates of the authorities (PEM); default: those of the system",
        ),
        "clientCert": Text(
            None, needed_by="clientKey: its certificate", excludes=_OF_BUNDLE,
            meaning="path of a certificate that shows who the client is (PEM)",
        ),
        "clientKey": Text(None, excludes=_OF_BUNDLE, meaning="path of its private key (PEM); default: it is in clientCert"),
        "verifyHostname": Choice("true", among=("true", "false"), meaning="TLS: the certificate must have the node's name"),
        "consistency": Choice(
            "LOCAL_QUORUM",
            among=("ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"),
            meaning="how many replicas must answer",
        ),
        "request.timeout": Duration(30.0, at_least="1ms", meaning="of one request"),
    }
)
_INSTALL: Final = "cassandra-driver"
_PORT: Final = 9042
_CONNECT_SECONDS: Final = 10.0
_PROTOCOL: Final = 4
"""Of Cassandra 2.2 and later; version 5 adds sums that Python would compute for each kilobyte."""
_FILES: Final = ("secureConnectBundle", "caCert", "clientCert", "clientKey")


def check_connection(values: Values) -> Iterator[Problem]:
    """The problems of the address and its security."""
    for point in values["contactPoints"]:
        if not _address(point)[1]:
            yield Problem("contactPoints", f'must be hosts, or host:port; got "{point}".')
    for option in _FILES:
        if values[option] is not None and not Path(values[option]).is_file():
            yield Problem(option, f'names the file "{values[option]}", which is not here.')


class CassandraClient:
    """A session. :meth:`execute` raises errors of this library; rows come as a :class:`~.pages.Page`."""

    def __init__(self, values: Values, *, speculative: float | None = None, knows_replicas: bool = False) -> None:
        self._values = values
        self.driver = client_library("cassandra", _INSTALL, connector=NAME)
        log = logging.getLogger("cassandra")
        if log.level == logging.NOTSET:  # what the driver writes there, with stacks, its errors say once more
            log.setLevel(logging.CRITICAL)
        self._cluster_module = client_library("cassandra.cluster", _INSTALL, connector=NAME)
        self._query_module = client_library("cassandra.query", _INSTALL, connector=NAME)
        self._prepared: dict[str, Any] = {}
        self.cluster = self._cluster(speculative, knows_replicas)
        try:
            with self.errors("the cluster"):
                self.session = self._connected()
        except BaseException:
            self.cluster.shutdown()
            raise
        self.session.client_protocol_handler = page_handler()
        self.session.default_fetch_size = None

    def request(self, statement: Any, **more: Any) -> Any:
        """Sends a statement; :meth:`page` waits for what it gives."""
        with self.errors("the request"):
            return self.session.execute_async(statement, **more)

    def page(self, request: Any) -> Page:
        """The rows, or the first page of them, that a request gives, once they are there."""
        with self.errors("the request"):
            result = request.result()
        rows = result.current_rows
        page: Page = rows[0] if rows and isinstance(rows[0], Page) else Page.empty()
        page.state = result.paging_state
        return page

    def rows(self, statement: str, *parameters: Any, **more: Any) -> list[dict[str, Any]]:
        """The rows of a short statement about the cluster, as the driver reads them."""
        with self.errors("the system's tables"):
            if statement not in self._prepared:
                self._prepared[statement] = self.prepare(statement)
            prepared = self._prepared[statement]
            prepared.consistency_level = self.driver.ConsistencyLevel.ONE  # each node has tables of its own: no two know them
            return self.page(self.session.execute_async(prepared, parameters, **more)).rows()

    def bound(self, prepared: Any, cells: Sequence[Any]) -> Any:
        """A prepared statement with values as the protocol has them."""
        statement = self._query_module.BoundStatement(prepared)
        statement.values = list(cells)
        return statement

    @property
    def unset(self) -> Any:
        """In place of a cell: the column stays as it is."""
        return self._query_module.UNSET_VALUE

    def batch(self, statements: Sequence[Any], *, counters: bool = False) -> Any:
        """Statements of one partition as one."""
        kinds = self._query_module.BatchType
        batch = self._query_module.BatchStatement(kinds.COUNTER if counters else kinds.UNLOGGED)
        for statement in statements:
            batch.add(statement)
        batch.is_idempotent = not counters
        return batch

    def replica(self, statement: Any) -> str:
        """The first replica of what a statement writes to; empty where it is not known."""
        if len(self.cluster.metadata.all_hosts()) < 2 or statement.routing_key is None:
            return ""
        replicas = self.cluster.metadata.get_replicas(statement.keyspace, statement.routing_key)
        return str(replicas[0].endpoint) if replicas else ""

    def prepare(self, statement: str) -> Any:
        """A prepared statement, with the types that its table has now: a user may have altered it, or made it anew."""
        with self.errors("the statement"):
            return self.session.prepare(statement)

    def hosts(self) -> list[Any]:
        """The nodes of the local datacenter, without those that are known to be down."""
        local = self._local_datacenter()
        return [host for host in self.cluster.metadata.all_hosts() if host.is_up is not False and host.datacenter == local]

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Raises errors of the driver as those of this library."""
        try:
            yield
        except Exception as error:
            if (known := self.error_of(error, what)) is None:
                raise
            raise known from None

    def error_of(self, error: BaseException, what: str) -> Transient | Fatal | None:
        """The library's error for an error of the driver; ``None`` for one that is not the driver's."""
        driver = self.driver
        text = _text(error)
        if isinstance(error, self._cluster_module.NoHostAvailable):
            causes = [cause for cause in (error.errors or {}).values() if isinstance(cause, BaseException)]
            for cause in causes:
                known = self.error_of(cause, what)
                if isinstance(known, Fatal):
                    return known
            nodes = "; ".join(_text(cause) for cause in causes) or text
            way_out = "see that contactPoints is right, and that a node of the datacenter runs there"
            return Transient(f"no node of {self._address()} answers: {nodes}", way_out=way_out)
        if isinstance(error, driver.AuthenticationFailed):
            return Fatal(f"Cassandra refuses the login: {text}", way_out="check user and password")
        if isinstance(error, driver.Unauthorized):
            return Fatal(f"Cassandra refuses access: {text}", way_out="grant the role the permission that the message names")
        if "CERTIFICATE_VERIFY_FAILED" in text:  # the driver keeps the text of such an error alone
            return Fatal(f"the certificate of the node is not trusted: {text}", way_out="see to caCert and verifyHostname")
        if "SSL" in text:
            return Fatal(f"TLS with the node fails: {text}", way_out="see to tls, caCert, clientCert and clientKey")
        if isinstance(error, (driver.RequestExecutionException, driver.OperationTimedOut, OSError, TimeoutError)):
            return Transient(f"Cassandra does not answer {what}: {text}")
        if isinstance(error, driver.RequestValidationException):
            return Fatal(f"Cassandra refuses {what}: {text}")
        if isinstance(error, driver.UnresolvableContactPoints):
            return Transient(f"no host of {self._address()} has an address", way_out="see that contactPoints is right")
        if type(error).__module__.startswith("cassandra"):
            return self._other_error(error, what, text)
        return None

    def is_open(self) -> bool:
        """True while there is a connection to a node."""
        return any(pool.open_count for pool in self.session.get_pools())

    def close(self) -> None:
        self.cluster.shutdown()

    def _other_error(self, error: BaseException, what: str, text: str) -> Transient | Fatal:
        """Errors of connections and of the server as a whole: overloaded, bootstrapping, closed."""
        if type(error).__name__ in ("SyntaxException", "ProtocolException", "ProtocolError"):
            return Fatal(f"Cassandra refuses {what}: {text}")
        return Transient(f"Cassandra does not answer {what}: {type(error).__name__}: {text}")

    def _address(self) -> str:
        return ", ".join(self._values["contactPoints"]) or str(self._values["secureConnectBundle"])

    def _cluster(self, speculative: float | None, knows_replicas: bool) -> Any:
        policies = client_library("cassandra.policies", _INSTALL, connector=NAME)
        module, values = self._cluster_module, self._values
        balancing = policies.DCAwareRoundRobinPolicy(values["localDatacenter"] or "")
        speculation = None if speculative is None else policies.ConstantSpeculativeExecutionPolicy(speculative, 2)
        profile = module.ExecutionProfile(
            load_balancing_policy=policies.TokenAwarePolicy(balancing) if knows_replicas else balancing,
            retry_policy=policies.RetryPolicy(),
            consistency_level=getattr(self.driver.ConsistencyLevel, values["consistency"]),
            serial_consistency_level=self.driver.ConsistencyLevel.LOCAL_SERIAL,
            request_timeout=values["request.timeout"],
            row_factory=_unchanged,
            speculative_execution_policy=speculation,
        )
        settings: dict[str, Any] = {
            "execution_profiles": {module.EXEC_PROFILE_DEFAULT: profile},
            "protocol_version": _PROTOCOL,
            "connect_timeout": _CONNECT_SECONDS,
            "prepare_on_all_hosts": False,  # each task prepares, and a node that does not know a statement says so
            "schema_metadata_enabled": knows_replicas,
            "token_metadata_enabled": knows_replicas,
            "reconnection_policy": policies.ConstantReconnectionPolicy(1.0, max_attempts=None),
        }
        if values["user"] is not None:
            auth = client_library("cassandra.auth", _INSTALL, connector=NAME)
            settings["auth_provider"] = auth.PlainTextAuthProvider(values["user"], values["password"])
        try:
            return module.Cluster(**settings, **self._place())
        except (ValueError, KeyError) as wrong:
            if values["secureConnectBundle"] is None:
                raise
            text = f"is no secure bundle: {' '.join(str(wrong).split())}"
            raise Misconfigured(NAME, [Problem("secureConnectBundle", text)]) from None
        except self.driver.DriverException as away:
            raise Transient(f"the service of the secure bundle does not answer: {_text(away)}") from None

    def _place(self) -> dict[str, Any]:
        values = self._values
        if values["secureConnectBundle"] is not None:
            return {"cloud": {"secure_connect_bundle": values["secureConnectBundle"], "use_default_tempdir": True}}
        place: dict[str, Any] = {"contact_points": [_address(point) for point in values["contactPoints"]]}
        place["port"] = place["contact_points"][0][1]
        if values["tls"] == "true" or values["caCert"] or values["clientCert"]:
            place["ssl_context"] = self._tls()
        return place

    def _tls(self) -> ssl.SSLContext:
        values = self._values
        try:
            context = ssl.create_default_context(cafile=values["caCert"])
            if values["clientCert"] is not None:
                context.load_cert_chain(values["clientCert"], values["clientKey"])
        except (ssl.SSLError, OSError) as wrong:
            text = f"cannot be read as certificates and keys in PEM: {wrong}"
            raise Misconfigured(NAME, [Problem("clientCert" if values["clientCert"] else "caCert", text)]) from None
        context.check_hostname = values["verifyHostname"] == "true"
        return context

    def _connected(self) -> Any:
        try:
            return self.cluster.connect()
        except self._cluster_module.NoHostAvailable:
            datacenters = sorted({str(host.datacenter) for host in self.cluster.metadata.all_hosts() if host.datacenter})
            local = self._values["localDatacenter"]
            if local is not None and datacenters and local not in datacenters:
                text = f'"{local}" is no datacenter of the cluster, which has {", ".join(datacenters)}.'
                raise Misconfigured(NAME, [Problem("localDatacenter", text)]) from None
            raise

    def _local_datacenter(self) -> Any:
        if self._values["localDatacenter"] is not None:
            return self._values["localDatacenter"]
        hosts = [host for host in self.cluster.metadata.all_hosts() if host.datacenter]
        policy = self.session.get_execution_profile(self._cluster_module.EXEC_PROFILE_DEFAULT).load_balancing_policy
        local = [host.datacenter for host in hosts if policy.distance(host) == 0]
        return next(iter(local), None)


@contextlib.contextmanager
def shared_client(values: Values, **settings: Any) -> Iterator[CassandraClient]:
    """A client of the pool of this process: making one takes longer than many a task."""
    client, key = take_client(values, **settings)
    try:
        yield client
    finally:
        give_back(client, key)


def take_client(values: Values, **settings: Any) -> tuple[CassandraClient, str]:
    """A client, and the key by which :func:`give_back` takes it."""
    key = digest(dumps({name: values[name] for name in CONNECTION.declared if name != "keyspace"}), dumps(settings))
    client = _POOL.take(key)
    if client is not None and not client.is_open():  # its node was away meanwhile
        client.close()
        client = None
    return client or CassandraClient(values, **settings), key


def give_back(client: CassandraClient, key: str) -> None:
    _POOL.give_back(key, client)


def _unchanged(names: Any, rows: Any) -> Any:
    return [rows]


def _address(point: str) -> tuple[str, int]:
    """Host and port of a contact point; port 0 if it is none."""
    host, separator, port = point.rpartition(":")
    if not separator or (point.count(":") > 1 and not point.startswith("[")):
        return point.strip("[]"), _PORT
    return host.strip("[]"), int(port) if port.isdigit() and host else 0


def _text(error: BaseException) -> str:
    text = getattr(error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


_POOL: Final[ClientPool[CassandraClient]] = ClientPool(CassandraClient.close)
"""Idle clients of this process."""


def datasets_of(values: Values, table: str) -> list[Dataset]:
    """The dataset of ``table``, with its keyspace, of the cluster whose first node ``values`` names."""
    node = values["contactPoints"][0] if values["contactPoints"] else "astra"
    return [of_server("cassandra", node, table, _PORT if values["contactPoints"] else 0)]
