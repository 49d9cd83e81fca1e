"""A sink of several that the query does not need: what it misses while it is away waits in a folder, and comes to it later.

::

    <missedLocation>/<sinkId>/<query>/<batch>.json       that the batch is missed, with the recipe of its rows
    <missedLocation>/<sinkId>/<query>/<batch>.parquet    its rows, written by Spark

The sink gets missed batches with their own numbers, in their order, and before any later one. So its ledger sees each batch
once and none left out, whenever the driver dies: a batch that is in the folder and in the target is a replay.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ..core.ledger import Entry, ReplayPolicy, check_recipe, compare_replay
from ..ground import machine
from ..ground.errors import CommitRefused
from ..ground.messages import is_permanent, own_message
from ..ground.options import Choice, Duration, Options, Values
from ..ground.state import dumps, loads, versioned
from ..storage.location import Location, storage_of
from .execution import is_stopped, running_query
from .library import Carried
from .measure import Measures
from .query_watch import run_of
from .session import hadoop_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from .foreach_batch import ForeachBatch

_log = logging.getLogger("connectors")
OPTIONS: Final = Options(
    required=Choice(
        "true", among=("true", "false"), meaning="false: of several sinks, one that may be away, and gets its batches later"
    ),
    missedLocation=Location(
        None, only_with="required=false", needed_by="required=false: a folder for the batches that the sink misses",
        meaning="the folder of the batches that the sink has missed",
    ),
    missedInterval=Duration(30.0, only_with="required=false", meaning="so long the sink is left alone after a failure"),
)
"""The options of a sink among several, beside its own."""
_NOTE, _ROWS = ".json", ".parquet"
_NO_PATTERN: Final = ("__globPaths__", "false")
"""Spark's option that takes ``*``, ``[`` and ``{`` of a path as they are."""
_IMPATIENT: Final[Mapping[str, str]] = {"retry.maxRetries": "0", "outageTimeout": "0s"}
"""What an optional sink has in place of the defaults: others would wait for it."""


def one_of_several(options: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Any]) -> Any:
    """The sink that ``make`` makes of its own ``options``, in an :class:`OptionalSink` where they say that it is one."""
    values = OPTIONS.parse("connectors.foreach_batch", {name: text for name, text in options.items() if OPTIONS.knows(name)})
    own = {name: text for name, text in options.items() if not OPTIONS.knows(name)}
    if values["required"] == "true":
        return make(own)
    names = {name.lower() for name in own}
    return OptionalSink(make({**{name: text for name, text in _IMPATIENT.items() if name.lower() not in names}, **own}), values)


class OptionalSink(Carried):
    """Commits each micro-batch to ``sink``, or keeps it where that fails. ``values`` are those of :data:`OPTIONS`."""

    def __init__(self, sink: ForeachBatch, values: Values) -> None:
        self.sink = sink
        self.location, self.interval = str(values["missedLocation"]).rstrip("/"), float(values["missedInterval"])
        self._missed: dict[str, _Missed] = {}
        self._next_try = -math.inf

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_missed": {}, "_next_try": -math.inf}  # another process looks for itself, and has another clock

    def __call__(self, frame: DataFrame, number: int, recipe: str = "") -> None:
        """Commits ``frame`` as the batch ``number`` behind those that the sink has missed.

        Raises what only a person can mend: ``Misconfigured``, or ``CommitRefused`` where a ledger or the folder contradicts it.
        """
        query = running_query(frame, self.sink.sink.values["queryName"], self.sink.starter)
        missed = self._missed_batches(frame, query)
        if not missed.numbers and self._takes(frame, number, recipe, query):
            return
        if not missed.numbers or number > missed.numbers[-1]:
            missed.keep(frame, number, recipe)
        else:
            missed.check_replay(frame, number, recipe, ReplayPolicy.of(self.sink.sink.values))
        while missed.numbers and machine.monotonic() >= self._next_try:
            first = missed.numbers[0]
            rows, recipe_before = missed.batch(frame, first)
            if not self._takes(rows, first, recipe_before, query):
                break
            missed.drop(first)
        if missed.numbers:
            text = "connectors.%s is away and not required: %d of its batches wait in %s"
            _log.warning(text, self.sink.sink.name, len(missed.numbers), missed.location)

    @property
    def place(self) -> str:
        """The folder of this sink, which no other sink may have."""
        return f"{self.location}/{quote(self.sink.sink.sink_id(), safe='').replace('.', '%2E')}"

    def _missed_batches(self, frame: DataFrame, query: str) -> _Missed:
        """The missed batches of ``query``, as its run has found them: another process may have had the run before."""
        spark_run = run_of(frame, query)
        run = spark_run.id if spark_run else ""
        if query not in self._missed or self._missed[query].run != run:
            self._missed[query] = _Missed(f"{self.place}/{query}", run)
        return self._missed[query]

    def _takes(self, frame: DataFrame, number: int, recipe: str, query: str) -> bool:
        """True if the sink has the batch now. An error that may pass is a warning; that of a query that is stopped goes on."""
        try:
            self.sink(frame, number, recipe)
        except Exception as error:
            if is_permanent(error) or is_stopped(frame.sparkSession, query):
                raise
            self._next_try = machine.monotonic() + self.interval
            _log.warning("connectors.%s has not taken batch %d: %s", self.sink.sink.name, number, own_message(error) or error)
            return False
        return True


