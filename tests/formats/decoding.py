"""What the tests of formats share: records decoded, their values, and which of them are bad."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from connectors.formats import BytesFormat, CsvFormat, Decoded, Format, JsonFormat, StringFormat

KIND = pa.struct([("a", pa.int64()), ("s", pa.string())])
JSON, CSV, STRING, BYTES = JsonFormat(KIND), CsvFormat(KIND), StringFormat(pa.string()), BytesFormat(pa.binary())


def decode(made: Format, *records: bytes | None) -> Decoded:
    return made.decode(pa.array(records, pa.binary()))


def values(made: Format, *records: bytes | None) -> list[Any]:
    decoded = decode(made, *records)
    assert len(decoded.values) == len(records)
    assert decoded.values.type == made.kind
    decoded.values.validate(full=True)
    return list(decoded.values.to_pylist())


def bad(made: Format, *records: bytes | None) -> list[int]:
    decoded = decode(made, *records)
    assert all(decoded.values[one.index].as_py() is None and one.error for one in decoded.bad)
    return [one.index for one in decoded.bad]


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
