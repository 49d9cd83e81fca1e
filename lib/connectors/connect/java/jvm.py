"""A child JVM, driven over py4j, that never outlives the process that started it; and the Java of this package inside it.

The JVM ends when its standard input closes, and on Linux the kernel tells it to end with its parent, too. What runs in it may
be stopped then (:attr:`Jvm.at_exit`). What it prints goes to this process's standard error, which is Spark's log, with secrets
replaced. A call that does not return within its time kills it: a JVM that hangs then looks like one that died, and is replaced
like one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, Final

from ...ground.errors import Transient
from ...ground.options import masker
from ...ground.process_end import die_with_parent
from ...jvm.java import use_java
from ...jvm.maven import spark_jars
from .jars import named_classes

MEMORY: Final = (
    "-Xmx144m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:MinHeapFreeRatio=30",
    "-XX:MaxHeapFreeRatio=50",
    "-XX:ReservedCodeCacheSize=48m",
    "-XX:CompressedClassSpaceSize=48m",
    "-XX:MaxMetaspaceSize=112m",
    "-XX:MaxDirectMemorySize=48m",
)
"""The options that keep a JVM with Debezium below 250 MB; options of the user come behind and win."""
_FIRST_HEAP: Final = ("-Xms96m", "-Xmn48m")
"""A heap that begins smaller is collected as a whole again and again while it grows. Left out where a user gives ``-Xmx``."""

_SAFETY: Final = (
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # Debezium warns of each change that its own statistics have no room for.
    "-Dorg.slf4j.simpleLogger.log.io.debezium.metrics.stats.MeasurementCollector=error",
)
_NOISE: Final = ("RecordMetadata has no offset -- can't sync offsets",)
"""The messages that MirrorMaker's source logs for each record, since rows lie in no topic; they are left out."""
_TAIL: Final = 60
_START_SECONDS: Final = 60.0
_END_SECONDS: Final = 10.0
"""The seconds for which a JVM may go on when its parent is gone."""


class JvmDied(Transient):
    """The child JVM is gone: it crashed, ran out of memory, was killed, or did not answer in time."""


class AmbiguousAlias(ValueError):
    """Several classes of the jars are known by one alias."""


