"""The transforms of one connector, in the order of ``transforms``, with their predicates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ...core.errors import Problem
from ..columns import INDEX, Records, of_sink_records, of_source_records
from ..common_settings import names
from ..config import ConfigDef
from ..errors import ConfigException
from ..plugins import named_class
from ..tolerance import Tolerance
from .base import RecordTransform, Transform
from .fields import ExtractField, HoistField, InsertField, MaskField, ReplaceField, SetSchemaMetadata, ValueToKey
from .predicates import HasHeaderKey, Predicate, RecordIsTombstone, RecordPredicate, TopicNameMatches
from .routes import DropHeaders, Filter, HeaderFrom, InsertHeader, RegexRouter
from .shapes import Cast, Flatten
from .times import TimestampConverter, TimestampRouter

_PACKAGE: Final = "org.apache.kafka.connect.transforms"
TRANSFORMS: Final[dict[str, Callable[[str], Transform]]] = {
    f"{_PACKAGE}.{kind.__name__}": kind
    for kind in (
        Cast,
        DropHeaders,
        ExtractField,
        Filter,
        Flatten,
        HeaderFrom,
        HoistField,
        InsertField,
        InsertHeader,
        MaskField,
        RegexRouter,
        ReplaceField,
        SetSchemaMetadata,
        TimestampConverter,
        TimestampRouter,
        ValueToKey,
    )
}
"""The transforms that come with Connect, by the names of their classes, without ``$Key`` and ``$Value``."""
TWO_SIDED: Final = frozenset(
    f"{_PACKAGE}.{name}"
    for name in (
        "Cast",
        "ExtractField",
        "Flatten",
        "HeaderFrom",
        "HoistField",
        "InsertField",
        "MaskField",
        "ReplaceField",
        "SetSchemaMetadata",
        "TimestampConverter",
    )
)
"""Those that are named with ``$Key`` or ``$Value``."""
PREDICATES: Final[dict[str, Callable[[], Predicate]]] = {
    f"{_PACKAGE}.predicates.{kind.__name__}": kind for kind in (TopicNameMatches, HasHeaderKey, RecordIsTombstone)
}
_OWN_SETTINGS: Final = ("type", "predicate", "negate", "plugin.version")


@dataclass(frozen=True)
class _Step:
    """A transform, and for which records it is applied."""

    transform: Transform | RecordTransform
    predicate: Predicate | RecordPredicate | None = None
    negate: bool = False


class Chain:
    """The transforms of a connector; each takes what the one before has given."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self._steps = steps

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Chain:
        """The chain of ``transforms`` and ``predicates``. Raises ``ValueError`` or :class:`ConfigException`."""
        return cls([_step(alias, properties) for alias in names(properties.get("transforms"))])

    @classmethod
    def problems(cls, properties: Mapping[str, str]) -> Iterator[Problem]:
        """What is wrong with the transforms and predicates of a configuration."""
        predicates = names(properties.get("predicates"))
        used = set()
        for alias in predicates:
            yield from _problems(f"predicates.{alias}", properties, _predicate)
        for alias in names(properties.get("transforms")):
            prefix = f"transforms.{alias}"
            yield from _problems(prefix, properties, _transform)
            named = properties.get(f"{prefix}.predicate")
            used.add(named)
            if named is not None and named not in predicates:
                yield Problem(
                    f"{prefix}.predicate",
                    f'"{named}" is no predicate; predicates has {", ".join(predicates) or "none"}.',
                )
            if properties.get(f"{prefix}.negate", "false").lower() not in ("true", "false"):
                yield Problem(f"{prefix}.negate", "must be true or false.")
            if f"{prefix}.negate" in properties and named is None:
                yield Problem(f"{prefix}.negate", "has no use without a predicate.")
        known = {f"{kind}.{alias}." for kind in ("transforms", "predicates") for alias in names(properties.get(kind))}
        for key in properties:
            if key.startswith(("transforms.", "predicates.")) and not key.startswith(tuple(known)):
                kind, _, rest = key.partition(".")
                yield Problem(key, f'belongs to "{rest.partition(".")[0]}", which {kind} does not list.')

    def apply(self, records: Records, tolerance: Tolerance) -> Sequence[Records]:
        """``records`` afterwards, in their order, as parts of one schema each."""
        parts = [records]
        for step in self._steps:
            parts = [after for part in parts for after in _applied(step, part, tolerance) if len(after)]
        return parts


def _applied(step: _Step, records: Records, tolerance: Tolerance) -> list[Records]:
    if step.predicate is None:
        return _transformed(step.transform, records, tolerance)
    out: list[Records] = []
    for part, mask in tolerance.each(
        "TRANSFORMATION", type(step.predicate), lambda some: _test(step.predicate, some), records
    ):
        first = 0
        while first < len(part):  # runs of records with one answer, so that the order stays
            end = first + 1
            while end < len(part) and mask[end] == mask[first]:
                end += 1
            some = part.slice(first, end - first)
            out += _transformed(step.transform, some, tolerance) if mask[first] != step.negate else [some]
            first = end
    return out


