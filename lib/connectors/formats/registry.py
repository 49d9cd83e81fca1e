"""A schema registry: framed records (a zero byte, four bytes of schema id, the body), and the schemas behind the ids."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..ground import machine
from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem, Transient
from .base import BadRecord, Decoded, FormatSettings, scattered

_INSTALL = "'confluent-kafka[schemaregistry]>=2.6'"
_HEADER = 5
_UNKNOWN_FOR = 30.0  # seconds for which an id that the registry did not know is not asked for again
_OUTAGE = {408, 425, 429}


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as a registry keeps it; ``references`` are the texts of schemas that it names, in order."""

    kind: str
    text: str
    references: tuple[str, ...] = ()


class UnknownSchema(ValueError):
    """The registry answers, and has no schema of this id."""


class Registry:
    """Lookups in one registry, each made once per process. Raises :class:`Transient` while it is away."""

    def __init__(self, url: str, user: str | None, password: str | None) -> None:
        conf: dict[str, Any] = {"url": url, "timeout": 10, "max.retries": 4, "retries.wait.ms": 200}
        if user is not None:
            conf["basic.auth.user.info"] = f"{user}:{password or ''}"
        self.url = url
        self._api = client_library("confluent_kafka.schema_registry", _INSTALL, connector="connectors")
        self._client = self._api.SchemaRegistryClient(conf)
        self._schemas: dict[int, RegisteredSchema] = {}
        self._unknown: dict[int, float] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """The schema of an id. Raises :class:`UnknownSchema` when there is none."""
        if number in self._schemas:
            return self._schemas[number]
        if machine.monotonic() - self._unknown.get(number, -_UNKNOWN_FOR) < _UNKNOWN_FOR:
            raise UnknownSchema(f"the schema registry knows no schema {number}")
        try:
            schema = self._request(lambda: self._client.get_schema(number))
        except UnknownSchema:
            self._unknown[number] = machine.monotonic()
            raise UnknownSchema(f"the schema registry knows no schema {number}") from None
        return self._schemas.setdefault(number, self._registered_schema(schema))

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest schema of ``subject``. Raises :class:`Misconfigured` when the registry has none."""
        try:
            return self._registered_schema(self._request(lambda: self._client.get_latest_version(subject)).schema)
        except UnknownSchema:
            text = f'the registry at {self.url} has no subject "{subject}"; give the schema, or register one.'
            raise Misconfigured("connectors", [Problem("schemaRegistry.url", text)]) from None

    def register(self, subject: str, text: str, kind: str) -> int:
        """The id of a schema under ``subject``, which is registered there if it is not yet."""
        if (subject, text) not in self._ids:
            schema = self._api.Schema(text, kind)
            self._ids[subject, text] = self._request(lambda: self._client.register_schema(subject, schema))
        return self._ids[subject, text]

    def _registered_schema(self, schema: Any) -> RegisteredSchema:
        texts: list[str] = []
        for reference in schema.references or ():
            version = self._request(functools.partial(self._client.get_version, reference.subject, reference.version))
            inner = self._registered_schema(version.schema)
            texts += [*inner.references, inner.text]
        return RegisteredSchema(schema.schema_type, schema.schema_str, tuple(dict.fromkeys(texts)))

    def _request(self, call: Callable[[], Any]) -> Any:
        """The result of ``call``. Its errors become :class:`UnknownSchema`, :class:`Transient` or :class:`Misconfigured`."""
        try:
            return call()
        except self._api.error.SchemaRegistryError as error:
            status = error.http_status_code
            if status == 404:
                raise UnknownSchema(str(error)) from None
            if status in _OUTAGE or status >= 500 or status < 400:
                raise Transient(f"the schema registry at {self.url} is away: {error}") from None
            text = f"the registry at {self.url} refuses: {error}"
            option = "schemaRegistry.user" if status in (401, 403) else "schemaRegistry.url"
            raise Misconfigured("connectors", [Problem(option, text)]) from None
        except Exception as error:  # whatever a transport raises, it is not about a record
            what = f"{type(error).__name__}: {error}"
            raise Transient(f"the schema registry at {self.url} cannot be reached: {what}") from error


@functools.lru_cache(maxsize=16)
def _registry(url: str, user: str | None, password: str | None) -> Registry:
    return Registry(url, user, password)


def registry_of(settings: FormatSettings) -> Registry:
    """The registry of a configuration; the same object, with what it has looked up, in all of a process."""
    if settings.registry_url is None:
        raise ValueError("there is no schemaRegistry.url")
    return _registry(settings.registry_url, settings.registry_user, settings.registry_password)


def framed_by(settings: FormatSettings) -> Framing | None:
    """The framing of records under ``schemaRegistry.url``; ``None`` for records that are bodies as they are."""
    return Framing(settings) if settings.registry_url is not None else None


class Framing:
    """Takes frames off records and puts them on."""

    def __init__(self, settings: FormatSettings) -> None:
        self.settings = settings

    def schema(self, number: int) -> RegisteredSchema:
        return registry_of(self.settings).schema(number)

    def decode(self, records: pa.Array, read: Callable[[int, pa.Array], Decoded], kind: pa.DataType) -> Decoded:
        """The values of framed ``records``; ``read`` gets the bodies of one schema id at a time."""
        records = records.cast(pa.binary())
        numbers, bad = _numbers(records)
        pieces, places = [], []
        for number in np.unique(numbers[numbers >= 0]).tolist():
            at = np.flatnonzero(numbers == number)
            whole = len(at) == len(records)
            bodies = _bodies(records if whole else records.take(pa.array(at)))
            try:
                self.schema(number)
                decoded = read(number, bodies)
            except UnknownSchema as error:
                bad += [BadRecord(index, str(error), "UnknownSchema") for index in at.tolist()]
                continue
            if whole:
                return decoded
            pieces.append(decoded.values)
            places.append(at)
            bad += [replace(record, index=int(at[record.index])) for record in decoded.bad]
        return Decoded(scattered(pieces, places, len(records), kind), sorted(bad, key=lambda record: record.index))

    def encode(self, bodies: pa.Array, text: str, kind: str) -> pa.Array:
        """``bodies`` framed with the id of the schema ``text``, which is registered when it is new."""
        subject = self.settings.subject
        if subject is None:
            raise ValueError("a schema is registered under a subject, and there is none")
        number = registry_of(self.settings).register(subject, text, kind)
        header = pa.scalar(b"\0" + number.to_bytes(4, "big"), pa.binary())
        return pc.binary_join_element_wise(header, bodies, pa.scalar(b"", pa.binary()))


def _numbers(records: pa.Array) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[BadRecord]]:
    """The schema id of each record, -1 for null and for those that have no frame, which are named."""
    count = len(records)
    offsets = np.frombuffer(records.buffers()[1], np.int32)[records.offset : records.offset + count + 1].astype(
        np.int64
    )
    body = records.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(0, np.uint8)
    data = data if len(data) > _HEADER else np.concatenate((data, np.zeros(_HEADER + 1, np.uint8)))
    first = np.minimum(offsets[:-1], len(data) - _HEADER)
    numbers = np.zeros(count, np.int64)
    for place in range(1, _HEADER):
        numbers = numbers << 8 | data[first + place]
    valid = records.is_valid().to_numpy(zero_copy_only=False)
    short = np.diff(offsets) < _HEADER
    magic = data[first]
    wrong = valid & (short | (magic != 0))
    bad = [BadRecord(index, _no_frame(short[index], magic[index])) for index in np.flatnonzero(wrong).tolist()]
    return np.where(valid & ~wrong, numbers, -1), bad


def _bodies(records: pa.Array) -> pa.Array:
    """``records`` (without nulls, none shorter than a header) without their headers."""
    _, offsets, data = records.buffers()
    whole = np.frombuffer(offsets, np.int32)[records.offset : records.offset + len(records) + 1]
    ends = np.column_stack((whole[:-1] + _HEADER, whole[1:])).ravel()  # every other piece between them is a body
    pieces = pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), data])
    return pieces.take(pa.array(np.arange(0, len(ends), 2)))


def _no_frame(short: bool, magic: int) -> str:
    if short:
        return "shorter than the 5 bytes that a schema registry's frame has"
    return f"begins with the byte {magic}; a schema registry's frame begins with 0"
