"""Counts the rows of a batch, and sums them up into a checksum, while they are written: no second pass."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from .session import is_told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

_PATIENCE: Final = 0.2


class Measured:
    """The rows and checksum of a batch; both ``None`` when nothing was measured. Known once the batch was computed."""

    def __init__(self, observation: Any = None) -> None:
        self._observation = observation

    @property
    def rows(self) -> int | None:
        return int(self._observation.get["rows"]) if self._observation else None

    def rows_if_known(self) -> int | None:
        """The rows, without waiting for them for long: a writer that rebuilds the plan may lose what was to be counted."""
        until = time.monotonic() + _PATIENCE  # Spark tells it a moment after the batch is computed
        while not (told := is_told(self._observation)) and time.monotonic() < until:
            time.sleep(0.001)
        return self.rows if told else None

    @property
    def checksum(self) -> str | None:
        """Independent of the order of rows; ``None`` if the columns have no hash."""
        found = self._observation.get.get("checksum") if self._observation else None
        return None if found is None else f"{found & 0xFFFFFFFFFFFFFFFF:016x}"

    @classmethod
    def of(cls, frame: DataFrame) -> Measured:
        """Measures ``frame`` by computing it."""
        watched, seen = measured(frame)
        watched.write.format("noop").mode("overwrite").save()
        return seen


def measured(frame: DataFrame) -> tuple[DataFrame, Measured]:
    """``frame``, and what will be known of it when it has been computed once."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    hashable = [f"`{field.name.replace('`', '``')}`" for field in frame.schema if _has_hash(field.dataType)]
    sums = [F.expr(f"bit_xor(xxhash64({', '.join(hashable)})) AS checksum")] if hashable else []
    return frame.observe(observation, F.expr("count(1) AS rows"), *sums), Measured(observation)


def counted(frame: DataFrame) -> tuple[DataFrame, Measured]:
    """:func:`measured`, rows only."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    observation = Observation()
    return frame.observe(observation, F.expr("count(1) AS rows")), Measured(observation)


def _has_hash(kind: DataType) -> bool:
    """False for types that Spark refuses to hash, maps and variants, also inside others."""
    text = kind.simpleString()
    return "map<" not in text and "variant" not in text
