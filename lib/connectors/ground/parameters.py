"""A parameter whose value is JSON, or the name of a file with it: short values in the job, long ones beside the notebook."""

from __future__ import annotations

from pathlib import Path


def json_text(value: str) -> str:
    """The JSON of a parameter: its ``value`` if that begins an object or a list, else the text of the file of that name.

    Raises ``OSError`` if there is no such file.
    """
    return value if is_json(value) else Path(value).read_text(encoding="utf-8")


def is_json(value: str) -> bool:
    """True for the beginning of an object or a list; False for the name of a file."""
    return value.lstrip().startswith(("{", "["))
