"""Where a suite runs: in one process, on real executors, and over Spark Connect. A plugin for pytest.

Put ``pytest_plugins = ["connectors.testing.environments"]`` into the ``conftest.py`` of your tests. A test that asks for
the fixture ``environment`` then runs in each environment, with its session as ``environment.spark``:

===========  ======================================================================================================
``local``    ``local[2,4]``: driver and tasks share a process; a failed task is tried again
``cluster``  ``local-cluster[2,1,1024]``: two executors, each a JVM of its own that can be lost
``connect``  a Spark Connect server, a process of its own, whose Python has everything but this library
===========  ======================================================================================================

``pytest --environment cluster`` (or ``all``, or several with commas) chooses. Otherwise suites whose ``everywhere`` is true run
all cases in ``local`` and those marked ``essential`` elsewhere; other suites run in ``local`` only, without the cases marked
``thorough``. All that is left out is marked ``soak``.
Tests are ordered by environment, and one session at a time is alive: a session costs 10 to 20 seconds. With pytest-xdist
(``-n 2 --dist loadgroup --no-loadscope-reorder``) the cases of a file stay in one process, and so does an environment, and
all files of a folder that pytest's setting ``one_process`` names, so that their servers start once; cases marked ``long``
begin first: no process waits for them in the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest

import connectors

from ..workbench.home import spark_home
from .driver import quick_java_options, session
from .faults import executor_process
from .servers.spark_servers import ConnectServer

LOCAL: Final = "local"
CLUSTER: Final = "cluster"
CONNECT: Final = "connect"
ENVIRONMENTS: Final = (LOCAL, CLUSTER, CONNECT)

_MASTERS: Final = {LOCAL: "local[2,4]", CLUSTER: "local-cluster[2,1,1024]"}
_CLUSTER: Final = {
    "spark.decommission.enabled": "true",
    # Executors that tests kill are no reason to give up.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
}
_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"


class Environment:
    """One environment with its session. ``server`` is the Connect server, where there is one."""

    def __init__(self, name: str, conf: Mapping[str, str]) -> None:
        self.name = name
        self.conf = dict(conf)
        self.server: ConnectServer | None = None
        self.spark: Any = None

    def start(self) -> None:
        """Starts the session, and what it needs."""
        if self.name == CONNECT:
            self.server = ConnectServer({**self.conf, **quick(self.conf)}, library=False).start()
            self.connect()
        else:
            self.spark = session(_MASTERS[self.name], {**(_CLUSTER if self.name == CLUSTER else {}), **self.conf})

    def connect(self) -> None:
        """A new session with the Connect server that runs."""
        from pyspark.sql.connect.session import SparkSession

        assert self.server is not None
        # What Spark's functions look at to choose between their two implementations.
        os.environ[_CONNECT_MODE] = "1"
        self.spark = SparkSession.builder.remote(self.server.url).create()
        connectors.register(self.spark)

    @contextlib.contextmanager
    def entered(self) -> Iterator[Environment]:
        """While a test runs here. Other processes that it starts inherit the mode; those of later tests must not."""
        if self.server is not None:
            os.environ[_CONNECT_MODE] = "1"
        try:
            yield self
        finally:
            os.environ.pop(_CONNECT_MODE, None)

    def executors(self) -> list[int]:
        """The processes of the executors, asked by tasks: as many as could be reached at once."""
        rows = self.spark.range(0, 8, 1, 8).mapInArrow(_executor, "pid long").distinct().collect()
        return [int(row.pid) for row in rows]

    def stop(self) -> None:
        """Ends everything that was started."""
        os.environ.pop(_CONNECT_MODE, None)
        if self.server is None:
            app = self.spark.conf.get("spark.app.id")
            self.spark.stop()
            _remove_work_of(app)
            return
        with contextlib.suppress(Exception):  # the server may be gone already
            self.spark.stop()
        self.server.stop()


class Environments:
    """Starts environments on demand; one is alive at a time."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self.conf = conf
        self.running: Environment | None = None

    def use(self, name: str) -> Environment:
        """The environment ``name``, running."""
        if self.running is None or self.running.name != name:
            self.stop()
            made = Environment(name, self.conf)
            made.start()
            self.running = made
        return self.running

    def stop(self) -> None:
        """Ends the environment that runs."""
        if self.running is not None:
            self.running.stop()
            self.running = None


