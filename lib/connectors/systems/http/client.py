"""Requests over HTTP: options of the connection, logins, and the meaning of an answer's status.

Urllib3 does connections, TLS and redirects, authlib the OAuth tokens. This module retries nothing.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ...batching import Throttled
from ...core import (
    REQUIRED,
    Choice,
    ConnectorError,
    Fatal,
    Json,
    Misconfigured,
    Options,
    Poison,
    Problem,
    Text,
    Transient,
    Values,
)
from ...core.datasets import Dataset
from ...ground import machine
from ...ground.clients import client_library
from ...ground.retry import seconds_of

CONNECTOR: Final = "connectors.http"
CONNECTION: Final = Options(
    headers=Json({}, meaning="headers of each request, an object; secret"),
    auth=Json(
        None,
        meaning='{"type": "basic", "user": …, "password": …}, {"type": "bearer", "token": …}, or '
        '{"type": "oauth2", "tokenUrl": …, "clientId": …, "clientSecret": …, "scope": …}; secret',
    ),
    caCert=Text(None, meaning="a file with the certificate of the authority"),
    clientCert=Text(
        None, needed_by="clientKey: its certificate",
        meaning="a file with the certificate that the server asks for, and its key unless clientKey has it",
    ),
    clientKey=Text(None, meaning="a file with the key of clientCert"),
)
_LOGINS: Final[Mapping[str, Options]] = {
    "basic": Options(user=Text(REQUIRED), password=Text(REQUIRED)),
    "bearer": Options(token=Text(REQUIRED)),
    "oauth2": Options(
        tokenUrl=Text(REQUIRED),
        clientId=Text(REQUIRED),
        clientSecret=Text(REQUIRED),
        scope=Text(None),
        audience=Text(None),
        clientAuth=Choice("header", among=("header", "body")),
    ),
}
RETRY_STATUSES: Final = "408,425,429,500-599"
NO_STEPS: Final = ("", ".", "..")
"""Values that make another place of a path: the whole of which a record is a part, or one above it."""
_LOGIN_STATUSES: Final = (401, 403, 407)
_MESSAGE: Final = 500
_REDIRECTS: Final = 5
_REDIRECTS_TO_GET: Final = (301, 302, 303)
_CONNECT_SECONDS: Final = 10.0
_EARLY_SECONDS: Final = 30.0
"""The seconds before its expiry at which a token is replaced."""

_UNKNOWN_SECONDS: Final = 3600.0
"""The lifetime of a token in seconds if its server does not tell it."""


def check_http(values: Values) -> Iterator[Problem]:
    """The problems of headers, login and certificates."""
    for name, value in values["headers"].items():
        if not isinstance(value, str):
            yield Problem("headers", f'must have texts as values; that of "{name}" is none.')
        elif any(sign in name + value for sign in "\r\n"):
            yield Problem("headers", f'must have no line breaks; "{name!r}" has one.')
        elif not _is_latin(name + value):
            yield Problem("headers", f'must be of Latin-1; "{name}" has other signs.')
    if values["auth"] is not None:
        yield from _check_login(values["auth"])
        if any(name.lower() == "authorization" for name in values["headers"]):
            yield Problem("auth", "is given beside the header Authorization; give one of them.")


def _is_latin(text: str) -> bool:
    return all(ord(sign) < 256 for sign in text)


def _check_login(login: Mapping[str, Any]) -> Iterator[Problem]:
    kind = login.get("type")
    if kind not in _LOGINS:
        yield Problem("auth", f"must have a type among {', '.join(_LOGINS)}.")
        return
    try:
        login_values(login)
    except Misconfigured as wrong:
        for problem in wrong.problems:
            text = "missing" if problem.text.startswith("missing") else problem.text.rstrip(".")
            yield Problem("auth", f"{problem.option}: {text}.")


def login_values(login: Mapping[str, Any]) -> Values:
    """The parts of the option ``auth``."""
    parts = {name: value for name, value in login.items() if name != "type"}
    return _LOGINS[login["type"]].parse(CONNECTOR, parts, kind="login")


def statuses(text: str) -> frozenset[int]:
    """The statuses in a list such as ``200-299,304``. Raises ``ValueError`` with a phrase that continues "must be"."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{3})(?:-(\d{3}))?", part.strip(), re.ASCII)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if first > last:
            raise ValueError("statuses such as 200-299,304")
        numbers.update(range(int(first), int(last) + 1))
    return frozenset(numbers)


