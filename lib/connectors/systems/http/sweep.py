"""The progress of reading a resource, as small JSON: the value of its cursor, and the records that have come in a sweep."""

from __future__ import annotations

import base64
import datetime
import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from email.utils import parsedate_to_datetime
from functools import lru_cache, reduce
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...core import Fatal
from ...ground.quantities import duration
from ...ground.state import dumps
from .api import Incremental, Resource
from .paths import searched

_DIGEST: Final = 8
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:([T ])\d\d:\d\d(?::\d\d(?:\.(\d+))?)?(\s*(?:Z|UTC|GMT|[+-]\d\d:?\d\d))?)?",
    re.IGNORECASE,
)
"""A date or time in the usual forms of ISO 8601: the sign before the time of the day, the digits of a fraction, the zone."""

_UTC: Final = re.compile(r"\s*(?:Z|UTC|GMT)$", re.IGNORECASE)
_ZONE: Final = re.compile(r"(\d)\s*([+-]\d\d):?(\d\d)$")
_MAIL_TIME: Final = re.compile(
    r"(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? .*\d\d:\d\d|\d\d?[ -][a-z]{3}[ -]\d{4} \d\d:\d\d", re.IGNORECASE
)
"""The beginning of a time as mails and HTTP have it, such as Wed, 31 Jan 2024 12:00:00 GMT."""

_DIGITS: Final = re.compile(r"\d+")
_EXACT: Final = Context(prec=1000)
_FLOAT: Final = 1 << 53
"""Up to this number a float has every whole number."""

_SPANS: Final = 8
_MOST_SEEN: Final = 1_000_000
"""The most records whose digests a position holds: 11 MB of text."""

_MOST_PASSED: Final = 20_000
"""The most records of a sweep whose digests a position holds: 210 kB of text. With them no record comes twice if records
move to later pages, or if a sweep begins anew."""

_RECENT_PAGES: Final = 100
MOST_RESTARTS: Final = 5
"""How often a sweep begins anew before the refusal that ended it is an error."""

Digest = bytes
Digests = frozenset[Digest]


class Span(NamedTuple):
    """The records in a span of the cursor's values: the ``newest`` value, and their digests."""

    newest: Any
    digests: Digests


Seen = Mapping[str, Span]
"""The records that may come again, in spans of an eighth of the lookback."""


class Trail(NamedTuple):
    """The number of ``pages`` that the sweep has passed, and the numbers of some of them, by content and by token.

    It has the newest hundred, and those whose numbers are powers of two, so that no circle of pages goes on for ever.
    """

    pages: int = 0
    marks: Mapping[str, int] = MappingProxyType({})

    def left(self, mark: str | None, token: Any) -> Trail:
        """The trail on the page of ``token``, after a page with this mark."""
        number = self.pages + 1
        marks = {**self.marks, **({} if mark is None else {mark: number}), token_mark(token): number + 1}
        newest = number - _RECENT_PAGES
        return Trail(number, {name: page for name, page in marks.items() if page > newest or page & (page - 1) == 0})


