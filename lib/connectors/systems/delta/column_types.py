"""Types of a Delta column and of values that come for it: what holds both, and a value that is not altered on its way.

Delta widens a column in place (type widening): integers to larger ones, to decimals and doubles; decimals; floats to doubles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...formats.base import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_DIGITS: Final = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The integer types, from small to large, and how many digits their values have."""
_DOUBLE_DIGITS: Final = 15
"""Whole numbers with so many digits are exact in a double."""
_DIGITS_OF_COLUMN: Final = {"tinyint": 10, "smallint": 10, "int": 10, "bigint": 20}
"""The digits in front of the point that a decimal needs, so that Delta lets a column of integers become it."""


def common_type(one: Any, other: Any) -> Any | None:
    """The smallest type that holds all values of both; ``None`` if there is none."""
    from pyspark.sql.types import DecimalType, DoubleType, FloatType

    if one == other:
        return one
    digits = [_DIGITS.get(kind.simpleString(), 0) for kind in (one, other)]
    if all(digits):
        return one if digits[0] > digits[1] else other
    decimals = [DecimalType(number, 0) if number else kind for kind, number in zip((one, other), digits, strict=True)]
    if all(isinstance(kind, DecimalType) for kind in decimals):
        scale = max(kind.scale for kind in decimals)
        precision = max(kind.precision - kind.scale for kind in decimals) + scale
        return DecimalType(precision, scale) if precision <= 38 else None
    is_floating = [isinstance(kind, (FloatType, DoubleType)) for kind in (one, other)]
    fits = all(is_float or 0 < number <= _DOUBLE_DIGITS for is_float, number in zip(is_floating, digits, strict=True))
    return DoubleType() if fits else None


def united_types(parts: Sequence[Mapping[str, Any]], known: Mapping[str, Any]) -> dict[str, Any]:
    """The types of the columns of all ``parts``, which hold the values of all and of the table's columns.

    ``known`` are those by their names in lower case: Spark and Delta take ``Id`` and ``id`` for one.

    Where there is no such type, the table's stays, or else that of the newest part.
    """
    types: dict[str, Any] = {}
    for name, newest in {name: kind for part in parts for name, kind in part.items()}.items():
        types[name] = known.get(name.lower(), newest)
        for part in parts:
            types[name] = common_type(types[name], part.get(name, newest)) or known.get(name.lower(), newest)
        if name.lower() in known:
            types[name] = _successor(known[name.lower()], types[name])
    return types


def _successor(known: Any, kind: Any) -> Any:
    """The type that Delta gives a column of the type ``known`` for values of ``kind``; ``known`` if there is none."""
    from pyspark.sql.types import DecimalType

    digits = _DIGITS_OF_COLUMN.get(known.simpleString(), 0)
    if not digits or not isinstance(kind, DecimalType):
        return kind
    precision = max(kind.precision, digits + kind.scale)
    return DecimalType(precision, kind.scale) if precision <= 38 else known


def widen(spark: SparkSession, table: str, known: Mapping[str, Any], types: Mapping[str, Any]) -> None:
    """Gives the columns of ``table``, a name in SQL, that are ``known`` the wider ``types``."""
    for name, kind in types.items():
        if kind != known.get(name.lower(), kind):
            spark.sql(f"ALTER TABLE {table} ALTER COLUMN {quoted(name)} TYPE {kind.simpleString()}")


def fitted(value: Column, kind: Any, target: Any, name: str) -> Column:
    """``value``, of type ``kind``, as ``target``. What would be altered is an error of the query that names the column."""
    from pyspark.sql import functions as F

    if kind == target:
        return value
    cast = value.try_cast(target)
    back, text = cast.try_cast(kind), F.to_json(F.struct(value.alias(name)))
    is_same = back.eqNullSafe(value) if _is_comparable(kind) else F.to_json(F.struct(back.alias(name))) == text
    is_kept = cast.isNotNull() & is_same
    message = F.concat(
        F.lit(f"column {name}: the value "),
        F.coalesce(text, F.lit("?")),
        F.lit(
            f" of type {kind.simpleString()} does not fit the column's type {target.simpleString()}, and no type holds both. "
            "Convert it in the database or by a transform, or start a new table."
        ),
    )
    return F.when(value.isNull() | is_kept, cast).otherwise(F.raise_error(message))


def _is_comparable(kind: Any) -> bool:
    """False for maps, and types with a map in them."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        return all(_is_comparable(field.dataType) for field in kind)
    return _is_comparable(kind.elementType) if isinstance(kind, ArrayType) else not isinstance(kind, MapType)
