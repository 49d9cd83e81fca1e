"""``python -m connectors new NAME``: a new connector, written from a template notebook.

The cells of ``notebooks/templates/source.ipynb`` and of the other notebooks in :data:`TEMPLATES` have tags: the client of the
system and the classes of the connector become a module, the rest becomes a pipeline with a quality gate. What the template's
proof (``source_proof.ipynb``) says of the system becomes a test, the rest a proof of the new pipeline. Jobs and rows in the
table of systems and in the READMEs complete it. The tests pass as they are written: replace the stand-in by your system step
by step.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from connectors.ground.errors import Misconfigured, Problem

_TAGS: Final = ("bootstrap", "parameters", "system", "connector", "register", "use", "break", "names", "proof", "gate")


class Template(NamedTuple):
    """A template notebook, and what its example is called in it."""

    notebook: str
    example: str
    client: str
    """The function that opens a client; empty where a class is the client."""
    suite: str = ""
    """The side that its tests, and its proof, are about: ``Source`` or ``Sink``. Without one, there is no proof."""
    description: str = ""
    summary: str = ""
    """A phrase for what the module is at first."""
    cases: str = ""
    """The suite without Spark."""


_TABLE: Final = "a {} over a table in SQLite, the stand-in for your system"
_SERVICE: Final = "a {} over a service of the test kit, the stand-in for your system"
_API: Final = "the source of a declared REST API, at first that of the test kit"
_READS: Final = "Rows of connectors.{name}, with a quality gate."
_WRITES: Final = "Rows into connectors.{name}, each once, with a quality gate."

TEMPLATES: Final = {
    ("source", "table"): Template("source", "queue", "queue", "Source", _READS, _TABLE.format("source"), "SourceSuite"),
    ("source", "queue"): Template("queue", "inbox", "", "Source", _READS, _SERVICE.format("source"), "QueueSuite"),
    ("source", "api"): Template("api", "feed", "", "Source", _READS, _API, "EpochSourceSuite"),
    ("sink", "table"): Template("sink", "storage", "store", "Sink", _WRITES, _TABLE.format("sink"), "SinkSuite"),
    ("sink", "storage"): Template("storage", "depot", "", "Sink", _WRITES, _SERVICE.format("sink"), "SinkSuite"),
    ("async", "table"): Template("async", "", "", "", "Rows that are enriched by calls of {name}, with a quality gate."),
}
"""By the kind of a connector, and by what it stands on at first (``--for``)."""

_GALLERY: Final = "\n## New connectors\n\n| | |\n|---|---|\n"

Cells = dict[str, list[str]]
"""The code cells of a template by their tag."""

_JOB: Final = """\
# {comment}
resources:
  jobs:
    {name}:
      name: {name}
      description: {description}
      parameters:
        - name: {parameter} # {meaning}
          default: {default}
      environments: ${{var.environments}}
      tasks:
        - task_key: {name}
          environment_key: default
          max_retries: 3 # a stream goes on where it was
          min_retry_interval_millis: 30000
          notebook_task:
            notebook_path: ../notebooks/{name}.ipynb
"""
_PROOF_JOB: Final = """
    {name}_proof: # to be run by hand, after a change
      name: {name}_proof
      description: The suite of connectors.{name}, and its pipeline on scratch names while its driver is killed.
      parameters:
        - name: workdir # the scratch folder is made in here
          default: ${{var.workdir}}
        - name: kills # of drivers; 0 in a workspace
          default: "1"
      environments:
        - environment_key: default
          spec:
            environment_version: "6"
            dependencies:
              - -r ../requirements-jobs.txt
              - pytest>=8.3
      tasks:
        - task_key: proof
          environment_key: default
          notebook_task:
            notebook_path: ../notebooks/{name}_proof.ipynb
"""
_ASYNC_TEST: Final = """\
@pytest.mark.spark
def test_each_row_gets_its_answer(spark: Any) -> None:
    orders = spark.range(1, 101).selectExpr("id", "id % 7 AS product")
    rows = orders.transform(async_io.unordered_wait, ask, schema="name string, price double").collect()
    assert sorted((row.id, row.name) for row in rows) == [(n, f"product {n % 7}") for n in range(1, 101)]
