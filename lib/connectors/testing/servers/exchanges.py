"""Requests and answers of an HTTP API as a recording has them: JSON where they are JSON, and without secrets."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ...ground.options import is_secret
from .fault_proxy import Seen

_MASK: Final = "***"
_LOGIN: Final = re.compile(r"authorization|cookie|signature", re.IGNORECASE)
_KEY: Final = re.compile(r"(^|[_-])(key|sig)$", re.IGNORECASE)
_PLAIN: Final = re.compile(
    r"^(config|headers|options|pipelines|sources)$"
    r"|(page|pagin|next|prev|cursor|contin|resum|start|offset|sync|delta|scroll|skip)[\w.-]*token",
    re.IGNORECASE,
)
"""Names that are secret for an option and not in an answer: words like any other, and the tokens of pages."""
_PARAMETER: Final = re.compile(r"(?<![^?&;\s])([\w.%\[\]-]+)=([^&;\s\"'<>]+)")
_USER: Final = re.compile(r"(?<=://)[^\s/@?#]+(?=@)")


def request_of(seen: Seen) -> dict[str, Any]:
    """The method, path and body of a request, without secrets."""
    body = {"body": content_of(seen.body)} if seen.body else {}
    return dict(masked({"method": seen.method, "path": seen.path, **body}))


def content_of(body: bytes) -> Any:
    """The object or list of a body; else its text."""
    text = body.decode(errors="replace")
    with contextlib.suppress(ValueError):
        return content if isinstance(content := json.loads(text), (dict, list)) else text
    return text


def name_of(request: Mapping[str, Any]) -> str:
    """A text that is equal for equal requests, and that a person can read."""
    url, pairs = urlsplit(request["path"]), parse_qsl(urlsplit(request["path"]).query, keep_blank_values=True)
    query = "&".join(f"{key}={value}" for key, value in sorted(pairs))
    content = f" {json.dumps(request['body'], sort_keys=True, ensure_ascii=False)}" if "body" in request else ""
    return f"{request['method']} {unquote(url.path)}{'?' if query else ''}{query}{content}"


def masked(content: Any, hide: Callable[[str], str] = str, name: str = "") -> Any:
    """``content`` without the values of secret fields and parameters, and each text as ``hide`` leaves it."""
    if isinstance(content, dict):
        return {key: masked(value, hide, key) for key, value in content.items()}
    if isinstance(content, list):
        return [masked(value, hide, name) for value in content]
    if content is None or isinstance(content, bool):
        return content
    if _hides(name, is_field=True):
        return _MASK
    return hide(_masked_text(content)) if isinstance(content, str) else content


def _masked_text(text: str) -> str:
    text = _PARAMETER.sub(lambda pair: f"{pair[1]}={_MASK}" if _hides(unquote(pair[1])) else pair[0], text)
    return _USER.sub(_MASK, text)


def _hides(name: str, *, is_field: bool = False) -> bool:
    """True for the name of a secret. A field that is called key is none, but a parameter or header is."""
    is_key = not is_field and _KEY.search(name) is not None
    return is_key or _LOGIN.search(name) is not None or (is_secret(name) and not _PLAIN.search(name))


def secrets_of(seen: Seen) -> Iterator[str]:
    """The secrets of a request, which an answer may repeat."""
    yield from (value for name, value in parse_qsl(urlsplit(seen.path).query) if _hides(name))
    for value in (value for name, value in seen.headers.items() if _hides(name)):
        yield from (value, login := value.split(maxsplit=1)[-1], *re.findall(r"(?<==)[^;\s]{8,}", value))
        with contextlib.suppress(ValueError):
            yield base64.b64decode(login, validate=True).decode().partition(":")[2]
