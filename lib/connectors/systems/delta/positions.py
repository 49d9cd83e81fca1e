"""The position of a change in a database's log, as text that sorts as the log does.

============  ==========================================================================  ==================================
order         position                                                                    databases
============  ==========================================================================  ==================================
``sequence``  ``source.sequence``: end of the transaction before, and the change's lsn     PostgreSQL
``binlog``    gtid, or file of the binary log; then position and row in it                MariaDB; MySQL, by file
``change``    ``commit_lsn``, ``change_lsn``, ``event_serial_no``                          SQL Server, Db2
``arrival``   the place in the stream: query, number of the batch, number of the record    all others
============  ==========================================================================  ==================================

The place in the stream also decides between equal positions. An lsn alone does not tell the order: PostgreSQL's log has the
changes of a transaction when that ends, and another one that wrote later may have ended before. Times never decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

ARRIVAL: Final = "arrival"
ORDINAL_LENGTH: Final = 19
FROM_SNAPSHOT: Final = "r"
"""Follows the position of a row that comes from a snapshot; the name of its attempt stands behind it."""
PLACE_LENGTH: Final = 3 + 12 + ORDINAL_LENGTH
"""The characters of a place in the stream, of which the last ones are the number of the record."""
FIELDS: Final = {
    "sequence": "string", "gtid": "string", "file": "string", "pos": "bigint", "row": "bigint", "server_id": "bigint",
    "commit_lsn": "string", "change_lsn": "string", "event_serial_no": "bigint", "snapshot": "string", "lsn": "bigint",
    "scn": "string", "ts_ms": "bigint", "ts_us": "bigint",
}  # fmt: skip
"""The fields of Debezium's ``source`` that tell the place and the time of a change, and their types."""
ATTEMPTS: Final = ("lsn", "file", "pos", "commit_lsn", "scn")
"""The fields that tell where a database's log stands at a snapshot: other values are another snapshot."""


@dataclass(frozen=True)
class LogOrder:
    """The order of the changes of a log.

    ``digits`` is the position, ``None`` for the order of arrival. ``log`` names what positions belong to: those of two
    servers' binary logs cannot be compared. It is ``None`` where there is one log only.
    """

    name: str
    digits: Column | None = None
    log: Column | None = None


def order_of(fields: Mapping[str, Column], *, has_operation: bool, is_envelope: bool) -> LogOrder:
    """The order of changes with these ``fields`` of ``source``.

    Without the operation, a row of a snapshot cannot be told from a change, so only the arrival orders both.
    """
    from pyspark.sql import functions as F

    if not has_operation:
        return LogOrder(ARRIVAL)
    if "file" in fields and "pos" in fields:
        return _binlog_order(fields)
    if "commit_lsn" in fields and "change_lsn" in fields:
        serial = fields.get("event_serial_no", F.lit(0))
        texts = (F.coalesce(fields[name], F.lit("")) for name in ("commit_lsn", "change_lsn"))
        return LogOrder("change", F.concat(*(F.lpad(text, 32, "0") for text in texts), _number(serial)))
    if "sequence" in fields and ("lsn" in fields or not is_envelope):  # other databases have the field, and it is null
        before, own = (F.regexp_extract(fields["sequence"], pattern, 1) for pattern in (r'^\["(\d+)"', r'"(\d+)"\]$'))
        return LogOrder("sequence", F.concat(_number(F.when(before == "", own).otherwise(before)), _number(own)))
    return LogOrder(ARRIVAL)


def place_of(life: int, batch: int, ordinal: Column) -> Column:
    """The place in the stream of the record ``ordinal`` of a batch, in the life ``life`` of the table's query."""
    from pyspark.sql import functions as F

    return F.concat(F.lit(f"{life:03d}{batch:012d}"), _number(ordinal, ORDINAL_LENGTH))


def place_text(life: int, batch: int, ordinal: int) -> str:
    """The same of a number."""
    return f"{life:03d}{batch:012d}{ordinal:0{ORDINAL_LENGTH}d}"


def place_in(position: str) -> str:
    """SQL: the place in the stream that the column ``position`` of a table has; of a row of a snapshot, that of the read."""
    return f"right(split_part({position}, '{FROM_SNAPSHOT}', 1), {PLACE_LENGTH})"


def _binlog_order(fields: Mapping[str, Column]) -> LogOrder:
    from pyspark.sql import functions as F

    gtid, file = fields.get("gtid", F.lit(None).cast("string")), F.coalesce(fields["file"], F.lit(""))
    inside = F.concat(_number(fields["pos"]), _number(fields.get("row", F.lit(0)), 10))
    domain, transaction = (F.regexp_extract(gtid, r"^(\d+)-\d+-(\d+)$", group) for group in (1, 2))
    is_mariadb = F.coalesce(domain != "", F.lit(False))
    digits = F.when(is_mariadb, F.concat(_number(transaction), inside)).otherwise(
        F.concat(_number(F.regexp_extract(file, r"(\d*)$", 1)), inside)
    )
    server = F.concat(F.lit("file "), F.regexp_extract(file, r"^(.*?)\.?\d*$", 1), F.lit(" of server "))
    server = F.concat(server, F.coalesce(fields.get("server_id", F.lit(0)).cast("string"), F.lit("0")))
    return LogOrder("binlog", digits, F.when(is_mariadb, F.concat(F.lit("gtid domain "), domain)).otherwise(server))


def _number(value: Column, width: int = 20) -> Column:
    from pyspark.sql import functions as F

    return F.lpad(F.coalesce(value.cast("string"), F.lit("0")), width, "0")
