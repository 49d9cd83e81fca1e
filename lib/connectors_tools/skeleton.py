"""The files of ``skeletons/``, of which ``python -m connectors new`` makes notebooks, jobs and bundles."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from string import Template
from typing import Final

_SKELETONS: Final = Path(__file__).with_name("skeletons")


def filled(skeleton: str, texts: Mapping[str, str]) -> str:
    """The text of a skeleton with ``texts`` in their places."""
    return Template((_SKELETONS / skeleton).read_text()).substitute(texts)


def bundle_files(root: Path, own: Sequence[str] = ()) -> dict[Path, str]:
    """The file of a new bundle at ``root``, whose jobs need the library and ``own``; none where there is a bundle."""
    if any((root / name).exists() for name in ("databricks.yml", "databricks.yaml")):
        return {}
    name = json.dumps(re.sub(r"\W", "_", root.resolve().name, flags=re.ASCII))
    lines = "\n            - ".join((dependency("connectors", version("connectors")), *own))
    return {root / "databricks.yml": filled("bundle.yml", {"name": name, "dependencies": lines})}


def dependency(project: str, of_version: str) -> str:
    """The wheel of a package, as a job names it whose bundle has the wheel in ``dist/``."""
    return f"${{workspace.file_path}}/dist/{re.sub(r'[-_.]+', '_', project).lower()}-{of_version}-py3-none-any.whl"