def _executor(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(rows)
    time.sleep(0.1)
    yield pa.RecordBatch.from_pydict({"pid": [executor_process()]})


def quick(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings of a small, quiet server for tests."""
    return {
        "spark.driver.extraJavaOptions": conf.get("spark.driver.extraJavaOptions", quick_java_options()),
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stopTimeout": "60s",
    }


def _remove_work_of(app: str) -> None:
    """The workers of a local cluster keep the logs of executors in Spark's own folder, for ever."""
    shutil.rmtree(spark_home() / "work" / app, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--environment``."""
    text = f"where suites run on Spark: {', '.join(ENVIRONMENTS)} or all; several with commas"
    parser.addoption("--environment", default="", help=text, metavar="NAME")
    parser.addoption("--environment-table", default="", help="writes what passed where to a file", metavar="FILE")
    parser.addini("one_process", "folders whose tests stay in one process (patterns)", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Checks the option, before anything runs."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # it aborts some processes between fork and exec
    config.addinivalue_line("markers", "essential: runs in every environment")
    config.addinivalue_line("markers", "thorough: left out unless chosen, but for suites that run everywhere")
    config.addinivalue_line("markers", "long: begins before others where several processes share the work")
    config.addinivalue_line("markers", "environments(*names): the only environments in which a case makes sense")
    chosen(config)
    if file := config.getoption("--environment-table"):
        config.pluginmanager.register(Table(Path(str(file))), "environment-table")


def chosen(config: pytest.Config) -> tuple[str, ...]:
    """The environments that the command line names; empty when it names none."""
    names = [name.strip() for name in str(config.getoption("--environment")).split(",") if name.strip()]
    unknown = [name for name in names if name not in (*ENVIRONMENTS, "all")]
    if unknown:
        raise pytest.UsageError(f'--environment must be of {", ".join(ENVIRONMENTS)}, all; got "{unknown[0]}"')
    return ENVIRONMENTS if "all" in names else tuple(name for name in ENVIRONMENTS if name in names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that asks for ``environment`` in every one of them."""
    given = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "environment" not in metafunc.fixturenames or any("environment" in names for names in given):
        return
    names = chosen(metafunc.config)
    only = metafunc.definition.get_closest_marker("environments")
    possible = tuple(only.args) if only else ENVIRONMENTS
    if names:
        metafunc.parametrize("environment", [name for name in possible if name in names], indirect=True)
        return
    everywhere = getattr(metafunc.cls, "everywhere", True)
    marked = {mark.name for mark in metafunc.definition.iter_markers()}
    always = {LOCAL} if everywhere or "thorough" not in marked else set()
    if everywhere and "essential" in marked:
        always.update(ENVIRONMENTS)
    params = [pytest.param(name, marks=() if name in always else pytest.mark.soak) for name in possible]
    metafunc.parametrize("environment", params, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests by environment; those that ask for none come first, or last where several processes share the work."""
    shared = hasattr(config, "workerinput")
    if shared:
        for item in items:
            name = _environment_of(item)
            item.add_marker(pytest.mark.xdist_group(_place_of(item) if name == LOCAL else name))
        items.sort(key=lambda item: item.get_closest_marker("long") is None)
    items.sort(key=lambda item: ENVIRONMENTS.index(_environment_of(item)), reverse=shared)


def _place_of(item: pytest.Item) -> str:
    """The file of a test, or its folder where that is kept together."""
    file = item.path.relative_to(item.config.rootpath)
    together = any(file.parent.match(pattern) for pattern in item.config.getini("one_process"))
    return (file.parent if together else file).as_posix()


def _environment_of(item: pytest.Item) -> str:
    given = getattr(item, "callspec", None)
    name = given.params.get("environment") if given else None
    return name if name in ENVIRONMENTS else LOCAL


@pytest.fixture(scope="session")
def environment_conf() -> Mapping[str, str]:
    """Spark's settings in all environments; override it with your own."""
    return {}


@pytest.fixture(scope="session")
def environments(environment_conf: Mapping[str, str]) -> Iterator[Environments]:
    """All environments of this test run."""
    made = Environments(environment_conf)
    yield made
    made.stop()


@pytest.fixture
def environment(environments: Environments, request: pytest.FixtureRequest) -> Iterator[Environment]:
    """The environment that this test runs in."""
    for key, value in (("environment", request.param), ("subject", _subject(request))):
        request.node.user_properties.append((key, value))
    with environments.use(request.param).entered() as running:
        yield running


def _subject(request: pytest.FixtureRequest) -> str:
    """What a test is about, as a row of the table: the connector, or the test's own sentence."""
    context = getattr(request.cls, "context", None)
    if context is None:
        name: str = request.node.originalname
        return name.removeprefix("test_").replace("_", " ")
    side = "source" if hasattr(context, "source") else "sink"
    carrier = request.node.callspec.params.get("carrier", "format")
    return f"{getattr(context, side).name}, {side}" + (f", {carrier}" if side == "sink" else "")


class Table:
    """Counts outcomes, and writes them as a table in Markdown."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.counts: Counter[tuple[str, str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest after each phase of a test."""
        of = dict(report.user_properties)
        if "environment" in of and (report.when == "call" or (report.when == "setup" and not report.passed)):
            self.counts[str(of["subject"]), str(of["environment"]), report.outcome] += 1

    def pytest_sessionfinish(self) -> None:
        """Called by pytest at the end."""
        self.file.write_text(self.text())

    def text(self) -> str:
        """One row per subject, one column per environment."""
        ran = {subject for subject, _, outcome in self.counts if outcome != "skipped"}
        names = sorted(ran, key=lambda name: (", " not in name, name))
        head = ["| case | " + " | ".join(ENVIRONMENTS) + " |", "|---" * (len(ENVIRONMENTS) + 1) + "|"]
        rows = [f"| {name} | " + " | ".join(self._cell(name, place) for place in ENVIRONMENTS) + " |" for name in names]
        return "\n".join([*head, *rows]) + "\n"

    def _cell(self, subject: str, place: str) -> str:
        found = [(self.counts[subject, place, outcome], outcome) for outcome in ("passed", "failed")]
        return ", ".join(f"{count} {outcome}" for count, outcome in found if count) or "-"
