"""Python processes of Spark import the PySpark that is installed, compiled, and not a copy of it in a zip file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import py4j
import pyarrow as pa
import pyspark
import pytest

from connectors.ground.errors import Misconfigured
from connectors.testing.environments import Environment
from connectors.workbench import home
from connectors.workbench.home import at_home, spark_home

PYSPARK = Path(pyspark.__file__).parent


@pytest.fixture(autouse=True)
def no_home_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.spark
@pytest.mark.essential
def test_workers_import_what_is_installed(environment: Environment) -> None:
    def origins(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import py4j
        import pyspark

        list(batches)
        yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__, py4j.__file__]})

    rows = environment.spark.range(0, 1, 1, 1).mapInArrow(origins, "file string").collect()
    files = [str(Path(row.file).resolve()) for row in rows]
    assert files == [pyspark.__file__, py4j.__file__]


def test_it_is_made_once_and_kept(empty_cache: Path) -> None:
    folder = spark_home()
    assert folder.is_relative_to(empty_cache)
    assert (folder / "jars").resolve() == PYSPARK / "jars"
    inode = folder.stat().st_ino
    assert spark_home() == folder
    assert folder.stat().st_ino == inode


def test_two_processes_may_make_it_at_once(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = home._make

    def make_twice(*what: object) -> None:
        make(*what)  # type: ignore[arg-type]
        make(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(home, "_make", make_twice)
    folder = spark_home()
    assert list(folder.parent.iterdir()) == [folder]
    assert (folder / "bin" / "spark-class").exists()


def test_a_home_that_is_given_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert spark_home() == tmp_path
    with at_home():
        assert os.environ["SPARK_HOME"] == str(tmp_path)
    assert os.environ["SPARK_HOME"] == str(tmp_path)


def test_where_no_links_can_be_made_it_is_pysparks_own_folder(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    assert spark_home() == PYSPARK
    assert list((empty_cache / "spark-home").iterdir()) == []


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "find_spec", lambda _: None)
    with pytest.raises(Misconfigured, match=r"pyspark +is not installed; make setup"):
        spark_home()


def test_the_variables_are_set_only_while_a_jvm_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with at_home():
        assert os.environ["SPARK_HOME"] == str(spark_home())
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert not {"SPARK_HOME", "OPENBLAS_NUM_THREADS"} & set(os.environ)


def test_threads_of_numpy_that_are_given_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4")
    with at_home():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "4"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "4"
