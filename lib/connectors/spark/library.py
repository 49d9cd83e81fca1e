"""Brings the library to every Python process that Spark starts: the one place that decides how.

======================================  ======================================================================
where the process runs                  how it finds the library
======================================  ======================================================================
classic, this machine                   ``PYTHONPATH``, set before the JVM starts (:mod:`connectors.workbench`)
classic, executors                      ``spark.executorEnv.PYTHONPATH``
classic, neither of these is set        a zip of the library, by ``addPyFile``
Spark Connect, tasks and batch reads    the zip, as an artifact of the session
Spark Connect, a stream on the server   its bytes inside what is pickled: Spark gives no artifacts to the processes of
                                        streaming sources and of ``foreachBatch``
======================================  ======================================================================
"""

from __future__ import annotations

import atexit
import bz2
import contextlib
import functools
import hashlib
import io
import shutil
import sys
import sysconfig
import tempfile
import weakref
import zipfile
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

from . import arrival
from .session import is_connect, send_python, worker_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession



cloudpickle.register_pickle_by_value(arrival)  # type: ignore[no-untyped-call]

_reached: weakref.WeakSet[Any] = weakref.WeakSet()
_within: ContextVar[bool] = ContextVar("within", default=False)
"""True while something is pickled inside of what carries the library already."""
_TIME = (1980, 1, 1, 0, 0, 0)
_AT_HOME = ("testing/demo", "testing/scratch/", "testing/servers/")
"""The beginnings of the names of files that no worker needs: what starts and feeds systems."""


def reach(spark: SparkSession, kinds: Iterable[type] = ()) -> None:
    """Lets the Python processes of ``spark`` import this library, and unpickle ``kinds``, connectors of the user's own."""
    if is_connect(spark):
        for kind in kinds:
            _pickle_own_modules_by_value(kind)
    if spark not in _reached and not _on_path(spark):
        send_python(spark, _zip_file())
    _reached.add(spark)


def format_bases(spark: SparkSession) -> tuple[type, ...]:
    """The bases of a format beside its own, so that its pickle brings the library along where that is needed."""
    return (_carrier(),) if is_connect(spark) else ()


class Carried:
    """An object whose pickle brings the library along."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        if _within.get():
            return _restored, (type(self), self.__getstate__())
        token = _within.set(True)
        try:
            inner = cloudpickle.dumps((type(self), self.__getstate__()))  # type: ignore[no-untyped-call]
        finally:
            _within.reset(token)
        return arrival.arrive, (packed(), inner)


def _restored(kind: type[Carried], state: dict[str, Any]) -> Carried:
    carried = kind.__new__(kind)
    carried.__setstate__(state)
    return carried


class Luggage:
    """Pickled as the library itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return arrival.arrive, (packed(),)


def packed() -> bytes:
    """The library, compressed as a whole: what this process imports from, or the imported files."""
    for finder in sys.meta_path:
        if type(finder).__name__ == "CarriedLibrary":
            return bytes(finder.packed)  # type: ignore[attr-defined]
    return _packed()


@functools.cache
def _packed() -> bytes:
    root = Path(__file__).parents[1]
    files = sorted(file for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    names = {file.relative_to(root).as_posix(): file for file in files}
    return bz2.compress(
        _zipped({f"{root.name}/{name}": file.read_bytes() for name, file in names.items() if not name.startswith(_AT_HOME)})
    )


def _zipped(files: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME), content, compression)
    return out.getvalue()


@functools.cache
def _zip_file() -> str:
    """A zip from which Python imports; its name tells versions apart, since a session takes a name once."""
    content = _zipped(arrival.CarriedLibrary(packed()).files, zipfile.ZIP_DEFLATED)
    folder = Path(tempfile.mkdtemp(prefix="connectors-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / f"connectors-{hashlib.sha256(content).hexdigest()[:12]}.zip"
    file.write_bytes(content)
    return str(file)


@functools.cache
def _carrier() -> type:
    """A base class in no module, which pickle therefore sends by value: the library arrives before the class that needs it."""
    return type("Carrier", (), {"luggage": Luggage(), "__module__": arrival.__name__})


def _on_path(spark: SparkSession) -> bool:
    """True where the workers look into the folder, or the site-packages, that this process has the library from."""
    here = Path(__file__).resolve().parents[2]
    return any(Path(entry).resolve() == here for entry in worker_paths(spark) if entry)


def _pickle_own_modules_by_value(kind: type) -> None:
    """Sends the user's own modules, which a Connect server does not have. Installed packages must be installed there too."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    for base in kind.__mro__:
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        is_library = base.__module__.partition(".")[0] == "connectors"
        if module is not None and file is not None and not is_library and not str(Path(file).resolve()).startswith(installed):
            with contextlib.suppress(ValueError):
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
