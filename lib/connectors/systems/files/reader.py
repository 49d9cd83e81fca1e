"""The rows of one file, for each file format."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa

from ...core import DataLoss, Fatal, Misconfigured, Poison, Problem
from ...formats import JsonFormat, sql_type
from ...formats.avro import AvroReader, AvroSchema
from ...formats.avro_writer import INSTALL
from ...formats.base import quoted
from ...formats.csv import decimals_of
from ...ground.clients import client_library
from .column_types import proleptic_days
from .file_columns import names_in

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_ROWS, _BLOCK, _PIECE = 16_384, 1 << 20, 1 << 16
_LONGEST_ROW = 16 << 20
"""The most bytes of a csv row."""
_MAGIC: Final = {"parquet": b"PAR1", "orc": b"ORC", "avro": b"Obj\x01"}
"""The first bytes of a file of each format."""
_HYBRID: Final = ("ORC_JAVA", "ORC_CPP")
"""The writers of ORC whose dates before 1582-10-15 are by the Julian calendar; Trino, for one, has one calendar."""
_TEXT_BEGINS: Final = {b"{": "json"}


def read_file(file: Any, path: str, kind: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of an open ``file`` of format ``kind``, with the columns of ``schema`` that it has, of any type."""
    if kind in _MAGIC:
        with _naming_format(file, path, kind):
            yield from {"parquet": _parquet, "orc": _orc, "avro": _avro}[kind](file, schema)
    else:
        stream = unpacked(file, path)
        try:
            yield from {"json": _json, "csv": _csv, "text": _text}[kind](stream, path, schema)
        except OSError as error:
            if stream is file or error.errno is not None:
                raise
            raise Fatal(f"{path} cannot be unpacked: {error}", way_out="write it again, or move the file away") from None


def schema_of(file: Any, path: str, kind: str) -> pa.Schema:
    """The columns of a file, from its own metadata."""
    if kind == "text":
        return pa.schema([("value", pa.string())])
    if kind in _MAGIC:
        with _naming_format(file, path, kind):
            return _own_schema(file, kind)
    problem = Problem("schema", f"missing; {kind} needs .schema(…), as in any stream of Spark.")
    raise Misconfigured("connectors.files", [problem])


def _own_schema(file: Any, kind: str) -> pa.Schema:
    if kind == "parquet":
        parquet = _open_parquet(file)
        leaves = iter(range(len(parquet.schema)))
        fields = [field.with_type(_with_zone(field.type, parquet.schema, leaves)) for field in parquet.schema_arrow]
        return pa.schema(fields)
    if kind == "orc":
        import pyarrow.orc as orc

        return orc.ORCFile(file).schema.remove_metadata()
    reader = client_library("fastavro", INSTALL, connector="connectors.files").reader(file)
    return pa.schema(list(AvroSchema(json.dumps(reader.writer_schema)).type))


