"""Values that a change does not tell: of a column that the source did not have, or that an update has not touched.

PostgreSQL logs a large value (TOAST) only when it changes. Debezium writes a placeholder in its place, whose form follows the
column's type: a text, the bytes of the text (``bytea``), a list of one (``text[]``, ``bytea[]``, ``uuid[]``), a list with a
number for each byte (``int[]``, ``bigint[]``, ``date[]``), or a map from the text to itself (``hstore``). For other types
Debezium 3.6 writes null, and warns in its log.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Set
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

from ...formats.base import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

ABSENT: Final = "__connectors_absent"
"""The column of a change that has the marks of the columns that its source did not have."""
_TEXT: Final = "__debezium_unavailable_value"
_BASE64: Final = base64.b64encode(_TEXT.encode()).decode()
_UUID: Final = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""The UUID that Java's ``UUID.nameUUIDFromBytes`` makes of the placeholder."""
_HSTORE: Final = f'{{"{_TEXT}":"{_TEXT}"}}'
"""The map as text: ``hstore.handling.mode=json``."""
_NUMBERS: Final = [str(byte) for byte in _TEXT.encode()]


def may_have_holes(json: Column) -> Column:
    """True for the JSON text of each record that has an untouched value; rarely for another one."""
    texts = (json.contains(text) for text in (_TEXT, _BASE64, _UUID))
    return reduce(or_, texts, json.rlike(r"\s*,\s*".join(_NUMBERS)))


def mark_of(name: str) -> str:
    """The mark of a column in ``ABSENT``: the same in each dialect of SQL."""
    return name.encode().hex()


def is_absent(name: str) -> str:
    """SQL: the source of the row ``new`` did not have the column."""
    return f"array_contains(new.{ABSENT}, '{mark_of(name)}')"


def hole_conditions(columns: Mapping[str, Any], gaps: Set[str], *, has_placeholders: bool) -> dict[str, str]:
    """For each of ``columns`` (types by name) that may have holes: SQL that is true where the row ``new`` has one."""
    conditions = {}
    for name, kind in columns.items():
        texts = [_placeholder(f"new.{quoted(name)}", kind)] if has_placeholders else []
        if name in gaps:
            texts.append(is_absent(name))
        if condition := " OR ".join(filter(None, texts)):
            conditions[name] = f"({condition})"
    return conditions


def _placeholder(column: str, kind: Any) -> str | None:
    from pyspark.sql.types import MapType, StringType

    if isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        return f"map_keys({column}) = array('{_TEXT}')"  # SQL compares no maps
    placeholders = _placeholders(kind)
    return f"{column} IN ({', '.join(placeholders)})" if placeholders else None


def _placeholders(kind: Any) -> list[str]:
    """The forms that the placeholder has in a column of type ``kind``, as SQL."""
    from pyspark.sql.types import ArrayType, BinaryType, DateType, NumericType, StringType

    if isinstance(kind, StringType):  # without a schema, bytes are text, too
        return [f"'{text}'" for text in (_TEXT, _BASE64, _UUID, _HSTORE)]
    if isinstance(kind, BinaryType):
        return [f"CAST('{_TEXT}' AS BINARY)"]
    if not isinstance(kind, ArrayType):
        return []
    if isinstance(kind.elementType, NumericType):
        return [f"CAST(array({', '.join(_NUMBERS)}) AS {kind.simpleString()})"]
    if isinstance(kind.elementType, DateType):
        return [f"transform(array({', '.join(_NUMBERS)}), day -> date_from_unix_date(day))"]
    return [f"array({element})" for element in _placeholders(kind.elementType)]
