"""``python -m connectors new NAME --pipeline KIND``: a pipeline notebook, its job and its rules, from one skeleton.

The pipelines of the repository are written by the same code, so that who has read one has read all. :data:`PIPELINES` has
what differs by system, the folder ``skeletons`` what does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from string import Template
from typing import Any, Final

import yaml

from connectors.ground.errors import Misconfigured, Problem
from connectors.workbench import BOOTSTRAP

_SKELETONS: Final = Path(__file__).with_name("skeletons")
_CELL: Final = re.compile(r"^%% (code|markdown)\n", re.MULTILINE)
_ORDER: Final = "id long, city string, cents long, at timestamp"
_RULES: Final = ({"not_null": "id"}, {"between": ["cents", 0, 1_000_000]})
"""The records of every demonstration, and the rules of them."""
_METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


@dataclass(frozen=True)
class Parameter:
    """A parameter of a pipeline: a widget of its notebook, and a parameter of its job.

    ``of_job`` is the default there where it is another one: the bundle's variables.
    """

    name: str
    default: str
    meaning: str
    of_job: str = ""

    def widget(self) -> str:
        """The line of code that declares it in the notebook."""
        return f'dbutils.widgets.text("{self.name}", "{self.default}", "{self.meaning}")'


@dataclass(frozen=True)
class PipelineKind:
    """What a pipeline into Delta has of its own.

    ``address`` is the parameter that is empty for a demonstration, ``source`` has the options of the source as Python code,
    ``columns`` say where a record was, and no two rows of the table have the same ``key``.
    """

    title: str
    summary: str
    guarantee: str
    format: str
    demonstration: str
    address: str
    parameters: Sequence[Parameter]
    source: Mapping[str, str]
    columns: Sequence[str]
    key: Sequence[str]


PIPELINES: Final = {
    "kafka_to_delta": PipelineKind(
        title="From Kafka into Delta",
        summary="The records that are new in a topic are decoded, judged by rules, and appended to a table.",
        guarantee="each record is in the table once, or set aside, also when a run is killed at any moment",
        format="kafka",
        demonstration="kafka",
        address="kafka_bootstrap_servers",
        parameters=(
            Parameter("kafka_bootstrap_servers", "", "Brokers; empty: a demonstration"),
            Parameter("source", "orders", "Topic, or several with commas"),
        ),
        source={
            "kafka.bootstrap.servers": "pipeline.address",
            "subscribe": 'dbutils.widgets.get("source")',
            "startingOffsets": '"earliest"',
            "maxOffsetsPerTrigger": '"1000000"',
        },
        columns=("topic", "partition", "offset"),
        key=("topic", "partition", "offset"),
    ),
    "lines_to_delta": PipelineKind(
        title="From growing files into Delta",
        summary="The lines that are new in files, which may grow and be rotated, are decoded, judged, and appended to a table.",
        guarantee="each line is in the table once, or set aside, also when a run is killed at any moment",
        format="file_stream",
        demonstration="lines",
        address="source",
        parameters=(Parameter("source", "", "Files, as a path with *; empty: a demonstration"),),
        source={"path": "pipeline.address", "maxBytesPerTrigger": '"256MB"'},
        columns=("filename", "position"),
        key=("id",),  # the file that comes after one that was rotated has its name, and begins at 0 again
    ),
}
"""By their names, which are those of the notebooks and jobs in the repository."""


def write_pipeline(root: Path, name: str, kind: str) -> list[Path]:
    """Writes the pipeline ``name`` of a ``kind`` of :data:`PIPELINES` into the bundle at ``root``, and returns its files.

    Raises :class:`~connectors.ground.errors.Misconfigured`, and writes nothing, for a name that is taken or that no job can
    have, for an unknown kind, and outside of the repository.
    """
    kind = kind.replace("-", "_")
    if kind not in PIPELINES:
        raise Misconfigured("connectors new", [Problem("--pipeline", f'must be {" or ".join(PIPELINES)}; got "{kind}".')])
    files = {root / path: text for path, text in files_of(kind, name).items()}
    if problems := list(_problems(root, name, files)):
        raise Misconfigured("connectors new", problems)
    for path, text in files.items():
        path.write_text(text)
    return list(files)


def files_of(kind: str, name: str) -> dict[str, str]:
    """The text of each file of the pipeline ``name``, by its path in the bundle."""
    pipeline = PIPELINES[kind]
    parameters = [
        *_shared_parameters(name),
        *pipeline.parameters,
        Parameter("options", "{}", "More options of the source, as a JSON object"),
        Parameter("trigger", "availableNow", "availableNow, continuous or 10 seconds"),
    ]
    texts = {
        "name": name,
        "title": pipeline.title,
        "summary": pipeline.summary,
        "guarantee": pipeline.guarantee,
        "format": pipeline.format,
        "demonstration": pipeline.demonstration,
        "address": pipeline.address,
        "schema": _ORDER,
        "columns": ", ".join(f'"{column}"' for column in pipeline.columns),
        "options": "\n".join(f'    "{option}": {value},' for option, value in pipeline.source.items()),
        "parameters": "\n".join(
            f"        - name: {parameter.name}\n          default: {json.dumps(parameter.of_job or parameter.default)}"
            for parameter in parameters
        ),
    }
    rules = ",\n".join(f"  {json.dumps(rule)}" for rule in (*_RULES, {"unique": pipeline.key}))
    return {
        f"notebooks/pipelines/{name}.ipynb": _notebook("into_delta.txt", parameters, texts),
        f"notebooks/pipelines/rules/{name}.json": f"[\n{rules}\n]\n",
        f"jobs/{name}.yml": _filled("job.yml", texts),
    }


def gate() -> str:
    """The notebook that judges what any pipeline has written."""
    return _notebook("quality.txt", _shared_parameters("kafka_to_delta"), {})


def _shared_parameters(name: str) -> list[Parameter]:
    """The parameters of the pipeline ``name`` that its gate has, too."""
    place, table = "/Volumes/main/connectors/data/pipelines", f"main.connectors.{name}"
    return [
        Parameter("name", name, "Name of the pipeline and of its folder"),
        Parameter("workdir", place, "Folder of pipelines", "${var.workdir}/pipelines"),
        Parameter("target", table, "catalog.schema.table or a folder", f"${{var.catalog}}.${{var.schema}}.{name}"),
        Parameter("checks", f"rules/{name}.json", "Rules of the rows: JSON, or a file"),
    ]


def _problems(root: Path, name: str, files: Mapping[Path, str]) -> Iterator[Problem]:
    if not (root / "notebooks" / "pipelines" / "quality.ipynb").is_file():
        yield Problem("folder", f"must be the root of this repository; {root} has no notebooks/pipelines.")
    elif not re.fullmatch(r"[a-z][a-z0-9_]*", name) or yaml.safe_load(name) != name:
        text = 'must be a name such as "orders": small letters, digits and underscores, and no word of YAML; got "{}".'
        yield Problem("NAME", text.format(name))
    elif existing := [str(path.relative_to(root)) for path in files if path.exists()]:
        yield Problem("NAME", f"{name} is taken: {', '.join(existing)} exists. Choose another name.")


def _filled(skeleton: str, texts: Mapping[str, str]) -> str:
    return Template((_SKELETONS / skeleton).read_text()).substitute(texts)


def _notebook(skeleton: str, parameters: Sequence[Parameter], texts: Mapping[str, str]) -> str:
    """The text of a notebook, without outputs."""
    v4: Any = import_module("nbformat.v4")
    make = {"markdown": v4.new_markdown_cell, "code": v4.new_code_cell}
    widgets = "\n".join(parameter.widget() for parameter in parameters)
    parts = _CELL.split(_filled(skeleton, {**texts, "bootstrap": BOOTSTRAP.strip(), "widgets": widgets}))[1:]
    cells = [make[kind](text.strip()) for kind, text in zip(parts[::2], parts[1::2], strict=True)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return str(import_module("nbformat").writes(v4.new_notebook(cells=cells, metadata=_METADATA))) + "\n"
