"""The records of a declared REST API, read in sweeps: each reads the pages of a resource from the first to the last."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from ...core import (
    REQUIRED,
    CursorSource,
    Discovery,
    Duration,
    Int,
    Json,
    Misconfigured,
    Options,
    Problem,
    Text,
    Values,
)
from ...core.datasets import Dataset
from ...formats.json import columns_of
from .api import WORDS, Resource, resources
from .client import CONNECTION, CONNECTOR, check_http, of_url
from .cursor import HttpCursor


class HttpSource(CursorSource):
    """The records of one resource of a REST API that ``config`` declares.

    ``config`` is JSON: ``baseUrl``, ``resources``, and ``paging`` and ``parameters`` for all of them. A resource has ``name``,
    ``path``, ``parameters``, ``records`` (a JMESPath to them in the answer), ``paging``, ``key`` (the fields that tell
    records apart), ``cursor`` and ``children``; notebooks/README.md shows each.

    Columns are those of ``.schema(…)``, else of the records of the first page. A stream needs a resource with a ``cursor``: the
    field that tells new records. Each sweep requests records since the last ``{position}``, and leaves out those that have
    already come.

    Guarantee: exactly-once: an epoch is recorded with its records, so that a replay sends no request.
    """

    name = "http"
    columns: ClassVar[str] = ""
    """The columns of a subclass for one API, as SQL text."""
    repeatable = False
    max_parallelism = 1
    conditions = "a record that comes late is not older than the cursor's lookback; numbered pages come from no cache"
    options = CONNECTION | Options(
        {
            "config": Json(REQUIRED, words=WORDS, meaning="the API; secret"),
            "resource": Text(None, meaning="the resource to read; default: the only one"),
            "rateLimit": Int(None, at_least=1, meaning="requests a second, at most; default: unlimited"),
            "maxInFlight": Int(8, at_least=1, meaning="requests for children at a time"),
            "request.timeout": Duration(30.0, at_least="1ms", meaning="of one request"),
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
        """The resource to read."""
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
        """Requests a page, so that a wrong address or login fails at the start of a query."""
        self._sample()

    def partitions(self, positions: Mapping[str, Any], finished: Collection[str]) -> Discovery:
        return Discovery({self.resource.name: positions.get(self.resource.name, {})})

    def datasets(self) -> Sequence[Dataset]:
        return [of_url(self.values["config"]["baseUrl"])._replace(name=self.resource.name)]

    def cursor(self, schema: pa.Schema) -> HttpCursor:
        return HttpCursor(self.values, self.resource, schema)

    def position_text(self, position: Any) -> str | None:
        after = position.get("top", position.get("after"))
        return None if after is None else str(after)

    def _sample(self) -> list[Any]:
        with contextlib.closing(HttpCursor(self.values, self.resource, None)) as cursor:
            cursor.open()
            return cursor.sample()
