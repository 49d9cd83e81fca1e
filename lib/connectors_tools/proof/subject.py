"""What is proven: a pipeline's notebook, the systems of its two ends, and the names that the proof makes in them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Final

from connectors.ground.errors import Misconfigured, Problem
from connectors.ground.parameters import is_json
from connectors.storage.location import alternatives, is_local
from connectors.testing.demos import demo
from connectors.testing.scratch import SCRATCH, Changes, Order, Scratch, Slots
from connectors.workbench.bootstrap import code_cells
from connectors.workbench.pipeline import EndWidgets, Pipeline, json_object, pipeline
from connectors.workbench.shim import DbUtils

from ..pipeline_ends import TargetEnd
from ..pipeline_sources import SOURCES
from ..pipeline_targets import TARGETS

_COMMAND: Final = "connectors prove"
_PROVEN: Final = ("delta", "dynamodb", "elasticsearch", "files", "jdbc", "kafka", "redis")
"""Targets that can be read back."""
_DELTA: Final = "delta"
DEMONSTRATIONS: Final = "demonstrations"
"""The folder of the servers that a proof starts."""
_OWN_PATH: Final = ("files", "lines", _DELTA)
"""Systems without an address: a path is all that there is."""


@dataclass(frozen=True)
class Name:
    """Something that the proof makes in a system, and removes."""

    scratch: Scratch
    system: str
    name: str

    def __str__(self) -> str:
        words = {"cdc": "table", "jdbc": "table", "delta": "table", "dynamodb": "table", "elasticsearch": "index"}
        words |= {"slot": "slot and publication"}
        words |= {"files": "folder", "lines": "file", "kafka": "topic", "kinesis": "stream", "redis": "keys"}
        return f"{words[self.system]} {self.scratch.place(self.name) if self.system in _OWN_PATH else self.name}"


class Subject:
    """The pipeline in the file ``notebook`` with the user's ``parameters``, proven in ``folder`` under the name ``token``."""

    def __init__(self, notebook: Path, parameters: Mapping[str, str], folder: Path, token: str) -> None:
        self.notebook, self.folder, self.token = notebook, folder, token
        self._user = dict(parameters)
        for name in ("checks", "options", "target_options"):
            value = self._user.get(name, "")
            if not is_json(value) and (file := notebook.parent / value).is_file():
                self._user[name] = str(file.absolute())
        self._keywords = _pipeline_call(notebook)
        ends = self._pipeline({**self._user, "name": token, "workdir": str(folder / "state")}).ends
        self.source_end, self.target_end = ends["source"], ends["target"]
        self.demonstrations: list[str] = []
        self.is_demonstration = True
        """False if a system of the user's is touched."""
        problems = [*self._problems("source", self.source_end, SCRATCH), *self._problems("target", self.target_end, _PROVEN)]
        if ends["service"].address:
            problems.append(Problem("PIPELINE", "calls a service, of whose answers a proof knows nothing yet."))
        if problems:
            raise Misconfigured(_COMMAND, problems)
        self._options: dict[str, Mapping[str, str]] = {"source": {}, "target": {}}
        self._addresses: dict[str, str] = {}
        self.source = Name(self._scratch("source", self.source_end), self.source_end.system, f"{token}_in")
        self._target = self._scratch("target", self.target_end)

    @property
    def systems(self) -> Sequence[str]:
        """The connectors that are broken; Delta has the quarantine and the counts of all pipelines."""
        source = SOURCES[self.source_end.system].format
        return sorted({source, TARGETS[self.target_end.system].format, _DELTA})

    @property
    def is_copy(self) -> bool:
        """True if a run reads the whole source."""
        return SOURCES[self.source_end.system].query == "copy"

    @property
    def is_merged(self) -> bool:
        """True if the target follows updates and deletions."""
        return self.source_end.system == "cdc"

    def target(self, run: str) -> Name:
        """The target of the ``run``, ``out`` or ``ref``."""
        return Name(self._target, self.target_end.system, f"{self.token}_{run}")

    def names(self) -> Iterator[Name]:
        """All names that the proof makes."""
        yield self.source
        for run in ("out", "ref"):
            yield self.target(run)
            if isinstance(self.source.scratch, Changes):
                slots = Slots(self.source.scratch.address, self.source.scratch.options)
                yield Name(slots, "slot", self.state_name(run))

    def state_name(self, run: str) -> str:
        """The pipeline's name in the ``run``, from which its checkpoint and the id of its sink follow."""
        return f"{self.token}_{run}"

    def parameters(self, run: str, rows: int | None = None) -> dict[str, str]:
        """The notebook's parameters in the ``run``; ``rows`` bounds a batch, where the source can do so."""
        values = {**self._user, **self._addresses, "trigger": "availableNow"}
        values |= {"name": self.state_name(run), "workdir": str(self.folder / "state")}
        values["source"] = self.source.scratch.place(self.source.name)
        target = self.target(run)
        values["target"] = target.scratch.target_place(target.name)
        for side, end in (("source", self.source_end), ("target", self.target_end)):
            if end.system != _DELTA and end.options:
                own = self._limit(rows) if rows and side == "source" else {}
                values[end.options] = json.dumps({**own, **self._options[side], **_json(end.options, values.get(end.options))})
        return values

    def pipeline(self, run: str) -> Pipeline:
        """The pipeline as its notebook sees it in the ``run``."""
        return self._pipeline(self.parameters(run))

    def put(self, orders: Sequence[Order]) -> None:
        """Adds orders to the source."""
        self.source.scratch.put(self.source.name, orders)

    @cached_property
    def end(self) -> TargetEnd:
        """What is known of the target's system."""
        return TARGETS[self.target_end.system]

    def drop(self) -> list[str]:
        """Removes all that the proof has made in the systems; returns what it could not remove, and why."""
        left = []
        for name in self.names():
            try:
                name.scratch.drop(name.name)
            except Exception as error:
                left.append(f"{name}: {' '.join(str(error).split())}")
        return left

    def _limit(self, rows: int) -> dict[str, str]:
        option = self.source.scratch.batch_limit
        if self.is_copy or self.is_merged:
            return {}
        units = {"maxFilesPerTrigger": 1, "maxBytesPerTrigger": rows * 80}
        return {option: str(units.get(option, rows))}

    def _pipeline(self, parameters: Mapping[str, str]) -> Pipeline:
        return pipeline(DbUtils({"trigger": "availableNow", "target": "/scratch", **parameters}), **self._keywords)

    def _problems(self, side: str, end: EndWidgets, known: Mapping[str, Any] | Sequence[str]) -> Iterator[Problem]:
        if end.system not in known:
            reason = "takes no rows from a proof" if side == "source" else "cannot be read back, row by row"
            yield Problem("PIPELINE", f"has the {side} {end.system}, which {reason}; it can be {', '.join(known)}.")

    def _scratch(self, side: str, end: EndWidgets) -> Scratch:
        """The system of an end: the user's, else a demonstration."""
        if end.system == _DELTA or (side == "target" and end.system == "files"):
            path = self._user.get("target", "") if side == "target" and "://" in self._user.get("target", "") else ""
            options = _json(end.options, self._user.get(end.options)) if end.options else {}
            self.is_demonstration &= not path
            return SCRATCH[end.system](path or str(self.folder / "tables"), options)
        widget = end.address or "source"
        if address := self._user.get(widget):
            self.is_demonstration = False
            options = self._user if end.system == "cdc" else _json(end.options, self._user.get(end.options))
            if end.system in _OWN_PATH and is_local(address) and not address.startswith("file:"):
                address = str(Path(address).absolute())  # the drivers have another working directory
            scratch = SCRATCH[end.system](address, options)
            if side == "source" and end.system in _OWN_PATH:
                self._check_pattern(address, scratch)
            return scratch
        example = demo(end.system, str(self.folder / DEMONSTRATIONS / end.system))
        if end.system not in self.demonstrations:
            self.demonstrations.append(end.system)
        scratch = example.scratch() if example.system else SCRATCH[end.system](str(example.folder), {})
        if widget != "source":
            self._addresses |= {widget: example.address, **example.parameters}
        self._options[side] = example.options
        if end.system == "cdc":
            self._addresses |= {"database_user": scratch.options["database_user"]}
        return scratch

    def _check_pattern(self, pattern: str, scratch: Scratch) -> None:
        """Raises :class:`Misconfigured` if whoever reads ``pattern`` would read the rows of the proof."""
        own = PurePosixPath(scratch.place(f"{self.token}_in").replace("*", "0"))
        if "*" in pattern and any(own.match(glob) for glob in alternatives(pattern)):
            text = f"is {pattern}, and so reads {own}, which the proof makes; give a folder that no pipeline reads."
            raise Misconfigured(_COMMAND, [Problem("source", text)])


def _pipeline_call(notebook: Path) -> dict[str, str]:
    """The keywords of the call of ``workbench.pipeline`` in a notebook."""
    for source in code_cells(notebook):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "workbench.pipeline":
                return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    text = f"{notebook.name} does not call workbench.pipeline; give one of notebooks/pipelines, or what new has written."
    raise Misconfigured(_COMMAND, [Problem("PIPELINE", text)])


def _json(option: str, text: str | None) -> dict[str, str]:
    """The options in a parameter, as texts."""
    values = json_object(option, text or "{}")
    return {name: str(item) if not isinstance(item, (dict, list)) else json.dumps(item) for name, item in values.items()}