@dataclass(frozen=True)
class Answer:
    """The status, headers (in any case) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """A client with the user's headers and login. Several threads may use it; it keeps ``connections`` connections open.

    ``home`` is the URL whose server gets headers and login. No other server gets them, not even by a redirect.
    """

    def __init__(self, values: Values, home: str, *, connections: int = 1, seconds: float = 30.0) -> None:
        self._library = client_library("urllib3", "urllib3", connector=CONNECTOR)
        self._home = origin(home)
        self._headers: dict[str, str] = dict(values["headers"])
        self._login = _login(values)
        self._timeout = self._library.Timeout(connect=min(_CONNECT_SECONDS, seconds), read=seconds)
        settings: dict[str, Any] = {
            **{"total": _REDIRECTS, "connect": 0, "read": 0, "status": 0, "other": 0, "redirect": _REDIRECTS},
            "remove_headers_on_redirect": [*self._headers, "Authorization", "Cookie", "Proxy-Authorization"],
            "respect_retry_after_header": False,
        }
        self._redirects = self._library.Retry(**settings)
        self._redirects_of_content = _content_redirects(self._library)(**settings)
        self._pool = self._opened(values, home, connections)

    def request(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        """The answer, whatever its status. Raises ``Transient`` if there is none."""
        is_home = origin(url) == self._home
        if is_home:  # the user's own Content-Type or Accept is the only one
            own = {name.lower() for name in self._headers}
            headers = {**self._headers, **{name: value for name, value in headers.items() if name.lower() not in own}}
        if not is_home or self._login is None:
            return self._answer(method, url, headers, body)
        login = self._login()
        answer = self._answer(method, url, {**headers, **login}, body)
        if answer.status != 401 or (renewed := self._login(login)) == login:
            return answer
        return self._answer(method, url, {**headers, **renewed}, body)

    def close(self) -> None:
        self._pool.clear()

    def _answer(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        errors = self._library.exceptions
        redirects = self._redirects if method == "GET" else self._redirects_of_content
        try:
            answer = self._pool.request(
                method, url, body=body, headers=headers, timeout=self._timeout, retries=redirects, preload_content=True
            )
        except errors.MaxRetryError as error:
            raise _no_answer(url, error.reason or error) from None
        except (errors.HTTPError, OSError) as error:
            raise _no_answer(url, error) from None
        except ValueError as error:  # a URL that cannot be parsed
            raise Fatal(f"{shown(url)} is no URL: {error}") from None
        return Answer(answer.status, answer.headers, answer.data)

    def _opened(self, values: Values, home: str, connections: int) -> Any:
        settings: dict[str, Any] = {"maxsize": connections, "num_pools": 4}
        if values["caCert"]:
            settings["ca_certs"] = values["caCert"]
        if values["clientCert"]:
            settings |= {"cert_file": values["clientCert"], "key_file": values["clientKey"]}
        parts = urlsplit(home)
        proxy = getproxies().get(parts.scheme)
        if proxy and not proxy_bypass(parts.hostname or ""):
            return self._library.ProxyManager(proxy, **settings)
        return self._library.PoolManager(**settings)


@cache
def _content_redirects(library: Any) -> Any:
    class ContentRedirects(library.Retry):  # type: ignore[misc]
        """Refuses redirects that turn a request into a GET, or may do so: the new address would not get the content."""

        def increment(self, method: Any = None, url: Any = None, response: Any = None, *rest: Any, **more: Any) -> Any:
            if response is not None and response.status in _REDIRECTS_TO_GET:
                text = f"{method} {shown(url or '')} answered {response.status}, a redirect that need not keep the request"
                raise Fatal(text, way_out="give the URL that the redirects end at; or log in, if they lead to a login")
            return super().increment(method, url, response, *rest, **more)

    return ContentRedirects


def _no_answer(url: str, error: BaseException) -> Exception:
    text = f"no answer from {shown(url)}: {type(error).__name__}: {error}"[:_MESSAGE]
    if "redirect" in str(error):
        return Fatal(text, way_out="give the URL that the redirects end at")
    if "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate" in str(error).lower():
        return Fatal(text, way_out="give the authority's certificate by caCert; the host must be as the certificate names it")
    return Transient(text)


def refusal(answer: Answer, url: str, retried: frozenset[int]) -> ConnectorError:
    """The error for an unsuccessful answer: an outage, a refused login, or a bad record."""
    text = f"{shown(url)} answered {answer.status}: {answer.body[:_MESSAGE].decode(errors='replace')}".rstrip(": ")
    is_throttled = answer.status == 429 or (answer.status == 403 and _has_limit(answer.headers))
    if answer.status in retried or is_throttled:
        kind = Throttled if is_throttled else Transient
        return kind(text, retry_after=seconds_of(answer.headers.get("Retry-After")))
    if answer.status in _LOGIN_STATUSES:
        return Fatal(text, way_out="check headers and auth, and what they may do")
    if answer.status < 500:
        return Poison(text)
    return Fatal(text)


def _has_limit(headers: Mapping[str, str]) -> bool:
    """True if a refusal is due to a limit of requests. GitHub, among others, answers 403 then, as to a forbidden login."""
    return "Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0"


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    return parts.scheme, parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)


def shown(url: str) -> str:
    """A URL without user, query and fragment: they may hold secrets."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def of_url(url: str) -> Dataset:
    """The dataset of a URL: its path at its server."""
    parts = urlsplit(shown(url))
    return Dataset(f"{parts.scheme}://{parts.netloc}", parts.path)


