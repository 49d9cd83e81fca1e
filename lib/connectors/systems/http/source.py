"""The records of a declared REST API, from sweep to sweep: a sweep reads the pages of a resource from the first to the last."""

from __future__ import annotations

import contextlib
import contextvars
import datetime
import re
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from decimal import Decimal
from functools import cached_property, partial, reduce
from typing import Any, ClassVar, Final

import pyarrow as pa

from ...core import (
    REQUIRED,
    Cursor,
    CursorSource,
    Discovery,
    Duration,
    Fatal,
    Int,
    Json,
    Misconfigured,
    Options,
    Page,
    Problem,
    Text,
    Transient,
    Values,
)
from ...core.clients import client_library
from ...core.options import duration
from ...core.retry import Contact, RetrySettings
from ...core.state import digest
from ...formats.json import columns_of, parsed, reader
from .api import Incremental, Resource, resources, searched
from .client import CONNECTION, CONNECTOR, RETRY_STATUSES, Answer, HttpClient, check_http, refusal, shown, statuses

_CONTENT: Final = {"Content-Type": "application/json"}
_ACCEPT: Final = {"Accept": "application/json"}
_LOOK_SECONDS: Final = 1.0
"""How long pages without anything new are passed over in one go."""

_PARENTS: Final = 20
"""How many records a look at the API asks for children until there is one."""


class HttpSource(CursorSource):
    """The records of one resource of a REST API that ``config`` declares.

    ``config`` is JSON: ``baseUrl``, ``resources``, and ``paging`` and ``parameters`` of all of them. A resource has ``name``,
    ``path``, ``parameters``, ``records`` (where they are in the answer, as JMESPath), ``paging``, ``key`` (the fields that tell
    records apart), ``cursor`` and ``children``; notebooks/README.md shows each.

    Columns are those of ``.schema(…)``, else of the records of the first page. A stream needs a resource with a ``cursor``: the
    field by which new records are known. Each sweep asks for those since the last ``{position}``, and what has come already is
    left out.

    Guarantee: exactly-once: an epoch is recorded with its records, so that a replay asks nothing again.
    """

    name = "http"
    columns: ClassVar[str] = ""
    """Those of a subclass for one API, as SQL text."""
    repeatable = False
    max_parallelism = 1
    conditions = "a record that comes late is not older than the cursor's lookback"
    options = CONNECTION | Options(
        {
            "config": Json(REQUIRED, meaning="the API, JSON; secret"),
            "resource": Text(None, meaning="the resource to read; default: the only one"),
            "rateLimit": Int(None, at_least=1, meaning="requests a second, at most; default: unlimited"),
            "maxInFlight": Int(8, at_least=1, meaning="requests for children at a time"),
            "request.timeout": Duration(30.0, meaning="of one request"),
        }
    )

    @classmethod
    def check(cls, values: Values) -> Iterator[Problem]:
        yield from super().check(values)
        yield from check_http(values)
        if values["maxDrift"] is not None:
            yield Problem("maxDrift", "has no use: an API does not say when its records came.")
        try:
            names = resources(values["config"])
        except Misconfigured as wrong:
            yield from wrong.problems
            return
        if values["resource"] is None and len(names) != 1:
            yield Problem("resource", f"missing; config has several: {', '.join(names)}.")
        elif values["resource"] is not None and values["resource"] not in names:
            yield Problem("resource", f'must be one of {", ".join(names)}; got "{values["resource"]}".')

    def __init__(self, values: Values, *, streaming: bool = False) -> None:
        super().__init__(values, streaming=streaming)
        if streaming and self.resource.chain[0].cursor is None:
            text = (
                f'says of "{self.resource.chain[0].name}" no cursor, the field by which a stream knows new records; '
                'give one, such as "cursor": {"field": "updated_at"}, or read it as a batch.'
            )
            raise Misconfigured(CONNECTOR, [Problem("config", text)])

    @property
    def resource(self) -> Resource:
        """The resource that is read."""
        names = resources(self.values["config"])
        return names[self.values["resource"] or next(iter(names))]

    @property
    def schema(self) -> str:  # type: ignore[override]
        return self.columns or self._inferred

    @cached_property
    def _inferred(self) -> str:
        records = self._sample()
        if not records:
            text = f'missing, and "{self.resource.name}" has no records yet that would show it; give .schema(…).'
            raise Misconfigured(CONNECTOR, [Problem("schema", text)])
        return columns_of(records)

    def begin(self) -> None:
        """Asks for a page, so that a wrong address or login shows at the start of a query."""
        self._sample()

    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        return Discovery({self.resource.name: positions.get(self.resource.name, {})})

    def cursor(self, schema: pa.Schema) -> HttpCursor:
        return HttpCursor(self.values, self.resource, schema)

    def position_text(self, position: Any) -> str | None:
        after = position.get("top", position.get("after"))
        return None if after is None else str(after)

    def _sample(self) -> list[Any]:
        with contextlib.closing(HttpCursor(self.values, self.resource, None)) as cursor:
            cursor.open()
            return cursor.sample()