"""


_TABLES: Final = {"README.md": "guarantees", "lib/README.md": "options"}
"""The commands that print the tables of the READMEs; each stands between marks of its command's name."""


def write_connector(root: Path, name: str, kind: str, example: str = "table") -> list[Path]:
    """Writes the connector ``name`` into the repository at ``root`` and returns the files, also those with a new row.

    ``kind`` is ``source``, ``sink`` or ``async``; ``example`` is what it stands on at first, as in :data:`TEMPLATES`.
    Raises :class:`~connectors.ground.errors.Misconfigured`, and writes nothing, for a name that is taken or that no module can
    have, for an unknown example, and outside of the repository.
    """
    template = TEMPLATES.get((kind, example))
    connector = _Connector(root, name, template or TEMPLATES[kind, "table"])
    if problems := [*connector.problems(), *([] if template else [_unknown_example(kind, example)])]:
        raise Misconfigured("connectors new", problems)
    files = connector.files()
    for path, text in files.items():
        path.write_text(text)
    _tidy_imports(files)
    return [*files, *connector.add_to_readmes()]


def _unknown_example(kind: str, example: str) -> Problem:
    known = [other for of_kind, other in TEMPLATES if of_kind == kind]
    choice = f"{', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else known[0]
    return Problem("--for", f'must be {choice} for a new {kind}; got "{example}".')