@dataclass(frozen=True)
class Sweep:
    """The progress of reading a resource; the position of its partition has the fields that are not at their defaults.

    All earlier sweeps have come up to ``after``, a value of the cursor's field; ``seen`` has the records there that may come
    again. The present sweep is on the page with the token ``page``, of which it has passed on the records ``read``.
    ``top`` and ``top_seen`` are its future ``after`` and ``seen``. ``passed`` has the records of the previous pages: all of
    them unless ``is_cut``. The sweep has begun anew ``restarts`` times.
    """

    after: Any = None
    seen: Seen = field(default_factory=dict)
    is_under_way: bool = False
    page: Any = None
    read: tuple[Digest, ...] = ()
    top: Any = None
    top_seen: Seen = field(default_factory=dict)
    passed: Digests = frozenset()
    is_cut: bool = False
    restarts: int = 0
    trail: Trail = field(default_factory=Trail)

    @classmethod
    def at(cls, position: Mapping[str, Any]) -> Sweep:
        content = dict(position)
        for name in ("seen", "top_seen"):
            spans = content.get(name, {}).items()
            content[name] = {key: Span(newest, frozenset(_unpacked(text))) for key, (newest, text) in spans}
        content["read"] = tuple(_unpacked(content.get("read", "")))
        content["passed"] = frozenset(_unpacked(content.get("passed", "")))
        content["trail"] = Trail(*content.get("trail", ()))
        return cls(**content)

    def position(self) -> dict[str, Any]:
        content, default = dict(vars(self)), vars(Sweep())
        content = {name: value for name, value in content.items() if value != default[name]}
        for name in content.keys() & {"seen", "top_seen"}:
            content[name] = {key: [span.newest, _packed(span.digests)] for key, span in content[name].items()}
        if self.read:
            content["read"] = _packed(self.read)
        if self.passed:
            content["passed"] = _packed(self.passed)
        if self.trail.pages:
            content["trail"] = list(self.trail)
        return content

    def new(self, records: Sequence[Any], digests: Sequence[Digest], resource: Resource) -> list[int]:
        """The places of the page's records that were not passed on yet, in order."""
        read, new, cursor, first = Counter(self.read), [], resource.cursor, None
        known: list[Digests] = [self.passed] if resource.key or self.restarts else []
        if cursor is not None and self.after is not None:
            first = _before(self.after, cursor.lookback)
            known += [span.digests for span in self.seen.values()]
        for place, (record, name) in enumerate(zip(records, digests, strict=True)):
            if read[name]:
                read[name] -= 1
            elif any(name in part for part in known):
                continue
            elif cursor is None or first is None or not _is_less(value_of(record, cursor), first):
                new.append(place)
        return new

    def handed_on(self, records: Sequence[tuple[Any, Digest]], resource: Resource) -> Sweep:
        """The sweep after records of its page were passed on. Raises ``Fatal`` if too many may come again."""
        cursor, read = resource.cursor, (*self.read, *(name for _, name in records))
        if cursor is None or not records:
            return replace(self, read=read)
        values = [(value_of(record, cursor), name) for record, name in records]
        top = reduce(_later, (value for value, _ in values), self.top)
        top_seen = _near(top, [self.top_seen, _spans(top, values, cursor)], resource)
        return replace(self, read=read, top=top, top_seen=top_seen)

    def next_page(self, token: Any, mark: str | None, digests: Sequence[Digest], resource: Resource) -> Sweep:
        """The sweep on the page of ``token``, after a page with these records and this mark."""
        page, is_cut = frozenset((*digests, *self.read)), self.is_cut  # records passed on from it may have moved since
        passed = self.passed | page if resource.key or resource.paging.expires else self.passed
        if not resource.is_told_apart or len(passed) > _MOST_PASSED:
            is_cut = True
            passed = self.passed if self.restarts else page if resource.key else frozenset()
        return replace(self, page=token, read=(), passed=passed, is_cut=is_cut, trail=self.trail.left(mark, token))

    def anew(self) -> Sweep | None:
        """The sweep from its first page, without records already passed on; ``None`` if they are unknown, or it is no use."""
        if self.is_cut or self.restarts >= MOST_RESTARTS:
            return None
        passed = self.passed.union(self.read)
        return replace(self, page=None, read=(), passed=passed, restarts=self.restarts + 1, trail=Trail())

    def ended(self, resource: Resource) -> Sweep:
        """The state after the last page of the sweep, for the next sweep."""
        if resource.cursor is None or self.top is None:
            return Sweep(self.after, self.seen)
        after = _later(self.after, self.top)
        return Sweep(after, _near(after, [self.seen, self.top_seen], resource))

    def asked(self, cursor: Incremental) -> Any:
        """The position in its requests."""
        return cursor.start if self.after is None else _before(self.after, cursor.lookback)


