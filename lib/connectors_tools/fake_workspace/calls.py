"""The calls that the routes of the fake workspace get, and the refusals by which they answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any


class Refusal(Exception):
    """An answer that is an error, in the words of the service."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, str]:
        return {"error_code": self.code, "message": self.message}


def missing(what: str) -> Refusal:
    """The refusal of something that does not exist."""
    return Refusal(404, "RESOURCE_DOES_NOT_EXIST", what)


def invalid(text: str) -> Refusal:
    """The refusal of a value."""
    return Refusal(400, "INVALID_PARAMETER_VALUE", text)


@dataclass(frozen=True)
class Raw:
    """An answer that is no JSON, with headers of its own."""

    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A call: ``names`` are the variable parts of its path, ``user`` is whom its token belongs to."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: str
    names: tuple[str, ...] = ()

    @property
    def json(self) -> dict[str, Any]:
        """The body; raises :class:`Refusal` where it is no JSON object."""
        try:
            content = json.loads(self.body or b"{}")
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise Refusal(400, "MALFORMED_REQUEST", "Invalid JSON given in the body of the request.")
        return content

    @property
    def form(self) -> dict[str, bytes]:
        """The fields of a multipart form, each as bytes."""
        head = f"Content-Type: {self.headers.get('content-type', '')}\r\n\r\n".encode()
        message = BytesParser(policy=HTTP).parsebytes(head + self.body)
        fields = {}
        for part in message.iter_parts():
            name = part.get_param("name", header="content-disposition")
            fields[str(name)] = bytes(part.get_payload(decode=True) or b"")
        return fields

    @property
    def is_form(self) -> bool:
        return self.headers.get("content-type", "").startswith("multipart/form-data")

    def number(self, name: str) -> int:
        """A number of the query; raises :class:`Refusal` where there is none."""
        try:
            return int(self.query.get(name, ""))
        except ValueError:
            raise invalid(f"{name} must be a number; got {self.query.get(name)!r}.") from None