class _Connector:
    """One connector to be written: its names, and the texts of its files."""

    def __init__(self, root: Path, name: str, template: Template) -> None:
        self.root = root
        self.name = name
        self.template = template
        self.camel = "".join(word.capitalize() for word in name.split("_"))
        self.systems = root / "lib" / "connectors" / "systems"

    def problems(self) -> Iterator[Problem]:
        """The reasons why the connector cannot be written."""
        if not self._template_path().is_file() or not (self.systems / "__init__.py").is_file():
            yield Problem("folder", f"must be the root of this repository; {self.root} has no {self._template_path().name}.")
            return
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name) or keyword.iskeyword(self.name) or hasattr(builtins, self.name):
            text = f'must be a name such as "orders_queue": small letters, digits and underscores; got "{self.name}".'
            yield Problem("NAME", text)
            return
        paths = [*self._paths().values(), self.systems / self.name]
        if existing := [str(path.relative_to(self.root)) for path in paths if path.exists()]:
            yield Problem("NAME", f"{self.name} is taken: {', '.join(existing)} exists. Choose another name.")

    def files(self) -> dict[Path, str]:
        """The text of each new file, and of the table of systems."""
        import nbformat

        pipeline = nbformat.read(self._template_path(), as_version=4)
        cells, paths = self._cells(pipeline), self._paths()
        files = {paths["module"]: self._module(cells), paths["job"]: self._job()}
        notebooks = {"notebook": self._pipeline(pipeline, [*cells["system"], *cells["connector"]])}
        if self.template.suite:
            proof = nbformat.read(self._template_path("_proof"), as_version=4)
            cells["proof"] = self._cells(proof)["proof"]
            notebooks["proof"] = self._proof(proof, [*cells["system"], *cells["connector"]])
            files[self.systems / "__init__.py"] = self._table_of_systems()
        files[paths["test"]] = self._test(cells)
        return files | {paths[key]: nbformat.writes(notebook) + "\n" for key, notebook in notebooks.items()}

    def add_to_readmes(self) -> Iterator[Path]:
        """Adds the notebooks to the gallery, and makes the tables of the READMEs anew, by processes that have the system.

        Yields the files that have changed.
        """
        gallery = self.root / "notebooks" / "README.md"
        text = gallery.read_text()
        links = f"[{self.name}]({self.name}.ipynb)" + (f", [proof]({self.name}_proof.ipynb)" if self.template.suite else "")
        gallery.write_text(f"{text}{'' if _GALLERY in text else _GALLERY}| {links} | {self._description()} |\n")
        yield gallery
        environment = {"PYTHONPATH": str(self.root / "lib"), "PATH": ""}
        for file, command in _TABLES.items() if self.template.suite else ():
            line = [sys.executable, "-m", "connectors", command, "--markdown"]
            table = subprocess.run(line, capture_output=True, text=True, check=True, env=environment).stdout
            readme, begin, end = self.root / file, f"<!-- {command} -->\n", f"<!-- /{command} -->"
            before, _, rest = readme.read_text().partition(begin)
            readme.write_text(f"{before}{begin}{table}{end}{rest.partition(end)[2]}")
            yield readme

    def _cells(self, notebook: Any) -> Cells:
        cells: Cells = {tag: [] for tag in _TAGS}
        for cell in notebook.cells:
            for tag in cell.metadata.get("tags", ()):
                cells[tag].append(self._renamed(cell.source))
        return cells

    def _paths(self) -> dict[str, Path]:
        paths = {
            "module": self.systems / f"{self.name}.py",
            "test": self.root / "tests" / "systems" / f"test_{self.name}.py",
            "notebook": self.root / "notebooks" / f"{self.name}.ipynb",
            "job": self.root / "jobs" / f"{self.name}.yml",
        }
        return paths | ({"proof": self.root / "notebooks" / f"{self.name}_proof.ipynb"} if self.template.suite else {})

    def _template_path(self, suffix: str = "") -> Path:
        return self.root / "notebooks" / "templates" / f"{self.template.notebook}{suffix}.ipynb"

    def _renamed(self, text: str) -> str:
        template = self.template
        if not template.suite:
            return text
        if template.client:
            text = re.sub(rf"\b{template.client}\(", "connect(", text)
        return re.sub(rf"\b{template.example}\b", self.name, text.replace(template.example.capitalize(), self.camel))

    def _module(self, cells: Cells) -> str:
        title = f"``connectors.{self.name}``: {self.template.summary}."
        advice = "Replace the client at the top by yours, then the classes part by part. Run the tests often."
        if not self.template.suite:
            title = f"Calls of {self.name} for asynchronous I/O, with a stand-in for your service."
            advice = "Replace the body of the function by a call of your client."
        return _module_text(f"{title}\n\n{advice}\n", *_split_imports([*cells["system"], *cells["connector"]]))

    def _test(self, cells: Cells) -> str:
        suite, code = self.template.suite, [*cells["system"], *cells["connector"]]
        module = f"connectors.systems.{self.name}"
        imports = [*_split_imports(code)[0], "import pytest", f"from {module} import {', '.join(_defined_names(code))}"]
        if not suite:
            title = f"Each row gets the answer of ``{module}``."
            return _module_text(title, [*imports, "from typing import Any", "from connectors import async_io"], _ASYNC_TEST)
        more, context = _split_imports(cells["proof"])
        classes = [
            context.partition("\n\n\nprint(")[0],
            f"class Test{self.camel}({self.template.cases}):\n    context = {self.camel}Context",
            f"@pytest.mark.spark\nclass Test{self.camel}OnSpark(Spark{suite}Suite):\n    context = {self.camel}Context",
        ]
        cases = self.template.cases
        suites = f"from connectors.testing import {cases}\nfrom connectors.testing.spark_suites import Spark{suite}Suite"
        title = f"``connectors.{self.name}`` passes every case of the test kit, without Spark and on Spark."
        return _module_text(title, [*imports, *more, suites], "\n\n\n".join(classes))

    def _pipeline(self, template: Any, code: Sequence[str]) -> Any:
        """The cells that use the connector, each with the text in front of it; the module is imported before the first."""
        start = [*_split_imports(code)[0], f"from connectors.systems.{self.name} import {', '.join(_defined_names(code))}"]
        if self.template.suite:
            start.append("import connectors")
        notebook = self._new_notebook(template, f"{self._description()} Say here what a reader will see.")
        text, is_started = None, False
        for cell in template.cells[1:]:
            tags = cell.metadata.get("tags", ())
            if "bootstrap" in tags or "parameters" in tags:
                self._add_code(notebook, self._parameters(cell.source))
            if "register" in tags or "use" in tags or "gate" in tags:
                if text:
                    self._add_text(notebook, text.split("\n")[0] if "register" in tags else text)
                if not is_started:
                    self._add_code(notebook, "\n".join(start))
                is_started = True
                if "register" not in tags:
                    self._add_code(notebook, self._renamed(cell.source))
            text = cell.source if cell.cell_type == "markdown" else None
        return notebook

    def _proof(self, template: Any, code: Sequence[str]) -> Any:
        """The proof of the template, with the new names; the classes come from the module."""
        text = f"The suite of `connectors.{self.name}`, and its pipeline on scratch names while its driver is killed."
        notebook = self._new_notebook(template, text)
        for cell in template.cells[1:]:
            tags = cell.metadata.get("tags", ())
            if cell.cell_type == "markdown":
                self._add_text(notebook, cell.source)
            elif "names" in tags:
                self._add_code(notebook, f"from connectors.systems.{self.name} import {', '.join(_defined_names(code))}")
            else:
                self._add_code(notebook, self._parameters(self._renamed(cell.source)))
        return notebook

    def _new_notebook(self, template: Any, text: str) -> Any:
        v4: Any = import_module("nbformat.v4")
        return v4.new_notebook(metadata=template.metadata, cells=[v4.new_markdown_cell(f"# {self.name}\n\n{text}")])

    def _add_text(self, notebook: Any, text: str) -> None:
        notebook.cells.append(import_module("nbformat.v4").new_markdown_cell(text))

    def _add_code(self, notebook: Any, code: str) -> None:
        notebook.cells.append(import_module("nbformat.v4").new_code_cell(code))

    def _parameters(self, code: str) -> str:
        own = re.sub(rf'"{self.template.notebook}(_proof)?"', rf'"{self.name}\1"', code)
        return own.replace("/data/templates", "/data")

    def _description(self) -> str:
        return self.template.description.format(name=self.name)

    def _job(self) -> str:
        parameter, proof = ("workdir", "folder of the pipelines' checkpoints", "${var.workdir}"), _PROOF_JOB
        if not self.template.suite:
            parameter, proof = ("rows", "how many rows are enriched", '"1000"'), ""
        name, meaning, default = parameter
        return f"{_JOB}{proof}".format(
            name=self.name,
            comment=self._description(),
            description=self._description(),
            parameter=name,
            meaning=meaning,
            default=default,
        )

    def _table_of_systems(self) -> str:
        classes = (f'"{self.camel}{side}"' if self.template.suite == side else "None" for side in ("Source", "Sink"))
        text = (self.systems / "__init__.py").read_text()
        head, table, rest = re.split(r"(?<=SYSTEMS: Final)(.*?\n\}\n)", text, maxsplit=1, flags=re.DOTALL)
        row = f'    "{self.name}": ("{self.name}", {", ".join(classes)}),\n'
        return head + table.removesuffix("}\n") + row + "}\n" + rest


def _module_text(title: str, imports: Sequence[str], body: str) -> str:
    parts = [f'"""{title}"""', "from __future__ import annotations", "\n".join(imports), f"\n{body.strip()}\n"]
    return "\n\n".join(parts)


def _split_imports(cells: Sequence[str]) -> tuple[list[str], str]:
    """The imports of cells, and the rest of them."""
    imports, bodies = [], []
    for cell in cells:
        statements = [node for node in ast.parse(cell).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        imports += [ast.unparse(node) for node in statements]
        bodies.append("\n".join(cell.split("\n")[statements[-1].end_lineno if statements else 0 :]).strip())
    return imports, "\n\n\n".join(bodies)


def _defined_names(cells: Sequence[str]) -> list[str]:
    """The functions and classes that cells define."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for cell in cells for node in ast.parse(cell).body if isinstance(node, kinds)]


def _tidy_imports(files: Iterable[Path]) -> None:
    """Lets the linter sort imports and remove those that a file does not use."""
    code = [str(file) for file in files if file.suffix in (".py", ".ipynb")]
    subprocess.run([sys.executable, "-m", "ruff", "check", "--fix", "--quiet", "--select", "I,F401", *code], check=False)