def page_mark(records: Sequence[Any], digests: Sequence[Digest], resource: Resource, json: Any) -> str | None:
    """A digest that is equal for pages with the same records; ``None`` for a page without records."""
    if not records:
        return None
    return _text(_hash(b"".join(digests) if resource.key else _dumped(records, json)))


def token_mark(token: Any) -> str:
    """As :func:`page_mark`, for the token of a page."""
    return f"t{_text(_hash(str(token).encode()))}"


def digest_of(record: Mapping[str, Any], resource: Resource, json: Any) -> Digest:
    """A digest that tells records apart by key and cursor field, else by all fields; constant without key and cursor."""
    if not resource.key and resource.cursor is None:
        return bytes(_DIGEST)
    cursor = [resource.cursor.field] if resource.cursor else []
    parts = [_part(name, record) for name in [*resource.key, *cursor]] if resource.key else record
    return _hash(_dumped(parts, json))


def value_of(record: Any, cursor: Incremental) -> Any:
    """The value of the cursor's field. Raises ``Fatal`` if a record has none."""
    value = _part(cursor.field, record)
    if isinstance(value, Decimal):
        value = _plain(value)
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        text = f'a record has {value!r} in the cursor\'s field "{cursor.field}", which must be a number or text'
        raise Fatal(text, way_out="take a field that every record has")
    return value


def _part(name: str, record: Mapping[str, Any]) -> Any:
    """The value at a path in a record; most paths are names of fields, which need no JMESPath."""
    return record[name] if name in record else searched(name, record)


def _dumped(content: Any, json: Any) -> bytes:
    try:
        text: bytes = json.dumps(content, option=json.OPT_SORT_KEYS, default=lambda decimal: json.Fragment(str(decimal)))
    except TypeError:  # it has whole numbers of more than 64 bits, such as decimals
        return dumps(content).encode()
    return text


def _hash(content: bytes) -> Digest:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _packed(digests: Iterable[Digest]) -> str:
    return _text(b"".join(digests))


def _unpacked(text: str) -> list[Digest]:
    content = base64.b64decode(text)
    return [content[first : first + _DIGEST] for first in range(0, len(content), _DIGEST)]


