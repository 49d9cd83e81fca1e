"""Random values for columns of databases, as the text that SQL takes; and the one form in which values are compared."""

from __future__ import annotations

import datetime
import json
import math
import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

UTC: Final = datetime.timezone.utc
LARGE: Final = 2_600
"""Bytes of a value that PostgreSQL stores out of line (TOAST): an update that leaves it alone does not log it."""
_WORDS: Final = (
    "red", "größer", "it's", 'a "quote"', "back\\slash", "\\N", "null", "NULL", "", "two\nlines", "tab\there", "🌵",
)  # fmt: skip
_EPOCH: Final = datetime.datetime(2000, 1, 1)
_MICROSECONDS: Final = 100 * 365 * 86_400 * 1_000_000

Draw = Callable[[random.Random], Any]


@dataclass(frozen=True, eq=False)
class Kind:
    """A type of a column.

    ``sql`` is its name in the database, ``draw`` makes a value, ``default`` is a literal for DEFAULT. ``large`` makes a value
    that is stored out of line. Values need the workload's ``switch``, if there is one; ``rare`` ones need the switch that is
    their key.
    """

    name: str
    sql: str
    draw: Draw
    default: str
    large: Draw | None = None
    switch: str = ""
    rare: Mapping[str, tuple[str, ...]] | None = None


def text(chance: random.Random) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(chance.randrange(4)))


def large_text(chance: random.Random) -> str:
    return chance.randbytes(LARGE // 2 + chance.randrange(900)).hex()


def integer(bits: int) -> Draw:
    def draw(chance: random.Random) -> str:
        edge = 1 << (bits - 1)
        return str(chance.choice((-edge, edge - 1, 0, chance.randrange(-edge, edge), chance.randrange(1000))))

    return draw


def decimal(precision: int, scale: int) -> Draw:
    def draw(chance: random.Random) -> str:
        digits = chance.choice((chance.randrange(1, precision + 1), precision))
        unscaled = chance.choice((0, chance.randrange(10**digits), 10**precision - 1)) * chance.choice((1, -1))
        return format(Decimal(unscaled).scaleb(-scale), "f")

    return draw


def free_decimal(chance: random.Random) -> str:
    """A number of any scale that fits a decimal(38,18)."""
    scale = chance.randrange(19)
    unscaled = chance.randrange(10 ** chance.randrange(1, 20 + scale)) * chance.choice((1, -1))
    return format(Decimal(unscaled).scaleb(-scale), "f")


def double(chance: random.Random) -> str:
    return repr(chance.choice((0.1, -1e300, 5e-324, 1e16, chance.uniform(-1e6, 1e6), float(chance.randrange(1000)))))


def boolean(chance: random.Random) -> str:
    return chance.choice(("true", "false"))


def timestamp(chance: random.Random) -> str:
    moment = _EPOCH + datetime.timedelta(microseconds=chance.randrange(-_MICROSECONDS, _MICROSECONDS))
    if chance.random() < 0.3:
        moment = moment.replace(microsecond=chance.choice((0, 1, 999_999, 120_000)))
    return moment.isoformat(" ", "microseconds")


def zoned(chance: random.Random) -> str:
    return timestamp(chance) + chance.choice(("+00", "-11:30", "+05:45"))


def day(chance: random.Random) -> str:
    return timestamp(chance)[:10]


def array(chance: random.Random) -> str:
    """A literal of ``text[]``."""
    return _array([chance.choice((None, text(chance))) for _ in range(chance.randrange(4))])


def large_array(chance: random.Random) -> str:
    return _array([large_text(chance), None, text(chance)])


def _array(items: list[str | None]) -> str:
    cells = ("NULL" if item is None else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items)
    return "{" + ",".join(cells) + "}"


def document(chance: random.Random) -> str:
    inner: Any = chance.choice((None, True, chance.randrange(10**15), text(chance), [1, "x", None], {"ü": {"a": []}}, 0.25))
    return json.dumps(chance.choice((inner, {"n": chance.randrange(100), "v": inner}, [inner, {}])), ensure_ascii=False)


def large_document(chance: random.Random) -> str:
    return json.dumps({"long": large_text(chance), "n": chance.randrange(100)})


def identifier(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128)))


def octets(chance: random.Random) -> str:
    return "\\x" + chance.randbytes(chance.choice((0, 1, 7, 40))).hex()


def large_octets(chance: random.Random) -> str:
    return "\\x" + chance.randbytes(LARGE + chance.randrange(900)).hex()