@dataclass(frozen=True)
class Sweep:
    """How far a resource has been read; the position of its partition is what of this is not at its default.

    All sweeps before have come up to ``after``, a value of the cursor's field, and ``seen`` are the digests of records there
    that may come again, with their values. The sweep that is under way stands on the ``page`` of that token, of which it has
    handed on the records with the digests ``read`` (also those of the page before, where records have keys); ``top`` and
    ``top_seen`` are its ``after`` and ``seen``.
    """

    after: Any = None
    seen: Mapping[str, Any] = field(default_factory=dict)
    is_under_way: bool = False
    page: Any = None
    read: Sequence[str] = ()
    top: Any = None
    top_seen: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def at(cls, position: Mapping[str, Any]) -> Sweep:
        return cls(**position)

    def position(self) -> dict[str, Any]:
        default = asdict(Sweep())
        content = {**asdict(self), "read": list(self.read)}
        return {name: value for name, value in content.items() if value != default[name] and value != []}


class HttpCursor(Cursor):
    """Reads a resource page by page, and the children of each record where it is one of a parent.

    ``schema`` is ``None`` for a look at the records on the driver.
    """

    def __init__(self, values: Values, resource: Resource, schema: pa.Schema | None) -> None:
        self._values = values
        self._resource = resource
        self._top = resource.chain[0]
        self._schema = schema if schema is not None else pa.schema([])
        self._readers = [(field, reader(field.type, field.name)) for field in self._schema]
        self._is_exact = "decimal" in str(schema)
        self._retried = statuses(RETRY_STATUSES)
        self._pause = 1.0 / values["rateLimit"] if values["rateLimit"] else 0.0
        self._next_request = self._next_sweep = 0.0
        self._lock = threading.Lock()
        self._page: tuple[str, list[Any], Any] | None = None
        self._has_begun = False
        self._is_swept = False

    def open(self) -> None:
        values, connections = self._values, self._values["maxInFlight"]
        self._json = client_library("orjson", "orjson", connector=CONNECTOR)
        self._client = HttpClient(values, self._top.base, connections=connections, seconds=values["request.timeout"])
        self._contact = Contact(RetrySettings.of(values))
        self._threads = ThreadPoolExecutor(connections, "connectors.http")

    def close(self) -> None:
        if hasattr(self, "_threads"):
            self._threads.shutdown(cancel_futures=True)
            self._client.close()

    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        """Records of one page. ``rows`` counts those of the topmost resource."""
        sweep = Sweep.at(position)
        if not sweep.is_under_way:
            if self._is_swept or time.monotonic() < self._next_sweep:
                self._is_swept = False
                return Page(self._rows([]), position, is_last=True)
            self._has_begun = True
            self._page = None
            sweep = replace(sweep, is_under_way=True)
        until = time.monotonic() + _LOOK_SECONDS
        content: list[Any] = []
        while sweep.is_under_way and not content and time.monotonic() < until:
            sweep, content = self._advanced(sweep, rows)
        return Page(self._rows(content), sweep.position(), is_waiting=sweep.is_under_way)

    def _advanced(self, sweep: Sweep, rows: int) -> tuple[Sweep, list[Any]]:
        """A sweep after new records of its page, and these, or their children."""
        records, following = self._fetched(sweep)
        digests = [_digest(record, self._top, self._json) for record in records]
        new = _new(records, digests, sweep, self._top.cursor)
        places = new[:rows]
        content = self._children([records[place] for place in places])
        sweep = _after(sweep, [(records[place], digests[place]) for place in places], self._top)
        if len(places) < len(new):
            return sweep, content
        if following is not None:
            return replace(sweep, page=following, read=digests if self._top.key else []), content
        if self._has_begun:  # not in an earlier epoch, which may have passed what came since
            self._is_swept = True
            self._next_sweep = time.monotonic() + float(self._values["pollInterval"])
        return _ended(sweep, self._top.cursor), content

    def sample(self) -> list[Any]:
        """Records of the first page, for the columns."""
        records, _ = self._records(self._top, None, None, None)
        for resource in self._resource.chain[1:]:
            for parent in records[:_PARENTS]:
                if children := self._all_of(resource, parent):
                    break
            else:
                return []
            records = children
        return records

    def _fetched(self, sweep: Sweep) -> tuple[list[Any], Any]:
        """The records of the page of a sweep, and the token of the page after it."""
        key = digest(str([sweep.after, sweep.page]))
        if self._page is None or self._page[0] != key:
            cursor = self._top.cursor
            position = None if cursor is None else _asked(sweep.after, cursor)
            self._page = (key, *self._records(self._top, sweep.page, None, position))
        return self._page[1], self._page[2]

    def _records(self, resource: Resource, token: Any, parent: Any, position: Any) -> tuple[list[Any], Any]:
        """The records of a page, and the token of the page after it."""
        call = resource.call(token, parent, position)
        body = None if call.body is None else self._json.dumps(call.body)
        answer = self._contact.call(lambda: self._asked(resource, call.method, call.url, body))
        if answer.status in resource.ignored:
            return [], None
        content = self._parsed(answer, call.url)
        records = resource.records(content, call.url)
        following = resource.paging.following(token, answer, content, len(records))
        for column, name in resource.include.items():
            for record in records:
                record[column] = searched(name, parent)
        return records, following

    def _asked(self, resource: Resource, method: str, url: str, body: bytes | None) -> Answer:
        self._wait_for_turn()
        answer = self._client.request(method, url, {**_ACCEPT, **(_CONTENT if body is not None else {})}, body)
        if answer.status in resource.ignored or 200 <= answer.status < 300:
            return answer
        error = refusal(answer, url, self._retried)
        if isinstance(error, Transient):
            raise error
        way_out = f"correct config, or let config.resources.{resource.name}.ignore have {answer.status}"
        raise Fatal(error.message, way_out=error.way_out or way_out)

    def _parsed(self, answer: Answer, url: str) -> Any:
        try:
            return parsed(answer.body.decode()) if self._is_exact else self._json.loads(answer.body)
        except ValueError:
            text = f"{shown(url)} answers what is no JSON: {answer.body[:100]!r}"
            raise Fatal(text, way_out="correct baseUrl or path in config") from None

    def _wait_for_turn(self) -> None:
        """Waits until the limit of requests a second allows one more."""
        if self._pause:
            with self._lock:
                turn = max(self._next_request, time.monotonic())
                self._next_request = turn + self._pause
            time.sleep(max(0.0, turn - time.monotonic()))

    def _children(self, records: list[Any]) -> list[Any]:
        for resource in self._resource.chain[1:]:
            contexts = [contextvars.copy_context() for _ in records]  # for what counts retries in this thread
            parts = self._threads.map(partial(_run, self._all_of, resource), contexts, records)
            records = [record for part in parts for record in part]
        return records

    def _all_of(self, resource: Resource, parent: Any) -> list[Any]:
        """All records of a child."""
        records, token = self._records(resource, None, parent, None)
        while token is not None:
            more, token = self._records(resource, token, parent, None)
            records += more
        return records

    def _rows(self, records: list[Any]) -> pa.RecordBatch:
        try:
            columns = [
                pa.array([read(_cell(record.get(field.name), field.type)) for record in records], field.type)
                for field, read in self._readers
            ]
        except ValueError as wrong:
            text = f"a record of {self._resource.name} does not fit the columns: {wrong}"
            raise Fatal(text, way_out="give .schema(…) that fits it; string takes anything") from None
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _run(work: Any, resource: Resource, context: contextvars.Context, record: Any) -> Any:
    return context.run(work, resource, record)


