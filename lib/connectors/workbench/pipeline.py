"""A pipeline notebook's parameters, and the places of its state, which derive from its name."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..ground import machine
from ..ground.errors import Misconfigured, Problem
from ..ground.options import Duration
from ..ground.parameters import json_text
from ..ground.runtime import in_workspace
from .batch_record import BatchRecord, letter_count, slice_folder
from .servers import demo
from .settings import VOLUMES, workdir
from .target_schema import TargetSchema
from .versions import history, loaded, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from ..core import Sink, Source
    from ..quality import Checks
    from ..testing.demo import Demo

_PART: Final = r"[^./\\\s]+"
_FORMS: Final = {"table": "catalog.schema.table", "schema": "catalog.schema"}
"""The names that a target can have in a catalog."""
_NAME: Final = re.compile(r"\w[\w.-]*")
_DELTA: Final = "delta"
_DATABASES: Final = ("cdc_database", "jdbc_database")
_SCHEMA: Final = "schema"
"""The target of many Delta tables."""
_PLACES: Final = (_DELTA, _SCHEMA, "files")
"""Targets without an address."""
_COMMIT_SECONDS: Final = 3600
"""The most seconds between the refusal of a row and the delivery of its batch."""
_MERGED: Final = ("Inserted", "Updated", "Deleted")
_BRINGS_ROWS: Final = (
    "coalesce(bigint(operationMetrics.numOutputRows) > 0, "
    "operation RLIKE 'WRITE|MERGE|STREAMING|RESTORE|CLONE|COPY|CONVERT|SELECT')"
)
"""The condition that a commit brings rows. If it does not count them, as with other writers, its operation decides."""


def pipeline(
    dbutils: Any,
    *,
    source: str = _DELTA,
    target: str = _DELTA,
    address: str = "",
    target_address: str = "",
    service: str = "",
) -> Pipeline:
    """The parameters of a pipeline notebook, from its widgets.

    ``source`` and ``target`` are systems, as :func:`~connectors.workbench.demo` names them; the target of ``cdc_database`` and
    ``jdbc_database`` is a schema of Delta tables. ``address`` names the widget with the address of the system,
    ``target_address`` that of the target's if both ends are systems, and ``service`` that with the URL of a service that the
    pipeline calls. If such a widget is empty, the pipeline runs on a demonstration.
    Raises :class:`Misconfigured` for an impossible parameter.
    """
    target = _SCHEMA if source in _DATABASES else target
    is_through = _DELTA not in (source, target)
    ends = {
        "source": EndWidgets(source, address, "options"),
        "target": EndWidgets(target, target_address or address, "target_options" if is_through else "options"),
        "service": EndWidgets("service", service, ""),
    }
    return Pipeline(dbutils, ends)


@dataclass(frozen=True)
class End:
    """The source or the target: the ``address`` of its system, and a ``name`` in that system, such as a topic."""

    address: str = field(repr=False)
    name: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More options to connect: those of a demonstration."""
    parameters: tuple[str, str] = ("address", "name")
    """The names of the widgets of ``address`` and ``name``."""
    more: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The values of other widgets, by name: those of a demonstration."""

    @property
    def parts(self) -> tuple[str, str]:
        """The ``name`` before and after its dot. Raises :class:`Misconfigured` unless it has exactly one."""
        parent, dot, child = self.name.partition(".")
        if not (parent and dot and child) or "." in child:
            raise _wrong(self.parameters[1], f'must have one dot, such as shop.orders; got "{self.name}".')
        return parent, child

    @property
    def properties(self) -> dict[str, Any]:
        """The ``address`` as a JSON object of properties."""
        return json_object(self.parameters[0], self.address)


@dataclass(frozen=True)
class EndWidgets:
    """A system, and the names of the widgets with its address and options."""

    system: str
    address: str
    options: str


class Pipeline:
    """A pipeline's parameters, and everything that derives from them.

    The name ``orders@2026-03-01`` is that of a slice of the pipeline ``orders``: a query of its own into the same target.
    """

    def __init__(self, dbutils: Any, ends: Mapping[str, EndWidgets]) -> None:
        self._dbutils, self.ends = dbutils, ends
        self.name = self._parameter("name")
        whole, at, self.slice = self.name.partition("@")
        if not _NAME.fullmatch(whole) or (at and not _NAME.fullmatch(self.slice)):
            raise _wrong("name", f'must be letters, digits, "_", "-" and "."; got "{self.name}".')
        self._whole = workdir(f"{workdir(self._parameter('workdir'))}/{whole}")
        """The folder of the pipeline with all of its slices."""
        if at and (ends["target"].system != _DELTA or ends["source"].system in (_DELTA, "cdc")):
            text = "slices are of pipelines that append to a Delta table, and are judged with their pipeline"
            raise _wrong("name", f'must have no "@": {text}; got "{self.name}".')
        if at and "://" in self._whole:  # the gate looks for slices as for files
            raise _wrong("workdir", f'must be a folder or a volume, no URL, for the slice "{self.name}".')
        self.folder = workdir(slice_folder(self._whole, self.slice)) if at else self._whole

    def path(self, part: str) -> str:
        """The place of a part of the pipeline's state, such as ``checkpoint``: below ``workdir``, in the folder ``name``."""
        return f"{self.folder}/{part}"

    @cached_property
    def source(self) -> End:
        """The source. A demonstration gets some new orders."""
        end, name = self.ends["source"], self._parameter("source")
        parameter = "source" if end.system == _DELTA else end.address
        if address := self._parameter(parameter):
            self._refuse_other_kind("source", parameter, is_demonstration=False)
            return End("" if end.system == _DELTA else address, name, parameters=(parameter, "source"))
        demonstration = self._demonstration("source", parameter)
        name = "orders" if parameter == "source" else name or "orders"
        demonstration.feed(name)
        print(f"{parameter} is empty, so this is a demonstration. It has got some new orders.")
        if end.system == _DELTA:
            return End("", f"{demonstration.folder}/{name}")
        return End(demonstration.address, name, demonstration.options, more=demonstration.parameters)

    def parameter(self, name: str) -> str:
        """The value of another widget of the source; that of the demonstration, where there is one."""
        return self.source.more.get(name) or self._parameter(name)

    @cached_property
    def target(self) -> End:
        """The target."""
        end, name = self.ends["target"], self._parameter("target")
        if end.system in _PLACES:
            return End("", workdir(name) if end.system == "files" else name)
        if address := self._parameter(end.address):
            self._refuse_other_kind("target", end.address, is_demonstration=False)
            return End(address, name, parameters=(end.address, "target"))
        demonstration = self._demonstration("target", end.address)
        demonstration.create(name)
        print(f"{end.address} is empty, so the target is a demonstration.")
        return End(demonstration.target_address or demonstration.address, name, demonstration.options)

    @cached_property
    def service(self) -> End:
        """The service that the pipeline calls; its address has ``{columns}``."""
        parameter = self.ends["service"].address
        if address := self._parameter(parameter):
            return End(address, "")
        print(f"{parameter} is empty, so the service is a demonstration.")
        return End(self._demonstration("service", parameter).address, "")

    def read(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` of the source; the parameter ``options``, JSON or a file beside the notebook, overrides them.

        Records that cannot be decoded become dead letters, unless ``errors`` says otherwise.
        """
        values = {**self.source.options, **options, **self._options("source")}
        if "value.format" not in values:
            return values
        return {**_letters(values.get("errors"), self.path("letters")), **values}

    def load(self, reader: DataStreamReader | DataFrameReader) -> DataFrame:
        """Loads the rows of the source, a Delta table, with ``reader``."""
        return loaded(reader, _place(self.source.name, "source"))

    def write(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` of the target; the parameter overrides them. Rows that the target refuses become dead letters.

        The sink has the pipeline's name, so that its ledger does not depend on the address.
        """
        ends, read = self.ends, self._parameter("source").split(",")
        if ends["source"] == replace(ends["target"], options="options") and self.target.name in map(str.strip, read):
            raise _wrong("target", f'must be another than source, which would never end; got "{self.target.name}".')
        values = {"sinkId": self.name, **self.target.options, **options, **self._options("target")}
        _, sink = _connectors(self.ends["target"].system)
        if sink is None or not sink.known_options().knows("errors"):
            return values
        return {**_letters(values.get("errors"), self.path("refused")), **values}

    def tables(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a function that writes many tables: ``options``, which the parameter ``target_options`` overrides."""
        return {"schema": self.schema.name, **options, **self._objects("target")}

    def look(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """``options`` of a reader of the target; those in the parameter that this reader knows override them."""
        source, _ = _connectors(self.ends["target"].system)
        known = source.known_options() if source else None
        more = {name: value for name, value in self._options("target").items() if known and known.knows(name)}
        for name in ("errors", "deadLetterPath"):  # they are for rows that the target refuses
            more.pop(name, None)
        return {**self.target.options, **options, **more}

    @cached_property
    def checks(self) -> Checks:
        """The checks of the rows, from the parameter ``checks``: JSON, or a file beside the notebook."""
        from ..quality import rules

        return rules(self._parameter("checks"))

    @property
    def trigger(self) -> dict[str, Any]:
        """The trigger, as ``writeStream.trigger`` takes it: ``availableNow``, ``continuous``, or an interval."""
        trigger = self._parameter("trigger")
        if trigger == "availableNow":
            return {"availableNow": True}
        if trigger == "continuous":
            return {"processingTime": "0 seconds"}
        seconds = self._seconds("trigger", trigger, "availableNow, continuous or an interval")
        return {"processingTime": f"{round(seconds * 1000)} milliseconds"}

    @property
    def table(self) -> dict[str, str]:
        """The target as options of ``connectors.delta``. Locally a table is a folder: Delta has no catalog there.

        Each slice has a ledger of its own there.
        """
        sink = {"sinkId": self.name} if self.slice else {}
        return {**_place(self._parameter("target"), "target"), **sink}

    @property
    def schema(self) -> TargetSchema:
        """The target as a schema of tables. Locally it is a folder of them."""
        (name,) = _place(self._parameter("target"), "target", "schema").values()
        return TargetSchema(name, self._parameter("checks"))

    def rows(self, spark: SparkSession) -> DataFrame:
        """The rows of the target, a Delta table."""
        return loaded(spark.read.format("delta"), self.table)

    def stored(self, spark: SparkSession, part: str) -> DataFrame:
        """The rows of a Delta table of the state: ``counts``, ``keys`` or ``quarantine``."""
        return spark.read.format("delta").load(self.path(part))

    def replace(self, rows: DataFrame, part: str = "") -> DataFrame:
        """Replaces the rows of the target, or of a ``part`` of the state, by ``rows``. Returns the rows of this commit.

        For the part ``copy``, raises :class:`Misconfigured` if the target has rows that this pipeline has not written.
        """
        from pyspark.sql import functions as f

        if self.slice and part in ("", "copy"):
            raise _wrong("name", f'must have no "@": a copy replaces all rows of the target; got "{self.name}".')
        spark, token = rows.sparkSession, f"{machine.token()} {self.folder}"
        table = {"path": self.path(part)} if part else self.table
        if part == "copy":
            self._refuse_foreign_rows(spark)
        writer = rows.write.format("delta").mode("overwrite").option("userMetadata", token)
        writer = writer.option("overwriteSchema" if part else "mergeSchema", "true")
        if "table" in table:
            writer.saveAsTable(table["table"])
        else:
            writer.save(table["path"])
        written = history(spark, table).where(f.col("userMetadata") == token).first()
        assert written is not None, "the commit is in the history"
        return loaded(spark.read.format("delta").option("versionAsOf", written["version"]), table)

    def _refuse_foreign_rows(self, spark: SparkSession) -> None:
        from pyspark.errors import AnalysisException

        try:
            if self.rows(spark).isEmpty():
                return
        except AnalysisException:  # there is no such table yet
            return
        newest = history(spark, self.table).where(_BRINGS_ROWS).orderBy("version", ascending=False).first()
        if newest is None or (newest["userMetadata"] or "").partition(" ")[2] != self.folder:
            text = f"has rows that {self.name}, whose state is in {self.folder}, has not written, and would lose them; got "
            text += f'"{self._parameter("target")}"'
            raise _wrong("target", f"{text}. Give another table, or empty this one.")

    def reconciliation(self, spark: SparkSession, rows: DataFrame | None = None) -> DataFrame:
        """One row: how many records were read, and where they are.

        ``read`` is the recorded rows of the batches plus the dead letters of the source. ``delivered`` is counted in the target
        if that is a Delta table. Else it is the rows passed to the sink, minus those that the target refused, minus the keys
        that are missing in the target's ``rows``, if these can be read. Of the missing keys, as many as the target refused in
        that time count as refused. No one else may write to the target or the state. A batch that is still being written is
        left out; a listing of files in ``rows`` must be newer than the records of the batches. Slices and their pipeline are
        counted together.
        """
        record = BatchRecord(spark, self._whole)
        if not record.newest:
            text = f"is {self.name}, which has recorded no batch in {self.path('counts')}"
            raise _wrong("name", f"{text}. Run it first; or give the name and the workdir of one that has run.")
        newest = record.newest.get(self._whole)
        letters, refused = record.letters(), letter_count(spark, self._refused, until("at", newest))
        if self.ends["target"].system == _DELTA:
            delivered = record.delivered(self.table)
        else:
            delivered = record.good - refused
            if rows is not None:
                recently = f"{until('at', newest)} AND {self._since('at', _COMMIT_SECONDS)}"
                recent = letter_count(spark, self._refused, recently)
                delivered -= max(self.lost(spark, rows, newest).count() - recent, 0)
        row = (record.read + letters, delivered, letters + refused, record.quarantined())
        return spark.createDataFrame([row], "read long, delivered long, dead_letters long, quarantined long")

    def merged(self, spark: SparkSession) -> DataFrame:
        """The number of rows that each batch of changes inserted, updated and deleted in the target, by version."""
        from pyspark.sql import functions as f

        counts = [f.col(f"operationMetrics.numTargetRows{kind}").cast("long").alias(kind.lower()) for kind in _MERGED]
        merges = history(spark, self.table).where("operation = 'MERGE'")
        return merges.select("version", *counts).orderBy(f.desc("version"))

    def lost(self, spark: SparkSession, rows: DataFrame, newest: Row | None = None) -> DataFrame:
        """The keys of rows that were passed to the sink and are missing in ``rows``, those of the target.

        The parameter ``lookback`` says how far back to look, since the target may retain rows for a limited time. Empty: all.
        Keys of batches after ``newest``, a version of the table ``counts``, are left out.
        """
        from pyspark.sql import functions as f

        from ..quality.check import quoted
        from ..quality.suite import DELIVERED_AT

        keys = self.stored(spark, "keys").where(until(DELIVERED_AT, newest)).where(self._since(DELIVERED_AT))
        keys = keys.drop(DELIVERED_AT).distinct()
        same = [f.expr(f"handed.{name} <=> there.{name}") for name in map(quoted, keys.columns)]
        return keys.alias("handed").join(rows.alias("there"), same, "left_anti")

    def _since(self, column: str, earlier: float = 0) -> str:
        """The condition that the time in ``column`` is within ``lookback``, or at most ``earlier`` seconds before it."""
        lookback = self._parameter("lookback")
        if not lookback:
            return "true"
        seconds = self._seconds("lookback", lookback, "empty or a duration") + earlier
        return f"unix_micros({column}) >= unix_micros(current_timestamp()) - {round(seconds * 1e6)}"

    @property
    def _refused(self) -> str:
        """The folder of the dead letters that the target has refused."""
        return str(self._options("target").get("deadLetterPath") or self.path("refused"))

    def _demonstration(self, side: str, parameter: str) -> Demo:
        """The demonstration of an end. If its system has lost its earlier data, the pipeline begins anew too."""
        system, mark = self.ends[side].system, self._mark(side)
        if self.slice:
            raise _wrong(parameter, "missing; a demonstration has no slices. Give the address of your system.")
        self._refuse_other_kind(side, parameter, is_demonstration=True)
        try:
            demonstration = demo(system, self.path("demonstration"))
        except Exception as missing:
            if not isinstance(missing, ImportError) and type(missing).__name__ != "Unavailable":
                raise
            text = f"missing; give the address of your system. Its demonstration cannot be had here: {missing}"
            raise _wrong(parameter, text) from missing
        target = self._parameter("target")
        if side in demonstration.forgets and not demonstration.is_used:
            self._begin_anew(is_its_own=mark.exists() and mark.read_text() == target)
        mark.write_text(target)
        demonstration.is_used = True
        return demonstration

    def _mark(self, side: str) -> Path:
        """The file that marks an end as a demonstration, for slices too. It holds the target of that demonstration."""
        return Path(f"{self._whole}/demonstration.{side}")

    def _refuse_other_kind(self, side: str, parameter: str, *, is_demonstration: bool) -> None:
        """Refuses to switch between a demonstration and a system: the state has positions in the one where it began."""
        has_mark = self._mark(side).exists()
        if has_mark and not is_demonstration:
            text = f"is given, but {self.name} is a demonstration until now, with its state in {self.folder}"
            raise _wrong(parameter, f"{text}. Give the pipeline another name and another target.")
        own = [Path(self.path("checkpoint")), Path(self.path("copy"))]
        own += Path(slice_folder(self._whole, "")).glob("*/checkpoint")
        if is_demonstration and not has_mark and any(path.exists() for path in own):
            text = f"missing; {self.name} has run on a system of your own, with its state in {self.folder}"
            raise _wrong(parameter, f"{text}. Give its address, or a demonstration another name and another target.")

    def _begin_anew(self, *, is_its_own: bool) -> None:
        """Removes the state of a demonstration, and its table (a local folder) if that ``is_its_own``."""
        kind = {_DELTA: "table", _SCHEMA: "schema"}.get(self.ends["target"].system)
        if kind is not None:
            target = self._parameter("target")
            if in_workspace() or not _is_name(target, kind):
                text = f"must be a {kind} on this machine, as {_FORMS[kind]}: this demonstration begins anew each time"
                raise _wrong("target", f'{text}; got "{target}". Give the address of your system, or another target.')
            if is_its_own:
                for folder in [self.table["path"]] if kind == "table" else self.schema.folders():
                    shutil.rmtree(folder)
        for part in Path(self.folder).iterdir():
            if part.is_dir() and part.name != "demonstration":
                shutil.rmtree(part)
        print("The server of this demonstration forgets everything at its end, so the pipeline begins anew.")

    @staticmethod
    def _seconds(parameter: str, text: str, kinds: str) -> float:
        try:
            return float(Duration(None).parse(text))
        except ValueError:
            raise _wrong(parameter, f'must be {kinds} such as "10 seconds"; got "{text}".') from None

    def _options(self, side: str) -> dict[str, Any]:
        """The options in the parameter of an end; lists and objects as JSON, since Spark takes texts."""
        values = self._objects(side)
        return {name: json.dumps(value) if isinstance(value, (dict, list)) else value for name, value in values.items()}

    def _objects(self, side: str) -> dict[str, Any]:
        end = self.ends[side]
        return {} if end.system == _DELTA else json_object(end.options, self._parameter(end.options) or "{}")

    def _parameter(self, name: str) -> str:
        return str(self._dbutils.widgets.get(name)).strip()


def _connectors(system: str) -> tuple[type[Source] | None, type[Sink] | None]:
    from ..systems import all_systems

    return all_systems()[system]


def _letters(errors: Any, folder: str) -> dict[str, str]:
    """The options that write bad records as dead letters to ``folder``, unless ``errors`` says otherwise."""
    if errors is not None and str(errors).lower() != "deadletter":
        return {}
    return {"errors": "deadLetter", "deadLetterPath": folder}


def json_object(parameter: str, text: str) -> dict[str, Any]:
    """The JSON object that a ``parameter`` was given as, or its file. Raises :class:`Misconfigured`, without the text."""
    try:
        value = json.loads(json_text(text))
    except OSError as unreadable:
        raise _wrong(parameter, f"is no JSON, nor a file that can be read: {unreadable.strerror}.") from None
    except ValueError as wrong:
        raise _wrong(parameter, f"is no JSON: {wrong}.") from None
    if not isinstance(value, dict):
        raise _wrong(parameter, 'must be a JSON object such as {"retry.maxRetries": "10"}.')
    return value


def _is_name(name: str, kind: str) -> bool:
    """True for the name of a table or schema in a catalog."""
    return bool(re.fullmatch(r"\.".join([_PART] * len(_FORMS[kind].split("."))), name))


def _place(name: str, parameter: str, kind: str = "table") -> dict[str, str]:
    """A table or schema by its name or its folder."""
    if _is_name(name, kind):
        if in_workspace():
            return {kind: name}
        return {"path": workdir(f"{VOLUMES}{name.replace('.', '/')}")}
    if "/" in name:
        return {"path": workdir(name)}
    raise _wrong(parameter, f'must be a {kind}, as {_FORMS[kind]}, or a folder; got "{name}".')


def _wrong(parameter: str, text: str) -> Misconfigured:
    return Misconfigured("the pipeline", [Problem(parameter, text)])