_INFINITIES: Final = {"infinity": ("infinity", "-infinity"), "ancient": ("0001-01-01 00:00:00", "1500-02-28 12:00:00.000001")}
INT = Kind("int", "int", integer(32), "7")
BIGINT = Kind("bigint", "bigint", integer(64), "-8000000000")
TEXT = Kind("text", "text", text, "'none of ''them'''", large_text)
PRICE = Kind("numeric(10,2)", "numeric(10,2)", decimal(10, 2), "9.50")
WIDE_PRICE = Kind("numeric(14,4)", "numeric(14,4)", decimal(14, 4), "9.5001")
NUMERIC = Kind("numeric", "numeric", free_decimal, "1.250", switch="free_numeric")
DOUBLE = Kind("float8", "float8", double, "0.1", rare={"float_specials": ("NaN", "Infinity", "-Infinity")})
BOOLEAN = Kind("boolean", "boolean", boolean, "true")
DATE = Kind("date", "date", day, "'2020-02-29'", rare={"ancient": ("0001-01-01", "1500-02-28", "9999-12-31")})
TIMESTAMP = Kind("timestamp", "timestamp", timestamp, "'2021-03-04 05:06:07.123456'", rare=_INFINITIES)
ZONED = Kind("timestamptz", "timestamptz", zoned, "'2021-03-04 05:06:07.123456+02'", rare=_INFINITIES)
ARRAY = Kind("text[]", "text[]", array, "'{a,NULL,\"b c\"}'", large_array)
JSONB = Kind("jsonb", "jsonb", document, '\'{"a": [1, null]}\'', large_document)
UUID = Kind("uuid", "uuid", identifier, "'b5a1c5b0-0000-4000-8000-0123456789ab'")
BYTES = Kind("bytea", "bytea", octets, "'\\x00ff10'", large_octets)

FILLS: Final[dict[str, Any]] = {
    "int": 7, "text": "none of 'them'", "numeric": 1.25, "boolean": True, "tinyint": 1, "bit": True, "json": '{"a": [1, null]}',
    "numeric(10,2)": 9.5, "decimal(10,2)": 9.5, "decimal(38,18)": 1.25, "float8": 0.1, "double": 0.1, "date": "2020-02-29",
    "timestamp": "2021-03-04T05:06:07.123456Z", "datetime": "2021-03-04T05:06:07.123456Z", "jsonb": '{"a": [1, null]}',
    "timestamptz": "2021-03-04T03:06:07.123456Z", "text[]": ["a", None, "b c"], "uuid": "b5a1c5b0-0000-4000-8000-0123456789ab",
    "bytea": "AP8Q", "blob": "ABoxMA==",
}  # fmt: skip
"""The defaults by the name of their kind, as the merge takes them in ``fill``."""
UNTOLD: Final = frozenset({ARRAY, BYTES, NUMERIC, TEXT})
"""The kinds whose defaults Debezium does not tell, or of a text with a quote only the part before it."""

END_OF_TIME: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
START_OF_TIME: Final = datetime.datetime(1, 1, 1, tzinfo=UTC)


def normalised(value: Any, kind: str) -> Any:
    """The form in which a value of a column of type ``kind`` is compared, whether a database has it or Delta.

    Delta cannot represent all that PostgreSQL can. The decisions:

    * ``infinity`` is 9999-12-31 23:59:59.999999 UTC and ``-infinity`` 0001-01-01 00:00:00 UTC, for both types of times;
    * a time without a zone is one of UTC;
    * ``numeric`` without a precision is a decimal(38,18): the workload draws no value beyond that;
    * ``uuid`` is text; ``json`` and ``jsonb`` are text, of which the parsed form counts, numbers as decimals;
    * MariaDB's ``bit(1)`` is a boolean.

    Not a number equals itself here. Everything else is compared as it is: decimals by their value, bytes as bytes.
    """
    if value is None:
        return None
    if kind in ("timestamp", "timestamptz") and isinstance(value, str):
        value = {"infinity": END_OF_TIME, "-infinity": START_OF_TIME}.get(value) or _time(value)
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if kind in ("json", "jsonb") and isinstance(value, (str, bytes)):
        try:
            return json.loads(value, parse_float=Decimal)
        except ValueError:
            return value
    if kind == "bit" and isinstance(value, bytes):
        return value != b"\0"
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _time(text: str) -> datetime.datetime:
    """A time as PostgreSQL writes it, in UTC."""
    moment = text.removesuffix("+00")
    return datetime.datetime.strptime(moment, "%Y-%m-%d %H:%M:%S.%f" if "." in moment else "%Y-%m-%d %H:%M:%S")


def shown(value: Any, length: int = 90) -> str:
    """``value`` in a message: a long one by its beginning."""
    written = repr(value)
    return written if len(written) <= length else f"{written[:length]}… ({len(written)} characters)"