class _Missed:
    """The missed batches of a query, by their ``numbers`` in order."""

    def __init__(self, location: str, run: str = "") -> None:
        self.location, self.run = location, run
        self._storage = storage_of(location, client_of=hadoop_client)
        self.numbers = sorted(int(name.removesuffix(_NOTE)) for name in self._storage.names() if name.endswith(_NOTE))
        for name in self._storage.folders():  # a driver has died when it kept or dropped a batch
            if name.endswith(_ROWS) and int(name.removesuffix(_ROWS)) not in self.numbers:
                self._storage.delete_folder(name)

    def keep(self, frame: DataFrame, number: int, recipe: str) -> None:
        """Keeps a batch; it counts when all of its rows are there."""
        rows = f"{number}{_ROWS}"
        frame.write.mode("overwrite").parquet(self._url(rows))
        self._storage.sync([f"{rows}/{name}" for name in self._storage.names(rows)], [rows, ""])
        content = dumps(versioned(recipe=recipe, schema=json.loads(frame.schema.json())))
        self._storage.replace(f"{number}{_NOTE}", content.encode(), durable=True)
        self._storage.sync(folders=[""])
        self.numbers = sorted([*self.numbers, number])

    def check_replay(self, frame: DataFrame, number: int, recipe: str, policy: ReplayPolicy) -> None:
        """Raises :class:`CommitRefused` unless the batch ``number`` is the newest that is missed, and has the same rows."""
        if number != self.numbers[-1]:
            raise CommitRefused(
                f"batch {number} is older than batch {self.numbers[-1]}, which waits in {self.location}: an older checkpoint "
                "was restored, and its batches need not hold the same rows as those that wait",
                way_out=f"restore the newest checkpoint; or delete the folder's batches from {number} on: they come again",
            )
        rows, recipe_before = self.batch(frame, number)
        before = Measures.of(rows)
        entry = Entry(self.location, number, before.rows, before.checksum, recipe=recipe_before)
        check_recipe(entry, recipe, policy)
        replay = Measures.of(frame)
        compare_replay(entry, replay.rows, replay.checksum, policy)

    def batch(self, frame: DataFrame, number: int) -> tuple[DataFrame, str]:
        """The rows of a batch and its recipe, in the session of ``frame``."""
        from pyspark.sql.types import StructType

        state = loads(self._storage.read(f"{number}{_NOTE}"), f"the missed batch {number} in {self.location}")
        schema = StructType.fromJson(state["schema"])
        reader = frame.sparkSession.read.schema(schema).option(*_NO_PATTERN)
        return reader.parquet(self._url(f"{number}{_ROWS}")), state["recipe"]

    def drop(self, number: int) -> None:
        """Deletes a batch that the target has."""
        self._storage.delete(f"{number}{_NOTE}")
        self._storage.sync(folders=[""])  # a note that a power failure brings back would stand there without its rows
        self._storage.delete_folder(f"{number}{_ROWS}")
        self.numbers.remove(number)

    def _url(self, name: str) -> str:
        """The file or folder ``name`` as Spark takes it."""
        return self._storage.spark_url(name) if self.location.startswith("s3://") else f"{self.location}/{name}"
