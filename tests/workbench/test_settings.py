"""What a local session is started with."""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from pathlib import Path

import pytest

from connectors.ground.errors import MissingFeature
from connectors.workbench import jars
from connectors.workbench.jars import _without_sparks_own, delta_coordinate, delta_jars
from connectors.workbench.settings import default_master, library, local_settings, python_path


def settings(**conf: str) -> dict[str, str]:
    named = {key.replace("__", "."): value for key, value in conf.items()}
    return local_settings(Path("/tmp/x"), Path("/tmp/x.log"), ["/a.jar", "/b.jar"], named)


def test_all_cores_and_four_tries_of_each_task() -> None:
    assert default_master() == f"local[{os.cpu_count()},4]"


def test_the_callers_settings_win() -> None:
    assert settings(spark__sql__shuffle__partitions="9")["spark.sql.shuffle.partitions"] == "9"


def test_jars_extensions_and_java_options_are_joined() -> None:
    values = settings(spark__jars="/c.jar", spark__sql__extensions="x.Y", spark__driver__extraJavaOptions="-Dx=y")
    assert values["spark.jars"] == "/a.jar,/b.jar,/c.jar"
    assert values["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,x.Y"
    assert values["spark.driver.extraJavaOptions"].endswith("-Dconnectors.log=/tmp/x.log -Dx=y")


def test_sockets_are_where_their_paths_fit() -> None:
    option = "spark.python.unix.domain.socket.dir"
    assert settings()[option] == "/tmp/x"
    long = Path("/tmp") / ("x" * 60)
    assert option not in local_settings(long, long, [], {})


def test_the_library_comes_first_on_the_workers_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/mine{os.pathsep}{library()}")
    assert python_path() == f"{library()}{os.pathsep}/mine"


def test_what_spark_brings_itself_is_left_out_of_deltas_jars() -> None:
    import pyspark

    brought = next(iter((Path(pyspark.__path__[0]) / "jars").glob("jackson-databind-*.jar")))
    other_version = brought.name.replace(brought.stem.rpartition("-")[2], "2.0.0")
    jars = [f"/ivy/com.fasterxml_{other_version}", "/ivy/io.delta_delta-storage-4.4.0.jar"]
    assert _without_sparks_own(jars) == ["/ivy/io.delta_delta-storage-4.4.0.jar"]


def test_remembered_jars_are_taken_without_asking_anybody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")  # whoever would resolve now, would fail
    (tmp_path / "jars").mkdir()
    (tmp_path / "delta.jar").touch()
    record = tmp_path / "jars" / (delta_coordinate().replace(":", "_") + ".txt")
    record.write_text(str(tmp_path / "delta.jar"))
    assert delta_jars() == [str(tmp_path / "delta.jar")]


def test_nobody_is_asked_for_the_jars_of_a_spark_that_delta_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "_resolved", lambda coordinate, conf: asked.append(coordinate) or ["/ivy/io.delta_x-1.jar"])
    monkeypatch.setattr(jars, "requires", lambda package: ["importlib_metadata>=1.0.0", "pyspark<=4.2.0,>=4.0.1"])
    for spark, is_known in (("4.2.1", True), ("4.3.0", False), ("4.10.0", False), ("5.0.0", False)):
        monkeypatch.setattr(jars, "version", {"pyspark": spark, "delta-spark": "4.4.0"}.__getitem__)
        sentence = f"delta-spark 4.4.0 needs pyspark<=4.2.0,>=4.0.1, and this is pyspark {spark}"
        with nullcontext() if is_known else pytest.raises(MissingFeature, match=re.escape(sentence)):
            assert delta_jars() == ["/ivy/io.delta_x-1.jar"]
    assert asked == ["io.delta:delta-spark_4.2_2.13:4.4.0"]


def test_sparks_pages_are_on_where_the_environment_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings()["spark.ui.enabled"] == "false"
    monkeypatch.setenv("CONNECTORS_SPARK_UI", "1")
    assert settings()["spark.ui.enabled"] == "true"
