"""JVMs start from an archive of classes where there is one, and start as well where it is of no use."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from connectors.workbench import class_archive
from connectors.workbench.class_archive import java_options, make_archive
from connectors.workbench.home import spark_home

SESSION = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder.config("spark.driver.extraJavaOptions", sys.argv[1]).getOrCreate().range(3).count()
"""


def started(options: str, log: Path) -> int:
    """How many classes a session takes from an archive of ours."""
    arguments = f"{options} -Xlog:class+load:file={log}"
    subprocess.run([sys.executable, "-c", SESSION, arguments], check=True, capture_output=True, timeout=300)
    return len(re.findall(r"org\.apache\.spark\.\S+ source: shared objects file \(top\)", log.read_text()))


@pytest.mark.spark
@pytest.mark.soak
def test_a_session_takes_sparks_classes_from_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(spark_home()))  # it stays, whatever the cache
    if not make_archive():
        pytest.skip("this Java makes no archive")
    assert started(java_options(), tmp_path / "with") > 3000
    (archive,) = re.findall(r"SharedArchiveFile=(\S+)", java_options())
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path))
    assert java_options() == ""
    damaged = tmp_path / "classes" / Path(archive).name
    shutil.copyfile(archive, damaged)
    with damaged.open("r+b") as file:
        file.write(b"not what Java wrote")
    assert str(damaged) in java_options()
    assert started(java_options(), tmp_path / "damaged") == 0


def test_jars_that_are_installed_anew_have_an_archive_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = tmp_path / "jars" / "spark.jar"
    jar.parent.mkdir()
    jar.touch()
    monkeypatch.setattr(class_archive, "spark_home", lambda: tmp_path)
    before = class_archive._file()
    assert class_archive._file() == before
    os.utime(jar, (1, 1))
    after = class_archive._file()
    assert after != before
    assert after.name.partition("-")[0] == before.name.partition("-")[0]