def _spans(top: Any, values: Iterable[tuple[Any, Digest]], cursor: Incremental) -> Seen:
    """Those of these records that may come again in a request for records since ``top``."""
    first, step = _before(top, cursor.lookback), duration(cursor.lookback) / _SPANS
    spans: dict[str, tuple[Any, set[Digest]]] = {}
    for value, name in values:
        if not _is_less(value, first):
            key = str(int(_scalar(value) // step)) if step else ""
            newest, names = spans.get(key, (value, set()))
            names.add(name)
            spans[key] = _later(newest, value), names
    return {key: Span(newest, frozenset(names)) for key, (newest, names) in spans.items()}


def _near(top: Any, parts: Iterable[Seen], resource: Resource) -> Seen:
    """The spans of ``parts`` with records that may come again in a request for records since ``top``."""
    assert resource.cursor is not None
    lookback, near = resource.cursor.lookback, dict[str, Span]()
    first = _before(top, lookback)
    for key, span in (item for part in parts for item in part.items()):
        if not _is_less(span.newest, first):
            other = near.get(key, span)
            near[key] = Span(_later(other.newest, span.newest), other.digests | span.digests)
    count = sum(len(span.digests) for span in near.values())
    if count > _MOST_SEEN:
        way_out = "shorten its lookback" if duration(lookback) else "take a field with finer values"
        raise Fatal(
            f"{count} records of {resource.name} may come again when those since {first!r} are asked for; "
            f"a position holds {_MOST_SEEN}",
            way_out=f"{way_out}: config.resources.{resource.name}.cursor",
        )
    return near


def _later(value: Any, other: Any) -> Any:
    return other if value is None or _is_less(value, other) else value


def _is_less(value: Any, other: Any) -> bool:
    """Compares numbers in text as numbers, times as times, and ids such as ``INV-99`` by their numbers; else unchanged."""
    if isinstance(value, str) and isinstance(other, str):
        if _NUMBER.fullmatch(value) and _NUMBER.fullmatch(other):
            return Decimal(value) < Decimal(other)
        moment, other_moment = _moment(value), _moment(other)
        if moment is not None and other_moment is not None:
            return moment < other_moment
        if len(value) != len(other) and _DIGITS.sub("0", value) == _DIGITS.sub("0", other):
            return list(map(int, _DIGITS.findall(value))) < list(map(int, _DIGITS.findall(other)))
        return value < other
    try:
        return bool(value < other)
    except TypeError:
        text = f"the cursor's field has {value!r} in one record and {other!r} in another, which have no order"
        raise Fatal(text, way_out="take a field whose values are of one kind") from None


@lru_cache(maxsize=10_000)
def _moment(value: str) -> datetime.datetime | None:
    """The time in a text, of UTC if it names no zone; ``None`` if it is no time."""
    try:
        moment = parsedate_to_datetime(value) if _MAIL_TIME.match(value) else _iso_time(value)
    except ValueError:
        return None
    if moment.tzinfo is None and not (_TIME.fullmatch(value) or _MAIL_TIME.match(value)):
        return None
    return _zoned(moment)


def _iso_time(text: str) -> datetime.datetime:
    """A time in ISO 8601. Python 3.10 knows no Z, no zone without a colon, and only fractions of 3 or 6 digits."""
    text = _ZONE.sub(r"\1\2:\3", _UTC.sub("+00:00", text))
    return datetime.datetime.fromisoformat(re.sub(r"\.(\d+)", lambda digits: f".{digits[1]:0<6.6}", text))


def _zoned(moment: datetime.datetime) -> datetime.datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=datetime.timezone.utc)


def _scalar(value: Any) -> float:
    """A value as a number, which need not be exact. It has passed :func:`_before` with a lookback."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return float(value)
    return _zoned(_iso_time(value)).timestamp()


def _before(value: Any, lookback: str) -> Any:
    """A value minus ``lookback``: a number, or a duration before a time in ISO 8601.

    Numbers are exact, and whole numbers stay whole: a float has no room for those of 64 bits.
    """
    if not duration(lookback):
        return value
    is_text = isinstance(value, str)
    if not is_text or _NUMBER.fullmatch(value):
        try:
            number = _plain(_EXACT.subtract(Decimal(str(value)), Decimal(lookback)))
        except ArithmeticError:
            text = f'the cursor\'s values are numbers such as {value}, and its lookback is "{lookback}"'
            raise Fatal(text, way_out="give a lookback that is a number") from None
        return str(number) if is_text else number
    try:
        moment = _iso_time(value) - datetime.timedelta(seconds=duration(lookback))
    except (ValueError, OverflowError):
        text = f'the cursor\'s values are texts such as "{value}", which have no lookback'
        raise Fatal(text, way_out="take a field with numbers, or with times in ISO 8601; or give no lookback") from None
    return _in_form_of(value, moment)


def _in_form_of(form: str, moment: datetime.datetime) -> str:
    """A time, or an earlier one, in the form of another text: some APIs compare the texts."""
    match = _TIME.fullmatch(form)
    if match is None:
        text = moment.isoformat()
        return text.replace("+00:00", "Z") if form.endswith("Z") else text
    separator, digits, zone = match[1], len(match[2] or ""), match[3] or ""
    if separator is None:
        return moment.date().isoformat()
    seconds, _, fraction = moment.replace(tzinfo=None).isoformat(separator, "microseconds").partition(".")
    return f"{seconds}{'.' if digits else ''}{fraction.ljust(digits, '0')[:digits]}{zone}"


def _plain(number: Decimal) -> int | float:
    """A number as JSON has it, never above it: a request for records since a greater number would pass over some."""
    if number == number.to_integral_value() or abs(number) > _FLOAT:
        return math.floor(number)
    near = float(number)
    return near if Decimal(repr(near)) <= number else math.nextafter(near, -math.inf)
