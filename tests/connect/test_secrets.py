"""Secrets of the properties are in no message, log, status or dead letter of a Python connector."""

from __future__ import annotations

import builtins
import json
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pyarrow.parquet as pq
import pytest

from connectors.connect import (
    RecordConverter,
    RetriableException,
    Schema,
    SinkConnector,
    SinkRecord,
    SinkTask,
    SourceRecord,
)
from connectors.connect.errors import ConnectException, masked_error
from connectors.connect.pipeline import SourcePipeline
from connectors.core import Misconfigured
from connectors.ground.errors import Fatal
from connectors.ground.options import masker
from tests.connect.test_sink import Write, rows

from .database import Database, Run, TablesConnector

PASSWORD = "hunter" + "22"  # no line of a traceback shows it
URL = "postgresql://bob:{}@db/x"


def login_error(password: str) -> Exception:
    """An error whose cause and message name the password, too."""
    try:
        try:
            raise ConnectionError(f"no login with {password}")
        except ConnectionError as cause:
            raise RuntimeError(f"cannot connect to {URL.format(password)}") from cause
    except RuntimeError as error:
        return error


class OwnText(Exception):
    """An error whose text is none of its arguments."""

    def __init__(self, code: int, answer: Mapping[str, str]) -> None:
        self.code, self.answer = code, answer

    def __str__(self) -> str:
        return f"{self.code}: {self.answer}"


@pytest.mark.parametrize(
    "error", [login_error(PASSWORD), OwnText(401, {"sent": PASSWORD}), FileNotFoundError(2, "no", PASSWORD)]
)
def test_an_error_keeps_its_type_or_gets_another_one_that_may_be_shown(error: Exception) -> None:
    shown = masked_error(error, masker([PASSWORD]))
    text = "".join(traceback.format_exception(shown))
    assert PASSWORD not in text
    assert "*****" in text
    assert isinstance(shown, (RuntimeError, ConnectException))
    away = RetriableException({"sent": PASSWORD})
    assert type(masked_error(away, masker([PASSWORD]))) is RetriableException
    plain = login_error("x")
    assert masked_error(plain, masker([])) is plain


@pytest.mark.parametrize("password", [PASSWORD, 'p@ss"w\'rd\\n/é+1'])
def test_a_secret_is_hidden_as_python_json_and_urls_write_it_and_in_notes_and_groups(password: str) -> None:
    properties = {"db.password": password}
    noted = ValueError("no login")
    vars(noted)["__notes__"] = [f"with {password}"]
    texts = [f"{properties}", json.dumps(properties), URL.format(quote(password)), URL.format(quote_plus(password))]
    group = getattr(builtins, "ExceptionGroup", ValueError)
    groups = [group("two", [noted]), group(password, [KeyError(password.encode())])]
    for error in [*map(ValueError, texts), KeyError(properties), noted, *groups]:
        shown = "".join(traceback.format_exception(masked_error(error, masker([password]))))
        hidden = [text for text in (*texts, password, repr(password.encode())) if text in shown]
        assert (hidden, "*****" in shown) == ([], True)


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("a", "a table has a name: user=a password=a", "a table has a name: user=a password=*****"),
        ("12", "batch 12 of 12 rows: jdbc:postgresql://me:12@host:12/d", "batch 12 of 12 rows: jdbc:postgresql://me:*****@host:12/d"),
        ("12", "{'db.password': '12', 'batch': '12'}", "{'db.password': '*****', 'batch': '12'}"),
        ("12", "token: 123", "token: 123"),
        ("test", "the latest test of testing", "the latest ***** of testing"),
        ("test", r'"no login\ntest" and %3Atest%40', r'"no login\n*****" and %3A*****%40'),
        ("postgres", "cannot open postgresql://postgres:postgres@host", "cannot open postgresql://*****:*****@host"),
        ("hunter2-x", "PWDhunter2-x.", "PWD*****."),
        ("hunter", r'{"url":"jdbc:x?password\u003dhunter"}', r'{"url":"jdbc:x?password\u003d*****"}'),
        ("12", r'"{\"password\": \"12\", \"rows\": \"12\"}"', r'"{\"password\": \"*****\", \"rows\": \"12\"}"'),
        ("--- KEY ---\nMIIE0+x=\n}", "MIIE0+x=", "*****"),
        ("@b!1?", "user@b!1?host and https://h/user%40b%211%3Fhost", "user*****host and https://h/user*****host"),
    ],
)
def test_a_short_secret_neither_cuts_words_nor_shows_itself_by_what_is_missing(secret: str, text: str, shown: str) -> None:
    assert masker([secret])(text) == shown


