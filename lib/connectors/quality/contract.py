"""A data contract in the Open Data Contract Standard (ODCS 3), as checks."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..ground.clients import client_library
from ..ground.errors import Misconfigured, Problem
from .check import Check, literal, quoted
from .define import between, expression, in_set, not_null, row_count, unique

_KINDS: Final = {
    "string": ("string",),
    "integer": ("tinyint", "smallint", "int", "bigint"),
    "number": ("tinyint", "smallint", "int", "bigint", "float", "double", "decimal"),
    "boolean": ("boolean",),
    "date": ("date",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "array": ("array",),
    "object": ("struct", "map"),
}
"""For each logical type the Spark types, without arguments."""
_DESCRIBED: Final = (
    *("id", "name", "physicalName", "physicalType", "businessName", "description", "tags", "customProperties", "examples"),
    *("authoritativeDefinitions", "partitioned", "partitionKeyPosition", "classification", "encryptedName", "transformLogic"),
    *("transformSourceObjects", "transformDescription", "criticalDataElement", "dataGranularityDescription", "relationships"),
)
"""Fields that state nothing that rows could break."""
_SIZES: Final = (
    ("minLength", ">=", "length"),
    ("maxLength", "<=", "length"),
    ("minItems", ">=", "size"),
    ("maxItems", "<=", "size"),
)
_STATED: Final = ("logicalType", "logicalTypeOptions", "required", "unique", "primaryKey", "primaryKeyPosition", "quality")
"""Fields of a column that become checks."""


@dataclass
class Contract:
    """The checks of one schema of a contract. ``unchecked`` has the statements that no check judges, by their places."""

    checks: list[Check] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def contract(source: str) -> Contract:
    """The contract in the file ``source``; ``orders.yaml#orders`` names one of several schemas.

    Raises :class:`~connectors.ground.errors.Misconfigured` if there is no such file or schema, or the file is no contract.
    """
    path, _, name = source.partition("#")
    yaml = client_library("yaml", "pyyaml", connector="quality.rules", option="checks")
    try:
        content = yaml.load(Path(path).read_text(), _loader(yaml))
    except OSError as unreadable:
        raise _wrong(f'the file "{path}" cannot be read: {unreadable.strerror}.') from None
    except (yaml.YAMLError, ValueError) as wrong:
        raise _wrong(f"{path} is no YAML: {' '.join(str(wrong).split())}") from None
    schemas = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(schemas, list) or not all(isinstance(schema, dict) and "name" in schema for schema in schemas):
        raise _wrong(f"{path} is no data contract (ODCS 3): it has no list `schema` of objects with names.")
    names = [schema["name"] for schema in schemas]
    if name not in names and (name or len(names) != 1):
        text = f'must name one schema of {path}, as "{path}#{names[0] if names else "orders"}"'
        raise _wrong(f"{text}; it has {', '.join(names)}.")
    found = Contract()
    try:
        _read_schema(schemas[names.index(name) if name else 0], found)
    except (AttributeError, KeyError, TypeError, ValueError) as wrong:
        text = f"properties and rules must be lists of objects, and a property has a name; {type(wrong).__name__}: {wrong}"
        raise _wrong(f"{path} is no data contract (ODCS 3): {text}.") from None
    if content.get("slaProperties"):
        found.unchecked.append("slaProperties")
    if not found.checks:
        raise _wrong(f"{path} states nothing about rows: no type, no range, nothing required or unique.")
    return found


def refuse_repeated(names: Sequence[str]) -> None:
    """Raises ``ValueError`` if an object has one of the ``names`` twice: the last would hide the others."""
    if repeated := [name for name, times in Counter(names).items() if times > 1]:
        raise ValueError(f'an object has "{repeated[0]}" more than once, and the last would hide the others; keep one')


def _loader(yaml: Any) -> Any:
    """A loader of plain values that refuses a name which an object has twice."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            refuse_repeated([str(name.value) for name, _ in node.value])
            return super().construct_mapping(node, deep)

    return Loader


def _read_schema(schema: Mapping[str, Any], found: Contract) -> None:
    properties: Sequence[Mapping[str, Any]] = schema.get("properties") or []
    for column in properties:
        _read_column(column, found)
    keys = [column for column in properties if column.get("primaryKey")]
    if keys:
        keys.sort(key=lambda column: column.get("primaryKeyPosition") or 0)
        found.checks += [not_null(column["name"]) for column in keys if not column.get("required")]
        found.checks.append(unique(*(column["name"] for column in keys)))
    for number, rule in enumerate(schema.get("quality") or ()):
        _read_rule(rule, None, f"quality[{number}]", found)
    known = {*_DESCRIBED, "logicalType", "properties", "quality"}
    found.unchecked += [str(name) for name in schema if name not in known]