def _cell(value: Any, kind: pa.DataType) -> Any:
    """A value as JSON where the column is text and it is none."""
    if pa.types.is_string(kind) and value is not None and not isinstance(value, str):
        return client_library("orjson", "orjson", connector=CONNECTOR).dumps(value, default=str).decode()
    return value


def _digest(record: Mapping[str, Any], resource: Resource, json: Any) -> str:
    """What tells records of a resource apart: its key and the cursor's field, else all fields."""
    if not resource.key and resource.cursor is None:
        return ""
    cursor = [resource.cursor.field] if resource.cursor else []
    parts = [searched(name, record) for name in [*resource.key, *cursor]] if resource.key else record
    return digest(json.dumps(parts, option=json.OPT_SORT_KEYS, default=str).decode())


def _new(records: Sequence[Any], digests: Sequence[str], sweep: Sweep, cursor: Incremental | None) -> list[int]:
    """The places of the records of a page that were not handed on yet, in the order in which they are."""
    read, new = Counter(sweep.read), []
    for place, (record, name) in enumerate(zip(records, digests, strict=True)):
        if read[name]:
            read[name] -= 1
        elif cursor is None or _is_new(_value(record, cursor), name, sweep, cursor):
            new.append(place)
    return new


def _is_new(value: Any, name: str, sweep: Sweep, cursor: Incremental) -> bool:
    if sweep.after is None:
        return True
    return name not in sweep.seen and not _is_less(value, _before(sweep.after, cursor.lookback))


