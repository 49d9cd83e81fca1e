"""The connection of source and sink: its options, a client of the package ``redis``, and what its errors mean."""

from __future__ import annotations

import contextlib
import importlib.util
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ...core import Fatal, Int, Options, Problem, Text, Transient, Values
from ...core.datasets import Dataset, of_server
from ...ground.clients import client_library

_CLUSTER, _SENTINEL = ("redis+cluster", "rediss+cluster"), ("redis+sentinel", "rediss+sentinel")
SCHEMES: Final = tuple(f"{scheme}://" for scheme in ("redis", "rediss", "unix", *_CLUSTER, *_SENTINEL))
CONNECTION: Final = Options(
    url=Text(
        None, f"({'|'.join(map(re.escape, SCHEMES))}).*", f"an address that begins with one of {', '.join(SCHEMES)}",
        meaning="redis://host:port/database in place of host and port; rediss:// with TLS; redis+cluster://host:port,… for a "
        "cluster; redis+sentinel://host:port,…/service/database by sentinels",
    ),
    host=Text(None, alternatives=("url",), meaning="the server"),
    port=Int(6379, at_least=1, at_most=65535, meaning="its port"),
    user=Text(None, meaning="the login, where the server has users"),
    password=Text(None, meaning="its password"),
)
_RAW: Final = ("XREADGROUP", "XCLAIM", "XRANGE", "XPENDING")
_SECONDS: Final = 10.0
_LOGIN: Final = re.compile(r"(sentinel_)?(username|password)=", re.IGNORECASE)
_PASSING: Final = re.compile("(^|: -)(BUSY|NOREPLICAS|UNBLOCKED|MISCONF|OOM|READONLY) ")
"""Refusals that end: a script runs, replicas are away, a primary has become a replica, the disk or the memory is full.

Before Redis 7 the error of a script has that of its command behind the place in the script.
"""


def check_connection(values: Values) -> Iterator[Problem]:
    """The problem of the address."""
    if values["url"] is not None and values["url"].startswith(_SENTINEL) and not _service(values["url"])[0]:
        yield Problem("url", "must name the sentinels' service after the hosts: redis+sentinel://host:26379/mymaster.")


def without_login(url: str) -> str:
    """The part of an address that tells its server and database: without who logs in, and by which password."""
    parts = urlsplit(url)
    settings = [part for part in parts.query.split("&") if not _LOGIN.match(part)]
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="&".join(settings)).geturl()


def is_cluster(values: Values) -> bool:
    return bool(values["url"]) and values["url"].startswith(_CLUSTER)


def connect(library: Any, url: str, settings: Mapping[str, Any]) -> Any:
    """A client for ``url`` by ``library``: ``redis``, or ``redis.asyncio`` with the same names.

    What follows ``?`` in the address of a cluster or of sentinels are settings of the client, such as ``ssl_ca_certs``.
    """
    if not url.startswith((*_CLUSTER, *_SENTINEL)):
        return library.from_url(url, **settings)
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    credentials = {"username": unquote(user), "password": unquote(password)}
    settings = {
        **{name: value for name, value in credentials.items() if value},
        **dict(parse_qsl(parts.query)),
        **({"ssl": True} if parts.scheme.startswith("rediss") else {}),
        **settings,
    }
    if url.startswith(_CLUSTER):
        nodes = [library.cluster.ClusterNode(host, port) for host, port in _addresses(hosts, 6379)]
        return library.RedisCluster(startup_nodes=nodes, **settings)
    service, database = _service(url)
    timeout = settings.get("socket_connect_timeout", _SECONDS)
    sentinels = library.sentinel.Sentinel(_addresses(hosts, 26379), sentinel_kwargs={"socket_timeout": timeout})
    return sentinels.master_for(service, db=database, **settings)


def _addresses(hosts: str, port: int) -> list[tuple[str, int]]:
    parts = [host.rpartition(":") if ":" in host else (host, "", str(port)) for host in hosts.split(",")]
    return [(host, int(number)) for host, _, number in parts]


def _service(url: str) -> tuple[str, int]:
    """The service that sentinels watch, and the database."""
    service, _, database = urlsplit(url).path.strip("/").partition("/")
    return service, int(database or 0)


