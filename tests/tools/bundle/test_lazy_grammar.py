"""A command that reads notebooks does not build the grammar of a format that no notebook has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connectors.workbench.settings import library

pytest.importorskip("rfc3987_syntax")

SCRIPT = """
import sys
import connectors_tools.bundle
print("lark" in sys.modules, "rfc3987_syntax" in sys.modules)

from jsonschema import Draft202012Validator as Validator
validator = Validator({"format": "iri"}, format_checker=Validator.FORMAT_CHECKER)
print(validator.is_valid("https://example.org/ü"), validator.is_valid("no address"))

import rfc3987_syntax
print(rfc3987_syntax.is_valid_syntax("iri", "https://example.org/"))
"""


def test_the_grammar_is_built_by_the_first_check_that_needs_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(library())})
    assert ran.stdout.splitlines() == ["False False", "True False", "True"], ran.stderr
