"""A plugin for pytest that runs suites in one process, on real executors, and over Spark Connect.

Put ``pytest_plugins = ["connectors.testing.environments"]`` into the ``conftest.py`` of your tests. A test that asks for
the fixture ``environment`` then runs in each environment, with its session as ``environment.spark``:

===========  ======================================================================================================
``local``    ``local[2,4]``: driver and tasks share a process; a failed task is tried again
``cluster``  ``local-cluster[2,1,1024]``: two executors, each in its own JVM, which can be lost
``connect``  a Spark Connect server in its own process, whose Python has everything but this library
===========  ======================================================================================================

``pytest --environment cluster`` (or ``all``, or several with commas) chooses environments. Without it, suites whose
``everywhere`` is true run all cases in ``local`` and those marked ``essential`` elsewhere. Other suites run in ``local``
only, without the cases marked ``thorough``. Cases left out are marked ``soak``.

A session costs 10 to 20 seconds, so tests are ordered by environment, and only one session at a time is alive. With
pytest-xdist (``-n 2 --dist loadgroup --no-loadscope-reorder``) an environment stays in one process. So do the cases of a
file, and all files of a folder that pytest's setting ``one_process`` names, so that their servers start once. Cases
marked ``long`` start first, then the largest groups, so that no process waits for them in the end.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

import connectors

from ..spark.session import activate, driver_process
from ..workbench.home import spark_home
from .faults import executor_process
from .session import quick_conf, session

if TYPE_CHECKING:
    from .servers.spark_servers import ConnectServer

LOCAL: Final = "local"
CLUSTER: Final = "cluster"
CONNECT: Final = "connect"
ENVIRONMENTS: Final = (LOCAL, CLUSTER, CONNECT)

_MASTERS: Final = {LOCAL: "local[2,4]", CLUSTER: "local-cluster[2,1,1024]"}
_CLUSTER: Final = {
    "spark.decommission.enabled": "true",
    # Tests kill executors; Spark must not give up because of that.
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.excludeOnFailure.enabled": "false",
}
_CONNECT_MODE: Final = "SPARK_CONNECT_MODE_ENABLED"


class Environment:
    """An environment with its session; ``server`` is the Connect server of ``connect``."""

    def __init__(self, name: str, conf: Mapping[str, str]) -> None:
        self.name = name
        self.conf = dict(conf)
        self.server: ConnectServer | None = None
        self.spark: Any = None

    def start(self) -> None:
        """Starts the session, and the server that it needs."""
        if self.name == CONNECT:
            from .servers.spark_servers import ConnectServer  # no worker has it, and some import this module

            self.server = ConnectServer(quick_conf(self.conf), library=False).start()
            self.connect()
        else:
            self.spark = session(_MASTERS[self.name], {**(_CLUSTER if self.name == CLUSTER else {}), **self.conf})

    def connect(self) -> None:
        """Opens a new session with the running Connect server."""
        from pyspark.sql.connect.session import SparkSession

        assert self.server is not None
        os.environ[_CONNECT_MODE] = "1"  # by it, Spark's functions choose between their two implementations
        self.spark = SparkSession.builder.remote(self.server.url).create()
        connectors.register(self.spark)

    @contextlib.contextmanager
    def entered(self) -> Iterator[Environment]:
        """Sets Spark's mode while a test runs. The test's processes inherit it; those of later tests must not."""
        if self.server is not None:
            os.environ[_CONNECT_MODE] = "1"
        try:
            yield self
        finally:
            os.environ.pop(_CONNECT_MODE, None)

    def jvm(self) -> int:
        """The id of the process that is the driver's JVM."""
        return driver_process(self.spark) if self.server is None else self.server.children[0].pid

    def executors(self) -> list[int]:
        """The ids of the executors' processes: of the executors that ran tasks at the same time."""
        rows = self.spark.range(0, 8, 1, 8).mapInArrow(_executor, "pid long").distinct().collect()
        return [int(row.pid) for row in rows]

    def stop(self) -> None:
        """Ends the session and its server."""
        os.environ.pop(_CONNECT_MODE, None)
        if self.server is None:
            app = self.spark.conf.get("spark.app.id")
            self.spark.stop()
            # The workers of a local cluster leave the logs of executors in Spark's own folder.
            shutil.rmtree(spark_home() / "work" / app, ignore_errors=True)
            return
        with contextlib.suppress(Exception):  # the server may be gone already
            self.spark.stop()
        self.server.stop()