def test_a_long_text_is_searched_in_one_pass() -> None:
    text, began = "token" * 100_000, time.monotonic()
    assert masker(["12"])(text) == text
    assert time.monotonic() - began < 5


class Unstarted(TablesConnector):
    """Cannot start."""

    def start(self, props: Mapping[str, str]) -> None:
        raise login_error(props["db.password"])


def test_the_failure_of_a_source_is_shown_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    database = Database("a")
    database.broken["a"] = [RetriableException(f"away: {PASSWORD}"), *(login_error(PASSWORD) for _ in range(9))]
    run = Run(TablesConnector, database, **{"db.password": PASSWORD, "errors_tolerance": "all", "restarts": 1})
    run.start()
    with pytest.raises(Fatal, match=r"(?s)no login with \*\*\*\*\*") as failed:
        run.until(1)
    (status,) = run.host.statuses()
    run.host.close()
    assert "cannot connect to postgresql://bob:*****@db/x" in status.trace
    assert PASSWORD not in f"{status}{''.join(traceback.format_exception(failed.value))}{caplog.text}"
    unstarted = Run(Unstarted, Database("a"), **{"db.password": PASSWORD})
    with pytest.raises(RuntimeError) as failed_start:
        unstarted.start()
    assert PASSWORD not in "".join(traceback.format_exception(failed_start.value))


def test_a_dead_letter_of_a_source_has_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    converter = {"value.converter": f"{__name__}.Refusing"}
    settings = {"errors.tolerance": "all", "errors.log.enable": "true", "db.password": PASSWORD, **converter}
    pipeline = SourcePipeline(settings, lambda _: False)
    outcome = pipeline.run(pipeline.in_columns([SourceRecord({"p": 1}, {"o": 1}, "t", PASSWORD)]))
    (letter,) = outcome.letters
    assert letter.message == "cannot connect to postgresql://bob:*****@db/x"
    assert PASSWORD not in f"{letter.message}{letter.stacktrace}{caplog.text}"


class Refusing(RecordConverter):
    """Refuses every value, and names it."""

    def from_connect_data(self, topic: str, schema: Schema | None, value: Any) -> bytes | None:
        raise login_error(value)

    def to_connect_data(self, topic: str, value: bytes | None) -> tuple[Schema | None, Any]:
        raise NotImplementedError


class LoginTask(SinkTask):
    """Cannot log in, or reports its records with the reason."""

    def start(self, props: Mapping[str, str]) -> None:
        self.props = props

    def put(self, records: Sequence[SinkRecord]) -> None:
        reporter = self.context.errant_record_reporter()
        if reporter is None:
            raise login_error(self.props["db.password"])
        for record in records:
            reporter.report(record, login_error(self.props["db.password"]))

    def stop(self) -> None:
        """There is nothing to free."""


class LoginConnector(SinkConnector):
    def start(self, props: Mapping[str, str]) -> None:
        self.props = dict(props)

    def task_class(self) -> type[SinkTask]:
        return LoginTask

    def task_configs(self, max_tasks: int) -> Sequence[Mapping[str, str]]:
        return [self.props]

    def stop(self) -> None:
        """There is nothing to end."""

    def validate(self, props: Mapping[str, str]) -> Any:
        if props.get("broken"):
            raise login_error(props["db.password"])
        return super().validate(props)


def test_the_failure_and_the_dead_letters_of_a_sink_have_no_secrets(tmp_path: Path) -> None:
    secret = {"db.password": PASSWORD}
    with pytest.raises(RuntimeError, match=r"postgresql://bob:\*\*\*\*\*@db/x") as failed:
        Write(LoginConnector, **secret).batch(rows(1))
    assert PASSWORD not in "".join(traceback.format_exception(failed.value))
    Write(LoginConnector, {"deadLetterPath": str(tmp_path)}, errors_tolerance="all", **secret).batch(rows(1))
    (letter,) = pq.read_table(tmp_path).to_pylist()
    assert letter["error"] == "cannot connect to postgresql://bob:*****@db/x"
    assert PASSWORD not in repr(letter)
    with pytest.raises((Misconfigured, RuntimeError)) as refused:
        Write(LoginConnector, broken="yes", **secret)
    assert PASSWORD not in "".join(traceback.format_exception(refused.value))