def _read_column(column: Mapping[str, Any], found: Contract) -> None:
    name = str(column["name"])
    if column.get("required"):
        found.checks.append(not_null(name))
    if column.get("unique") and not column.get("primaryKey"):
        found.checks.append(unique(name))
    if kind := column.get("logicalType"):
        if kind in _KINDS:
            listed = ", ".join(f"'{of_spark}'" for of_spark in _KINDS[kind])
            text = f"split(typeof({quoted(name)}), '[(<]')[0] IN ({listed})"
            found.checks.append(expression(text, name=f"type({name}, {kind})"))
        else:
            found.unchecked.append(f"{name}.logicalType")
    options = dict(column.get("logicalTypeOptions") or {})
    options |= {option: _time(options[option], kind) for option in ("minimum", "maximum") if option in options}
    found.checks += _options(name, options)
    found.unchecked += [f"{name}.logicalTypeOptions.{option}" for option in options]
    for number, rule in enumerate(column.get("quality") or ()):
        _read_rule(rule, name, f"{name}.quality[{number}]", found)
    found.unchecked += [f"{name}.{part}" for part in column if part not in {*_DESCRIBED, *_STATED}]


def _time(bound: Any, kind: Any) -> Any:
    """The date or time in a ``bound`` that the contract gives as text."""
    if not isinstance(bound, str) or kind not in ("date", "timestamp"):
        return bound
    time = datetime.datetime.fromisoformat(bound.replace("Z", "+00:00"))
    return time.date() if kind == "date" else time


def _options(name: str, options: dict[str, Any]) -> Iterator[Check]:
    """The checks of the options of a type. Removes these from ``options``."""
    low, high = options.pop("minimum", None), options.pop("maximum", None)
    if low is not None or high is not None:
        yield between(name, low, high)
    for option, sign in (("exclusiveMinimum", ">"), ("exclusiveMaximum", "<")):
        bound = options.get(option)
        if isinstance(bound, (int, float)) and not isinstance(bound, bool):
            text = f"{quoted(name)} {sign} {literal(options.pop(option))} AND NOT isnan({quoted(name)})"
            yield expression(text, name=f"{option}({name}, {bound})")
    for option, sign, function in _SIZES:
        if isinstance(options.get(option), int):
            size = options.pop(option)
            yield expression(f"{function}({quoted(name)}) {sign} {size}", name=f"{option}({name}, {size})")
    if isinstance(options.get("pattern"), str):
        yield _pattern(name, options.pop("pattern"))


def _pattern(name: str, pattern: str) -> Check:
    """A check that some part of the text matches, since the patterns of a contract are those of JSON Schema."""
    return expression(f"regexp_like({quoted(name)}, {literal(pattern)})", name=f"pattern({name}, {pattern})")


def _read_rule(rule: Mapping[str, Any], column: str | None, place: str, found: Contract) -> None:
    """Adds the check of a metric by which no row may break a rule, or of a row count; other rules are ``unchecked``."""
    bounds = {name: value for name, value in rule.items() if name.startswith("must")}
    arguments = rule.get("arguments") or {}
    metric = _METRICS.get(str(rule.get("metric")))
    checks = metric(column, arguments, bounds) if metric else []
    if not checks or rule.get("type", "library") != "library" or rule.get("unit") == "percent":
        found.unchecked.append(place)
        return
    found.checks += checks


def _nulls(column: str | None, arguments: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[Check]:
    return [not_null(column)] if column and bounds == {"mustBe": 0} else []


def _duplicates(column: str | None, arguments: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[Check]:
    columns = [column] if column else list(arguments.get("properties") or ())
    return [unique(*columns)] if columns and bounds == {"mustBe": 0} else []


def _invalid(column: str | None, arguments: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[Check]:
    if column is None or bounds != {"mustBe": 0} or not arguments.keys() <= {"validValues", "pattern"}:
        return []
    values, pattern = arguments.get("validValues"), arguments.get("pattern")
    return [*([in_set(column, values)] if values else []), *([_pattern(column, pattern)] if pattern else [])]


def _rows(column: str | None, arguments: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[Check]:
    low = {"mustBe": 0, "mustBeGreaterOrEqualTo": 0, "mustBeGreaterThan": 1}
    high = {"mustBe": 0, "mustBeLessOrEqualTo": 0, "mustBeLessThan": -1}
    if column or not bounds or not bounds.keys() <= low.keys() | high.keys():
        return []
    least = [bounds[name] + more for name, more in low.items() if name in bounds]
    most = [bounds[name] + more for name, more in high.items() if name in bounds]
    return [row_count(min=max(least, default=0), max=min(most, default=None))]


_METRICS: Final[Mapping[str, Callable[..., list[Check]]]] = {
    "nullValues": _nulls,
    "duplicateValues": _duplicates,
    "invalidValues": _invalid,
    "rowCount": _rows,
}


def _wrong(text: str) -> Misconfigured:
    return Misconfigured("quality.rules", [Problem("checks", text)])
