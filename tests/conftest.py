"""What all tests share: a folder in memory, and the Spark sessions, each made when the first test asks for it."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

LIBRARY = Path(__file__).parents[1] / "lib"
TESTS = Path(__file__).parent
TOYS = "test_correct_toys.py"
for folder in (LIBRARY.parent, LIBRARY):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
os.environ["PYTHONPATH"] = os.pathsep.join([str(LIBRARY), str(LIBRARY.parent), os.environ.get("PYTHONPATH", "")])
os.environ["PYSPARK_PYTHON"] = sys.executable
gc.disable()  # until the tests are collected
files_that_stay = 0
# What Java's second compiler costs never comes back in so short a life, and the tests' JVMs have two cores to share. Hadoop
# starts a process to set the permissions of each file; by VFORK it is one and not two.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m -Djdk.lang.Process.launchMechanism=VFORK"
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each more spins for a tenth of a second where a process imports NumPy


def folder_in_memory() -> str | None:
    """Linux's folder in memory, where it has room and programs may run from it: suites that sync files take half as long."""
    folder, room = "/dev/shm", 4 << 30  # a run of all tests fills a third of it
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return None
    return folder if shutil.disk_usage(folder).free > room else None


def remove_folder_in_memory() -> None:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


# The processes of a run inherit its folder; the one that made it removes it, with what killed processes left there.
if "TMPDIR" not in os.environ and (memory := folder_in_memory()):
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=memory)
    os.chmod(tempfile.tempdir, 0o1777)  # as /tmp: servers that refuse root run as somebody else
    atexit.register(remove_folder_in_memory)

# Other tests share the machine: how long an example takes says nothing.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

QUICK_SESSION = {
    # Spark's default manager starts processes to set the permissions of each file of a checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing"
    ".FileSystemBasedCheckpointFileManager",
    "spark.sql.globalTempDatabase": "of-all-sessions",  # nothing relies on Spark's own name
}
"""Of the sessions that tests share."""
QUICK_PLANS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Of a session that merges a few rows: Spark would compile and plan again for longer than it runs."""

pytest_plugins = ["connectors.testing.environments"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--evidence", action="store_true", help="puts what has passed into tests/stored/evidence.json")
    parser.addoption("--environment-table", default="", help="writes what passed where to a file", metavar="FILE")


def pytest_configure(config: pytest.Config) -> None:
    import connectors_tools.bundle  # noqa: F401  # it puts off a second of what the tests' own imports of nbformat would cost
    from connectors.testing import SinkSuite
    from connectors.testing.sink_cases import KillSuite

    KillSuite.seeds = 1  # ``make soak`` runs a hundred schedules of each sink
    SinkSuite.starts = 20
    if config.getoption("--evidence"):
        from tests.evidence import EvidenceRecord

        config.pluginmanager.register(EvidenceRecord())
    if file := config.getoption("--environment-table"):
        from tests.environments.environment_table import EnvironmentTable

        config.pluginmanager.register(EnvironmentTable(Path(str(file))), "environment-table")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves to ``make soak`` what a suite's ``short_form`` does not name, and half of what it does with both carriers.

    Each case runs by one carrier, half of a suite's cases by either. The reference sinks take all cases by both carriers,
    and each sink is killed by both.
    """
    for item in items:
        if isinstance(item, pytest.Function) and is_suite(item) and is_left_to_soak(item):
            item.add_marker(pytest.mark.soak)


def is_suite(item: pytest.Function) -> bool:
    """True for a case of a system's suite, or of a toy of the kit."""
    return item.path.is_relative_to(TESTS / "systems") or item.path.name == TOYS


def is_left_to_soak(item: pytest.Function) -> bool:
    """True for a case that its suite's short form does not have, and for one by the carrier that is not this case's."""
    from connectors.testing.sink_cases import KillSuite

    if item.function not in getattr(item.cls, "short_form", (item.function,)):
        return True
    carriers = getattr(getattr(item.cls, "context", None), "carriers", ())
    carrier = item.callspec.params.get("carrier") if hasattr(item, "callspec") else None
    is_reference = item.path.name == "test_reference_suites.py" or getattr(item.cls, "everywhere", False)
    if carrier not in carriers or is_reference or hasattr(KillSuite, item.originalname):
        return False
    number = zlib.crc32(f"{item.cls} {item.originalname}".encode())  # the same in each process
    return bool(carrier != carriers[number % len(carriers)])


def pytest_collection_finish() -> None:
    """Garbage collections look at no object that is older: they are millions, and live as long as the process."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as the tests' own objects are few
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def idle_clients() -> Iterator[None]:
    """Closes the clients of Kafka that a module's tests have left to the next batch: each has threads that wake up."""
    yield
    if library := sys.modules.get("connectors.systems.kafka.session"):
        for session in list(library._sessions.values()):
            session.close()


def pytest_runtest_logfinish() -> None:
    """Closes clients that nothing refers to: with 1024 open files Py4J's server in this process would die, and Spark wait."""
    global files_that_stay
    if len(os.listdir("/dev/fd")) > files_that_stay + 100:
        gc.collect()
        files_that_stay = len(os.listdir("/dev/fd"))


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Names a test at once when it fails, with the error: a run that ends before its summary says what failed, too."""
    if not report.failed:
        return None
    error = getattr(getattr(report.longrepr, "reprcrash", None), "message", report.longreprtext)
    return "failed" if report.when == "call" else "error", f"\nFAILED {report.nodeid}: {error[:500]}\n", "FAILED"


def pytest_sessionfinish(exitstatus: int) -> None:
    if exitstatus:  # the folders of failed tests stay
        atexit.unregister(remove_folder_in_memory)


@pytest.fixture(scope="session")
def environment_conf() -> dict[str, str]:
    from tests.delta_log import settings

    return {**settings(), **QUICK_SESSION}


@pytest.fixture
def spark(environments: Any) -> Any:
    """The session on this machine, for tests that need only one."""
    return environments.use("local").spark


@pytest.fixture
def quick_plans(spark: Any) -> Iterator[None]:
    for name, value in QUICK_PLANS.items():
        spark.conf.set(name, value)
    yield
    for name in QUICK_PLANS:
        spark.conf.unset(name)