class Environments:
    """Starts environments on demand, and ends the previous one."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        self.conf = conf
        self.running: Environment | None = None

    def use(self, name: str) -> Environment:
        """The environment ``name``, started if another one runs."""
        if self.running is None or self.running.name != name:
            self.stop()
            environment = Environment(name, self.conf)
            environment.start()
            self.running = environment
        activate(self.running.spark)  # an earlier test may have been interrupted in a call of Spark
        return self.running

    def stop(self) -> None:
        """Ends the running environment."""
        if self.running is not None:
            self.running.stop()
            self.running = None


def _executor(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(rows)
    time.sleep(0.1)
    yield pa.RecordBatch.from_pydict({"pid": [executor_process()]})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option ``--environment``."""
    help = f"where suites run on Spark: {', '.join(ENVIRONMENTS)} or all; several with commas"
    parser.addoption("--environment", default="", help=help, metavar="NAME")
    parser.addini("one_process", "folders whose tests stay in one process (patterns)", type="args", default=[])


def pytest_configure(config: pytest.Config) -> None:
    """Declares the markers, and checks the options before anything runs."""
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")  # it aborts some processes between fork and exec
    config.addinivalue_line("markers", "essential: runs in every environment")
    config.addinivalue_line("markers", "thorough: left out unless chosen, but for suites that run everywhere")
    config.addinivalue_line("markers", "long: begins before others where several processes share the work")
    config.addinivalue_line("markers", "environments(*names): the only environments in which a case makes sense")
    chosen(config)


def chosen(config: pytest.Config) -> tuple[str, ...]:
    """The environments that the command line names; empty if it names none."""
    names = [name.strip() for name in str(config.getoption("--environment")).split(",") if name.strip()]
    unknown = [name for name in names if name not in (*ENVIRONMENTS, "all")]
    if unknown:
        raise pytest.UsageError(f'--environment must be of {", ".join(ENVIRONMENTS)}, all; got "{unknown[0]}"')
    return ENVIRONMENTS if "all" in names else tuple(name for name in ENVIRONMENTS if name in names)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that asks for ``environment`` in all environments; in unnecessary ones it is a soak test."""
    parameters = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "environment" not in metafunc.fixturenames or any("environment" in names for names in parameters):
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
    """Orders the tests by environment: local ones first, or last if several processes share the work."""
    shared = hasattr(config, "workerinput")
    if shared:
        groups = {item: _group(item) for item in items}
        for item, group in groups.items():
            item.add_marker(pytest.mark.xdist_group(group))
        sizes = Counter(groups.values())
        items.sort(key=lambda item: (item.get_closest_marker("long") is None, -sizes[groups[item]]))
    items.sort(key=lambda item: ENVIRONMENTS.index(_environment_of(item)), reverse=shared)


def _group(item: pytest.Item) -> str:
    """The group of a test, which stays in one process: an environment; in the local one a file or a folder."""
    name = _environment_of(item)
    return _file_or_folder(item) if name == LOCAL else name


def _file_or_folder(item: pytest.Item) -> str:
    """The file of a test, or its folder if ``one_process`` names it."""
    file = item.path.relative_to(item.config.rootpath)
    together = any(file.parent.match(pattern) for pattern in item.config.getini("one_process"))
    return (file.parent if together else file).as_posix()


def _environment_of(item: pytest.Item) -> str:
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("environment") if callspec else None
    return name if name in ENVIRONMENTS else LOCAL


@pytest.fixture(scope="session")
def environment_conf() -> Mapping[str, str]:
    """Spark's settings in all environments; override it with your own."""
    return {}


@pytest.fixture(scope="session")
def environments(environment_conf: Mapping[str, str]) -> Iterator[Environments]:
    """All environments of this test run."""
    environments = Environments(environment_conf)
    yield environments
    environments.stop()


@pytest.fixture
def environment(environments: Environments, request: pytest.FixtureRequest) -> Iterator[Environment]:
    """The environment that this test runs in."""
    for key, value in (("environment", request.param), ("subject", _subject(request))):
        request.node.user_properties.append((key, value))
    with environments.use(request.param).entered() as running:
        yield running


def _subject(request: pytest.FixtureRequest) -> str:
    """The row of a test in the table: its connector, or the test's own name as a sentence."""
    context = getattr(request.cls, "context", None)
    if context is None:
        name: str = request.node.originalname
        return name.removeprefix("test_").replace("_", " ")
    side = "source" if hasattr(context, "source") else "sink"
    carrier = request.node.callspec.params.get("carrier", "format")
    return f"{getattr(context, side).name}, {side}" + (f", {carrier}" if side == "sink" else "")