def _test(predicate: Predicate | RecordPredicate | None, records: Records) -> list[bool]:
    if isinstance(predicate, Predicate):
        return predicate.test(records)
    assert predicate is not None
    return [predicate.test(record) for record in _one_by_one(records)]


def _transformed(transform: Transform | RecordTransform, records: Records, tolerance: Tolerance) -> list[Records]:
    if isinstance(transform, Transform):
        done = tolerance.each("TRANSFORMATION", type(transform), transform.apply, records)
        return [after for _, after in done]
    out, places = [], []
    for place, record in enumerate(_one_by_one(records)):
        try:
            after = tolerance.retried(lambda record=record: transform.apply(record))  # type: ignore[misc]
        except Exception as error:
            tolerance.failed("TRANSFORMATION", type(transform), records.slice(place, 1), error)
            continue
        if after is not None:
            out.append(after)
            places.append(place)
    return _rejoined(out, records.take(places))


def _one_by_one(records: Records) -> list[Any]:
    return list(records.to_sink_records() if "offset" in records.extra else records.to_source_records())


def _rejoined(after: Sequence[Any], before: Records) -> list[Records]:
    """Records that were changed one by one, in columns, with the numbers of ``before``."""
    parts = of_sink_records(after) if "offset" in before.extra else of_source_records(after)
    out, first = [], 0
    for part in parts:
        numbers: pa.Array = before.extra[INDEX].slice(first, len(part))
        out.append(replace(part, extra={**part.extra, INDEX: numbers}))
        first += len(part)
    return out


def _settings(prefix: str, properties: Mapping[str, str]) -> dict[str, str]:
    own = {key[len(prefix) + 1 :]: value for key, value in properties.items() if key.startswith(f"{prefix}.")}
    return {key: value for key, value in own.items() if key not in _OWN_SETTINGS}


def _step(alias: str, properties: Mapping[str, str]) -> _Step:
    prefix = f"transforms.{alias}"
    transform = _transform(properties.get(f"{prefix}.type", ""))
    _configure(transform, _settings(prefix, properties))
    name = properties.get(f"{prefix}.predicate")
    if name is None:
        return _Step(transform)
    predicate = _predicate(properties.get(f"predicates.{name}.type", ""))
    _configure(predicate, _settings(f"predicates.{name}", properties))
    return _Step(transform, predicate, properties.get(f"{prefix}.negate", "false").lower() == "true")


def _configure(part: Any, settings: Mapping[str, str]) -> None:
    definition: ConfigDef = part.config()
    part.configure({**settings, **definition.parse(settings)})


def _transform(name: str) -> Transform | RecordTransform:
    full, dollar, side = name.partition("$")
    full = full if "." in full else f"{_PACKAGE}.{full}"
    if full in TRANSFORMS:
        if full in TWO_SIDED and side not in ("Key", "Value"):
            raise ValueError(f'"{name}" needs a side: {name.partition("$")[0]}$Key or {name.partition("$")[0]}$Value')
        if full not in TWO_SIDED and dollar:
            raise ValueError(f'"{name}" has no sides; write {full}')
        return TRANSFORMS[full](side)
    transform: Transform | RecordTransform = _own(name, (Transform, RecordTransform), TRANSFORMS)
    return transform


def _predicate(name: str) -> Predicate | RecordPredicate:
    full = name if "." in name else f"{_PACKAGE}.predicates.{name}"
    if full in PREDICATES:
        return PREDICATES[full]()
    predicate: Predicate | RecordPredicate = _own(name, (Predicate, RecordPredicate), PREDICATES)
    return predicate


def _own(name: str, bases: tuple[type, ...], known: Mapping[str, Any]) -> Any:
    try:
        kind = named_class(name)
    except ImportError:
        names = ", ".join(sorted(kind.rpartition(".")[2] for kind in known))
        raise ValueError(
            f'"{name}" is none that is here; there are {names}, and Python classes by their dotted name'
        ) from None
    if not (isinstance(kind, type) and issubclass(kind, bases)):
        raise ValueError(f'"{name}" is no {bases[0].__name__}')
    return kind()


def _problems(prefix: str, properties: Mapping[str, str], make: Callable[[str], Any]) -> Iterator[Problem]:
    name = properties.get(f"{prefix}.type")
    if not name:
        yield Problem(f"{prefix}.type", "missing; it names the class.")
        return
    try:
        part = make(name)
    except ValueError as wrong:
        yield Problem(f"{prefix}.type", f"{wrong}.")
        return
    definition: ConfigDef = part.config()
    settings = _settings(prefix, properties)
    problems = list(definition.problems(settings, f"{prefix}."))
    yield from problems
    for key in settings:
        if definition.keys and key not in definition.keys:
            near = definition.nearest(key)
            yield Problem(f"{prefix}.{key}", "is no setting of it" + (f'; did you mean "{near}"?' if near else "."))
    if not problems:
        try:
            _configure(part, settings)
        except ConfigException as wrong:
            yield Problem(prefix, f"{wrong}.")
