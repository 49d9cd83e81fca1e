"""A session as a notebook gets it, started in a process and a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from connectors import workbench
from connectors.workbench import jars
from connectors.workbench.settings import library

pytestmark = pytest.mark.spark

READER = """
import glob, threading
from connectors import workbench

lines, is_up = set(), threading.Event()
def read_command_lines():
    while not is_up.wait(0.05):
        for file in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                lines.add(open(file).read())
            except OSError:
                pass
reader = threading.Thread(target=read_command_lines)
reader.start()
"""
SCRIPT = READER + """
import json, os, sys
from pyspark.sql.functions import udf

odd = " a" + chr(92) + "b" + chr(9) + "c=d:e#f!g" + chr(228) + chr(10) + "h"
secrets = {"spark.hadoop.fs.s3a.secret.key": "5ecret-of-s3", "spark.hadoop.fs.azure.account.key.x.net": "5ecret/of=azure"}
first = workbench.session({"spark.sql.shuffle.partitions": 3, "spark.ui.enabled": False, "spark.hadoop.odd": odd, **secrets})
is_up.set()
reader.join()
own = open(f"/proc/{first.sparkContext._gateway.proc.pid}/cmdline").read()
properties = first.sparkContext._jvm.java.lang.System.getProperties()
second = workbench.session({"spark.sql.shuffle.partitions": 5, "spark.driver.memory": "9g"}, master="local[1]")

@udf("string")
def library(n):
    import connectors
    return connectors.__file__

@udf("string")
def pyspark_of_worker(n):
    import pyspark
    return os.path.realpath(pyspark.__file__)

@udf("string")
def socket_of_worker(n):
    return os.environ["PYTHON_UNIX_DOMAIN_ENABLED"] + " " + os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]

@udf("int")
def fails_once(n):
    from pyspark import TaskContext
    if TaskContext.get().attemptNumber() == 0:
        raise ValueError("first try")
    return 1

