"""What is declared of several options together, and of columns that options name."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest

from connectors.ground.columns import BOOLEAN, Column, Columns, Template, column_problems
from connectors.ground.errors import Misconfigured
from connectors.ground.options import Choice, Flag, Int, Options, Text

KNOWN = Options(
    mode=Choice("append", among=("append", "upsert", "delete")),
    guarantee=Choice(None, among=("exactly-once", "at-least-once")),
    key=Text(None, needed_by=("mode=upsert|delete: the column of the key", "extra: it")),
    order=Text(None, only_with="mode=upsert|delete"),
    extra=Text(None),
    ledger=Text("l", only_with="guarantee=exactly-once: nothing else has one"),
    sorted=Flag(False, only_with="key"),
    ttl=Int(None, excludes=("mode=delete: nothing is written", "forever")),
    forever=Flag(False, excludes="key: a key ends"),
    size=Int(10),
    part=Int(None, not_above="size"),
    buffer=Int(None, above="size"),
    host=Text(None, alternatives=("url", "socket")),
    url=Text(None),
    socket=Text(None),
)


def problems(**typed: object) -> dict[str, str]:
    with pytest.raises(Misconfigured) as refused:
        KNOWN.parse("connectors.x", {"host": "h", **typed})
    return {problem.option: problem.text for problem in refused.value.problems}


@pytest.mark.parametrize(
    ("typed", "option", "text"),
    [
        ({"mode": "delete"}, "key", "missing; mode=delete needs the column of the key."),
        ({"extra": "o"}, "key", "missing; extra needs it."),
        ({"order": "o", "key": "k"}, "order", "has no use without mode=upsert or delete; got mode=append."),
        ({"ledger": "x"}, "ledger", "has no use without guarantee=exactly-once: nothing else has one."),
        ({"sorted": True}, "sorted", "has no use without key."),
        ({"mode": "delete", "key": "k", "ttl": 0}, "ttl", "has no use with mode=delete: nothing is written."),
        ({"ttl": 5, "forever": True}, "ttl", "is given beside forever; give one of them."),
        ({"key": "k", "forever": True}, "forever", "has no use with key: a key ends."),
        ({"part": 11}, "part", "must not be above size (10); got 11."),
        ({"buffer": 10}, "buffer", "must be above size (10); got 10."),
        ({"host": None}, "host", "missing; give host or url or socket."),
        ({"socket": "s"}, "socket", "is given beside host; give one of them."),
        ({"host": None, "socket": "s", "url": "u"}, "socket", "is given beside url; give one of them."),
    ],
)
def test_a_relation_that_does_not_hold_is_a_problem(typed: Mapping[str, object], option: str, text: str) -> None:
    assert problems(**typed) == {option: text}


def test_every_relation_is_reported_at_once() -> None:
    assert set(problems(mode="delete", ttl=1, sorted=True, part=11)) == {"key", "ttl", "sorted", "part"}


@pytest.mark.parametrize(
    "typed",
    [
        {"mode": "upsert", "key": "k", "order": "o", "sorted": True},
        {"sorted": False, "forever": False, "ledger": "l"},
        {"part": 10, "buffer": 11},
        {"host": None, "socket": "s"},
    ],
    ids=["relations that hold", "defaults are not given", "bounds", "an alternative"],
)
def test_what_is_declared_may_be_given(typed: Mapping[str, object]) -> None:
    KNOWN.parse("connectors.x", {"host": "h", **typed})


COLUMNS = Options(
    path=Template(None, example="x/{id}"), keys=Columns(()), gone=Column(None, BOOLEAN), order=Column("id"), note=Text("no")
)


def wrong(schema: pa.Schema, **typed: object) -> list[tuple[str, str]]:
    values = COLUMNS.parse("connectors.x", typed)
    return [(problem.option, problem.text) for problem in column_problems(COLUMNS.declared, values, schema)]


def test_a_column_that_the_rows_lack_or_have_with_another_type_is_a_problem() -> None:
    rows = pa.schema([("id", pa.int64()), ("flag", pa.bool_())])
    lacks = 'names the column "{}", which the rows do not have: id, flag.'
    assert wrong(rows, path="a/{flag}/{id}", keys="id,flag", gone="flag") == []
    assert wrong(rows, gone="id") == [("gone", 'must be a boolean column; "id" is int64.')]
    assert wrong(rows, path="{x}/{id}/{x}", keys="id,y", gone="z", order="w") == [
        ("path", lacks.format("x")), ("keys", lacks.format("y")), ("gone", lacks.format("z")), ("order", lacks.format("w")),
    ]  # fmt: skip


def test_a_column_that_the_rows_have_twice_is_a_problem() -> None:
    rows = pa.schema([("id", pa.int64()), ("flag", pa.bool_()), ("flag", pa.bool_())])
    problem = 'names the column "flag", which the rows have more than once: id, flag, flag.'
    assert wrong(rows, gone="flag") == [("gone", problem)]


@pytest.mark.parametrize("text", ["a/{}", "{a:>5}", "{a!r}", "{a", "a}"])
def test_braces_that_name_no_column_are_no_template(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"path +must be text with columns in braces, such as x/\{id\}; got "):
        COLUMNS.parse("connectors.x", {"path": text})
