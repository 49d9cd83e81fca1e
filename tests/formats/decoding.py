"""What the tests of formats share: records decoded, their values, and which of them are bad."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connectors.formats import BytesFormat, CsvFormat, Decoded, Format, JsonFormat, StringFormat

KIND = pa.struct([("a", pa.int64()), ("s", pa.string())])
JSON, CSV, STRING, BYTES = JsonFormat(KIND), CsvFormat(KIND), StringFormat(pa.string()), BytesFormat(pa.binary())


def decode(codec: Format, *records: bytes | None) -> Decoded:
    return codec.decode(pa.array(records, pa.binary()))


def values(codec: Format, *records: bytes | None) -> list[Any]:
    decoded = decode(codec, *records)
    assert len(decoded.values) == len(records)
    assert decoded.values.type == codec.kind
    decoded.values.validate(full=True)
    return list(decoded.values.to_pylist())


def bad(codec: Format, *records: bytes | None) -> list[int]:
    decoded = decode(codec, *records)
    assert all(decoded.values[failure.index].as_py() is None and failure.error for failure in decoded.bad)
    return [failure.index for failure in decoded.bad]


GOOD = b'{"a":1,"s":"x"}'
GOOD_ROW = {"a": 1, "s": "x"}
TYPED = pa.struct(
    [
        ("t", pa.timestamp("us", "UTC")),
        ("n", pa.timestamp("us")),
        ("d", pa.date32()),
        ("m", pa.decimal128(9, 2)),
        ("f", pa.float64()),
        ("i", pa.int32()),
    ]
)