class RedisClient:
    """A client whose answers to commands of streams are those of the server, and whose errors are the library's."""

    def __init__(self, connector: str, values: Values, seconds: float = _SECONDS) -> None:
        """A call without an answer for ``seconds`` is an outage. Retries are the caller's."""
        self._library = client_library("redis", "redis", connector=connector)
        self._hiredis = importlib.import_module("hiredis") if importlib.util.find_spec("hiredis") else None
        retry, backoff = (client_library(f"redis.{name}", "redis", connector=connector) for name in ("retry", "backoff"))
        login = {"username": values["user"], "password": values["password"]}
        settings: dict[str, Any] = {
            **{key: value for key, value in login.items() if value is not None},
            "protocol": 2,
            "socket_connect_timeout": _SECONDS,
            "socket_timeout": seconds,
            "socket_keepalive": True,
            "retry": retry.Retry(backoff.NoBackoff(), 0),
        }
        with self.errors():
            if values["url"] is not None:
                self.client: Any = connect(self._library, values["url"], settings)
            else:
                self.client = self._library.Redis(values["host"], values["port"], **settings)
        _leave_answers(self.client)
        if manager := getattr(self.client, "nodes_manager", None):  # the client of each node reads its answers
            create = manager.create_redis_node
            manager.create_redis_node = lambda *address, **settings: _leave_answers(create(*address, **settings))
            for node in self.client.get_nodes():
                _leave_answers(node.redis_connection)

    def command(self, *parts: Any) -> Any:
        """The answer to one command. Raises ``Transient`` for an outage, and ``Fatal`` for what no retry can mend."""
        with self.errors():
            return self.client.execute_command(*parts)

    def pipeline(self) -> Any:
        """Commands that go to the server together, each for itself; use it within :meth:`errors`."""
        return self.client.pipeline(transaction=False)

    def answers(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The answers to commands that go to the server together; one that it refuses gives an exception of the client.

        The client's own pipeline spends four times as much on a command. Raises as :meth:`errors` does.
        """
        with self.errors():
            if not hasattr(self.client, "connection_pool"):  # of a cluster: it knows which node has which key
                pipeline = self.pipeline()
                for command in commands:
                    pipeline.execute_command(*command)
                return list(pipeline.execute(raise_on_error=False))
            pool = self.client.connection_pool
            connection = pool.get_connection()
            try:
                connection.send_packed_command(self._packed(connection, commands))
                return [self._answer(connection) for _ in commands]
            except BaseException:
                connection.disconnect()  # what it has not read yet would be taken for the answers to others
                raise
            finally:
                pool.release(connection)

    def _packed(self, connection: Any, commands: Sequence[Sequence[Any]]) -> list[bytes]:
        if self._hiredis is None:
            return list(connection.pack_commands(commands))
        return [b"".join([self._hiredis.pack_command(tuple(command)) for command in commands])]

    def _answer(self, connection: Any) -> Any:
        try:
            return connection.read_response()
        except self._library.exceptions.ResponseError as refused:
            return refused

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raises errors of the client as those of this library."""
        exceptions = self._library.exceptions
        try:
            yield
        except exceptions.AuthenticationError as error:
            raise Fatal(f"Redis refuses the login: {error}", way_out="check user and password") from None
        except self.outages() as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                text = f"Redis has a certificate that nobody vouches for: {error}"
                raise Fatal(text, way_out="name the authority's file in url: rediss://…?ssl_ca_certs=/path") from None
            raise Transient(f"Redis does not answer: {type(error).__name__}: {error}") from None
        except exceptions.NoPermissionError as error:
            raise Fatal(f"Redis refuses a command: {error}", way_out="grant the user what the message names") from None
        except (exceptions.ResponseError, exceptions.RedisClusterException) as error:
            if _PASSING.search(str(error)):
                raise Transient(f"Redis does not take a command now: {error}") from None
            raise Fatal(f"Redis refuses a command: {error}") from None

    def outages(self) -> tuple[type[Exception], ...]:
        """The errors that a retry can mend."""
        exceptions = self._library.exceptions
        names = ("ConnectionError", "TimeoutError", "BusyLoadingError", "ReadOnlyError", "TryAgainError", "OutOfMemoryError")
        cluster = ("ClusterDownError", "MovedError", "AskError")
        return tuple(getattr(exceptions, name) for name in (*names, *cluster) if hasattr(exceptions, name))

    def close(self) -> None:
        self.client.close()


def _leave_answers(client: Any) -> Any:
    """``client``, which leaves the answers to commands of streams as the server gives them."""
    for command in _RAW:
        client.set_response_callback(command, lambda answer, **_: answer)
    return client


def dataset_of(values: Values, key: str) -> Dataset:
    """The dataset of a ``key``, or of a template of keys."""
    return of_server("redis", values["url"] or values["host"], key, values["port"])