def _value(record: Any, cursor: Incremental) -> Any:
    """The value of the cursor's field. Raises ``Fatal`` where a record has none."""
    value = searched(cursor.field, record)
    if isinstance(value, Decimal):
        value = int(value) if value == value.to_integral_value() else float(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        text = f'a record has {value!r} in the cursor\'s field "{cursor.field}", which must be a number or text'
        raise Fatal(text, way_out="take a field that every record has")
    return value


def _after(sweep: Sweep, handed_on: Sequence[tuple[Any, str]], resource: Resource) -> Sweep:
    """The sweep after records of its page were handed on."""
    cursor, names = resource.cursor, [*sweep.read, *(name for _, name in handed_on)]
    if cursor is None or not handed_on:
        return replace(sweep, read=names)
    values = {name: _value(record, cursor) for record, name in handed_on}
    top = reduce(_later, values.values(), sweep.top)
    return replace(sweep, read=names, top=top, top_seen=_near(top, {**sweep.top_seen, **values}, cursor))


def _ended(sweep: Sweep, cursor: Incremental | None) -> Sweep:
    if cursor is None or sweep.top is None:
        return Sweep(sweep.after, sweep.seen)
    after = _later(sweep.after, sweep.top)
    return Sweep(after, _near(after, {**sweep.seen, **sweep.top_seen}, cursor))


def _near(top: Any, values: Mapping[str, Any], cursor: Incremental) -> dict[str, Any]:
    """The digests of records that may come again when those since ``top`` are asked for."""
    first = _before(top, cursor.lookback)
    return {name: value for name, value in values.items() if not _is_less(value, first)}


def _later(value: Any, other: Any) -> Any:
    return other if value is None or _is_less(value, other) else value


def _is_less(value: Any, other: Any) -> bool:
    """Compares times with a zone as times, since one time has several texts; all else as it is."""
    moment, other_moment = _moment(value), _moment(other)
    return bool(value < other if moment is None or other_moment is None else moment < other_moment)


def _moment(value: Any) -> datetime.datetime | None:
    """The time that a text stands for; ``None`` if it has no zone or is no time."""
    try:
        moment = _iso_time(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None


def _iso_time(text: str) -> datetime.datetime:
    """A time in ISO 8601. Python 3.10 knows no Z, no zone without a colon, and no fraction but of 3 or 6 digits."""
    text = re.sub(r"(\d[+-]\d\d)(\d\d)$", r"\1:\2", text.replace("Z", "+00:00"))
    return datetime.datetime.fromisoformat(re.sub(r"\.(\d+)", lambda digits: f".{digits[1]:0<6.6}", text))


def _asked(after: Any, cursor: Incremental) -> Any:
    """The position that a request names."""
    return cursor.start if after is None else _before(after, cursor.lookback)


def _before(value: Any, lookback: str) -> Any:
    """A value that is less by ``lookback``: a number, or a duration before a time in ISO 8601."""
    if lookback in ("", "0"):
        return value
    if not isinstance(value, str):
        return value - float(lookback)
    moment = _iso_time(value) - datetime.timedelta(seconds=duration(lookback))
    text = moment.isoformat()
    return text.replace("+00:00", "Z") if value.endswith("Z") else text
