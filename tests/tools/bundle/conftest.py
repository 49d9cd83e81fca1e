"""Small bundles in a temporary folder, and what running them came to."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from connectors_tools.bundle import Bundle, Findings, Reporter, State, load, run_job, validate
from connectors_tools.bundle.checks import check_job

TARGETS = {"dev": {"default": True, "mode": "development"}, "prod": {"mode": "production"}}


@dataclass
class Result:
    """What a run came to: the job's state, its tasks' states, what was printed, and the executed notebooks."""

    state: State
    text: str
    folder: Path
    errors: str = ""

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def states(self) -> dict[str, str]:
        ended = [re.match(r" *(\S+)  ([A-Z_]+)  [\d.]+ s", line) for line in self.lines]
        return {line[1]: line[2] for line in ended if line}

    def executed(self, name: str) -> Any:
        """An executed notebook, ``ingest-1`` is the first attempt of ``ingest``."""
        (path,) = self.folder.rglob(f"{name}.ipynb")
        return nbformat.read(path, as_version=4)

    def printed(self, name: str) -> str:
        """What the cells of an executed notebook printed."""
        cells = self.executed(name).cells
        return "".join(out.text for cell in cells for out in cell.get("outputs", []) if out.output_type == "stream")

    def shown(self, name: str) -> dict[str, Any]:
        """The JSON that a notebook printed as its only output."""
        shown: dict[str, Any] = json.loads(self.printed(name))
        return shown


class Workbench:
    """Writes a bundle, then loads, checks or runs it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("databricks.yml", {"bundle": {"name": "test"}, "include": ["jobs/*.yml"], "targets": TARGETS})

    def write(self, path: str, content: Any) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
        return file

    def notebook(self, name: str, *cells: str) -> str:
        """A notebook of these code cells; returns its path as a job file names it."""
        document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        file = self.root / "notebooks" / f"{name}.ipynb"
        file.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(document, file)
        return f"../notebooks/{name}.ipynb"

    def job(self, key: str = "job", *tasks: dict[str, Any], **more: Any) -> None:
        self.write(f"jobs/{key}.yml", {"resources": {"jobs": {key: {"tasks": list(tasks), **more}}}})

    def task(self, key: str, *cells: str, after: Any = (), **more: Any) -> dict[str, Any]:
        """A notebook task whose notebook has these cells; ``after`` are the keys of the tasks it depends on."""
        spec = {"notebook_path": self.notebook(key, *cells)}
        if "base_parameters" in more:
            spec["base_parameters"] = more.pop("base_parameters")
        return depending({"task_key": key, "notebook_task": spec, **more}, after)

    def load(self, target: str | None = None, **more: Any) -> Bundle:
        return load(self.root, target, **more)

    def problems(self, target: str | None = None) -> str:
        """All that ``validate`` finds wrong, as text."""
        return _text(validate(self.load(target)), "problems")

    def notes(self, target: str | None = None) -> str:
        return _text(validate(self.load(target)), "notes")

    def check(self, parameters: Mapping[str, str], key: str = "job") -> Findings:
        bundle = self.load()
        return check_job(bundle, bundle.job(key), parameters)

    def run(self, key: str = "job", parameters: Mapping[str, str] | None = None, **more: Any) -> Result:
        out = io.StringIO()
        state = run_job(self.load(), key, parameters, Reporter(out, verbose=True), **more)
        print(out.getvalue())
        return Result(state, out.getvalue(), max((self.root / "runs" / key).iterdir(), default=self.root))


def depending(task: dict[str, Any], after: Any) -> dict[str, Any]:
    keys = [after] if isinstance(after, str) else after
    entries = [{"task_key": key} if isinstance(key, str) else key for key in keys]
    return {**task, "depends_on": entries} if entries else task


def condition(key: str, op: str, left: Any, right: Any, after: Any = (), **more: Any) -> dict[str, Any]:
    return depending({"task_key": key, "condition_task": {"op": op, "left": left, "right": right}, **more}, after)


def outcome(key: str, of: str) -> dict[str, str]:
    return {"task_key": key, "outcome": of}


def _text(findings: Findings, which: str) -> str:
    return "\n".join(f"{problem.option}: {problem.text}" for problem in getattr(findings, which))


@pytest.fixture
def bench(tmp_path: Path) -> Workbench:
    return Workbench(tmp_path)
