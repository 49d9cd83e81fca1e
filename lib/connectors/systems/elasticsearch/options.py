"""What the sink and the source have in common: where the cluster is, and how to be let in."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from ...core import REQUIRED, Names, Options, Problem, Text, Values

CONNECTION = Options(
    {
        "hosts": Names(REQUIRED),
        "user": Text(None),
        "password": Text(None),
        "apiKey": Text(None),
        "caCert": Text(None),
    }
)


def check_connection(values: Values) -> Iterator[Problem]:
    """What is wrong with the address and the credentials."""
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
    if (values["user"] is None) != (values["password"] is None):
        missing = "user" if values["user"] is None else "password"
        yield Problem(missing, "missing; user and password go together.")
    if values["apiKey"] and values["user"]:
        yield Problem("apiKey", "is given beside user and password; give one of them.")
    if values["caCert"] and any(scheme == "http" for scheme, *_ in urls):
        yield Problem("caCert", "has no use with http hosts; write https://.")


def _parts(host: str) -> tuple[str, int | None, bool, str]:
    try:
        url = urlsplit(host)
        return url.scheme, url.port if url.hostname else None, "@" in url.netloc, url.path.strip("/")
    except ValueError:
        return "", None, False, ""
