"""``dbutils`` and ``display`` outside a workspace."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from connectors.workbench import DbUtils, NotebookExit, display


def test_a_widget_has_its_default_until_a_value_is_passed() -> None:
    dbutils = DbUtils({"passed": "1"})
    dbutils.widgets.text("passed", "default", "a label")
    dbutils.widgets.text("other", "default")
    assert (dbutils.widgets.get("passed"), dbutils.widgets.get("other")) == ("1", "default")
    assert dbutils.widgets.getAll() == {"passed": "1", "other": "default"}


def test_a_widget_may_be_declared_again_and_removed() -> None:
    widgets = DbUtils().widgets
    widgets.text("x", "1")
    widgets.text(name="x", defaultValue="2", label="label")
    assert widgets.get("x") == "2"
    widgets.remove("x")
    widgets.combobox("y", "1", ["1", "2"])
    widgets.removeAll()
    assert widgets.getAll() == {}


def test_a_dropdown_has_a_default_among_its_choices() -> None:
    widgets = DbUtils().widgets
    widgets.dropdown("x", "a", ["a", "b"])
    assert widgets.get("x") == "a"
    with pytest.raises(ValueError, match='default of widget "x", "c", is not among a, b'):
        widgets.dropdown("x", "c", ["a", "b"])


def test_an_unknown_widget_names_the_known_ones() -> None:
    dbutils = DbUtils({"rows": "1"})
    with pytest.raises(ValueError, match='there is no widget "row"; known: rows'):
        dbutils.widgets.get("row")


def test_outside_a_job_a_task_value_is_its_debug_value() -> None:
    values = DbUtils().jobs.taskValues
    values.set("x", 1)
    assert values.get("task", "x", default=1, debugValue=2) == 2
    with pytest.raises(ValueError, match=r"outside a job .* needs a debugValue"):
        values.get("task", "x", default=1)


def test_outside_a_job_a_task_value_is_checked_all_the_same() -> None:
    with pytest.raises(ValueError, match="at most 49152 are allowed"):
        DbUtils().jobs.taskValues.set("x", "x" * 50_000)


def test_a_secret_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY_VAULT_DB_PASSWORD", "s3")
    assert DbUtils().secrets.get("key-vault", "db.password") == "s3"
    assert DbUtils().secrets.getBytes(scope="key-vault", key="db.password") == b"s3"


def test_a_missing_secret_names_its_variable() -> None:
    with pytest.raises(ValueError, match=r"read from \$SECRET_NO_SUCH"):
        DbUtils().secrets.get("no", "such")


def test_exit_is_not_caught_by_except_exception() -> None:
    assert not issubclass(NotebookExit, Exception)
    with pytest.raises(NotebookExit) as raised:
        DbUtils().notebook.exit("value")
    assert raised.value.value == "value"


def test_what_is_not_here_is_told_with_what_is() -> None:
    with pytest.raises(
        AttributeError, match=r"dbutils\.fs is not here: locally there are jobs, notebook, secrets, wid"
    ):
        DbUtils().fs  # noqa: B018


def test_outside_a_notebook_a_frame_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    display(pd.DataFrame({"n": range(5)}), rows=2)
    assert capsys.readouterr().out == " n\n 0\n 1\n(the first 2 rows)\n"


def test_outside_a_notebook_anything_else_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    display({"a": 1})
    assert capsys.readouterr().out == "{'a': 1}\n"


@pytest.mark.spark
def test_a_spark_frame_is_read_only_as_far_as_it_is_shown(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    display(spark.range(10_000_000_000), rows=2)
    assert "(the first 2 rows)" in capsys.readouterr().out


@pytest.mark.spark
def test_a_stream_is_not_shown_and_the_way_out_is_told(spark: Any) -> None:
    with pytest.raises(TypeError, match="display shows no streams: write this one with trigger"):
        display(spark.readStream.format("rate").load())