def _with_zone(kind: pa.DataType, schema: Any, leaves: Iterator[int]) -> pa.DataType:
    """``kind`` with times in UTC if Parquet has INT96, which is Spark's older form of a timestamp.

    ``leaves`` are the column numbers in Parquet's ``schema`` from this column on; a nested column has several.
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_zone(field.type, schema, leaves)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_zone(kind.key_type, schema, leaves), _with_zone(kind.item_type, schema, leaves))
    if pa.types.is_list(kind):
        return pa.list_(_with_zone(kind.value_type, schema, leaves))
    return pa.timestamp("us", "UTC") if schema.column(next(leaves)).physical_type == "INT96" else kind


@contextlib.contextmanager
def _naming_format(file: Any, path: str, kind: str) -> Iterator[None]:
    """On an error inside, checks the format of the file, and raises :class:`Misconfigured` if it is another one."""
    try:
        yield
    except Exception as error:  # libraries raise any error: fastavro a SystemError
        file.seek(0)
        begin = file.read(max(map(len, _MAGIC.values())))
        if isinstance(error, ValueError) and begin.startswith(_MAGIC[kind]):
            raise Fatal(f"{path} cannot be read as {kind}: {error}", way_out="move the file away, or write it again") from None
        if not begin or begin.startswith(_MAGIC[kind]):
            raise
        formats = [name for name, magic in _MAGIC.items() if begin.startswith(magic)]
        formats += [name for sign, name in _TEXT_BEGINS.items() if begin.startswith(sign)]
        guess = f"; is it {formats[0]}?" if formats else "."
        text = f"{kind} is not the format of {path}, which begins with {begin!r}{guess} Correct it, or move the file away."
        raise Misconfigured("connectors.files", [Problem("fileFormat", text)]) from None


def sql_columns(schema: pa.Schema) -> str:
    """``schema`` as Spark SQL text. Raises :class:`Misconfigured` with the columns that have no type in Spark."""
    columns, problems = [], []
    for field in schema:
        try:
            columns.append(f"{quoted(field.name)} {sql_type(plain(field.type))}")
        except ValueError as error:
            text = f'is needed, without the column "{field.name}" of the newest file or with another type: {error}.'
            problems.append(Problem("schema", text))
    if problems:
        raise Misconfigured("connectors.files", problems)
    return ", ".join(columns)


_WIDER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


def plain(kind: pa.DataType) -> pa.DataType:
    """``kind`` as Spark reads it: without large text, dictionaries and unsigned numbers, and with one unit of time."""
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    return kind


def unpacked(file: Any, path: str) -> Any:
    """The content of ``file``, decompressed by the codec in its name."""
    codec = next((codec for ending, codec in _CODECS.items() if path.endswith(ending)), None)
    return pa.CompressedInputStream(file, codec) if codec else file


def _parquet(file: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    try:
        parquet = _open_parquet(file)
    except pa.ArrowInvalid as error:
        raise DataLoss(f"it is no complete Parquet file: {error}") from None
    columns = names_in(parquet.schema_arrow.names, schema)
    if columns:
        yield from parquet.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False)
    else:
        yield _without_columns(parquet.metadata.num_rows)


def _open_parquet(file: Any) -> Any:
    """Opens Parquet with INT96 in microseconds: nanoseconds, Arrow's default, only reach from the year 1678 to 2262."""
    import pyarrow.parquet as pq

    return pq.ParquetFile(file, coerce_int96_timestamp_unit="us")


def _without_columns(rows: int) -> pa.RecordBatch:
    """A batch of ``rows`` rows without columns: the values come from the folders' names, or are null."""
    return pa.RecordBatch.from_arrays([pa.nulls(rows)], names=[""])


