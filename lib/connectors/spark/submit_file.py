"""The file by which the settings of a session reach a JVM that PySpark starts: everybody can read its command line."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def submit_file(settings: Mapping[str, Any]) -> Iterator[None]:
    """Lets what PySpark starts inside read ``settings`` from a file, before those of the user's own arguments."""
    name, lines = "PYSPARK_SUBMIT_ARGS", [f"{_property(key)}={_property(str(value))}\n" for key, value in settings.items()]
    before = os.environ.get(name)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="connectors-", suffix=".properties") as file:
        file.writelines(lines)
        file.flush()
        own = f"--load-spark-defaults --properties-file {shlex.quote(file.name)}"
        os.environ[name] = f"{own} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            del os.environ[name]
            os.environ.update({} if before is None else {name: before})


def _property(text: str) -> str:
    """``text`` as a key or value of a Java properties file."""
    return re.sub(r"[\\ \t:=#!]", r"\\\g<0>", text).replace("\n", r"\n").replace("\r", r"\r")
