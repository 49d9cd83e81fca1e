"""Formats: what bytes mean. A source that hands out bytes or lines decodes them by ``value.format`` and ``key.format``.

A format turns a column of bytes into a column of values, in Arrow, and names the records that it cannot read; a sink
turns values into bytes with it. What happens to bad records is the user's choice (``errors``), and the same for every
source.

What becomes of records when their writers change:

========== ======================= ========================= ==============================================
format     a field was added       a field was dropped       a field was widened
========== ======================= ========================= ==============================================
json       passed over             null                      read, while the value fits the column
csv        bad record: a line has  bad record                read, while the value fits the column
           as many values as there
           are columns
avro       passed over             null, or its default in   int, long, float, double as any wider one of
                                   ``value.avroSchema``      them; text as bytes and back; a smaller decimal
                                                             of the same scale; else bad records
avro, no   bad record: bytes have  bad record                bad record, or another value: give
registry   only their places                                 ``value.avroSchema`` as the writer has it
protobuf   passed over             null if the field can     as protobuf says: int32, int64 and bool are
                                   tell; else its default    the same on the wire
========== ======================= ========================= ==============================================

The columns of a query stay as they were when it started; new ones come with a new ``schema``.
"""



from .avro import AvroFormat
from .base import BadRecord, BytesFormat, Decoded, Format, FormatSettings, StringFormat, sql_type
from .csv import CsvFormat
from .json import JsonFormat
from .options import FORMATS, Side, check_format, format_of, format_options, settings_of, sides, value_type
from .protobuf import ProtobufFormat

__all__ = [
    "FORMATS",
    "AvroFormat",
    "BadRecord",
    "BytesFormat",
    "CsvFormat",
    "Decoded",
    "Format",
    "FormatSettings",
    "JsonFormat",
    "ProtobufFormat",
    "Side",
    "StringFormat",
    "check_format",
    "format_of",
    "format_options",
    "settings_of",
    "sides",
    "sql_type",
    "value_type",
]
