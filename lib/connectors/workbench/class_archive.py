"""The archive of Spark's classes (class data sharing): a JVM starts in little more than half the time.

A small session in its own process makes the archive once for each Java and installed PySpark (45 s), for ``python -m
connectors doctor --fetch``, with which ``make test`` begins. A session uses the archive in the cache. Java itself checks that
the archive fits, and otherwise starts without it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from ..ground.cache_folder import cache
from ..jvm.java import use_java
from .home import spark_home
from .settings import python_path

_SESSION: Final = """
import sys
import connectors
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.extraJavaOptions", "-XX:ArchiveClassesAtExit=" + sys.argv[1]).getOrCreate()
connectors.register(spark)
spark.range(10).repartition(2).write.format("noop").mode("overwrite").save()
spark.range(10).write.parquet(sys.argv[2] + "/parquet")
spark.read.parquet(sys.argv[2] + "/parquet").mapInArrow(lambda batches: batches, "id long").collect()
rows = spark.readStream.format("connectors.sequence").option("end", 10).load()
rows.writeStream.format("noop").trigger(availableNow=True).start().awaitTermination()
rows.writeStream.foreachBatch(lambda batch, number: batch.count()).trigger(availableNow=True).start().awaitTermination()
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()  # that ends it
sys.exit(java.wait())
"""


def java_options() -> str:
    """The JVM options that make Spark use the archive; empty if there is none, or if its path has a space."""
    file = _file()
    usable = file.exists() and " " not in str(file)
    return f"-XX:SharedArchiveFile={file} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off" if usable else ""


def make_archive() -> bool:
    """Makes the archive if there is none yet. False if this Java cannot; sessions then start without it."""
    file = _file()
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            print("Making an archive of Spark's classes, once …", file=sys.stderr, flush=True)
            _write_archive(file)
    return file.exists()


def _file() -> Path:
    home = use_java()
    release = home / "release"
    spark = spark_home()
    java = f"{home} {release.read_text() if release.exists() else ''}"
    jars = [(jar.name, jar.stat().st_size, jar.stat().st_mtime_ns) for jar in sorted(spark.glob("jars/*.jar"))]
    return cache("classes") / f"{_digest(f'{java} {spark}')}-{_digest(str(jars))}.jsa"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _write_archive(file: Path) -> None:
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_SUBMIT_ARGS"}
    environment.update(SPARK_HOME=str(spark_home()), SPARK_LOCAL_IP="127.0.0.1")
    environment.update(PYSPARK_PYTHON=sys.executable, PYTHONPATH=python_path())
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", _SESSION, str(part), folder]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, cwd=folder)
    if done.returncode == 0 and part.exists():  # an incomplete archive would crash every JVM that uses it
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.replace(file)
        for older in file.parent.glob(f"{file.name.partition('-')[0]}-*.jsa"):  # of an earlier PySpark
            if older != file:
                older.unlink()