class _Login:
    """A header that never changes."""

    def __init__(self, header: Mapping[str, str]) -> None:
        self._header = header

    def __call__(self, refused: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """The header of the login; if possible another one than the ``refused`` header."""
        return self._header


class _Token(_Login):
    """A token by OAuth's client credentials, requested when there is none or it expires soon."""

    def __init__(self, login: Values, authority: str | None) -> None:
        super().__init__({})
        self._requests = client_library("requests", "requests", connector=CONNECTOR, option="auth")
        authlib = client_library("authlib.integrations.requests_client", "authlib", connector=CONNECTOR, option="auth")
        self._login = login
        method = "client_secret_basic" if login["clientAuth"] == "header" else "client_secret_post"
        self._session = authlib.OAuth2Session(
            login["clientId"], login["clientSecret"], scope=login["scope"], token_endpoint_auth_method=method
        )
        self._session.verify = authority or True
        self._ends = 0.0
        self._lock = threading.Lock()

    def __call__(self, refused: Mapping[str, str] | None = None) -> Mapping[str, str]:
        with self._lock:
            if self._ends < machine.monotonic() or refused == self._header:
                token = self._token()
                seconds = float(token.get("expires_in") or _UNKNOWN_SECONDS)
                self._ends = machine.monotonic() + seconds - min(_EARLY_SECONDS, seconds / 2)
                self._header = {"Authorization": f"Bearer {token['access_token']}"}
            return self._header

    def _token(self) -> Mapping[str, Any]:
        url = self._login["tokenUrl"]
        more = {"audience": self._login["audience"]} if self._login["audience"] else {}
        try:
            token: Mapping[str, Any] = self._session.fetch_token(
                url, grant_type="client_credentials", timeout=_CONNECT_SECONDS, **more
            )
        except self._requests.HTTPError as error:  # authlib raises it for a failure of the server
            raise Transient(f"{shown(url)} (auth.tokenUrl) gives no token: {error}") from None
        except self._requests.RequestException as error:
            raise Transient(f"no answer from {shown(url)} (auth.tokenUrl): {type(error).__name__}") from None
        except Exception as error:  # authlib's OAuthError, or an answer that is no token
            text = f"{shown(url)} (auth.tokenUrl) gives no token: {type(error).__name__}: {error}"[:_MESSAGE]
            raise Fatal(text, way_out="check clientId, clientSecret and scope in auth") from None
        return token


def _login(values: Values) -> _Login | None:
    if values["auth"] is None:
        return None
    kind, login = values["auth"]["type"], login_values(values["auth"])
    if kind == "oauth2":
        return _Token(login, values["caCert"])
    if kind == "bearer":
        return _Login({"Authorization": f"Bearer {login['token']}"})
    pair = base64.b64encode(f"{login['user']}:{login['password']}".encode()).decode()
    return _Login({"Authorization": f"Basic {pair}"})