first.range(3).write.format("delta").save(sys.argv[1])
first.sql("create table t using delta as select 1 as x")
conf = first.sparkContext.getConf()
print(json.dumps({
    "same": first.sparkContext is second.sparkContext,
    "partitions": second.conf.get("spark.sql.shuffle.partitions"),
    "memory": conf.get("spark.driver.memory"),
    "master": first.sparkContext.master,
    "zone": first.conf.get("spark.sql.session.timeZone"),
    "snapshot": first.conf.get("spark.databricks.delta.snapshotPartitions"),
    "host": conf.get("spark.driver.host"),
    "ui": first.sparkContext.uiWebUrl,
    "packages": conf.get("spark.jars.packages"),
    "delta": first.read.format("delta").load(sys.argv[1]).count(),
    "worker": first.range(1).select(library("id")).first()[0],
    "pyspark": first.range(1).select(pyspark_of_worker("id")).first()[0],
    "socket": first.range(1).select(socket_of_worker("id")).first()[0],
    "retried": first.range(1).select(fails_once("id")).first()[0],
    "registered": first.read.format("connectors.sequence").option("end", 3).load().count(),
    "folder": os.listdir("."),
    "submits": len([line for line in lines if "deploy.SparkSubmit" in line]),
    "shown": [line for line in lines if "5ecret" in line and "read_command_lines" not in line],
    "read": [first.sparkContext._jsc.hadoopConfiguration().get(key.removeprefix("spark.hadoop.")) for key in secrets],
    "odd": [odd, properties.getProperty("spark.hadoop.odd")],
    "properties": [os.path.exists(name) for name in own.split(chr(0)) if name.endswith(".properties")],
}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("session")
    environment = {**os.environ, "PYTHONPATH": str(library())}
    command = [sys.executable, "-c", SCRIPT, str(folder / "delta")]
    (folder / "cwd").mkdir()
    ran = subprocess.run(command, cwd=folder / "cwd", capture_output=True, text=True, env=environment, timeout=240)
    assert ran.returncode == 0, ran.stderr
    values: dict[str, Any] = json.loads(ran.stdout)
    return {**values, "stderr": ran.stderr}


@pytest.mark.soak
def test_the_second_call_returns_the_running_session_with_what_can_be_set(report: dict[str, Any]) -> None:
    assert (report["same"], report["partitions"], report["memory"]) == (True, "5", "2g")


def test_it_has_all_cores_and_tries_failed_tasks_again(report: dict[str, Any]) -> None:
    assert report["master"] == f"local[{os.cpu_count()},4]"
    assert report["retried"] == 1


def test_it_is_set_up_for_small_data_on_this_machine_alone(report: dict[str, Any]) -> None:
    assert (report["zone"], report["snapshot"], report["host"], report["ui"]) == ("UTC", "2", "127.0.0.1", None)


def test_delta_is_there_without_asking_a_repository(report: dict[str, Any]) -> None:
    assert (report["delta"], report["packages"]) == (3, None)


def test_workers_import_the_library(report: dict[str, Any]) -> None:
    assert Path(report["worker"]).is_relative_to(library())


def test_workers_import_the_pyspark_that_is_installed(report: dict[str, Any]) -> None:
    assert report["pyspark"] == pyspark.__file__


def test_workers_talk_to_the_jvm_without_tcp_and_leave_no_socket_behind(report: dict[str, Any]) -> None:
    enabled, _, folder = report["socket"].partition(" ")
    assert enabled.lower() == "true"
    assert "connectors-" in folder
    assert not Path(folder).exists()


def test_the_formats_are_registered(report: dict[str, Any]) -> None:
    assert report["registered"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_setting_of_a_user_is_on_a_command_line(report: dict[str, Any]) -> None:
    assert report["submits"] >= 1, "a command line with the settings would have been seen"
    assert report["shown"] == []
    assert set(report["properties"]) == {False}


def test_settings_reach_the_jvm_as_they_are(report: dict[str, Any]) -> None:
    assert report["read"] == ["5ecret-of-s3", "5ecret/of=azure"]
    odd, seen = report["odd"]
    assert seen == odd.strip(), "Spark takes blanks off the values of a file"


def test_nothing_is_left_in_the_current_folder(report: dict[str, Any]) -> None:
    assert report["folder"] == []


def test_the_console_stays_quiet(report: dict[str, Any]) -> None:
    allowed = ("Using incubator modules", "Fetching io.delta", "JDK_JAVA_OPTIONS")
    assert [line for line in report["stderr"].splitlines() if not any(text in line for text in allowed)] == []


@pytest.mark.soak
def test_without_its_jars_only_delta_is_missing_and_that_is_said_once(tmp_path: Path) -> None:
    """A real resolver against a repository that refuses connections."""
    repository = "http://ann:5ecret-of-ann@127.0.0.1:9/"
    nowhere = '<ibiblio name="nowhere" m2compatible="true" root="http://127.0.0.1:9/"/>'
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="nowhere"/><resolvers>{nowhere}</resolvers></ivysettings>'
    )
    conf = {"spark.jars.ivySettings": str(settings), "spark.jars.ivy": str(tmp_path / "ivy")}
    conf["spark.jars.repositories"] = repository
    call = f"""
from connectors.ground.messages import own_message

spark = workbench.session({conf!r})
is_up.set()
shown = [line for line in lines if "5ecret" in line and "read_command_lines" not in line]
print(len(shown), len([line for line in lines if "deploy.SparkSubmit" in line]))
folder = {str(tmp_path / "table")!r}
spark.range(3).write.parquet(folder)
assert spark.read.parquet(folder).count() == 3
for use in (spark.read.format("delta").load, spark.range(3).write.format("delta").mode("append").save):
    try:
        use(folder)
    except Exception as error:
        print(own_message(error))
assert workbench.session() is spark
"""
    environment = {**os.environ, "PYTHONPATH": str(library()), "CONNECTORS_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", READER + call]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "5ecret" not in ran.stderr
    assert ran.stderr.count("Delta is missing") == 1
    sentence = ran.stderr.partition("The session starts without Delta. ")[2].splitlines()[:2]
    assert sentence[0].startswith(f"Delta is missing: {jars.delta_coordinate()} cannot be fetched from a Maven repository: ")
    assert "spark.jars.repositories" in sentence[1]
    counts, *errors = ran.stdout.splitlines()
    assert errors == 2 * [f"MissingFeature: {sentence[0]}", sentence[1]]
    shown, submits = map(int, counts.split())
    assert shown == 0
    assert submits > 0 or sys.platform != "linux"


def test_a_login_to_a_repository_is_not_in_what_the_resolver_is_quoted_with() -> None:
    log = "Server access error at url http://ann:5ecret@127.0.0.1:9/io/delta (java.net.ConnectException: Connection refused)"
    message = str(jars._unresolved("io.delta:delta-spark", log))
    assert "http://***@127.0.0.1:9/io/delta (java.net.ConnectException: Connection refused)" in message


STOPPED = """
import sys
from IPython.core.interactiveshell import InteractiveShell

CELLS = [
    "from connectors import workbench\\nspark, dbutils, display = workbench.notebook(globals())",
    '''
import os, signal, threading
threading.Timer(3, os.kill, (os.getpid(), signal.SIGINT)).start()
spark.readStream.format("rate").load().writeStream.format("noop").start().awaitTermination()
''',
    '''
rows = spark.readStream.format("connectors.sequence").option("end", 3).load().writeStream.format("connectors.print")
rows.option("checkpointLocation", sys.argv[1]).trigger(availableNow=True).start().awaitTermination()
''',
]
shell = InteractiveShell.instance()
shell.user_ns["sys"] = sys
for cell in CELLS:
    error = shell.run_cell(cell).error_in_exec
    print("cell:", type(error).__name__, flush=True)
"""


@pytest.mark.soak
def test_a_cell_that_is_stopped_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", STOPPED, str(tmp_path / "checkpoint")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(library())},
        timeout=300,
    )
    ended = [line.removeprefix("cell: ") for line in ran.stdout.splitlines() if line.startswith("cell: ")]
    assert ended == ["NoneType", "KeyboardInterrupt", "NoneType"], ran.stdout[-4000:] + ran.stderr[-4000:]


def test_the_running_session_is_this_threads_after_a_batch_has_created_rows_in_its_copy(spark: Any, tmp_path: Path) -> None:
    def create_rows(frame: Any, _: int) -> None:
        frame.sparkSession.createDataFrame([(1,)], "id long").count()

    rows = spark.readStream.format("connectors.sequence").option("end", 1).load()
    writer = rows.writeStream.foreachBatch(create_rows).option("checkpointLocation", str(tmp_path))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert workbench.session()._jsparkSession == spark._jsparkSession
