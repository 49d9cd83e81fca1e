"""Reads a resource of an API page by page, and makes rows of its records."""

from __future__ import annotations

import contextvars
import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ...core import Cursor, Fatal, Page, Transient, Values
from ...formats.json import parsed, reader
from ...ground import machine
from ...ground.cache_folder import is_told
from ...ground.clients import client_library
from ...ground.retry import Contact, RetrySettings, seconds_of
from ...ground.state import digest
from .api import Call, Resource
from .client import CONNECTOR, RETRY_STATUSES, Answer, HttpClient, refusal, shown, statuses
from .paths import searched
from .sweep import MOST_RESTARTS, Sweep, Trail, digest_of, page_mark, token_mark

_CONTENT: Final = {"Content-Type": "application/json"}
_ACCEPT: Final = {"Accept": "application/json"}
_LONG_NUMBER: Final = re.compile(rb"\d[\d.]{15}|\d[eE][+-]?\d{3}")
"""Digits that may be a number which orjson, whose numbers are floats and whole ones of 64 bits, would alter or refuse."""
_LOOK_SECONDS: Final = 1.0
"""The seconds for which one read skips pages without new records."""

_ACCEPTED: Final = 202
_NO_CONTENT: Final = 204
_NO_TOKEN: Final = "the API no longer takes the token of a page; read from the start again, with shorter pauses between pages"
_NO_PAGE: Final = (
    "if the API answers so behind its last page, say where it tells how many there are (pages, total), "
    "let it name the next one (link, next), or set shortPage=last"
)
_log = logging.getLogger("connectors")

_PARENTS: Final = 20
"""The most records whose children a look at the API requests until there is one."""


class _Content(NamedTuple):
    """The ``records`` of a page, and the token of the page ``following`` it.

    ``can_grow``: a later record may go onto this page, if it is short, and onto no following page.
    """

    records: list[Any]
    following: Any
    can_grow: bool = False


_page_lengths = machine.PerProcess(dict[str, Counter[int]])


