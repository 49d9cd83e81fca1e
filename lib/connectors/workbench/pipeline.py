"""A pipeline notebook's parameters, and the places of its state, which follow from its name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from ..ground.errors import Misconfigured, Problem
from ..ground.options import Duration
from ..ground.runtime import in_workspace
from .demos import ROWS, demo
from .settings import VOLUMES, workdir

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..quality import Checks

_TABLE: Final = re.compile(r"[^./\\\s]+\.[^./\\\s]+\.[^./\\\s]+")
_NAME: Final = re.compile(r"\w[\w.-]*")


def pipeline(dbutils: Any, *, address: str = "", demonstration: str = "") -> Pipeline:
    """What the widgets of a pipeline notebook say.

    ``address`` is the name of the widget with the address of the system. Where that is empty, the pipeline runs on the
    ``demonstration`` of this name. Raises :class:`Misconfigured` for a parameter that cannot be.
    """
    return Pipeline(dbutils, address, demonstration)


class Pipeline:
    """The parameters ``name``, ``workdir``, ``target``, ``options``, ``checks`` and ``trigger``, and what follows from them."""

    def __init__(self, dbutils: Any, address: str, demonstration: str) -> None:
        self._dbutils, self._address, self._demonstration = dbutils, address, demonstration
        self.name = self._parameter("name")
        if not _NAME.fullmatch(self.name):
            raise _wrong("name", f'must be letters, digits, "_", "-" and "."; got "{self.name}".')
        self.folder = workdir(f"{workdir(self._parameter('workdir'))}/{self.name}")
        self.target = self._parameter("target")

    def path(self, part: str) -> str:
        """The place of a part of the pipeline's state, such as ``checkpoint``: below ``workdir``, in the folder ``name``."""
        return f"{self.folder}/{part}"

    @cached_property
    def address(self) -> str:
        """The address of the system: the parameter, or that of the demonstration, which gets some new rows."""
        return self._parameter(self._address) or self._demonstrated()

    def source(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` of the source, with records that cannot be read set aside, and the parameter ``options`` over them.

        With ``errors`` of another kind there is no place for them.
        """
        try:
            more = json.loads(self._parameter("options") or "{}")
        except ValueError as wrong:
            raise _wrong("options", f"is no JSON: {wrong}.") from None
        if not isinstance(more, dict):
            raise _wrong("options", 'must be a JSON object such as {"maxOffsetsPerTrigger": "10000"}.')
        values = {"errors": "deadLetter", **options, **more}
        if str(values["errors"]).lower() != "deadletter":
            return values
        return {"deadLetterPath": self.path("letters"), **values}

    @cached_property
    def checks(self) -> Checks:
        """The rules of the target, by the parameter ``checks``: JSON, or a file beside the notebook."""
        from ..quality import rules

        return rules(self._parameter("checks"))

    @property
    def trigger(self) -> dict[str, Any]:
        """The trigger, as ``writeStream.trigger`` takes it: ``availableNow``, ``continuous``, or an interval."""
        trigger = self._parameter("trigger")
        if trigger == "availableNow":
            return {"availableNow": True}
        try:
            seconds = 0.0 if trigger == "continuous" else Duration(None).parse(trigger)
        except ValueError:
            text = f'must be availableNow, continuous or an interval such as "10 seconds"; got "{trigger}".'
            raise _wrong("trigger", text) from None
        return {"processingTime": f"{round(seconds * 1000)} milliseconds"}

    @property
    def table(self) -> dict[str, str]:
        """The target as options of ``connectors.delta``. Locally a table is a folder: Delta has no catalog there."""
        if _TABLE.fullmatch(self.target):
            if in_workspace():
                return {"table": self.target}
            return {"path": workdir(f"{VOLUMES}{self.target.replace('.', '/')}")}
        if "/" in self.target:
            return {"path": workdir(self.target)}
        raise _wrong("target", f'must be a table, as catalog.schema.table, or a folder; got "{self.target}".')

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the target."""
        table = self.table
        return spark.read.table(table["table"]) if "table" in table else spark.read.format("delta").load(table["path"])

    def reconciliation(self, spark: SparkSession) -> DataFrame:
        """One row: how many records were read, and where they are.

        ``read`` is what the batches have recorded and the dead letters; ``delivered`` and ``quarantined`` are counted in the
        tables. The target and the quarantine are of this pipeline alone.
        """
        recorded = spark.read.format("delta").load(self.path("counts")).agg({"rows": "sum"}).collect()
        letters = self._letters(spark)
        quarantined = spark.read.format("delta").load(self.path("quarantine")).count()
        row = ((recorded[0][0] or 0) + letters, self.rows(spark).count(), letters, quarantined)
        return spark.createDataFrame([row], "read long, delivered long, dead_letters long, quarantined long")

    def _letters(self, spark: SparkSession) -> int:
        from pyspark.errors import AnalysisException

        try:
            return spark.read.parquet(self.path("letters")).count()
        except AnalysisException as none:  # the first letter makes the folder
            if none.getCondition() not in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
                raise
            return 0

    def _demonstrated(self) -> str:
        from ..testing.servers import Unavailable

        try:
            demonstration = demo(self._demonstration, self.path("demonstration"), self._parameter("source") or "orders")
            demonstration.feed(ROWS)
        except (ImportError, Unavailable) as missing:
            text = f"missing; give the address of your system. Its demonstration cannot be had here: {missing}"
            raise _wrong(self._address, text) from missing
        print(f"{self._address} is empty, so this is a demonstration. It has got {ROWS} new records.")
        return demonstration.address

    def _parameter(self, name: str) -> str:
        return str(self._dbutils.widgets.get(name)).strip()


def _wrong(parameter: str, text: str) -> Misconfigured:
    return Misconfigured("the pipeline", [Problem(parameter, text)])
