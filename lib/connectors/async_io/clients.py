"""Ready-made lookups on well-maintained clients: HTTP (aiohttp), Redis, SQL (SQLAlchemy), DynamoDB (aioboto3).

In templates such as ``users/{user_id}`` names in braces are input columns. A row with a null in one of them makes no call
and counts as missing. A lookup ignores parts of an answer that the operator's schema does not have. ``missing`` is for rows
without an answer, ``failed`` for rows whose call failed after its retries: ``null`` keeps the row with nulls, ``drop`` leaves
it out, ``fail`` (only ``failed``; its default) fails the task. All tasks of a worker share a client. Outages are
``Transient``, so ``retry=Retry()`` covers them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from string import Formatter
from typing import Any, ClassVar, Final
from urllib.parse import quote

import pyarrow as pa

from ..ground.clients import client_library
from ..ground.columns import missing_columns
from ..ground.errors import ConnectorError, Misconfigured, Poison, Problem, Transient
from ..ground.retry import seconds_of
from ..ground.secrets import filled
from .function import AsyncFunction, Context, NoFallback, Row, Rows

_REDIRECTS: Final = 5
_REDIRECT_STATUSES: Final = (301, 302, 303, 307, 308)
_FALLBACKS: Final[dict[str, Rows]] = {"null": {}, "drop": None}


class _Lookup(AsyncFunction):
    """The base class of the ready-made lookups; a subclass has ``connect`` and ``ask``."""

    key_option: ClassVar[str]
    """The argument that names input columns."""

    def __init__(self, missing: str = "null", failed: str = "fail") -> None:
        problems = []
        if missing not in _FALLBACKS:
            problems.append(Problem("missing", f"must be null or drop; got {missing!r}"))
        if failed not in (*_FALLBACKS, "fail"):
            problems.append(Problem("failed", f"must be fail, null or drop; got {failed!r}"))
        if problems:
            raise Misconfigured(f"async_io.{type(self).__name__}", problems)
        self.missing, self.failed = missing, failed

    def key_names(self) -> Sequence[str]:
        """The input columns that a call looks up by. Raises ``ValueError`` with a phrase that continues "must be"."""
        raise NotImplementedError

    def check_columns(self, columns: Sequence[str]) -> Iterator[Problem]:
        try:
            names = self.key_names()
        except ValueError as wrong:
            yield Problem(self.key_option, f"must be {wrong}.")
            return
        yield from missing_columns(self.key_option, names, columns)

    async def open(self, context: Context) -> None:
        self._keys = self.key_names()
        self.schema, self.names = context.schema, context.schema.names
        await self.connect(context)

    async def async_invoke(self, row: Any) -> Any:
        if not isinstance(row, list):
            return self.answer(None) if self._is_missing(row) else await self.ask(row)
        rows = [part for part in row if not self._is_missing(part)]
        answers = iter(await self.ask_all(rows) if rows else ())
        return [self.answer(None) if self._is_missing(part) else next(answers) for part in row]

    def _is_missing(self, row: Row) -> bool:
        """True for a key with a null, which no service can have."""
        return any(row[name] is None for name in self._keys)

    def timeout(self, row: Row) -> Rows:
        if self.failed == "fail":
            raise NoFallback
        return _FALLBACKS[self.failed]

    async def connect(self, context: Context) -> None:
        raise NotImplementedError

    async def ask(self, row: Row) -> Rows:
        raise NotImplementedError

    async def ask_all(self, rows: Sequence[Row]) -> list[Rows]:
        return list(await asyncio.gather(*map(self.ask, rows)))

    def answer(self, content: Any) -> Rows:
        """Takes the columns of the schema from ``content``: an object, several, or nothing."""
        if not content:
            return _FALLBACKS[self.missing]
        return [self._fitted(item) for item in content] if isinstance(content, list) else self._fitted(content)

    def _fitted(self, item: Any) -> dict[str, Any]:
        if not isinstance(item, Mapping):
            raise Poison(f"the answer must be an object or a list of them; got {type(item).__name__}")
        return {name: item.get(name) for name in self.names}


class HttpLookup(_Lookup):
    """``GET`` of ``url``, such as ``http://host/users/{user_id}``, with ``headers``; the answer is JSON.

    404 is a missing key; 408, 429 and 5xx are outages (with their ``Retry-After``), other statuses bad records. It follows
    redirects, but sends ``headers`` to no other server.
    """

    key_option = "url"

    def __init__(
        self, url: str, headers: Mapping[str, str] | None = None, *, missing: str = "null", failed: str = "fail"
    ):
        super().__init__(missing, failed)
        self.url, self.headers = url, dict(headers or {})

    def key_names(self) -> Sequence[str]:
        return _names_in(self.url)

    async def connect(self, context: Context) -> None:
        aiohttp = _library("aiohttp")
        limit = context.capacity * context.batch_size

        def make() -> Any:  # only the row's timeout applies
            return aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=limit), timeout=aiohttp.ClientTimeout(total=None)
            )

        self.outage = aiohttp.ClientError
        self.session = context.shared(f"http {limit}", make)

    async def ask(self, row: Row) -> Rows:
        url = _filled(self.url, row, lambda value: quote(str(value), safe=""))
        try:
            async with await self._response(url) as response:
                if response.status == 404:
                    return self.answer(None)
                if response.status >= 400:
                    raise _refusal(response.status, response.headers.get("Retry-After"))
                return self.answer(await response.json(content_type=None))
        except (self.outage, OSError) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error

    async def _response(self, url: str) -> Any:
        """The answer of ``url``, or of its redirect. No other server gets the headers, since they may be secrets."""
        place, headers = url, self.headers
        for _ in range(_REDIRECTS + 1):
            response = await self.session.get(place, headers=headers, allow_redirects=False)
            if response.status not in _REDIRECT_STATUSES or "Location" not in response.headers:
                return response
            response.release()
            place = response.url.join(type(response.url)(response.headers["Location"]))
            headers = headers if place.origin() == response.url.origin() else {}
        raise Poison(f"more than {_REDIRECTS} redirects")


def _refusal(status: int, retry_after: str | None) -> ConnectorError:
    if status >= 500 or status in (408, 429):
        return Transient(f"HTTP {status}", retry_after=seconds_of(retry_after))
    return Poison(f"HTTP {status}")


class RedisLookup(_Lookup):
    """A hash, or with ``json=True`` a string that holds a JSON object, under ``key``, such as ``user:{user_id}``.

    The lookup converts a hash's texts to the schema's types. ``url``, ``user`` and ``password``, also as
    ``{{secrets/scope/key}}``, are as in the sink ``connectors.redis``, with clusters and sentinels. With ``batch_size``
    above 1, a call is one ``MGET``, or a pipeline of ``HMGET``.
    """

    key_option = "key"

    def __init__(
        self,
        url: str,
        key: str,
        *,
        json: bool = False,
        user: str = "",
        password: str = "",
        missing: str = "null",
        failed: str = "fail",
    ) -> None:
        super().__init__(missing, failed)
        self.url, self.key, self.json = url, key, json
        try:
            login = {"username": user, "password": filled(password)}
        except ValueError as missing:
            raise Misconfigured("async_io.RedisLookup", [Problem("password", f"must be {missing}.")]) from None
        self.login = {name: value for name, value in login.items() if value}

    def key_names(self) -> Sequence[str]:
        return _names_in(self.key)

    async def connect(self, context: Context) -> None:
        from ..systems.redis.connection import connect  # here, since it imports the whole connector

        redis, self._orjson = _library("redis.asyncio"), _library("orjson")
        self.outages = (redis.ConnectionError, redis.TimeoutError, _library("redis").exceptions.BusyLoadingError)

        def make() -> Any:
            return connect(redis, self.url, {**settings, **self.login})

        settings = {"decode_responses": True, "max_connections": context.capacity}
        self.client = context.shared(f"redis {context.capacity} {self.url} {self.login}", make)

    async def ask(self, row: Row) -> Rows:
        return (await self.ask_all([row]))[0]

    async def ask_all(self, rows: Sequence[Row]) -> list[Rows]:
        keys = [self.key.format_map(row) for row in rows]
        try:
            values = await (self._texts(keys) if self.json else self._hashes(keys))
        except self.outages as error:
            raise Transient(f"{type(error).__name__}: {error}") from error
        return [self.answer(self._typed(value)) for value in values]

    async def _texts(self, keys: list[str]) -> Any:
        if len(keys) == 1:
            return [await self.client.get(keys[0])]
        # in a cluster the keys are on several nodes
        return await getattr(self.client, "mget_nonatomic", self.client.mget)(keys)

    async def _hashes(self, keys: list[str]) -> Any:
        if len(keys) == 1:
            return [await self.client.hmget(keys[0], self.names)]
        pipeline = self.client.pipeline(transaction=False)
        for key in keys:
            pipeline.hmget(key, self.names)
        return await pipeline.execute()

    def _parsed(self, text: str) -> Any:
        try:
            return self._orjson.loads(text)
        except ValueError:  # perhaps NaN, which Python's own parser accepts
            return json.loads(text)

    def _typed(self, value: Any) -> Any:
        if self.json:
            return value and self._parsed(value)
        texts = zip(self.schema, value, strict=True)
        return {field.name: _from_text(text, field.type) for field, text in texts if text is not None}


class SqlLookup(_Lookup):
    """The rows of ``query``, such as ``select name from users where id = :user_id``: none, one or several per input.

    ``url`` is SQLAlchemy's, with an asynchronous driver: ``postgresql+asyncpg://…``. A call for several rows runs their
    queries one after the other on one connection. If the query lacks a column of the schema, that is an error.
    """

    key_option = "query"

    def __init__(self, url: str, query: str, *, missing: str = "null", failed: str = "fail") -> None:
        super().__init__(missing, failed)
        self.url, self.query = url, query

    def key_names(self) -> Sequence[str]:
        return list(_library("sqlalchemy").text(self.query).compile().params)

    def _is_missing(self, row: Row) -> bool:
        return False  # a query may give null a meaning

    async def connect(self, context: Context) -> None:
        sqlalchemy, asynchronous = _library("sqlalchemy"), _library("sqlalchemy.ext.asyncio")
        self.failures = (sqlalchemy.exc.DBAPIError, OSError)
        self.statement = sqlalchemy.text(self.query)
        self.engine = context.shared(
            f"sql {context.capacity} {self.url}",
            lambda: asynchronous.create_async_engine(self.url, pool_size=context.capacity, pool_pre_ping=True),
        )

    async def ask(self, row: Row) -> Rows:
        return (await self.ask_all([row]))[0]

    async def ask_all(self, rows: Sequence[Row]) -> list[Rows]:
        try:
            connection = await self.engine.connect()
            try:
                return [await self._select(connection, row) for row in rows]
            finally:  # not "async with": a cancel could not end its rollback on a dead connection
                await asyncio.wait_for(connection.close(), _CLOSE_SECONDS)
        except self.failures as error:
            raise _failure_of_sql(error) from error

    async def _select(self, connection: Any, row: Row) -> Rows:
        result = await connection.execute(self.statement, {name: row[name] for name in self._keys})
        columns = list(result.keys())
        for name in self.names:
            if name not in columns:
                text = f'has the column "{name}", which the query does not give: {", ".join(columns)}.'
                raise Misconfigured("async_io.SqlLookup", [Problem("schema", text)])
        return self.answer([dict(row) for row in result.mappings()])


_CLOSE_SECONDS: Final = 5.0
_SQL_OUTAGES: Final = ("08", "40", "53", "55", "57")
"""SQLSTATE classes of outages: connection, conflict, resources, locks, a server that is shutting down or starting."""


def _failure_of_sql(error: Any) -> ConnectorError:
    """The error for an outage or for a query that never works. Databases without SQLSTATE tell by message text."""
    cause = getattr(error, "orig", error)
    state = getattr(cause, "sqlstate", None)
    lost = isinstance(error, OSError) or error.connection_invalidated
    passes = state[:2] in _SQL_OUTAGES if state else "locked" in str(cause)
    kind = Transient if lost or passes else Poison
    return kind(f"{type(cause).__name__}: {cause}")


_MOST_KEYS: Final = 100
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class DynamoDbLookup(_Lookup):
    """The item of ``table`` whose key attributes equal the input columns of the same names, ``key_columns``.

    ``config`` goes to the client unchanged: ``region_name``, ``endpoint_url``. Numbers become int or float. With ``batch_size``
    above 1, a call is a ``BatchGetItem`` for each hundred keys; it asks again for keys that the service left unprocessed.
    """

    key_option = "key_columns"

    def __init__(
        self, table: str, key_columns: Sequence[str], *, missing: str = "null", failed: str = "fail", **config: Any
    ) -> None:
        super().__init__(missing, failed)
        self.table, self.key_columns, self.config = table, list(key_columns), config

    def key_names(self) -> Sequence[str]:
        return self.key_columns

    async def connect(self, context: Context) -> None:
        session, config = _library("aioboto3").Session(), _library("botocore.config").Config
        pool = config(max_pool_connections=context.capacity)

        async def make() -> Any:
            resource = await session.resource("dynamodb", config=pool, **self.config).__aenter__()
            return await resource.Table(self.table)

        errors = _library("botocore.exceptions")
        self.outages, self.refusal = (errors.HTTPClientError, errors.ConnectionError), errors.ClientError
        self.client = await context.shared(
            f"dynamodb {self.table} {context.capacity} {sorted(self.config.items())}", make
        )

    async def ask(self, row: Row) -> Rows:
        with self._errors():
            item = await self.client.get_item(Key=self._key(row))
        return self._columns(item.get("Item", {}))

    async def ask_all(self, rows: Sequence[Row]) -> list[Rows]:
        keys = {tuple(key.values()): key for key in map(self._key, rows)}
        distinct = list(keys.values())
        parts = [distinct[first : first + _MOST_KEYS] for first in range(0, len(distinct), _MOST_KEYS)]
        items = [item for part in await asyncio.gather(*map(self._get, parts)) for item in part]
        by_key = {tuple(item[name] for name in self.key_columns): item for item in items}
        return [self._columns(by_key.get(tuple(self._key(row).values()), {})) for row in rows]

    async def _get(self, keys: list[dict[str, Any]]) -> list[Mapping[str, Any]]:
        """The items of some keys. A busy service returns only a part, so this asks again for the others."""
        items: list[Mapping[str, Any]] = []
        request: Any = {self.table: {"Keys": keys}}
        pause = _FIRST_PAUSE
        while True:
            with self._errors():
                answer = await self.client.meta.client.batch_get_item(RequestItems=request)
            items += answer["Responses"].get(self.table, ())
            request = answer.get("UnprocessedKeys")
            if not request:
                return items
            await asyncio.sleep(pause)  # the row's timeout ends it
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _key(self, row: Row) -> dict[str, Any]:
        return {name: Decimal(repr(row[name])) if isinstance(row[name], float) else row[name] for name in self.key_columns}

    def _columns(self, item: Mapping[str, Any]) -> Rows:
        return self.answer({name: _number(value) for name, value in item.items()})

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self.outages as error:
            raise Transient(str(error)) from error
        except self.refusal as error:
            raise _refusal_of_aws(error) from error


def _refusal_of_aws(error: Any) -> ConnectorError:
    throttled = "Throughput" in error.response["Error"]["Code"] or "Throttl" in error.response["Error"]["Code"]
    outage = throttled or error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500
    return (Transient if outage else Poison)(str(error))


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _names_in(template: str) -> list[str]:
    """The columns that a template names, also through a part of them, such as ``{user[id]}``."""
    try:
        return [re.split(r"[.\[]", name)[0] for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError:
        raise ValueError(f'text with columns in braces, such as users/{{user_id}}; got "{template}"') from None


def _filled(template: str, row: Row, form: Any) -> str:
    return template.format_map({name: form(value) for name, value in row.items()})


def _from_text(text: str, type_: pa.DataType) -> Any:
    return text if pa.types.is_string(type_) else pa.scalar(text).cast(type_).as_py()


def _library(module: str) -> Any:
    return client_library(module, module.split(".")[0], connector="this lookup", option="lookup")
