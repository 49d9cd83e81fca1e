"""Staging of rows from Arrow record batches, for carriers without a DataFrame: one writer for each format."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ...core import Batch, Committable, Fatal, SinkWriter
from ...formats import AvroFormat
from ...formats.avro import derived
from ...formats.text import content_of, json_lines, text_of
from ...ground.columns import is_binary, is_text
from .column_types import as_schema, check_types, hybrid_days, parquet_schema, valid_texts
from .committer import begin
from .folders import Folders
from .join import long_of
from .success_files import later_state

if TYPE_CHECKING:
    from . import FilesSink


_LARGEST = 64 << 20
"""The most bytes of rows that become text at a time, since Arrow's strings have room for 2 GB."""


def csv_lines(rows: pa.RecordBatch) -> Iterator[bytes]:
    """The lines of ``rows`` as UTF-8, in consecutive pieces."""
    if rows.nbytes > _LARGEST and rows.num_rows > 1:
        middle = rows.num_rows // 2
        yield from csv_lines(rows.slice(0, middle))
        yield from csv_lines(rows.slice(middle))
        return
    cells = [_cells(column, is_first=not number) for number, column in enumerate(rows.columns)]
    joined = pc.binary_join_element_wise(*cells, ",") if len(cells) > 1 else cells[0]
    yield content_of(pc.binary_join_element_wise(joined, "\n", ""))


def _cells(column: pa.Array, *, is_first: bool) -> pa.Array:
    kind = column.type
    if is_binary(kind):
        return pa.array([_hex(cell) for cell in column.to_pylist()], pa.string())
    texts = text_of(column)
    if is_text(kind):
        texts = _quoted(texts, r'^$|^#|[",\r\n]' if is_first else r'^$|[",\r\n]')
    return pc.fill_null(texts, "")


def _quoted(texts: pa.Array, pattern: str) -> pa.Array:
    """``texts``; those that match ``pattern`` are in quotes. Readers may take a leading ``#`` for a comment."""
    special = pc.match_substring_regex(texts, pattern)
    if not pc.any(special).as_py():
        return texts
    return pc.if_else(special, pc.binary_join_element_wise('"', pc.replace_substring(texts, '"', '""'), '"', ""), texts)


def _hex(cell: bytes | None) -> str:
    """``[00 FF]``, the form in which Spark shows binary."""
    return "" if cell is None else f"[{cell.hex(' ').upper()}]"


_BLOCK_ROWS = 4096


class AvroFile:
    """An Avro file to write; ``compression`` is ``deflate`` or ``none``."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str | None) -> None:
        self._file = file
        self._kind = pa.struct(list(schema))
        self._format = AvroFormat(self._kind)
        self._packed = compression != "none"
        self._marker = os.urandom(16)
        text = json.dumps(json.loads(derived(self._kind, null_first=False)))
        metadata = {b"avro.schema": text.encode(), b"avro.codec": b"deflate" if self._packed else b"null"}
        pairs = b"".join(long_of(len(part)) + part for pair in metadata.items() for part in pair)
        file.write(b"Obj\x01" + long_of(len(metadata)) + pairs + long_of(0) + self._marker)

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
        """Does nothing: everything is already written."""


class FormatWriter(Protocol):
    """A file to write."""

    def write(self, batch: pa.RecordBatch) -> Any: ...

    def close(self) -> int | None:
        """Writes the remaining rows. Returns the number of rows in the file's footer, if it has a known one."""
        ...


def target_folders(sink: FilesSink, schema: pa.Schema) -> Folders | None:
    """The folders for rows of ``schema``, if they go to several folders.

    Raises :class:`~connectors.ground.errors.Misconfigured` for columns that Python cannot write.
    """
    divided = sink.values["bucket"] or sink.values["partitionBy"]
    folders = Folders(f"connectors.{sink.name}", sink.values, schema) if divided else None
    check_columns(sink, folders.schema if folders else schema)
    return folders