class Jvm:
    """A JVM with ``jars`` on its class path. ``secrets`` are texts that its log must not show."""

    def __init__(self, jars: Sequence[str], options: Sequence[str] = (), secrets: Sequence[str] = (), name: str = "connect"):
        self.name = name
        self.tail: deque[str] = deque(maxlen=_TAIL)
        self.is_hung = False
        self._mask = masker(secrets)
        self._jars, self._options = list(jars), list(options)
        self.process = self._launch()
        try:
            self.gateway = self._connect()
        except BaseException:
            self.kill()
            raise
        self.java: Any = self.gateway.jvm

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def class_of(self, name: str) -> Any:
        """The class with this name or alias. Raises :class:`AmbiguousAlias`."""
        return self.java.java.lang.Class.forName(self._full_name(name))

    def instance(self, name: str) -> Any:
        """A new object of a class of the jars, by its constructor without arguments."""
        return self.class_of(name).getDeclaredConstructor(self._array("Class")).newInstance(self._array("Object"))

    def compiled(self, name: str, *arguments: Any) -> Any:
        """A new object of a class whose Java source lies in this package. It has one constructor."""
        (constructor,) = self._sources.loadClass(f"{__package__}.{name}").getConstructors()
        return constructor.newInstance(self._array("Object", *arguments))

    @cached_property
    def at_exit(self) -> Any:
        """Takes tasks and connectors (``AtExit.java``) that are to be stopped when the JVM ends with its parent."""
        return self.compiled("AtExit", int(_END_SECONDS * 1000))

    def context(self, interface: str, answers: Mapping[str, Any], calls: Any) -> Any:
        """An implementation of ``interface`` whose methods answer what ``answers`` holds under their names.

        Each call is added to the Java queue ``calls``, as an entry of name and arguments; not one without arguments that has
        an answer.
        """
        java_answers = self.java.java.util.HashMap()
        for name, answer in answers.items():
            java_answers.put(name, answer)
        return self.compiled("Context", java_answers, calls).proxy(self.class_of(interface))

    @contextlib.contextmanager
    def within(self, seconds: float, what: str) -> Iterator[None]:
        """Runs calls into the JVM. Raises :class:`JvmDied` if it dies meanwhile, or does not answer within ``seconds``."""
        from py4j.protocol import Py4JError, Py4JJavaError

        timer = threading.Timer(seconds, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except Py4JJavaError:
            if self.is_hung:
                raise self.death(what, seconds) from None
            raise
        except (Py4JError, OSError, TypeError, AttributeError) as error:
            # py4j takes a class of a JVM that is gone for a package that does not exist, and packages are not callable
            if self._is_gone():
                raise self.death(what, seconds) from error
            raise
        finally:
            timer.cancel()

    def release(self, *objects: Any) -> None:
        """Gives up Java objects that hold much: py4j would keep them until Python next collects its garbage."""
        for java_object in objects:
            self.gateway.detach(java_object)

    def death(self, what: str, seconds: float | None = None) -> JvmDied:
        """The error of a JVM that is gone, with the end of its log."""
        self.kill()
        code = self.process.returncode
        if self.is_hung:
            how = f"did not answer for {seconds:g} s and was ended"
        else:
            how = "ran out of memory" if code == 3 else f"ended with {_signal_name(code)}"
        last = " | ".join([line for line in self.tail if line.strip()][-5:])
        return JvmDied(f"the JVM of the connector {how} while it was to {what}{f'; its log ends: {last}' if last else ''}")

    def masked(self, text: str) -> str:
        """``text`` without secrets."""
        return self._mask(text)

    def close(self, seconds: float = 5.0) -> None:
        """Ends the JVM: first by the end of its input, then by force. What runs in it is stopped before, by its owner."""
        if "at_exit" in vars(self):
            with contextlib.suppress(Exception):
                self.at_exit.clear()
        with contextlib.suppress(Exception):
            self.gateway.shutdown()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.kill()

    def kill(self) -> None:
        """Ends the JVM at once."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()

    def _full_name(self, name: str) -> str:
        if "." in name:
            return name
        classes = named_classes(self._jars, name)
        if len(classes) > 1:
            raise AmbiguousAlias(f"{name} may be {' or '.join(classes)}; give the full name.")
        return classes[0] if classes else name

    @cached_property
    def _sources(self) -> Any:
        """The class loader that compiles the Java files of this package, each when its class is needed first."""
        codehaus = self.java.org.codehaus
        finder = codehaus.commons.compiler.util.resource.MapResourceFinder()
        for file in files(__package__).iterdir():
            if file.name.endswith(".java"):
                finder.addResource(f"{__package__.replace('.', '/')}/{file.name}", file.read_bytes())
        parent = self.java.java.lang.ClassLoader.getSystemClassLoader()
        loader = codehaus.janino.JavaSourceClassLoader(parent, finder, "UTF-8")
        loader.setDebuggingInfo(True, True, False)  # lines and files, for stacks
        return loader

    def _array(self, kind: str, *items: Any) -> Any:
        array = self.gateway.new_array(getattr(self.java.java.lang, kind), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def _give_up(self) -> None:
        self.is_hung = True
        self.process.kill()

    def _is_gone(self) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):  # a connection breaks a moment before the process is gone
            self.process.wait(2.0)
        return not self.is_alive()

    def _launch(self) -> subprocess.Popen[bytes]:
        jars = [str(max(spark_jars().glob("py4j*.jar"))), *self._jars]
        java = str(use_java() / "bin" / "java")
        heap = () if any(option.startswith("-Xmx") for option in self._options) else _FIRST_HEAP
        options = [*MEMORY, *heap, *_SAFETY, *self._options, "-cp", os.pathsep.join(jars)]
        server = ["py4j.GatewayServer", "--enable-auth", "--die-on-broken-pipe", "0"]
        # The kernel's signal comes when the *thread* that started the child ends.
        in_main = threading.current_thread() is threading.main_thread()
        return subprocess.Popen(
            [java, *options, *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent if in_main else None,
            start_new_session=True,
        )

    def _connect(self) -> Any:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        from .gateway import ChildJvmClient

        quiet_py4j()
        threading.Thread(target=self._log, name=f"{self.name}-log", daemon=True).start()
        timer = threading.Timer(_START_SECONDS, self._give_up)
        timer.start()
        out = self.process.stdout
        assert out is not None
        try:
            # Options of the user, such as -Xlog:gc, may print in front of the port.
            port = next((line.strip() for line in out if line.strip().isdigit()), b"")
            token = out.readline().strip()
        finally:
            timer.cancel()
        if not port.isdigit():
            raise self.death("start", _START_SECONDS)
        threading.Thread(target=_drain, args=(out,), name=f"{self.name}-out", daemon=True).start()
        parameters = GatewayParameters(port=int(port), auth_token=token.decode(), auto_convert=True)
        return JavaGateway(ChildJvmClient(gateway_parameters=parameters), gateway_parameters=parameters)

    def _log(self) -> None:
        stream = self.process.stderr
        assert stream is not None
        with stream:
            for raw in stream:
                line = self._mask(raw.decode(errors="replace").rstrip("\n"))
                if any(noise in line for noise in _NOISE):
                    continue
                self.tail.append(line)
                with contextlib.suppress(OSError, ValueError):
                    print(f"[{self.name} {self.pid}] {line}", file=sys.stderr, flush=True)


def quiet_py4j() -> None:
    """py4j logs a traceback for each object that is collected after its JVM is gone."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    root = logging.getLogger("root")
    if not any(isinstance(known, _NotOfPy4j) for known in root.filters):
        root.addFilter(_NotOfPy4j())


class _NotOfPy4j(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "py4j" not in record.pathname


def _drain(stream: Any) -> None:
    with stream:
        for _ in stream:
            pass


def _signal_name(code: int | None) -> str:
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"
