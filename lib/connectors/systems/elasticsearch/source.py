"""The source: every document once, shard by shard, in the order of its last change.

A shard numbers its changes. The position is the next number of each shard, a split is a range of them: it can be read again
and gone on with after any document. A batch read sees each shard as it was at one point in time.

An index that is made anew under its name numbers its changes from 0 again; its uuid tells it from the one before.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from ...core import (
    REQUIRED,
    DataLoss,
    Duration,
    Fatal,
    Flag,
    Int,
    Json,
    Misconfigured,
    Options,
    PartitionProgress,
    Position,
    Problem,
    ReadLimit,
    SeekingReader,
    Slice,
    Source,
    Split,
    SplitEnumerator,
    Text,
    Transient,
)
from ...core.datasets import Dataset, of_server
from ...core.planning import even_ranges, fair_shares
from ...formats.base import fields_of, quoted
from ...formats.json import parsed, reader
from ...ground import machine
from .client import CONNECTION, NotFound, SearchClient, check_connection
from .documents import columns

_NAME: Final = "connectors.elasticsearch"
_SHARDS: Final = "indices.*.shards.*"
_STATS: Final = f"filter_path=indices.*.uuid,{_SHARDS}.routing.primary,{_SHARDS}.seq_no.global_checkpoint"
_NEWEST: Final = (1 << 63) - 1
"""The number that no change has passed."""
_JOIN_SECONDS: Final = 5.0
_WAY_OUT: Final = "set failOnDataLoss=false to go on without what is lost"
_log = logging.getLogger(_NAME)


@dataclass(frozen=True)
class Changes(Split):
    """The changes ``first`` to ``last`` of one shard, both included.

    ``moment`` names the shard's point in time in a batch read, and ``moments`` are those of all its shards.
    """

    index: str
    uuid: str
    shard: int
    first: int
    last: int
    moment: str = ""
    moments: tuple[str, ...] = field(default=(), repr=False, compare=False)


class ElasticsearchSource(Source):
    """The documents of an index.

    Columns are those of ``.schema(…)``, else of the mapping; a field with several values needs an array there. A batch read
    holds a point in time of each shard, of which a server keeps a few hundred. Each task that runs extends all of them, and
    ``keepAlive`` after the last task the server closes them. Raise it where the first task starts later than that, or one is to
    run again; the server's ``point_in_time.max_keep_alive`` or ``search.max_keep_alive`` is the most.

    As a batch: the index as it is when the read begins. As a stream: documents that are only added arrive exactly once; one
    that changes arrives again, in its newest form; deletions do not show.
    A stream cannot tell whether an index had more when it was deleted, so each one that goes is data loss: give
    ``failOnDataLoss=false`` where indices are deleted by their age. An index that is made anew is read from its beginning then.
    Guarantee: exactly-once for indices that only grow.
    """

    name = "elasticsearch"
    conditions = "the index only grows; a document that changes is read again"
    options = CONNECTION | Options(
        {
            "index": Text(REQUIRED, meaning="a name, an alias, a pattern, or a list of them"),
            "query": Json(None, meaning="a query clause; default: all documents"),
            "idColumn": Text(None, meaning="a column of this name gets the document's id"),
            "slices": Int(None, at_least=1, excludes="numPartitions", meaning="the same as numPartitions"),
            "pageSize": Int(5000, at_least=1, at_most=10_000, meaning="documents of a request"),
            "failOnDataLoss": Flag(True, meaning="a stream's index that is deleted or made anew is an error"),
            "keepAlive": Duration(600.0, meaning="how long a batch read's points in time outlive its last task"),
            "request.timeout": Duration(30.0, at_least="1ms", meaning="of one request"),
        }
    )

    check = staticmethod(check_connection)

    @cached_property
    def schema(self) -> str:  # type: ignore[override]
        client = SearchClient(_NAME, self.values)
        try:
            mapped = columns(client.ask("GET", f"/{self.path()}/_mapping"))
        except NotFound as missing:
            raise self.misspelt(missing) from None
        except ValueError as unclear:
            raise Misconfigured(_NAME, [Problem("schema", f"missing: {unclear}. Give .schema(…).")]) from None
        finally:
            client.close()
        if not mapped:
            problem = Problem("schema", f'missing, and "{self.values["index"]}" has no fields yet; give .schema(…).')
            raise Misconfigured(_NAME, [problem])
        return f"{quoted(self.values['idColumn'])} string, {mapped}" if self.values["idColumn"] else mapped

    def misspelt(self, missing: NotFound) -> Misconfigured:
        """The error for an index that does not exist."""
        return Misconfigured(_NAME, [Problem("index", f'"{self.values["index"]}" is not there: {missing.message}')])

    @property
    def keep_alive(self) -> str:
        return f"{round(self.values['keepAlive'] * 1000)}ms"

    def path(self) -> str:
        return quote(self.values["index"], safe=",*")

    def lose(self, text: str) -> None:
        """Raises ``DataLoss``, or warns of it where the user goes on without what is lost."""
        DataLoss(text, connector=_NAME, way_out=_WAY_OUT).report(_log, fails=self.values["failOnDataLoss"])

    def parallelism(self) -> int:
        return int(self.values["slices"] or super().parallelism())

    def datasets(self) -> Sequence[Dataset]:
        return [of_server("elasticsearch", self.values["hosts"][0], self.values["index"])]

    def enumerator(self) -> ShardEnumerator:
        return ShardEnumerator(self)

    def reader(self, schema: pa.Schema) -> ShardReader:
        return ShardReader(self, schema)


class ShardEnumerator(SplitEnumerator[Changes]):
    """The position is ``{"next": {"index/uuid/shard": number of the next change}}``, of every shard that has changes."""

    def __init__(self, source: ElasticsearchSource) -> None:
        self.source = source

    @cached_property
    def client(self) -> SearchClient:
        return SearchClient(_NAME, self.source.values)

    def start(self) -> Position:
        self._refuse_views()
        return {"next": {}}

    def _refuse_views(self) -> None:
        """Raises ``Misconfigured`` for an alias of a part of an index: shards are read by the names of their indices."""
        with contextlib.suppress(NotFound):
            answer = self.client.ask("GET", f"/{self.source.path()}/_alias")
            names = self.source.values["index"].split(",")
            for index, kinds in answer.items():
                views = [name for name, alias in kinds["aliases"].items() if "filter" in alias or "search_routing" in alias]
                if not _is_among(index, names) and (view := next((view for view in views if _is_among(view, names)), None)):
                    text = f'names the alias "{view}" of a part of "{index}". Name the index, and give the filter by query.'
                    raise Misconfigured(_NAME, [Problem("index", text)])

    def head(self) -> dict[str, int]:
        """One past the last change of each shard up to which all are there; then they are made visible to searches."""
        path, lenient = self.source.path(), ""
        try:
            stats = self.client.ask("GET", f"/{path}/_stats?level=shards&{_STATS}")
        except NotFound as missing:
            if not self.source.streaming:
                raise self.source.misspelt(missing) from None
            # one of a stream's list may not be there
            lenient = "?ignore_unavailable=true"
            stats = self.client.ask("GET", f"/{path}/_stats{lenient}&level=shards&{_STATS}")
        heads = {
            f"{index}/{statistics['uuid']}/{number}": copy["seq_no"]["global_checkpoint"] + 1
            for index, statistics in stats.get("indices", {}).items()
            for number, copies in statistics["shards"].items()
            for copy in copies
            if copy["routing"]["primary"]
        }
        if not self.source.streaming:
            self._check_shards(path, heads)
        self.client.request("POST", f"/{path}/_refresh{lenient}")
        return heads

    def _check_shards(self, path: str, heads: Iterable[str]) -> None:
        """Raises ``Transient`` where no node holds a shard just now: a batch read would end without its documents."""
        settings = self.client.ask("GET", f"/{path}/_settings/index.number_of_shards?expand_wildcards=open")
        present = Counter(shard.partition("/")[0] for shard in heads)
        counts = {index: int(answer["settings"]["index"]["number_of_shards"]) for index, answer in settings.items()}
        if partial := [index for index, count in counts.items() if present[index] < count]:
            shards = ", ".join(f"{index} has {present[index]} of {counts[index]}" for index in sorted(partial))
            raise Transient(f"not all shards are there: {shards}", way_out="see the health of the cluster")

    def advance(self, at: Position, head: Mapping[str, int], limit: ReadLimit) -> Position:
        done = self._without_lost(at["next"], head)
        shares = fair_shares(limit.rows, {shard: number - done.get(shard, 0) for shard, number in head.items()})
        if not any(shares.values()):
            return {"next": done}
        return {"next": {**done, **{shard: done.get(shard, 0) + shares.get(shard, 0) for shard in head if head[shard]}}}

    def _without_lost(self, done: Mapping[str, int], head: Mapping[str, int]) -> dict[str, int]:
        """``done`` without indices that are gone, and no further than shards go. Raises ``DataLoss`` where that is an error."""
        missing = {_index(shard) for shard in done} - {_index(shard) for shard in head}
        gone = missing and missing - _indices(self.client, self.source.path())  # statistics lack what no node holds just now
        if gone:
            text = f'of "{self.source.values["index"]}" these were deleted or made anew: {_names(gone)}'
            self.source.lose(f"{text}; what was not read of them is lost")
        for shard, number in head.items():
            if done.get(shard, 0) > number:
                text = f"the shard {_partition(shard)} ends at change {number}, but {done[shard]} were read: it lost the others"
                self.source.lose(text)
        return {shard: min(number, head.get(shard, number)) for shard, number in done.items() if _index(shard) not in gone}

    def progress(self, at: Position, head: Mapping[str, int]) -> Sequence[PartitionProgress]:
        done = at["next"]
        parts = [(shard, done.get(shard, 0), number) for shard, number in head.items()]
        return [PartitionProgress(_partition(shard), first, number, number - first) for shard, first, number in parts]

    def partition_of(self, split: Changes) -> str:
        return _partition_of(split)

    def splits(self, start: Position, end: Position, parallelism: int) -> Iterator[Changes]:
        ranges = {shard: (start["next"].get(shard, 0), number) for shard, number in sorted(end["next"].items())}
        shards = {shard: (first, end) for shard, (first, end) in ranges.items() if first < end}
        each = -(-parallelism // max(1, len(shards)))
        for shard, (first, after) in shards.items():
            index, uuid, number = shard.split("/")
            for low, high in even_ranges(first, after - 1, each):
                yield Changes(index, uuid, int(number), low, high)

    def slices(self, start: Position, end: Position, parallelism: int) -> Sequence[Slice]:
        parts = super().slices(start, end, parallelism)
        if self.source.streaming:
            return parts
        moments = self._moments([shard for shard, after in end["next"].items() if after > start["next"].get(shard, 0)])
        return [Slice(part.start, part.end, part.index, part.of, part.parallelism, moments) for part in parts]

    def splits_of(self, part: Slice) -> Iterator[Changes]:
        all_moments: dict[str, str] = part.detail or {}
        for split in islice(self.splits(part.start, part.end, part.parallelism), part.index, None, part.of):
            moment = all_moments.get(self.partition_of(split), "")
            is_newest = split.last + 1 == part.end["next"][f"{split.index}/{split.uuid}/{split.shard}"]
            # a document that changed between the plan and the moment is behind the end of the plan
            last = _NEWEST if moment and is_newest else split.last
            yield replace(split, moment=moment, last=last, moments=tuple(all_moments.values()))

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()

    def _moments(self, shards: Sequence[str]) -> dict[str, str]:
        """A point in time of each shard: what is changed after it does not move out of the range that is being read.

        The tasks cannot close them: one that has ended may be run again. The server does, ``keepAlive`` after the last task.
        """
        moments: dict[str, str] = {}
        try:
            for shard in shards:
                index, _, number = shard.split("/")
                moments[_partition(shard)] = self._moment(index, number)
            if gone := {_index(shard) for shard in shards} - _indices(self.client, self.source.path()):
                text = f"indices were deleted or made anew while the read began: {_names(gone)}"
                raise DataLoss(text, way_out="read again")
        except BaseException:
            self._close_moments(list(moments.values()))
            raise
        return moments

    def _moment(self, index: str, shard: str) -> str:
        place = f"keep_alive={self.source.keep_alive}&preference=_shards:{shard}"
        path, name = ("_search/point_in_time", "pit_id") if self._is_opensearch else ("_pit", "id")
        try:
            return str(self.client.ask("POST", f"/{quote(index)}/{path}?{place}")[name])
        except Fatal as refused:
            if "keep alive" not in refused.message.lower():
                raise
            text = f'"{self.source.values["keepAlive"]:g}s" is longer than the server allows: {refused.message}'
            raise Misconfigured(_NAME, [Problem("keepAlive", text)]) from None

    def _close_moments(self, moments: Sequence[str]) -> None:
        with contextlib.suppress(Transient, Fatal):
            if moments and self._is_opensearch:
                self.client.ask("DELETE", "/_search/point_in_time", {"pit_id": moments})
            for moment in moments if not self._is_opensearch else ():
                self.client.ask("DELETE", "/_pit", {"id": moment})

    @cached_property
    def _is_opensearch(self) -> bool:
        return bool(self.client.ask("GET", "/")["version"].get("distribution") == "opensearch")


class ShardReader(SeekingReader[Changes]):
    """Reads pages of documents; each page begins after the last change of the page before."""

    def __init__(self, source: ElasticsearchSource, schema: pa.Schema) -> None:
        super().__init__()
        self.source, self.schema = source, schema
        self.id = source.values["idColumn"]
        self.fields = [field for field in schema if field.name != self.id]
        self.readers = [_cell(field.type, field.name) for field in self.fields]
        self.objects = _objects(self.fields)
        self._keeper: threading.Thread | None = None
        self._is_over = machine.event()

    def open(self) -> None:
        self.client = SearchClient(_NAME, self.source.values, connections=2)

    def close(self) -> None:
        self._is_over.set()
        if self._keeper is not None:
            self._keeper.join(_JOIN_SECONDS)
        if hasattr(self, "client"):
            self.client.close()

    def read(self, split: Changes) -> Iterator[pa.RecordBatch]:
        if split.moments and self._keeper is None:
            self._keeper = machine.thread(partial(self._extend, split.moments), "connectors.moments")
            self._keeper.start()
        return super().read(split)

    def read_after(self, split: Changes, position: int | None) -> Iterator[tuple[pa.RecordBatch, int]]:
        """A position is the number of a change."""
        first = split.first if position is None else position + 1
        while first <= split.last:
            hits = self._page(split, first)
            if not hits:
                return
            first = hits[-1]["sort"][0] + 1
            yield self._rows(hits), first - 1

    def _page(self, split: Changes, first: int) -> list[Any]:
        ranges: list[Any] = [{"range": {"_seq_no": {"gte": first, "lte": split.last}}}]
        if self.source.values["query"]:
            ranges.append(self.source.values["query"])
        body: dict[str, Any] = {
            "size": self.source.values["pageSize"],
            "query": {"bool": {"filter": ranges}},
            "sort": [{"_seq_no": "asc"}],
            "track_total_hits": False,
            "_source": True if self._exact else [field.name for field in self.fields] or False,
        }
        path = f"/{quote(split.index)}/_search?preference=_shards:{split.shard}"
        if split.moment:
            path = "/_search"
            body["pit"] = self._pit(split.moment)
        try:
            answer = self.client.request("POST", path, self.client.json.dumps(body))
        except NotFound as missing:
            if not split.moment:
                if self._is_there(split):
                    raise
                return []
            text = f"the point in time of the read is over: {missing.message}"
            raise Fatal(text, way_out="raise keepAlive above the time that the read takes, and read again") from None
        if not split.moment and not self._is_there(split):
            return []
        result = parsed(answer.decode()) if self._exact else self.client.loads(answer)
        if result.get("timed_out") or result["_shards"]["failed"]:  # by a time limit of the cluster, for example
            raise Transient(f"the server has answered with a part of a page of {_partition_of(split)}")
        return list(result["hits"]["hits"])

    def _extend(self, moments: Sequence[str]) -> None:
        """Keeps the points in time of all shards: tasks wait for their turn, and for who takes their rows."""
        while not self._is_over.is_set():
            for moment in moments:
                if self._is_over.is_set():
                    return
                with contextlib.suppress(Transient, Fatal):  # the next page tells what is wrong
                    self.client.ask("POST", "/_search", {"size": 0, "track_total_hits": False, "pit": self._pit(moment)})
            self._is_over.wait(self.source.values["keepAlive"] / 3)

    def _pit(self, moment: str) -> dict[str, str]:
        return {"id": moment, "keep_alive": self.source.keep_alive}

    def _is_there(self, split: Changes) -> bool:
        """False if the index is gone, or another one has its name. Asked for after a page, it holds for the page."""
        is_there = f"{split.index}/{split.uuid}" in _indices(self.client, quote(split.index))
        if not is_there:
            text = f'the index "{split.index}" was deleted or made anew before the changes {split.first} to {split.last} of its'
            self.source.lose(f"{text} shard {split.shard} were read")
        return is_there

    @cached_property
    def _exact(self) -> bool:
        """True if there are decimals: a float would not keep their digits, nor does a server that picks fields."""
        return "decimal" in str(self.schema)

    def _rows(self, hits: list[Any]) -> pa.RecordBatch:
        documents = [_expanded(hit.get("_source") or {}, self.objects) for hit in hits]
        columns = {self.id: pa.array([hit["_id"] for hit in hits], pa.string())} if self.id in self.schema.names else {}
        try:
            for field, read in zip(self.fields, self.readers, strict=True):
                columns[field.name] = pa.array([read(document.get(field.name)) for document in documents], field.type)
        except ValueError as wrong:
            raise Fatal(f"a document does not fit the columns: {wrong}", way_out="give .schema(…) that fits it") from None
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


def _indices(client: SearchClient, path: str) -> set[str]:
    """The indices that ``path`` names and that exist, each as ``name/uuid``."""
    answer = client.ask("GET", f"/{path}/_settings/index.uuid?ignore_unavailable=true&expand_wildcards=all")
    return {f"{name}/{index['settings']['index']['uuid']}" for name, index in answer.items()}


def _names(indices: Iterable[str]) -> str:
    return ", ".join(sorted(index.partition("/")[0] for index in indices))


def _index(shard: str) -> str:
    return shard.rpartition("/")[0]


def _partition_of(split: Changes) -> str:
    return f"{split.index}/{split.shard}"


def _partition(shard: str) -> str:
    """The name of a shard for people: without the uuid of its index."""
    index, _, number = shard.split("/")
    return f"{index}/{number}"


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _objects(fields: Iterable[pa.Field]) -> dict[str, Any]:
    """The fields that are objects or lists of them, and those in them."""
    kinds = {field.name: field.type.value_type if pa.types.is_list(field.type) else field.type for field in fields}
    return {name: _objects(fields_of(kind)) for name, kind in kinds.items() if pa.types.is_struct(kind)}


def _expanded(document: dict[str, Any], objects: Mapping[str, Any]) -> dict[str, Any]:
    """``document`` with objects for names with dots, which the server maps like them: ``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    for name in [name for name in document if "." in name] if objects else ():
        outer, _, inner = name.partition(".")
        if outer in objects and isinstance(document.get(outer, {}), dict):
            document[outer] = {**document.get(outer, {}), inner: document.pop(name)}
    for name, inner_objects in objects.items():
        value = document.get(name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, dict):
                _expanded(part, inner_objects)
    return document


def _cell(kind: pa.DataType, name: str) -> Any:
    """Reads a value as searches mean it: one value may stand for a list of one, a number for a time in milliseconds."""
    read = reader(kind, name)
    if pa.types.is_list(kind):
        item = _cell(kind.value_type, name)
        return lambda value: None if value is None else [item(part) for part in (value if isinstance(value, list) else [value])]
    if pa.types.is_struct(kind):
        inner = [(field.name, _cell(field.type, f"{name}.{field.name}")) for field in fields_of(kind)]
        return lambda value: {field: cell(value.get(field)) for field, cell in inner} if type(value) is dict else read(value)
    if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
        item = _cell(kind.item_type, name)
        return lambda value: [(key, item(part)) for key, part in value.items()] if type(value) is dict else read(value)
    if pa.types.is_timestamp(kind):
        return lambda value: value * 1000 if type(value) is int else read(value)
    return read