class HttpCursor(Cursor):
    """Reads a resource page by page; for a child resource, the children of each record of its parent.

    ``schema`` is ``None`` for a look at the records on the driver, whose fractions are all floats: digits make no column text.
    """

    def __init__(self, values: Values, resource: Resource, schema: pa.Schema | None) -> None:
        self._values = values
        self._resource = resource
        self._top = resource.chain[0]
        self._schema = schema if schema is not None else pa.schema([])
        self._readers = [(field, reader(field.type, field.name)) for field in self._schema]
        self._is_exact = "decimal" in str(schema)
        self._numbers: dict[str, Any] = {} if schema is None else {"parse_float": _number, "parse_constant": Decimal}
        self._retried = statuses(RETRY_STATUSES)
        self._pause = 1.0 / values["rateLimit"] if values["rateLimit"] else 0.0
        self._next_request = self._next_sweep = 0.0
        self._lock = threading.Lock()
        self._page: tuple[str, _Content] | None = None
        self._ahead: tuple[str, _Content] | None = None
        self._has_begun = False
        self._sweep = Sweep()
        self._position: dict[str, Any] = {}
        self._missing, self._count = set(self._schema.names), 0
        self._is_swept = False

    def open(self) -> None:
        values, connections = self._values, self._values["maxInFlight"]
        self._json = client_library("orjson", "orjson", connector=CONNECTOR)
        self._client = HttpClient(values, self._top.base, connections=connections, seconds=values["request.timeout"])
        self._contact = Contact(RetrySettings.of(values))
        self._threads = ThreadPoolExecutor(connections, "connectors.http")

    def close(self) -> None:
        self._note_columns()
        if hasattr(self, "_threads"):
            self._threads.shutdown(cancel_futures=True)
            self._client.close()

    def read(self, partition: str, position: Any, end: Any, rows: int) -> Page:
        """Records of one page. ``rows`` limits those of the topmost resource."""
        sweep = self._sweep
        if position is not self._position:  # an attempt at the epoch after a failed one reads anew what that had swept
            sweep, self._has_begun, self._is_swept, self._next_sweep = Sweep.at(position), False, False, 0.0
        if not sweep.is_under_way:
            if self._is_swept or machine.monotonic() < self._next_sweep:
                self._is_swept = False
                return Page(self._rows([]), position, is_last=True)
            self._has_begun = True
            self._page = None
            sweep = replace(sweep, is_under_way=True)
        until = machine.monotonic() + _LOOK_SECONDS
        content: list[Any] = []
        while sweep.is_under_way and not content and machine.monotonic() < until:
            sweep, content = self._advanced(sweep, rows)
        self._sweep, self._position = sweep, sweep.position()
        is_last = self._is_swept and not content
        self._is_swept &= not is_last
        return Page(self._rows(content), self._position, is_last=is_last, is_waiting=sweep.is_under_way)

    def _advanced(self, sweep: Sweep, rows: int) -> tuple[Sweep, list[Any]]:
        """The sweep after new records of its page, and these records or their children."""
        top = self._top
        try:
            records, following, _ = self._fetched(sweep)
        except Fatal as refused:
            return self._anew(sweep, refused), []
        digests = self._digests(top, records)
        mark = page_mark(records, digests, top, self._json) if following is not None or sweep.trail.pages else None
        self._check_trail(top, sweep.trail, mark, following, None, self._position_of(sweep))
        new = sweep.new(records, digests, top)
        places = new[:rows]
        content = self._children([records[place] for place in places])
        sweep = sweep.handed_on([(records[place], digests[place]) for place in places], top)
        if len(places) < len(new):
            return sweep, content
        if following is not None:
            return sweep.next_page(following, mark, digests, top), content
        if self._has_begun:  # not in an earlier epoch, which may have passed records that came since
            self._is_swept = True
            self._next_sweep = machine.monotonic() + float(self._values["pollInterval"])
        return sweep.ended(top), content

    def _anew(self, sweep: Sweep, refused: Fatal) -> Sweep:
        """The sweep from its first page, if the API no longer accepts the token of a later page. Else raises ``refused``."""
        again = sweep.anew() if sweep.page is not None and self._top.paging.expires else None
        if again is None:
            raise refused
        _log.warning(
            "connectors.http: the pages of %s are read again from the first one: %s", self._top.name, refused.message
        )
        self._page = None
        return again

    def _check_trail(
        self, resource: Resource, trail: Trail, mark: str | None, following: Any, parent: Any, position: Any
    ) -> None:
        """Raises ``Fatal`` if pages go in a circle. One page may come again if records have moved by as much, but not two."""
        number = trail.pages + 1
        if following is not None and (earlier := trail.marks.get(token_mark(following))) is not None:
            raise _circle(resource, f"page {number} says that page {earlier} comes next, which has come already")
        if mark is None or (earlier := trail.marks.get(mark)) is None:
            return
        if following is not None:
            records = self._content(resource, following, parent, position).records
            after = page_mark(records, self._digests(resource, records), resource, self._json)
            if after not in trail.left(mark, following).marks:
                return
        raise _circle(resource, f"page {number} has the same records as page {earlier}")

    def sample(self) -> list[Any]:
        """Records of the first page, for the columns."""
        records = self._content(self._top, None, None, self._position_of(Sweep())).records
        for resource in self._resource.chain[1:]:
            for parent in records[:_PARENTS]:
                if children := self._all_of(resource, parent):
                    break
            else:
                return []
            records = children
        return records

    def _fetched(self, sweep: Sweep) -> _Content:
        """The page of a sweep."""
        key = digest(str([sweep.after, sweep.page]))
        if self._page is None or self._page[0] != key:
            ahead = self._ahead[1] if self._ahead is not None and self._ahead[0] == key else None
            page, after = self._filled(self._top, sweep.page, None, self._position_of(sweep), ahead)
            self._page = key, page
            self._ahead = None if after is None else (digest(str([sweep.after, page.following])), after)
        return self._page[1]

    def _filled(
        self, resource: Resource, token: Any, parent: Any, position: Any, page: _Content | None = None
    ) -> tuple[_Content, _Content | None]:
        """The page of ``token``, and the page after it if that was requested too.

        A short page may be the last one. It may get more records before the next page is requested, and the sweep would skip
        them. So if there is a page after it, the short page is requested again. If it then has no more records, it is short
        because the API caps or filters its pages.
        """
        page = page or self._content(resource, token, parent, position)
        while page.can_grow and page.records and page.following is not None and not self._is_full(resource, page):
            after = self._content(resource, page.following, parent, position)
            if not after.records:
                return (page, after) if after.following is not None else (page._replace(following=None), None)
            again = self._content(resource, token, parent, position)
            if len(again.records) <= len(page.records):
                self._lengths(resource)[len(page.records)] += 1
                return page, after
            page = again
        return page, None

    def _is_full(self, resource: Resource, page: _Content) -> bool:
        """True for the length of a whole page: the longest seen before other pages, twice, or once if it is ``size``."""
        lengths, count = self._lengths(resource), len(page.records)
        return count == max(lengths, default=0) and lengths[count] >= (
            1 if count == resource.paging.values["size"] else 2
        )

    def _lengths(self, resource: Resource) -> Counter[int]:
        """By number of records, how often other pages followed such pages."""
        return _page_lengths().setdefault(digest(resource.base, resource.path, resource.name), Counter())

    def _position_of(self, sweep: Sweep) -> Any:
        return None if self._top.cursor is None else sweep.asked(self._top.cursor)

    def _content(self, resource: Resource, token: Any, parent: Any, position: Any) -> _Content:
        """The page of ``token``."""
        call = resource.call(token, parent, position)
        body = None if call.body is None else self._json.dumps(call.body)
        is_first = token is None
        answer, content = self._contact.call(lambda: self._asked(resource, call, body, is_first))
        if is_first and answer.status in resource.ignored:
            return _Content([], None)
        records = [] if answer.status == _NO_CONTENT else resource.records(content, call.url)
        following = resource.paging.following(token, answer, content, len(records))
        if following is None and is_first and records and resource.paging.is_silent(content):
            place = f"config.resources.{resource.name}.paging.path"
            self._note(
                place, f"an answer with {len(records)} records has nothing at {place}, so its page is the only one"
            )
        for column, name in resource.include.items():
            for record in records:
                record[column] = searched(name, parent)
        return _Content(records, following, resource.paging.can_grow(content))

    def _asked(self, resource: Resource, call: Call, body: bytes | None, is_first: bool) -> tuple[Answer, Any]:
        """An answer, and its parsed body; ``None`` if it has no records. Only the answer of a first page is ever ignored."""
        self._wait_for_turn()
        headers = {**_ACCEPT, **(_CONTENT if body is not None else {})}
        answer = self._client.request(call.method, call.url, headers, body)
        if answer.status == _NO_CONTENT or (is_first and answer.status in resource.ignored):
            return answer, None
        if answer.status == _ACCEPTED:  # the API has begun to make the answer; what it sends now is none
            text = f"{shown(call.url)} answered 202: it has no answer yet"
            raise Transient(text, retry_after=seconds_of(answer.headers.get("Retry-After")))
        if 200 <= answer.status < 300:
            return answer, self._parsed(answer, call.url)
        error = refusal(answer, call.url, self._retried)
        if isinstance(error, Transient):
            raise error
        if is_first:
            way_out = f"correct config, or let config.resources.{resource.name}.ignore have {answer.status}"
        else:
            way_out = _NO_TOKEN if resource.paging.expires else f"{_NO_PAGE}: config.resources.{resource.name}.paging"
        raise Fatal(error.message, way_out=error.way_out or way_out)

    def _parsed(self, answer: Answer, url: str) -> Any:
        try:
            if self._is_exact:
                return parsed(answer.body.decode(), parse_constant=Decimal)
            if _LONG_NUMBER.search(answer.body):
                return json.loads(answer.body, **self._numbers)
            return self._json.loads(answer.body)
        except (ValueError, InvalidOperation):  # which a decimal raises for its exponent
            text = f"{shown(url)} answers what is no JSON: {answer.body[:100]!r}"
            if answer.body.lstrip()[:1] in (b"{", b"["):  # it breaks off, as when a proxy has lost its server
                raise Transient(text) from None
            raise Fatal(text, way_out="correct baseUrl or path in config") from None

    def _wait_for_turn(self) -> None:
        """Waits until the limit of requests per second allows one more."""
        if self._pause:
            with self._lock:
                turn = max(self._next_request, machine.monotonic())
                self._next_request = turn + self._pause
            machine.sleep(max(0.0, turn - machine.monotonic()))

    def _children(self, records: list[Any]) -> list[Any]:
        for resource in self._resource.chain[1:]:
            contexts = [contextvars.copy_context() for _ in records]  # for the code that counts retries in this thread
            parts = self._threads.map(partial(_run, self._all_of, resource), contexts, records)
            records = [record for part in parts for record in part]
        return records

    def _all_of(self, resource: Resource, parent: Any) -> list[Any]:
        """All records of a child; again from the first page if the API no longer accepts the token of a later page."""
        records: list[Any] = []
        token, trail, restarts, ahead = None, Trail(), 0, None
        while True:
            try:
                (page, following, _), ahead = self._filled(resource, token, parent, None, ahead)
            except Fatal:
                if token is None or not resource.paging.expires or restarts == MOST_RESTARTS:
                    raise
                records, token, trail, restarts, ahead = [], None, Trail(), restarts + 1, None
                continue
            mark = None
            if following is not None or trail.pages:
                mark = page_mark(page, self._digests(resource, page), resource, self._json)
            self._check_trail(resource, trail, mark, following, parent, None)
            records += page
            if following is None:
                return records
            token, trail = following, trail.left(mark, following)

    def _digests(self, resource: Resource, records: list[Any]) -> list[bytes]:
        return [digest_of(record, resource, self._json) for record in records]

    def _rows(self, records: list[Any]) -> pa.RecordBatch:
        try:
            columns = [
                pa.array([read(_cell(record.get(field.name), field.type)) for record in records], field.type)
                for field, read in self._readers
            ]
        except ValueError as wrong:
            text = f"a record of {self._resource.name} does not fit the columns: {wrong}"
            raise Fatal(text, way_out="give .schema(…) that fits it; string takes anything") from None
        self._look_for_columns(records)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _look_for_columns(self, records: list[Any]) -> None:
        self._count += len(records)
        if self._missing:
            self._missing = {name for name in self._missing if not any(name in record for record in records)}

    def _note_columns(self) -> None:
        """Warns of columns that no record has had, since their names may be wrong."""
        if self._missing and self._count:
            names = ", ".join(sorted(self._missing))
            text = f"none of {self._count} records has the field {names}, so that column is null"
            self._note(f"{self._resource.name} {names}", f"{self._resource.name}: {text}")

    def _note(self, place: str, text: str) -> None:
        if not is_told(f"{self._top.base} {place}"):
            _log.warning("connectors.http: %s", text)


