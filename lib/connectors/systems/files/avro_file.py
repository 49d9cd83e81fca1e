"""Avro container files of Arrow record batches; the bodies of the records come from the format of the core."""

from __future__ import annotations

import json
import os
import zlib
from typing import BinaryIO

import pyarrow as pa

from ...core.formats import AvroFormat
from ...core.formats.avro_schema import derived
from .avro_join import long_of
from .nested import valid_texts

_BLOCK_ROWS = 4096


class AvroFile:
    """A file that is being written; ``compression`` is ``deflate`` or ``none``."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str | None) -> None:
        self._file = file
        self._kind = pa.struct(list(schema))
        self._format = AvroFormat(self._kind)
        self._packed = compression != "none"
        self._marker = os.urandom(16)
        text = json.dumps(json.loads(derived(self._kind, null_first=False)))
        told = {b"avro.schema": text.encode(), b"avro.codec": b"deflate" if self._packed else b"null"}
        pairs = b"".join(long_of(len(part)) + part for pair in told.items() for part in pair)
        file.write(b"Obj\x01" + long_of(len(told)) + pairs + long_of(0) + self._marker)

    def write(self, batch: pa.RecordBatch) -> None:
        batch = valid_texts(batch)
        for first in range(0, batch.num_rows, _BLOCK_ROWS):
            rows = batch.slice(first, _BLOCK_ROWS)
            values = pa.StructArray.from_arrays(rows.columns, fields=list(self._kind))
            content = b"".join(self._format.encode(values).to_pylist())
            if self._packed:
                packer = zlib.compressobj(wbits=-15)
                content = packer.compress(content) + packer.flush()
            self._file.write(long_of(rows.num_rows) + long_of(len(content)) + content + self._marker)

    def close(self) -> None:
        """Nothing is left to write."""
