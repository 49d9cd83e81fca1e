"""A REST API as a user declares it: its resources, their paging, and where in an answer the records are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

from ...core import REQUIRED, Choice, Fatal, Flag, Json, Misconfigured, Names, Options, Problem, Text, Values
from ...ground.quantities import duration
from .client import CONNECTOR, NO_STEPS, shown
from .paging import KINDS, PAGING, Paging
from .paths import is_absent, is_path, searched

_API: Final = Options(
    baseUrl=Text(REQUIRED, meaning="where the API is"),
    resources=Json(REQUIRED, kind=list, meaning="what it has"),
    paging=Json(None, meaning="that of resources without their own"),
    parameters=Json({}, meaning="parameters of each request"),
    failWhen=Text(None, meaning="JMESPath: an answer that has something there tells of an error"),
)
_RESOURCE: Final = Options(
    name=Text(REQUIRED, meaning="what the option resource names"),
    path=Text(REQUIRED, meaning="below baseUrl; {position} is the newest value of the cursor, {id} a field of the parent"),
    method=Choice("GET", among=("GET", "POST"), meaning="POST sends the parameters in the body"),
    parameters=Json({}, meaning="parameters of its requests; what holds {position} is left out before there is one"),
    body=Json(None, meaning="the body of its requests, with POST"),
    records=Text(None, meaning="where the records are in the answer, JMESPath; default: the answer is a list"),
    failWhen=Text(None, meaning="in place of that of the API"),
    key=Names((), meaning="the fields that tell records apart"),
    paging=Json(None, meaning="how its pages follow one another; default: all comes at once"),
    cursor=Json(None, meaning="the field by which new records are known; a stream needs it"),
    ignore=Json([], kind=list, meaning="statuses of a first page that mean no records"),
    include=Json({}, meaning="columns of a child from fields of its parent, by column"),
    children=Json([], kind=list, meaning="resources that are read for each of its records"),
) | Options({"records.optional": Flag(False, meaning="an answer without that place has no records, and is no error")})
_CURSOR: Final = Options(
    field=Text(REQUIRED, meaning="the field of a record that grows"),
    start=Text(None, meaning="{position} of the first sweep"),
    lookback=Text("0", meaning="a number, or a duration: so far before the newest value the next sweep asks"),
)
WORDS: Final = {
    "the API": _API,
    "each of resources": _RESOURCE,
    "cursor": _CURSOR,
    **{f'paging of the kind "{kind}"': options for kind, options in PAGING.items() if options.declared},
}
"""The options of a declaration, by place."""
_NAME: Final = re.compile(r"\{([^{}]+)\}")
_VALUE: Final = "\0"
"""The place of a value in a path."""
_LONGEST: Final = 300
POSITION: Final = "position"
"""The name in braces that stands for the position of an incremental resource."""


@dataclass(frozen=True)
class Call:
    """A request: its URL and, for a POST, the object in the body."""

    method: str
    url: str
    body: Any = None


@dataclass(frozen=True)
class Incremental:
    """The ``field`` that tells new records, and the ``start`` in the first request.

    Later requests ask from ``lookback`` before the newest value: a number, or a duration if the values are times.
    """

    field: str
    start: Any
    lookback: str


@dataclass(frozen=True)
class Resource:
    """A list of records. A child resource is read for each record of its parent."""

    base: str
    name: str
    path: str
    method: str
    parameters: Mapping[str, Any]
    body: Any
    records_path: str | None
    is_optional: bool
    fails_when: str | None
    key: tuple[str, ...]
    paging: Paging
    cursor: Incremental | None
    ignored: frozenset[int]
    include: Mapping[str, str]
    parent: Resource | None = field(default=None, repr=False)

    def call(self, token: Any, parent: Mapping[str, Any] | None, position: Any) -> Call:
        """The request for a page; for the children of ``parent`` if there is one."""
        names = {**(parent or {}), **({} if position is None else {POSITION: position})}
        url = self.paging.url(token)
        if url is not None:
            return Call(self.method, urljoin(self._url(names), url), _filled(self.body, names))
        parameters = {**_filled(self.parameters, names), **self.paging.parameters(token)}
        if self.method == "POST":
            return Call("POST", self._url(names), {**(_filled(self.body, names) or {}), **parameters})
        return Call("GET", _with_query(self._url(names), parameters))

    def records(self, body: Any, url: str) -> list[Any]:
        """The records of a page. Raises ``Fatal`` if the answer does not have the declared shape, or reports an error."""
        self._check_success(body, url)
        content = searched(self.records_path, body) if self.records_path else body
        if content is None and self.records_path:
            if not self.is_optional and is_absent(self.records_path, body):
                raise Fatal(
                    f'{shown(url)} answers nothing at "{self.records_path}", also no null or empty list.{_names_in(body)}',
                    way_out=f"correct config.resources.{self.name}.records; or set records.optional beside it, if the API "
                    "leaves the place out where it has no records",
                )
            return []
        records = content if isinstance(content, list) else [content] if self.records_path else None
        if records is None:
            raise Fatal(
                f"{shown(url)} answers no list of records.{_names_in(body)}",
                way_out=f"name the place of the records in the answer by config.resources.{self.name}.records",
            )
        if any(not isinstance(record, dict) for record in records):
            raise Fatal(
                f"{shown(url)} answers records that are no objects",
                way_out=f"correct config.resources.{self.name}.records",
            )
        return records

    def _check_success(self, body: Any, url: str) -> None:
        if self.fails_when is not None and not searched(f"!({self.fails_when})", body):
            text = str(searched(self.fails_when, body))[:_LONGEST]
            raise Fatal(
                f"{shown(url)} answers an error: {text}",
                way_out=f"ask the API's documentation what it means, or correct config.resources.{self.name}.failWhen",
            )

    def _url(self, names: Mapping[str, Any]) -> str:
        path = _NAME.sub(lambda match: quote(str(_value(match[1], names)), safe=""), self.path)
        steps = zip(_steps(_NAME.sub(_VALUE, self.path)), _steps(path), strict=True)
        if bad := [step for template, step in steps if _VALUE in template and step in NO_STEPS]:
            raise Fatal(
                f'a record makes "{bad[0]}" of a part of {self.path}, the path of {self.name}, which is then another place',
                way_out=f"take another field in config.resources.{self.name}.path",
            )
        return f"{self.base.rstrip('/')}/{path.lstrip('/')}" if path else self.base

    @property
    def is_told_apart(self) -> bool:
        """True if digests tell its records apart."""
        return bool(self.key) or self.cursor is not None

    @cached_property
    def chain(self) -> list[Resource]:
        """The parents of a resource, topmost first, and the resource itself."""
        return [*(self.parent.chain if self.parent else []), self]


def _steps(path: str) -> list[str]:
    return path.partition("?")[0].split("/")


def _names_in(body: Any) -> str:
    """A sentence for an error about the names at the top of an answer; may be empty."""
    if not isinstance(body, dict):
        return f" It is {type(body).__name__}." if body is None or isinstance(body, str) else ""
    lists = [name for name, value in body.items() if isinstance(value, list)]
    return f" Lists in it: {', '.join(lists)}." if lists else f" Fields in it: {', '.join(body)}."[:_LONGEST]


def resources(config: Mapping[str, Any]) -> dict[str, Resource]:
    """The resources of an API by name. Raises :class:`~connectors.ground.errors.Misconfigured` with every problem."""
    problems: list[Problem] = []
    api = _parsed(_API, config, "config", problems)
    by_name: dict[str, Resource] = {}
    if api is not None:
        if urlsplit(api["baseUrl"]).scheme not in ("http", "https"):
            problems.append(Problem("config", "baseUrl must be a URL that begins with http:// or https://."))
        if api["failWhen"] is not None and not is_path(api["failWhen"]):
            problems.append(Problem("config", f'failWhen is no JMESPath: "{api["failWhen"]}".'))
        for place, content in enumerate(api["resources"]):
            _add(by_name, api, content, None, f"resources[{place}]", problems)
    if problems:
        raise Misconfigured(CONNECTOR, problems)
    return by_name


def _add(
    by_name: dict[str, Resource], api: Values, content: Any, parent: Resource | None, where: str, problems: list[Problem]
) -> None:
    """Adds a resource and its children to ``by_name``, and their problems to ``problems``."""
    values = _parsed(_RESOURCE, content, where, problems)
    if values is None:
        return
    name = values["name"]
    where = f"resources.{name}"
    if name in by_name:
        problems.append(Problem("config", f"has two resources of the name {name}."))
    paging = _paging(values["paging"] or api["paging"] or {"kind": "none"}, f"{where}.paging", problems)
    cursor = _incremental(values["cursor"], f"{where}.cursor", problems) if values["cursor"] is not None else None
    problems += _wrong_paths(values, where)
    if cursor is not None and parent is not None:
        problems.append(Problem("config", f"{where}.cursor has no use: new records of a child are those of new parents."))
    if values["body"] is not None and values["method"] != "POST":
        problems.append(Problem("config", f"{where}.body needs method POST."))
    names = {match for text in _texts([values["path"], values["parameters"], values["body"]]) for match in _NAME.findall(text)}
    if POSITION in names and cursor is None:
        problems.append(Problem("config", f"{where} has {{{POSITION}}}, but no cursor that says which field it is."))
    if parent is None and (strange := names - {POSITION}):
        problems.append(Problem("config", f"{where} has {{{min(strange)}}}, and no parent with such a field."))
    if paging is None:
        return
    resource = Resource(
        api["baseUrl"],
        name,
        values["path"],
        values["method"],
        {**api["parameters"], **values["parameters"]},
        values["body"],
        values["records"],
        values["records.optional"],
        values["failWhen"] or api["failWhen"],
        values["key"],
        paging,
        cursor,
        frozenset(values["ignore"]),
        values["include"],
        parent,
    )
    by_name[name] = resource
    for place, child in enumerate(values["children"]):
        _add(by_name, api, child, resource, f"{where}.children[{place}]", problems)


def _paging(content: Any, where: str, problems: list[Problem]) -> Paging | None:
    kind = content.get("kind")
    if kind not in PAGING:
        problems.append(Problem("config", f"{where}.kind must be one of {', '.join(PAGING)}; got {kind!r}."))
        return None
    values = _parsed(PAGING[kind], {name: value for name, value in content.items() if name != "kind"}, where, problems)
    if values is None:
        return None
    if kind == "cursor" and (values["path"] is None) == (values["header"] is None):
        problems.append(Problem("config", f"{where} needs path, the cursor's place in the body, or header; one of them."))
    if values.get("shortPage") == "last" and values["size"] is None:
        problems.append(Problem("config", f"{where}.shortPage=last needs size, or no page is short."))
    for name in ("path", "pages", "total"):
        if values.get(name) and not is_path(values[name]):
            problems.append(Problem("config", f'{where}.{name} is no JMESPath: "{values[name]}".'))
    return KINDS[kind](values)


def _incremental(content: Any, where: str, problems: list[Problem]) -> Incremental | None:
    values = _parsed(_CURSOR, content, where, problems)
    if values is None:
        return None
    start = next((value for name, value in content.items() if name.lower() == "start"), None)
    try:
        duration(values["lookback"])
    except ValueError:
        problems.append(Problem("config", f'{where}.lookback must be a number, or a duration; got "{values["lookback"]}".'))
    return Incremental(values["field"], start, values["lookback"])


def _wrong_paths(values: Values, where: str) -> Iterator[Problem]:
    for name in ("records", "failWhen"):
        if values[name] is not None and not is_path(values[name]):
            yield Problem("config", f'{where}.{name} is no JMESPath: "{values[name]}".')
    if values["records.optional"] and values["records"] is None:
        yield Problem("config", f"{where}.records.optional has no use without records.")
    for column, name in values["include"].items():
        if not isinstance(name, str):
            yield Problem("config", f"{where}.include.{column} must name a field of the parent.")
    for status in values["ignore"]:
        if not isinstance(status, int):
            yield Problem("config", f"{where}.ignore must have statuses, such as 404; got {status!r}.")


def _parsed(options: Options, content: Any, where: str, problems: list[Problem]) -> Values | None:
    """The parsed parts of an object of the configuration; adds their problems to ``problems``."""
    if not isinstance(content, Mapping):
        problems.append(Problem("config", f"{where} must be an object."))
        return None
    try:
        return options.parse(CONNECTOR, content, kind="object")
    except Misconfigured as wrong:
        for problem in wrong.problems:
            text = "is missing." if problem.text.startswith("missing") else problem.text
            problems.append(Problem("config", f"{where}.{problem.option} {text}"))
        return None


def _with_query(url: str, parameters: Mapping[str, Any]) -> str:
    if not parameters:
        return url
    parts = urlsplit(url)
    query = urlencode({name: _text(value) for name, value in parameters.items()}, doseq=True)
    return urlunsplit(parts._replace(query="&".join(filter(None, [parts.query, query]))))


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return [_text(part) for part in value] if isinstance(value, list) else value


def _filled(template: Any, names: Mapping[str, Any]) -> Any:
    """The template with values instead of names in braces; a text that is only one name becomes the value itself.

    If there is no position yet, parts that name it are left out.
    """
    if isinstance(template, str):
        if match := _NAME.fullmatch(template):
            return _value(match[1], names)
        return _NAME.sub(lambda match: str(_value(match[1], names)), template)
    if isinstance(template, Mapping):
        return {name: _filled(value, names) for name, value in template.items() if _has_position(value, names)}
    return [_filled(value, names) for value in template] if isinstance(template, list) else template


def _has_position(template: Any, names: Mapping[str, Any]) -> bool:
    return POSITION in names or f"{{{POSITION}}}" not in str(template)


def _value(name: str, names: Mapping[str, Any]) -> Any:
    value = names.get(name) if name in names else searched(name, names)
    if value is None:
        raise Fatal(f'a record has no "{name}", which the URL or the parameters of its children need')
    return value


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, (Mapping, list)):
        for part in content.values() if isinstance(content, Mapping) else content:
            yield from _texts(part)
