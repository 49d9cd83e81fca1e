"""Turns the errors of fsspec's file systems into those that :mod:`connectors.storage` promises.

Clients are recognized by the names of their classes, so that nothing here imports one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote

from ..ground.errors import ConnectorError, Misconfigured, Problem, Transient
from ..ground.retry import seconds_of

_OUTAGES: Final = {
    "aiohttp.client_exceptions.ClientError",
    "azure.core.exceptions.ServiceRequestError",
    "azure.core.exceptions.ServiceResponseError",
    "google.auth.exceptions.TransportError",
    "requests.exceptions.RequestException",
}
_NO_CREDENTIALS: Final = {"azure.core.exceptions.ClientAuthenticationError", "google.auth.exceptions.GoogleAuthError"}
_EXISTS: Final = {"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet", "InvalidBlockList"}
"""Azure's codes for a condition that does not hold. The last: another writer's commit has discarded these blocks."""
_OPEN: Final = {"account_host", "account_name", "endpoint_url", "org", "project", "repo", "sha"}
"""Options that are no secrets, and help in a message."""
_SHORTEST: Final = 5
"""Characters of the shortest value that counts as a secret: ``true`` and ``eu`` stay readable."""


def translated(error: Exception, root: str, options: Mapping[str, Any]) -> Exception:
    """The error to raise instead of ``error``; no message holds a value of ``options``."""
    if isinstance(error, ConnectorError):
        return error
    chain = list(_chain(error))
    text = (str(error) or type(error).__name__).splitlines()[0]  # Azure's further lines repeat it as XML
    message = f"{root}: {_without(text, options)}"
    for cause in chain:
        if isinstance(cause, (FileNotFoundError, FileExistsError, PermissionError)):
            return type(cause)(message)
    statuses = [status for cause in chain if (status := _status(cause))]
    codes = {str(getattr(cause, "error_code", "") or "") for cause in chain}
    if codes & _EXISTS or 412 in statuses:
        return FileExistsError(message)
    if 404 in statuses:
        return FileNotFoundError(message)
    if any(status in (408, 429) or status >= 500 for status in statuses):
        return Transient(message, retry_after=next(filter(None, map(_retry_after, chain)), None))
    if 401 in statuses or "failed to authenticate" in text:
        return misconfigured("storageOptions", f"{root} refuses these credentials. Correct them. {message}")
    if 403 in statuses or "Forbidden" in str(error):
        return PermissionError(message)
    if any(isinstance(cause, (ConnectionError, TimeoutError, asyncio.TimeoutError)) for cause in chain):
        return Transient(message)
    if any(_is(cause, _NO_CREDENTIALS) and not _is(cause, _OUTAGES) for cause in chain):
        return misconfigured("storageOptions", f"give credentials for {root}, or correct them. {message}")
    if any(_is(cause, _OUTAGES) for cause in chain):
        return Transient(message)
    return OSError(message)


def misconfigured(option: str, text: str) -> Misconfigured:
    """An option of a storage that cannot work."""
    return Misconfigured("connectors.storage", [Problem(option, text)])


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is(error: BaseException, names: set[str]) -> bool:
    return any(f"{kind.__module__}.{kind.__qualname__}" in names for kind in type(error).__mro__)


def _status(error: BaseException) -> int:
    """The HTTP status that the service has answered; 0 if the error has none."""
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
            return int(value)
    return 0


def _retry_after(error: BaseException) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None) or {}
    return seconds_of(headers.get("Retry-After"))


def _without(text: str, options: Mapping[str, Any]) -> str:
    """The text without the values of ``options`` and of what is in them, such as the key in a connection string."""
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = [item for key, item in value.items() if key not in _OPEN]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _secrets(item)
    elif isinstance(value, str):
        pieces = [value, *(piece.partition("=")[2] for piece in re.split("[;&]", value))]
        yield from (form for piece in pieces if len(piece) >= _SHORTEST for form in (piece, quote(piece, safe="")))