def _circle(resource: Resource, text: str) -> Fatal:
    return Fatal(
        f"the pages of {resource.name} go round: {text}",
        way_out=f"correct config.resources.{resource.name}.paging: its parameter may have another name. If the API gives "
        "the last page again and again, say where it tells how many there are (pages, total), or set shortPage=last",
    )


def _run(work: Any, resource: Resource, context: contextvars.Context, record: Any) -> Any:
    return context.run(work, resource, record)


def _number(text: str) -> float | Decimal:
    """A float where it is the number of the text, else a decimal."""
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


def _cell(value: Any, kind: pa.DataType) -> Any:
    """A value; as JSON if the column is text and the value is not."""
    if not pa.types.is_string(kind) or value is None or isinstance(value, str):
        return value
    orjson = client_library("orjson", "orjson", connector=CONNECTOR)
    digits: Callable[[Any], Any] = lambda number: orjson.Fragment(str(number))  # noqa: E731
    try:
        text: bytes = orjson.dumps(value, default=digits)
    except TypeError:  # a whole number of more than 64 bits
        text = orjson.dumps(_in_digits(value, digits), default=digits)
    return text.decode()


def _in_digits(value: Any, digits: Callable[[int], Any]) -> Any:
    """``value`` with the ``digits`` of its long whole numbers in place of them."""
    if isinstance(value, dict):
        return {name: _in_digits(inner, digits) for name, inner in value.items()}
    if isinstance(value, list):
        return [_in_digits(inner, digits) for inner in value]
    return digits(value) if isinstance(value, int) and value.bit_length() >= 64 else value
