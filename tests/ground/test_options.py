"""What a user typed becomes values, or one error that lists everything that is wrong with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.core import (
    REQUIRED,
    Choice,
    Duration,
    Flag,
    Int,
    Json,
    Misconfigured,
    Names,
    Options,
    Problem,
    Size,
    Text,
)
from connectors.ground.options import Time, Values, is_secret, redacted
from connectors.ground.quantities import duration, size

OPTIONS = Options(
    {"retry.maxRetries": Int(5, at_least=0)},
    path=Text(REQUIRED),
    topic=Text(None),
    start=Int(1, at_least=-5, at_most=9),
    mode=Choice("append", among=("append", "upsertAll")),
    strict=Flag(True),
    columns=Names(()),
    config=Json(None),
    wait=Duration(30.0),
    largest=Size(1 << 20, at_least=1024),
    alias={"file": "path"},
    through=("kafka.",),
    refused={"checkpointLocation": "belongs to the query, not to the source."},
)


def parse(**typed: object) -> Values:
    return OPTIONS.parse("connectors.toy", {"path": "/data", **typed})


def problems(**typed: object) -> dict[str, str]:
    with pytest.raises(Misconfigured) as caught:
        OPTIONS.parse("connectors.toy", typed)
    return {problem.option: problem.text for problem in caught.value.problems}


def test_all_problems_are_in_one_error() -> None:
    texts = problems(start="ten", mode="merge", wait="soon", topics="a")
    assert texts == {
        "path": 'missing; give it by .option("path", …).',
        "start": "must be a whole number; got 'ten'",
        "mode": "must be one of append, upsertAll; got 'merge'",
        "wait": "must be a duration such as 30s, 200ms or 15 minutes; got 'soon'",
        "topics": 'is no option of this connector; did you mean "topic"?',
    }


def test_an_unknown_option_without_a_likeness_gets_no_hint() -> None:
    assert problems(path="x", zebra="1") == {"zebra": "is no option of this connector."}


def test_a_hint_is_spelled_as_the_option_is_declared() -> None:
    assert problems(path="x", colums="a")["colums"].endswith('did you mean "columns"?')
    assert problems(path="x", upsertal="a")["upsertal"] == "is no option of this connector."
    aliased = Options(maxRowsPerTrigger=Int(None), alias={"maxOffsetsPerTrigger": "maxRowsPerTrigger"})
    with pytest.raises(Misconfigured, match=r'did you mean "maxRowsPerTrigger"\?'):
        aliased.parse("connectors.toy", {"maxOfsetsPerTriger": "1"})


def test_keys_are_found_in_any_case() -> None:
    values = parse(START="7", **{"Retry.MaxRetries": "2"})
    assert values["start"] == values["Start"] == 7
    assert values["RETRY.maxretries"] == 2
    assert values.is_set("sTART")


def test_a_default_is_not_given() -> None:
    values = parse()
    assert values["start"] == 1
    assert not values.is_set("start")


def test_an_empty_text_counts_as_not_given_where_nothing_is_the_default() -> None:
    known = Options(
        app=Text(None, needed_by="version"),
        version=Int(None, needed_by="app"),
        name=Text("x"),
        some=Json({}, dict),
        each=Json([], list),
        rows=Int(1),
    )
    values = known.parse("connectors.toy", {"app": "", "name": "", "version": "", "some": "", "each": ""})
    assert dict(values) == {"app": None, "name": "", "version": None, "some": {}, "each": [], "rows": 1}
    assert not values.is_set("app")
    with pytest.raises(Misconfigured, match=r"rows +must be a whole number"):
        known.parse("connectors.toy", {"rows": ""})
    with pytest.raises(Misconfigured, match=r"app +missing; version needs it"):
        known.parse("connectors.toy", {"app": "", "version": "1"})


def test_none_counts_as_not_given() -> None:
    assert parse(start=None)["start"] == 1
    assert problems(path=None) == {"path": 'missing; give it by .option("path", …).'}


def test_an_option_in_two_spellings_is_an_error() -> None:
    assert "given twice" in problems(path="a", PATH="b")["PATH"]
    assert "given twice" in problems(path="a", file="b")["file"]


def test_an_alias_gives_the_option_itself() -> None:
    assert OPTIONS.parse("connectors.toy", {"File": "/x"})["path"] == "/x"


def test_options_are_passed_through_by_prefix_with_keys_in_lower_case() -> None:
    assert parse(**{"kafka.Client.Id": 7}).extra == {"kafka.client.id": "7"}


def test_a_refused_option_is_named_with_the_reason() -> None:
    assert problems(path="x", checkpointlocation="y") == {
        "checkpointLocation": "belongs to the query, not to the source."
    }


def test_joined_options_know_both_and_the_second_wins() -> None:
    joined = Options(a=Int(1), b=Int(1), alias={"x": "a"}) | Options(b=Int(2), refused={"c": "why"}, through=("z.",))
    values = joined.parse("connectors.toy", {"x": "5", "z.q": "1"})
    assert (values["a"], values["b"], values.extra) == (5, 2, {"z.q": "1"})
    with pytest.raises(Misconfigured, match="why"):
        joined.parse("connectors.toy", {"c": "1"})


def test_a_check_of_several_options_runs_when_each_is_right() -> None:
    def check(values: Values) -> list[Problem]:
        return [Problem("start", "is above largest.")]

    with pytest.raises(Misconfigured, match="is above largest"):
        OPTIONS.parse("connectors.toy", {"path": "x"}, check)
    with pytest.raises(Misconfigured) as caught:
        OPTIONS.parse("connectors.toy", {"path": "x", "start": "ten"}, check)
    assert "is above largest" not in str(caught.value)


@pytest.mark.parametrize(("typed", "value"), [("-5", -5), ("9", 9), (3, 3), (" 4 ", 4)])
def test_a_whole_number_is_read(typed: object, value: int) -> None:
    assert parse(start=typed)["start"] == value


@pytest.mark.parametrize(
    ("typed", "phrase"), [("10", "9 or less"), ("-6", "-5 or more"), ("1.5", "a whole number"), ("", "a whole number")]
)
def test_a_number_out_of_bounds_is_refused(typed: str, phrase: str) -> None:
    assert problems(path="x", start=typed) == {"start": f"must be {phrase}; got {typed!r}"}


@pytest.mark.parametrize(("typed", "value"), [(True, True), ("FALSE", False), (" true ", True)])
def test_a_flag_is_read(typed: object, value: bool) -> None:
    assert parse(strict=typed)["strict"] is value


@pytest.mark.parametrize("typed", ["yes", "1", ""])
def test_what_is_neither_true_nor_false_is_refused(typed: str) -> None:
    assert problems(path="x", strict=typed) == {"strict": f"must be true or false; got {typed!r}"}


def test_a_choice_is_spelled_as_declared() -> None:
    assert parse(mode=" UPSERTALL")["mode"] == "upsertAll"


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("a, b ,c", ("a", "b", "c")),
        ('["a,b", "c"]', ("a,b", "c")),
        (["a,b"], ("a,b",)),
        (("x",), ("x",)),
        ("", ()),
        ("a,,b", ("a", "b")),
    ],
)
def test_names_come_as_text_json_or_a_list(typed: object, value: tuple[str, ...]) -> None:
    assert parse(columns=typed)["columns"] == value


@pytest.mark.parametrize("typed", ["[1, 2]", "[", '["a"'])
def test_a_list_that_holds_no_names_is_refused(typed: str) -> None:
    assert problems(path="x", columns=typed)["columns"].startswith("must be a JSON list")


def test_json_comes_as_text_or_as_the_thing_itself() -> None:
    assert parse(config='{"a": [1]}')["config"] == parse(config={"a": [1]})["config"] == {"a": [1]}


@pytest.mark.parametrize("typed", ["[1]", "{", "null"])
def test_json_of_another_kind_is_refused(typed: str) -> None:
    assert problems(path="x", config=typed)["config"].startswith("must be a JSON object")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("200ms", 0.2),
        ("15 minutes", 900.0),
        ("1.5 h", 5400.0),
        ("7 days", 604800.0),
        ("5", 5.0),
        (" 2 MIN ", 120.0),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


def test_a_time_is_iso_text_or_milliseconds() -> None:
    texts = ("2026-11-28T10:00:01.5Z", "2026-11-28T11:00:01.5+01:00", "2026-11-28 10:00:01.500", " 1795860001500 ")
    assert [Time().parse(text) for text in texts] == [1795860001.5] * 4
    for text in ("tomorrow", "-1", "", "1969-12-31T23:59:59.999Z", "0001-01-01T00:00:00+14:00", "9" * 400):
        with pytest.raises(ValueError, match="a time such as"):
            Time().parse(text)


def test_seconds_and_a_date_of_digits_are_no_milliseconds() -> None:
    """A run that stops in January 1970 would read nothing, without an error."""
    for text in ("1795860001", "20261128", "2026"):
        with pytest.raises(ValueError, match="a time such as"):
            Time().parse(text)


def test_a_bare_duration_is_in_the_unit_of_its_option() -> None:
    assert duration("200", "ms") == pytest.approx(0.2)
    assert Duration(None, unit="ms").parse("1500") == pytest.approx(1.5)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 fortnight", "1s2", "1e3s", "nan", "inf", "1 m s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration such as"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("256MB", 256 << 20), ("64k", 65536), ("1.5 GiB", 3 << 29), ("10", 10), ("2T", 2 << 40), ("0b", 0)],
)
def test_a_size_is_read_in_bytes(text: str, number: int) -> None:
    assert size(text) == number


@pytest.mark.parametrize("text", ["256 XB", "", "MB", "-1MB", "1,5MB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        size(text)


def test_a_size_below_the_smallest_is_refused() -> None:
    assert problems(path="x", largest="1b") == {"largest": "must be 1024 bytes or more; got '1b'"}


@given(st.integers(0, 2**63 - 1))
def test_a_size_in_bytes_is_exact_to_the_largest_long(number: int) -> None:
    assert size(str(number)) == number


@pytest.mark.parametrize("option", ["wait", "largest"])
def test_a_number_beyond_all_bounds_is_an_error_of_its_option(option: str) -> None:
    assert option in problems(path="x", **{option: "9" * 400})


SECRETS = (
    "password",
    "apiKey",
    "connectionString",
    "kafka.sasl.jaas.config",
    "ssl.keystore.Password",
    "authToken",
    "clientSecret",
    "kafka.ssl.key.pem",
    "kafka.ssl.keystore.key",
    "kafka.sasl.oauthbearer.assertion.private.key.pem",
    "kafka.sasl.oauthbearer.assertion.private.key.passphrase",
    "storageOptions",
)


@pytest.mark.parametrize("option", SECRETS)
def test_a_secret_is_never_shown(option: str) -> None:
    assert is_secret(option)
    with pytest.raises(Misconfigured) as caught:
        Options({option: Int(None)}).parse("connectors.toy", {option: "hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "***" in str(caught.value)


@pytest.mark.parametrize(
    "option", ["topic", "key", "keyColumns", "partitionKeyColumn", "ssl.keystore.certificate.chain", "ssl.certificate.pem"]
)
def test_what_is_no_secret_is_shown(option: str) -> None:
    assert not is_secret(option)
    assert redacted(option, "value") == "'value'"


@pytest.mark.parametrize(
    "url",
    [
        "https://joe:hunter2@host/x",
        "jdbc:postgresql://joe:hunter2@host/db",
        "a,https://joe:hunter2@h",
        "amqp+ssl://joe:hunter2@h",
    ],
)
def test_user_info_in_a_url_is_never_shown(url: str) -> None:
    assert "hunter2" not in redacted("url", url)
    assert "@" in redacted("url", url)


@pytest.mark.parametrize(
    "value",
    [
        "jdbc:sqlserver://host;user=joe;password=hunter2",
        "jdbc:postgresql://host/db?user=joe&password=hunter2",
        "https://joe:hunter2/3@host/x",
        "https://host/workflows?sv=1.0&sig=hunter2",
        "https://host/api/function?code=hunter2&x={",
    ],
)
def test_a_password_inside_a_url_is_never_shown(value: str) -> None:
    assert "hunter2" not in redacted("url", value)


@pytest.mark.parametrize("option", ["kafka.ssl.key.pem", "kafka.ssl.keystore.key", "kafka.sasl.jaas.config"])
def test_a_private_key_that_is_passed_through_may_be_a_reference(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KV_KEY", "hunter2")
    known = Options(through=("kafka.",))
    assert known.parse("connectors.toy", {option: "{{secrets/kv/key}}"}).extra == {option: "hunter2"}
    with pytest.raises(Misconfigured, match=r'"other" of scope "kv"'):
        known.parse("connectors.toy", {option: "hunter2 {{secrets/kv/other}}"})


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rollover", "rolling.rolloverInterval"),
        ("rollingrolloverinterval", "rolling.rolloverInterval"),
        ("ROLLING_ROLLOVER_INTERVALL", "rolling.rolloverInterval"),
        ("batchsizes", "batch.maxRecords"),
        ("numpartition", "numPartitions"),
    ],
)
def test_an_unknown_option_is_told_with_the_one_that_is_meant_however_it_is_spelled(typed: str, meant: str) -> None:
    declared = {"rolling.rolloverInterval": Text(None), "numPartitions": Int(None), "batch.maxRecords": Int(None)}
    known = Options(declared, alias={"batchsize": "batch.maxRecords"})
    with pytest.raises(Misconfigured, match=f'{typed} +is no option of this sink; did you mean "{meant}"'):
        known.parse("connectors.toy", {typed: "1"}, kind="sink")


def test_values_do_not_show_what_they_hold() -> None:
    values = Options(password=Text(None)).parse("connectors.toy", {"password": "hunter2"})
    assert "hunter2" not in repr(values)
    assert "hunter2" not in str(values)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=6))
def test_whatever_is_typed_gives_values_or_one_clear_error(typed: dict[str, str]) -> None:
    try:
        OPTIONS.parse("connectors.toy", typed)
    except Misconfigured as error:
        assert error.problems  # noqa: PT017


class TestSecretReferences:
    options = Options(
        {"password": Text(None), "storageOptions": Json({}, kind=dict), "url": Text(None), "token": Int(None)},
        through=("kafka.",),
    )

    def test_every_option_that_holds_a_secret_takes_a_reference(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_KV_KEY", 'hu"nter2')
        reference, jaas = "{{secrets/kv/key}}", "kafka.sasl.jaas.config"
        typed = {"password": reference, "storageOptions": {"key": "me", "secret": reference}}
        typed |= {jaas: f"Module required password={reference};", "kafka.ssl.key.password": "p"}
        values = self.options.parse("x", typed)
        assert values["password"] == 'hu"nter2'
        assert values["storageOptions"] == {"key": "me", "secret": 'hu"nter2'}
        assert values.extra == {jaas: 'Module required password=hu"nter2;', "kafka.ssl.key.password": "p"}

    def test_a_secret_is_read_as_its_option_says(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_KV_KEY", "7")
        assert self.options.parse("x", {"token": "{{secrets/kv/key}}"})["token"] == 7

    def test_no_other_option_does(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_KV_KEY", "hunter2")
        values = self.options.parse("x", {"url": "{{secrets/kv/key}}", "kafka.client.id": "{{secrets/kv/key}}"})
        assert (values["url"], values.extra) == ("{{secrets/kv/key}}", {"kafka.client.id": "{{secrets/kv/key}}"})

    def test_an_empty_secret_counts_as_not_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_KV_KEY", "")
        known = Options(user=Text(None), password=Text(None, excludes="user"), token=Int(None))
        values = known.parse("x", {"user": "me", "password": "{{secrets/kv/key}}", "token": "{{secrets/kv/key}}"})
        assert dict(values) == {"user": "me", "password": None, "token": None}

    def test_a_secret_that_is_not_there_is_told_with_all_other_problems(self) -> None:
        missing = "{{secrets/kv/nothing}}"
        with pytest.raises(Misconfigured) as error:
            self.options.parse("x", {"password": missing, "kafka.ssl.key.password": missing, "storageOptions": {"a": missing}})
        named = sorted(problem.option for problem in error.value.problems)
        assert named == ["kafka.ssl.key.password", "password", "storageOptions"]
        assert all("$SECRET_KV_NOTHING" in problem.text for problem in error.value.problems)

    def test_a_secret_that_does_not_fit_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SECRET_KV_KEY", "hunter2")
        with pytest.raises(Misconfigured, match=r"token .*must be a whole number") as error:
            self.options.parse("x", {"token": "{{secrets/kv/key}}"})
        assert "hunter2" not in str(error.value)
