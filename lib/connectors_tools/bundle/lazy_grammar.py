"""Imports ``nbformat``, which every run of a notebook needs, and puts off what ``jsonschema`` costs with it.

Where ``rfc3987_syntax`` is installed, as Jupyter sees to, ``jsonschema`` imports it for the format ``iri``. That package builds
a grammar as it is imported, which takes a second, and no notebook has a field of that format.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

_PACKAGE: Final = "rfc3987_syntax"


@contextmanager
def _lazy_grammar() -> Iterator[None]:
    """Lets the imports inside get, in place of the package, a function that builds the grammar at its first call."""
    if _PACKAGE in sys.modules or find_spec(_PACKAGE) is None:
        yield
        return
    sys.modules[_PACKAGE] = stand_in = ModuleType(_PACKAGE)
    stand_in.is_valid_syntax = _is_valid_syntax  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del sys.modules[_PACKAGE]


def _is_valid_syntax(*args: Any, **options: Any) -> Any:
    return import_module(_PACKAGE).is_valid_syntax(*args, **options)


with _lazy_grammar():
    import nbformat  # noqa: F401
