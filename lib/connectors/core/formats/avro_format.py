"""Avro: bodies of records, alone or in the frame of a schema registry."""

from __future__ import annotations

import pyarrow as pa

from ..errors import Misconfigured, Problem
from .avro_read import AvroReader
from .avro_schema import AvroSchema, derived
from .avro_write import AvroWriter
from .base import BadRecord, Decoded, Format, Settings, present
from .registry import framed_by


class AvroFormat(Format):
    """One Avro body a record, without a file's header.

    The schema of the writer is looked up by its id in ``schemaRegistry.url``; without a registry it is
    ``value.avroSchema``, or the one that Spark's ``to_avro`` makes of ``schema``.
    """

    name = "avro"
    needs_schema = True

    def __init__(self, kind: pa.DataType, settings: Settings | None = None) -> None:
        super().__init__(kind, settings)
        self._framing = framed_by(self.settings)
        given = self.settings.avro_schema
        self._given = avro_schema(given) if given is not None else None
        self._readers: dict[int, AvroReader | ValueError] = {}
        self._plain: AvroReader | None = None
        self._writer: AvroWriter | None = None

    def decode(self, records: pa.Array) -> Decoded:
        if self._framing is not None:
            return self._framing.decode(records, self._framed, self.kind)
        if self._plain is None:
            try:
                self._plain = AvroReader(self._own(null_first=False), self.kind)
            except ValueError as wrong:
                raise Misconfigured(
                    "connectors", [Problem("schema", f"does not fit the Avro schema: {wrong}.")]
                ) from None
        return present(self._plain.decode, records.cast(pa.binary()))

    def encode(self, values: pa.Array) -> pa.Array:
        if self._writer is None:
            self._writer = AvroWriter(self._own(null_first=self._framing is not None), self.kind)
        bodies = self._writer.encode(values)
        if self._framing is None:
            return bodies
        return self._framing.encode(bodies, self.settings.avro_schema or derived(self.kind, null_first=True), "AVRO")

    def _own(self, *, null_first: bool) -> AvroSchema:
        return self._given or AvroSchema(derived(self.kind, null_first=null_first))

    def _framed(self, number: int, bodies: pa.Array) -> Decoded:
        if number not in self._readers:
            self._readers[number] = self._made(number)
        reader = self._readers[number]
        if isinstance(reader, ValueError):
            bad = [BadRecord(index, f"schema {number}: {reader}", type(reader).__name__) for index in range(len(bodies))]
            return Decoded(pa.nulls(len(bodies), self.kind), bad)
        return present(reader.decode, bodies)

    def _made(self, number: int) -> AvroReader | ValueError:
        assert self._framing is not None
        found = self._framing.schema(number)
        if found.kind != "AVRO":
            return ValueError(f"is of {found.kind}, not of AVRO")
        try:
            return AvroReader(AvroSchema(found.text, found.references), self.kind, self._given)
        except ValueError as wrong:
            return wrong


def avro_schema(text: str, option: str = "value.avroSchema") -> AvroSchema:
    """The schema that a user gave. Raises :class:`Misconfigured` when it is none."""
    try:
        return AvroSchema(text)
    except ValueError as wrong:
        raise Misconfigured("connectors", [Problem(option, f"{wrong}.")]) from None
