"""The text of an error for a person: its message, and the line of the notebook that met it.

An error of this library is raised in one process and read in another: by then it stands in the text of one of Spark's errors,
among the stacks of this library, of Spark and of Java.
"""

from __future__ import annotations

import linecache
import re
import traceback
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Final

from .errors import PERMANENT, ConnectorError

_ERROR: Final = re.compile(r"\bconnectors(?:\.\w+)+\.([A-Z]\w*): ")
"""An error of this library as Python names it in the last line of a traceback."""
_END: Final = re.compile(
    r"\n\s*SQLSTATE: |\n\s*at [\w.$/]+\(|\n(?:JVM|Driver) stacktrace:|\n== SQL|\n=== Streaming Query ==="
    r"|\nCaused by: |\n+(?:Traceback \(most|During handling of|The above exception)"
)
"""The beginnings of the text that Python, Spark and Java write after a message."""
_WHOLE: Final = "The full traceback: import traceback; traceback.print_last() - or the log of the job's run."


def own_message(error: BaseException) -> str:
    """Class and text of the library's error that ``error`` is, or has in its text; empty where there is none."""
    return f"{type(error).__name__}: {error}" if isinstance(error, ConnectorError) else _own_message_in(str(error))


def is_permanent(error: BaseException) -> bool:
    """True if ``error`` is, or has in its text, an error of this library that no new try can mend."""
    if isinstance(error, ConnectorError):
        return isinstance(error, PERMANENT)
    return own_message(error).partition(":")[0] in set(_names(PERMANENT))


def _names(kinds: Iterable[type]) -> Iterator[str]:
    for kind in kinds:
        yield kind.__name__
        yield from _names(kind.__subclasses__())


def message_in(text: str) -> str:
    """The message in the text of an error of Spark: the library's own, that of a Python process, else all but the stacks."""
    return _own_message_in(text) or worker_message(text) or without_stacks(text)


def _own_message_in(text: str) -> str:
    *_, last = (None, *_ERROR.finditer(text))
    if last is None:
        return ""
    end = _END.search(text, last.end())
    return f"{last[1]}: {text[last.end() : end.start() if end else None].strip()}"


def worker_message(text: str) -> str:
    """The exception of a Python process inside the text of an error of Spark, all its lines; empty where there is none."""
    *_, after = text.rpartition("Traceback (most recent call last):")
    if after == text:
        after = text.partition("exception was thrown from the Python worker:")[2]
    lines = after.splitlines()
    start = next((n for n, line in enumerate(lines) if line and not line.startswith((" ", "\t", "^"))), None)
    return "" if start is None else without_stacks("\n".join(lines[start:]))


def without_stacks(text: str) -> str:
    """``text`` up to the stacks of Spark and Java."""
    text = re.split(r"\n\s*(?:JVM stacktrace:|== SQL|Driver stacktrace:|at [\w.$]+\()", text, maxsplit=1)[0]
    return "\n".join(line for line in text.splitlines() if line.strip())


def cell_lines(message: str, trace: TracebackType | None) -> list[str]:
    """The lines that a notebook shows of an error: ``message``, the line of the cell, and where the rest is."""
    return [*message.splitlines(), *_cell_line(trace), "", _WHOLE]


def _cell_line(trace: TracebackType | None) -> list[str]:
    """The line of the cell that was running: the outermost frame of the notebook itself."""
    for frame, number in traceback.walk_tb(trace):
        if frame.f_globals.get("__name__") == "__main__":
            line = linecache.getline(frame.f_code.co_filename, number).strip()
            return ["", f"in line {number} of the cell: {line}"]
    return []
