"""Errors in a notebook's cells: shows the library's message instead of the stacks of Python, Spark and Java."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from connectors.ground.messages import cell_lines, own_message
from connectors.spark.session import errors_of_spark

from .shim import NotebookExit


def show_messages(*more: type[BaseException]) -> None:
    """Makes cells that fail with an error of Spark show only the library's message in it, if it has one.

    ``more`` are other exceptions to show so: :class:`NotebookExit` ends a cell with one line. Does nothing without IPython.
    """
    from IPython.core.getipython import get_ipython

    if (shell := get_ipython()) is not None:
        kinds = (*shell.custom_exceptions, *errors_of_spark(), *more)
        shell.set_custom_exc(tuple(dict.fromkeys(kinds)), _show)


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, trace: TracebackType, tb_offset: int | None = None
) -> None:
    if isinstance(error, NotebookExit):
        print(f"Notebook exited: {error.value}")
    elif message := own_message(error):
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace  # for a full traceback
        shell._showtraceback(kind, message, cell_lines(message, trace))
    else:
        shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
