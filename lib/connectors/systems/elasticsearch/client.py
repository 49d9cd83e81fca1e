"""The connection of sink and source: its options, and requests to Elasticsearch or OpenSearch.

Connections, failover among hosts and TLS are those of ``elastic-transport``. It is the layer below Elastic's own client, and
unlike that it talks to any server, also to one that does not announce itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from ...batching import Throttled
from ...core import REQUIRED, Fatal, Names, Options, Poison, Problem, Text, Transient, Values
from ...ground.clients import client_library
from ...ground.retry import seconds_of

CONNECTION = Options(
    {
        "hosts": Names(REQUIRED, meaning="URLs with scheme and port; the next one is asked when one does not answer"),
        "user": Text(None, needed_by="password", meaning="the login"),
        "password": Text(None, needed_by="user", meaning="its password"),
        "apiKey": Text(None, excludes="user", meaning="encoded, as in the header ApiKey"),
        "caCert": Text(None, meaning="a file with the certificate of the authority"),
    }
)


def check_connection(values: Values) -> Iterator[Problem]:
    """The problems of the address and the credentials."""
    urls = [_parts(host) for host in values["hosts"]]
    if not urls:
        yield Problem("hosts", 'missing; name at least one, such as "https://search.example.org:9200".')
    for scheme, port, user_info, path in urls:
        if scheme not in ("http", "https") or port is None:
            yield Problem("hosts", 'must be URLs with scheme and port, such as "https://search.example.org:9200".')
        elif user_info:
            yield Problem("hosts", "must not hold a password; give it by the options user and password.")
        elif path:
            yield Problem("index", f'names the index, not the path of a host; got "{path}" in hosts.')
    if values["caCert"] and any(scheme == "http" for scheme, *_ in urls):
        yield Problem("caCert", "has no use with http hosts; write https://.")


def _parts(host: str) -> tuple[str, int | None, bool, str]:
    try:
        url = urlsplit(host)
        return url.scheme, url.port if url.hostname else None, "@" in url.netloc, url.path.strip("/")
    except ValueError:
        return "", None, False, ""


NDJSON: Final = "application/x-ndjson"
JSON: Final = "application/json"
_MESSAGE: Final = 500


class SearchClient:
    """A client for the ``hosts`` of ``values``, with so many ``connections`` to each. Safe to use from several threads."""

    def __init__(self, connector: str, values: Values, connections: int = 1) -> None:
        self._library = client_library("elastic_transport", "elastic-transport", connector=connector)
        self.json = client_library("orjson", "orjson", connector=connector)
        self._authorization = _authorization(self._library, values)
        nodes = [self._node(host, values, connections) for host in values["hosts"]]
        raw = _RawSerializer()
        self._transport: Any = self._library.Transport(
            nodes,
            serializers={JSON: raw, NDJSON: raw, "application/*": raw, "text/*": raw},
            max_retries=len(nodes) - 1,  # a refused connection is tried at the other hosts; all else is up to the caller
            retry_on_status=(),
            max_dead_node_backoff=5.0,
            meta_header=False,
        )

    def request(self, method: str, path: str, body: bytes | None = None, content: str = JSON) -> bytes:
        """The answer's body. Raises ``Transient`` for outages and throttling, ``Fatal`` for what no retry can mend."""
        headers = {"accept": JSON, **self._authorization, **({"content-type": content} if body is not None else {})}
        try:
            meta, answer = self._transport.perform_request(method, path, body=body, headers=headers)
        except self._library.TlsError as refused:
            raise _insecure(refused) from None
        except self._library.TransportError as outage:
            raise Transient(f"no answer: {outage}"[:_MESSAGE]) from None
        if meta.status >= 300:
            raise self._refusal(meta, answer)
        return bytes(answer)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON."""
        return self.loads(self.request(method, path, None if body is None else self.json.dumps(body)))

    def loads(self, answer: bytes) -> Any:
        """The JSON of an answer. Anything else came from a proxy in between, so it is an outage."""
        try:
            return self.json.loads(answer)
        except ValueError:
            raise Transient(f"the answer is no JSON: {answer[:100]!r}") from None

    def close(self) -> None:
        self._transport.close()

    def _node(self, host: str, values: Values, connections: int) -> Any:
        url = urlsplit(host)
        trust = {"ca_certs": values["caCert"]} if values["caCert"] else {}
        return self._library.NodeConfig(
            url.scheme,
            url.hostname,
            url.port,
            connections_per_node=connections,
            request_timeout=values["request.timeout"],
            **trust,
        )

    def _refusal(self, meta: Any, answer: bytes) -> Exception:
        status, body = int(meta.status), bytes(answer[:_MESSAGE]).decode(errors="replace")
        text = f"the server answered {status}: {body}"
        if status == 413:
            return Poison(f"the request is too large for the server; lower batch.maxBytes. {text}")
        if status == 429 or status == 408 or status >= 500:
            return (Throttled if status == 429 else Transient)(text, retry_after=seconds_of(meta.headers.get("retry-after")))
        if status in (401, 403):
            return Fatal(text, way_out="check user and password, or apiKey, and what they may do")
        return NotFound(text) if status == 404 else Fatal(text)


def _insecure(refused: Any) -> Fatal:
    """The error for a connection that is not secure; the library hides the reason in the first of its causes."""
    reason = str((refused.errors or (refused,))[0].message)
    if "No such file" in reason:
        return Fatal(f"no secure connection: caCert names no file ({reason})", way_out="give the path of a file in PEM")
    if "match" in reason:
        return Fatal(f"no secure connection: {reason}", way_out="write the host as its certificate names it")
    return Fatal(f"no secure connection: {reason}", way_out="give the authority's certificate by caCert")


class NotFound(Fatal):
    """The index or document does not exist."""


class _RawSerializer:
    """Bytes in, bytes out, whatever the media type: the caller knows what it sent and what it asked for."""

    mimetype = JSON

    def dumps(self, data: bytes) -> bytes:
        return data

    def loads(self, data: bytes) -> bytes:
        return data


def _authorization(library: Any, values: Values) -> dict[str, str]:
    if values["apiKey"]:
        return {"authorization": f"ApiKey {values['apiKey'].removeprefix('ApiKey ')}"}
    if values["user"] is not None:
        basic = library.client_utils.basic_auth_to_header((values["user"], values["password"]))
        return {"authorization": basic}
    return {}