def _orc(file: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.orc as orc

    orc_file = orc.ORCFile(file)
    columns = names_in(orc_file.schema.names, schema)
    if not columns:
        yield _without_columns(orc_file.nrows)
        return
    is_hybrid = orc_file.writer in _HYBRID
    for number in range(orc_file.nstripes):
        stripe = orc_file.read_stripe(number, columns=columns)
        days = [proleptic_days(column) for column in stripe.columns] if is_hybrid else stripe.columns
        yield pa.RecordBatch.from_arrays(days, names=stripe.schema.names)


def _avro(file: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    blocks = client_library("fastavro", INSTALL, connector="connectors.files").block_reader(file)
    own = AvroSchema(json.dumps(blocks.writer_schema))
    columns = [own.type.field(name) for name in names_in([field.name for field in own.type], schema)]
    records = AvroReader(own, pa.struct(columns))
    for block in blocks:
        if not columns:
            yield _without_columns(block.num_records)
            continue
        decoded = records.decode(_bodies(block))
        if decoded.bad:
            raise ValueError(f"record {decoded.bad[0].index} of the block at byte {block.offset}: {decoded.bad[0].error}")
        yield pa.RecordBatch.from_struct_array(decoded.values)


def _bodies(block: Any) -> pa.Array:
    """The records of a block as bytes. Only a reader of all their fields finds where one ends."""
    ends = [0, *(block.bytes_.tell() for _ in block)]
    buffers = [None, pa.array(ends, pa.int32()).buffers()[1], pa.py_buffer(block.bytes_.getvalue())]
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, buffers)


def _lines(stream: Any) -> Iterator[list[bytes]]:
    """Lists of many lines, which end with ``\\n`` or ``\\r\\n``."""
    buffered: BinaryIO = io.BufferedReader(stream, _BLOCK)
    while lines := buffered.readlines(_BLOCK):
        yield [line.rstrip(b"\n").removesuffix(b"\r") for line in lines]


def _text(stream: Any, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    names = schema.names
    name = "value" if "value" in names or not names else names[0]  # as in Spark, the column may have any name
    for lines in _lines(stream):
        yield pa.RecordBatch.from_pydict({name: [line.decode(errors="replace") for line in lines]})


def _json(stream: Any, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    format = JsonFormat(pa.struct(list(schema)))
    done = 0
    for lines in _lines(stream):
        filled = [(number, line) for number, line in enumerate(lines, done + 1) if line.strip()]
        done += len(lines)
        decoded = format.decode(pa.array([line for _, line in filled], pa.binary()))
        if decoded.bad:
            number, line = filled[decoded.bad[0].index]
            raise Poison(
                f"line {number} of {path} cannot be read as json: {decoded.bad[0].error}",
                record=line,
                way_out="read the files by connectors.file_stream with value.format=json, which can set bad lines aside",
            )
        yield pa.RecordBatch.from_struct_array(decoded.values) if len(schema) else _without_columns(len(filled))


class _Quotes(io.RawIOBase):
    """A stream of csv that has quotes as in RFC 4180. From others Arrow makes other texts and rows, and says nothing."""

    _fields = re.compile(rb'(?:"[^"]*(?:""[^"]*)*"[,\r\n]|(?!")[^,\r\n]*[,\r\n])*')
    _wrong = re.compile(rb'"[^"]*(?:""[^"]*)*"[^",\r\n]')

    def __init__(self, stream: Any, path: str) -> None:
        self._stream = stream
        self._path = path
        begin = stream.read(len(codecs.BOM_UTF8))
        self._begin = b"" if begin == codecs.BOM_UTF8 else begin
        self._rest = b""
        """Bytes like the last field, of which the end is not known: its first one, and with quotes one that may be its end."""

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data, self._begin = self._begin or self._stream.read(len(into)), b""
        for begin in range(0, len(data) or 1, _PIECE):  # the expression needs memory for each field of a piece
            self._check(data[begin : begin + _PIECE] or b"\n")
        if not data and self._rest.startswith(b'"'):
            raise self._problem("is never closed")
        into[: len(data)] = data
        return len(data)

    def _check(self, data: bytes) -> None:
        rest = self._rest + data
        fields = self._fields.match(rest) if b'"' in rest else None
        rest = rest[fields.end() if fields else max(map(rest.rfind, (b",", b"\r", b"\n"))) + 1 :]
        if self._wrong.match(rest):
            raise self._problem("ends before the end of its field")
        inner = rest[1:] if rest.startswith(b'"') else b""
        self._rest = rest[:1] + b'"' * ((len(inner) - len(inner.rstrip(b'"'))) % 2)

    def _problem(self, what: str) -> Poison:
        text = f"{self._path} cannot be read as csv: a text in quotes {what}"
        way_out = 'double each quote in it ("", in Spark by .option("escape", "\\"")), or move the file away'
        return Poison(text, way_out=way_out)


def _csv(stream: Any, path: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow.csv as csv

    buffered = io.BufferedReader(_Quotes(stream, path), _BLOCK)
    if not buffered.peek(1):
        return
    names = schema.names
    kinds = {field.name: pa.string() if pa.types.is_decimal(field.type) else field.type for field in schema}
    try:
        rows = csv.open_csv(
            buffered,
            read_options=csv.ReadOptions(
                column_names=names, autogenerate_column_names=not names, use_threads=False, block_size=_LONGEST_ROW
            ),
            parse_options=csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=len(names) != 1),
            convert_options=csv.ConvertOptions(
                column_types=kinds, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
            ),
        )
        for batch in rows:
            yield _with_decimals(batch, schema) if names else _without_columns(batch.num_rows)
    except pa.ArrowInvalid as error:
        way_out = "correct .schema(…), or move the file away"
        if "straddling" in str(error):  # Arrow's word for a row that is longer than its block
            way_out = f"a row may have {_LONGEST_ROW >> 20} MB; write longer ones as json, or move the file away"
        raise Poison(f"{path} cannot be read as csv: {error}", way_out=way_out) from None


def _with_decimals(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        decimals_of(column, field.type) if pa.types.is_decimal(field.type) else column
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=schema.names)