class FilesWriter(SinkWriter):
    """Writes one file per task attempt and folder, made with the folder's first row.

    At most ``most_open`` files are open: the writer closes the file that has waited longest, and its folder gets another file
    if more rows come.
    """

    most_open = 64

    def __init__(self, sink: FilesSink, batch: Batch, schema: pa.Schema) -> None:
        self.connector = f"connectors.{sink.name}"
        self.folders = target_folders(sink, schema)
        self._spark_schema = schema
        self.schema = self.folders.schema if self.folders else schema
        self.folder = sink.folder()
        self.format = sink.values["fileFormat"]
        self.compression = sink.values["compression"]
        self._clock = type(sink).clock
        self.batch = batch
        self.attempt = batch.attempt()
        self.rows = 0
        self._rows_in_files = 0
        self._values = sink.values
        self._times: dict[str, Any] = {}
        self._stage: str | None = None
        self._files: list[list[Any]] = []
        self._open: dict[str, tuple[FormatWriter, BinaryIO]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.schema.equals(self._spark_schema):
            batch = as_schema(batch, self._spark_schema)  # Spark passes times in the session's zone
        if self._values["bucket.successFile"]:
            self._times = later_state(self._values, batch, self._times)
        for folder, rows in self.folders.split(batch) if self.folders else [("", batch)]:
            self._file(folder).write(rows)
        self.rows += batch.num_rows

    def prepare(self) -> Committable:
        self.close()
        if self.format == "parquet" and self._rows_in_files != self.rows:
            raise Fatal(
                f"the footers of the task's files tell of {self._rows_in_files} rows, and the task has had {self.rows}",
                way_out="nothing was recorded; this is a fault of the library or of pyarrow; take another version of these",
            )
        names = [name for name, _ in self._files]
        self.folder.sync(names)
        sizes = self.folder.storage.sizes(names)
        files = [[name, bucket, sizes.get(name)] for name, bucket in self._files]
        return Committable(self.rows, {"attempt": self.attempt, "files": files, "at": self._clock(), **self._times})

    def abort(self) -> None:
        try:
            self.close()
        finally:
            self.folder.remove(self.attempt)

    def close(self) -> None:
        for folder in list(self._open):
            self._close(folder)

    def _file(self, folder: str) -> FormatWriter:
        """The open file of ``folder``, which from now on is the last to be closed."""
        file = self._open.pop(folder, None)
        if file is None:
            if len(self._open) >= self.most_open:
                self._close(next(iter(self._open)))
            file = self._new(folder)
        self._open[folder] = file
        return file[0]

    def _new(self, folder: str) -> tuple[FormatWriter, BinaryIO]:
        if self._stage is None:
            self._stage = begin(self.connector, self.folder, self.batch, self.attempt)
        name = f"{self._stage}/rows-{len(self._files)}{extension_of(self.format, self.compression)}"
        self._files.append([name, folder])
        stream = self.folder.create(name)
        return format_writer(self.format, stream, self.schema, self.compression), stream

    def _close(self, folder: str) -> None:
        file, stream = self._open.pop(folder)
        self._rows_in_files += file.close() or 0
        stream.close()


def check_columns(sink: FilesSink, schema: pa.Schema) -> None:
    """Raises :class:`Misconfigured` for columns that the file format cannot hold."""
    check_types(f"connectors.{sink.name}", sink.values["fileFormat"], schema)


CODECS = {
    "parquet": ("none", "snappy", "gzip", "zstd", "lz4"),
    "orc": ("none", "snappy", "zlib", "zstd", "lz4"),
    "avro": ("none", "deflate"),
    **dict.fromkeys(("json", "csv", "text"), ("none", "gzip", "bzip2")),
}
"""The values of ``compression`` by file format: those that both Arrow and Spark write."""

_ENDINGS = {"text": ".txt"}
_STREAMS = {"gzip": ".gz", "bzip2": ".bz2"}


def extension_of(kind: str, compression: str | None) -> str:
    """The extension, such as ``.json.gz``: readers recognize the codec of a text file by its name."""
    return _ENDINGS.get(kind, f".{kind}") + (_STREAMS.get(compression or "", "") if "gzip" in CODECS[kind][:2] else "")


def format_writer(kind: str, file: BinaryIO, schema: pa.Schema, compression: str | None) -> FormatWriter:
    """A writer of rows of ``schema`` into ``file``."""
    if kind == "parquet":
        return _Parquet(file, schema, compression or "snappy")
    if kind == "orc":
        import pyarrow.orc as orc

        codec = "uncompressed" if compression == "none" else compression or "zstd"
        return _Orc(orc.ORCWriter(file, compression=codec))
    if kind == "avro":
        return AvroFile(file, schema, compression)
    packed = compression not in (None, "none")
    stream = pa.CompressedOutputStream(file, "bz2" if compression == "bzip2" else compression) if packed else file
    return _Lines(stream, {"json": json_lines, "csv": csv_lines, "text": _text_lines}[kind])


class _Parquet:
    """Parquet with Spark's physical types: small decimals are integers, times of the day microseconds."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        import pyarrow.parquet as pq

        self._schema = parquet_schema(schema)
        self._writer = pq.ParquetWriter(file, self._schema, compression=compression, store_decimal_as_integer=True)

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(as_schema(batch, self._schema))

    def close(self) -> int:
        self._writer.close()
        return int(self._writer.writer.metadata.num_rows)


class _Orc:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write(pa.table([hybrid_days(column) for column in batch.columns], schema=batch.schema))

    def close(self) -> None:
        self._writer.close()


class _Lines:
    """A text file whose lines are made of record batches."""

    def __init__(self, stream: Any, encode: Callable[[pa.RecordBatch], Iterable[bytes]]) -> None:
        self._stream = stream
        self._encode = encode

    def write(self, batch: pa.RecordBatch) -> None:
        for piece in self._encode(batch):
            self._stream.write(piece)

    def close(self) -> None:
        self._stream.close()


def _text_lines(rows: pa.RecordBatch) -> list[bytes]:
    """The bytes unchanged, also if they are no UTF-8, as Spark writes them."""
    lines = pc.fill_null(rows.column(0).cast(pa.binary()), b"")
    return [content_of(pc.binary_join_element_wise(lines, b"\n", b""))]
