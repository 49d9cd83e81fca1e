"""The sink of ``connectors.http``: rows as requests, one for each row or one for many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from string import Formatter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import pyarrow as pa

from ...batching import BatchingSink, BatchingWriter, Failure, FlowLimits, batching_options
from ...core import REQUIRED, Batch, Choice, Fatal, FrameSink, Guarantee, Int, Options, Poison, Problem, Text, Values
from ...core.datasets import Dataset
from ...formats.documents import documents
from ...formats.templates import filled
from ...ground.columns import Column, Template, template_columns
from ...ground.state import digest
from .client import CONNECTION, NO_STEPS, RETRY_STATUSES, HttpClient, check_http, of_url, refusal, shown, statuses

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TYPES: Final = {"row": "application/json", "json": "application/json", "ndjson": "application/x-ndjson"}
_GONE: Final = (404, 410)
_NO_SUCH_PLACE: Final = (404, 405)


class Request(NamedTuple):
    """A row to send: its URL, its idempotency key (``""``: none), and its body."""

    url: bytes
    key: str
    body: bytes


class HttpSink(BatchingSink, FrameSink):
    """Sends rows to ``url``: each as a request, or many in one.

    ``url`` has columns in braces; their values are percent-encoded. A row whose values leave a part of its path empty, or make
    it ``.`` or ``..``, is a bad row: that is the place of other rows. An answer of ``retryStatuses`` is an outage; another one
    of 400 to 499 is a bad row, except those that concern the login.

    ``idempotencyHeader`` names a header that gets a key of each row: from sink, query, batch and ``idColumn``; without
    ``idColumn`` from the whole row, with a number for equal rows, and only with ``foreach_batch``.

    Guarantee: idempotent with ``idempotencyHeader`` if the server takes each key once: a replay, also by other tasks, sends
    the same keys. Also idempotent with PUT and DELETE at a ``url`` with columns. At-least-once otherwise.

    Rows of one ``url`` with columns are sent one after the other. If a request got no answer within ``request.timeout``, the
    server may still apply it after a newer one, unless it compares versions.
    """

    name = "http"
    options = (
        CONNECTION
        | batching_options(max_records=100, max_bytes="5MB", max_time="200ms")
        | Options(
            url=Template(REQUIRED, example="https://host/users/{id}", meaning="where rows go: https://host/users/{user_id}"),
            method=Choice("POST", among=("POST", "PUT", "PATCH", "DELETE"), meaning="of each request"),
            body=Choice(
                "row", among=("row", "json", "ndjson"), excludes="method=DELETE: its requests have none",
                meaning="what a request has: a row, a list, or lines",
            ),
            idempotencyHeader=Text(
                None, "[A-Za-z0-9-]+", "the name of a header, such as Idempotency-Key",
                only_with="body=row: the rows of one request vary",
                meaning="a header with a key of the row, such as Idempotency-Key",
            ),
            idColumn=Column(
                None, only_with="idempotencyHeader", meaning="what tells rows of a batch apart; default: all columns"
            ),
            successStatuses=Text("200-299", meaning="statuses of rows that were taken"),
            retryStatuses=Text(RETRY_STATUSES, meaning="statuses of an outage; Retry-After is heeded"),
            numPartitions=Int(4, at_least=1, meaning="idempotencyHeader without idColumn: tasks that send"),
        )
    )
    promise = Guarantee.IDEMPOTENT
    conditions = "idempotencyHeader at a server that takes each key once, or PUT and DELETE at a url with columns"

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from check_http(values)
        yield from _check_url(values)
        if (values["idempotencyHeader"] or "").lower() in {name.lower() for name in values["headers"]}:
            yield Problem("idempotencyHeader", "is given by headers too, the same for all rows; leave it out there.")
        for option in ("successStatuses", "retryStatuses"):
            try:
                statuses(values[option])
            except ValueError as wrong:
                yield Problem(option, f'must be {wrong}; got "{values[option]}".')
        default = cls.options.declared["batch.maxRecords"].default
        if values["body"] == "row" and values["batch.maxRecords"] not in (1, default):
            yield Problem("batch.maxRecords", "has no use with body=row; take body=json or ndjson.")

    @classmethod
    def strongest(cls, values: Values) -> tuple[Guarantee, str]:
        if values["idempotencyHeader"] is not None:
            return Guarantee.IDEMPOTENT, "a server that takes each key once has each row once, but has no ledger of batches."
        if values["method"] in ("PUT", "DELETE") and template_columns(values["url"]):
            return Guarantee.IDEMPOTENT, "a replay sends rows again, in the place of the first ones."
        text = "a replay sends rows again; name idempotencyHeader, or take method=PUT and a column in url."
        return Guarantee.AT_LEAST_ONCE, text

    def target(self) -> str:
        return f"{self.values['method']} {shown(self.values['url'])} {digest(self.values['url'])}"

    def datasets(self) -> Sequence[Dataset]:
        url = self.values["url"]
        return [of_url(url)._replace(name=digest(url))]  # the path of a webhook is its secret

    def check_frame(self, schema: pa.Schema, *, placed: bool) -> Iterator[Problem]:
        if self._needs_placing() and not placed:
            text = "missing; with format(…) and df.write, idempotencyHeader needs the column that tells rows of a batch apart."
            yield Problem("idColumn", f"{text} Or use foreach_batch, which finds equal rows.")

    def placed(self, frame: DataFrame, schema: pa.Schema, batch: Batch) -> tuple[HttpSink, DataFrame]:
        if not self._needs_placing():
            return self, frame
        return self, frame.repartition(self.values["numPartitions"], *_columns_with_hash(frame))

    def writer(self, batch: Batch, schema: pa.Schema, subtask: int) -> HttpWriter:
        return HttpWriter(self, batch)

    def _needs_placing(self) -> bool:
        return self.values["idempotencyHeader"] is not None and self.values["idColumn"] is None


class HttpWriter(BatchingWriter):
    """Sends the rows of one task."""

    def __init__(self, sink: HttpSink, batch: Batch) -> None:
        values = self._values = sink.values
        self._batch = batch
        self._places, self._steps = template_columns(values["url"]), _steps(values["url"])
        self._has_documents = values["method"] != "DELETE" or (values["idempotencyHeader"] and not values["idColumn"])
        self._success, self._retried = statuses(values["successStatuses"]), statuses(values["retryStatuses"])
        self._equal: Counter[str] = Counter()
        self._type = {"Content-Type": _TYPES[values["body"]], "Accept": "application/json"}
        connections = values["batch.maxInFlight"]
        self.client = HttpClient(values, values["url"], connections=connections, seconds=values["request.timeout"])
        super().__init__(sink, batch)

    def limits_of(self, values: Values) -> FlowLimits:
        limits = super().limits_of(values)
        if values["body"] != "row":
            return limits
        return replace(limits, records=1, buffered=values["batch.maxBuffered"] or 4 * limits.in_flight)

    def entries(self, rows: pa.RecordBatch) -> Sequence[Request | Poison]:
        urls = [self._placed(url) for url in filled(self._values["url"], rows, lambda text: quote(text, safe="").encode())]
        bodies = documents(rows) if self._has_documents else [b""] * rows.num_rows
        keys = self._keys(rows, bodies)
        entries: list[Request | Poison] = []
        for url, key, body in zip(urls, keys, bodies, strict=True):
            bad = next((part for part in (url, key, body) if isinstance(part, Poison)), None)
            entries.append(bad if bad is not None else Request(url, key, body))  # type: ignore[arg-type]
        return entries

    def sizes(self, entries: Sequence[Request]) -> list[int]:
        return [len(entry.body) + 1 for entry in entries]

    def keys(self, entries: Sequence[Request]) -> Sequence[Hashable] | None:
        return [entry.url for entry in entries] if self._places else None

    def send(self, entries: list[Request]) -> Iterator[Failure]:
        values, first = self._values, entries[0]
        headers = {**self._type, values["idempotencyHeader"]: first.key} if first.key else self._type
        url = first.url.decode()
        answer = self.client.request(values["method"], url, headers, self._body(entries))
        if answer.status in self._success or (values["method"] == "DELETE" and answer.status in _GONE):
            return
        error = refusal(answer, url, self._retried)
        if isinstance(error, Poison) and answer.status in _NO_SUCH_PLACE and not self._places:
            raise Fatal(error.message, way_out="correct url or method")
        raise error
        yield

    def _placed(self, url: bytes | Poison) -> bytes | Poison:
        """``url``, unless a value makes it another place: ``users/`` of no text, and ``users/..``, name all of them."""
        if isinstance(url, Poison) or not self._steps:
            return url
        path = _path(url.decode()).split("/")
        bad = next((path[step] for step in self._steps if path[step] in NO_STEPS), None)
        return url if bad is None else Poison(f'a column makes "{bad}" of a part of the path of url, which is another place')

    def _body(self, entries: list[Request]) -> bytes | None:
        if self._values["method"] == "DELETE":
            return None
        bodies = [entry.body for entry in entries]
        if self._values["body"] == "row":
            return bodies[0]
        return b"[" + b",".join(bodies) + b"]" if self._values["body"] == "json" else b"\n".join([*bodies, b""])

    def _keys(self, rows: pa.RecordBatch, bodies: Sequence[bytes | Poison]) -> Sequence[str | Poison]:
        """The idempotency key of each row; a null in ``idColumn`` has none, since all such rows would share it."""
        if self._values["idempotencyHeader"] is None:
            return [""] * rows.num_rows
        batch, column = self._batch, self._values["idColumn"]
        parts: Sequence[Any]
        if column is not None:
            parts = rows.column(column).to_pylist()
        else:
            names = [digest(body) for body in bodies]
            parts = [f"{name}-{self._number(name)}" for name in names]
        null = Poison(f'the column "{column}" is null')
        return [null if part is None else digest(batch.sink_id, batch.query, batch.number, part, length=32) for part in parts]

    def _number(self, name: str) -> int:
        """Counts a row with the digest ``name``, and returns the number of equal rows before it."""
        self._equal[name] += 1
        return self._equal[name] - 1


def _path(url: str) -> str:
    """A URL up to its query or fragment."""
    return re.split("[?#]", url)[0]


def _steps(url: str) -> list[int]:
    """The numbers of the parts between slashes that have a column."""
    text = "".join(literal + ("\0" if name else "") for literal, name, _, _ in Formatter().parse(url))
    return [number for number, part in enumerate(_path(text).split("/")) if "\0" in part]


def _check_url(values: Values) -> Iterator[Problem]:
    url = values["url"]
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        yield Problem("url", f'must begin with http:// or https:// and a host; got "{shown(url)}".')
    elif "@" in parts.netloc:
        yield Problem("url", "must hold no login; give it by auth.")
    elif "{" in parts.netloc:
        yield Problem("url", "must have no column in its host: the login goes to one server.")
    elif template_columns(url) and values["body"] != "row":
        yield Problem("url", f"has a column, and the rows of a request of body={values['body']} go to one URL; take body=row.")


def _columns_with_hash(frame: DataFrame) -> list[Any]:
    from pyspark.sql import functions as F

    without = ("map<", "variant")
    fields = [field for field in frame.schema if not any(kind in field.dataType.simpleString() for kind in without)]
    return [F.col("`" + field.name.replace("`", "``") + "`") for field in fields]
