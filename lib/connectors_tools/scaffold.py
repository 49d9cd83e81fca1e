"""``python -m connectors new NAME --kind KIND``: a new connector, written from a template notebook.

It is written into this repository, or into a package and bundle of the user's own, which an entry point makes known. The
cells of ``notebooks/templates/source.ipynb`` and of the other notebooks in :data:`TEMPLATES` have tags: the client of the
system and the classes of the connector become a module, the rest becomes a pipeline with a quality gate. What the
template's proof (``source_proof.ipynb``) says of the system becomes a test, the rest a proof of the new pipeline. The tests
pass as they are written: replace the stand-in by your system step by step. What is left of it is marked by ``TODO``; while
something is, the connector promises nothing.
"""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

import nbformat
import yaml
from nbformat import v4

from connectors.ground.errors import Misconfigured, Problem
from connectors.systems import ENTRY_POINTS, SYSTEMS
from connectors.workbench.settings import library

from .skeleton import bundle_files, dependency, filled

_DEFINITIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
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
    """The suite without Spark; empty where the sink needs Spark to place its rows."""
    has_histories: bool = True
    """True if the suite runs it in virtual time, which Connect's threads do not know."""


_TABLE: Final = "a {} over a table in SQLite, the stand-in for your system"
_SERVICE: Final = "a {} over a service of the test kit, the stand-in for your system"
_API: Final = "the source of a declared REST API, at first that of the test kit"
_CONNECTOR: Final = "a connector of Kafka Connect's model over tables in SQLite, a stand-in for your system"
_CONNECTOR_SINK: Final = "a connector of Kafka Connect's model to a table in SQLite, a stand-in for your system"
_READS: Final = "Rows of connectors.{name}, with a quality gate."
_WRITES: Final = "Rows into connectors.{name}, each once, with a quality gate."

TEMPLATES: Final = {
    ("source", "table"): Template("source", "journal", "journal", "Source", _READS, _TABLE.format("source"), "SourceSuite"),
    ("source", "queue"): Template("queue", "queue", "", "Source", _READS, _SERVICE.format("source"), "QueueSuite"),
    ("source", "api"): Template("api", "feed", "", "Source", _READS, _API, "EpochSourceSuite"),
    ("source", "connector"): Template(
        "connector", "till", "", "Source", _READS, _CONNECTOR, "EpochSourceSuite", has_histories=False
    ),
    ("sink", "table"): Template("sink", "archive", "store", "Sink", _WRITES, _TABLE.format("sink"), "SinkSuite"),
    ("sink", "connector"): Template(
        "connector_sink", "cash", "", "Sink", _WRITES, _CONNECTOR_SINK, "", has_histories=False
    ),
    ("sink", "storage"): Template("storage", "storage", "", "Sink", _WRITES, _SERVICE.format("sink"), "SinkSuite"),
    ("async", "table"): Template("async", "", "", "", "Rows that are enriched by calls of {name}, with a quality gate."),
}
"""By the kind of a connector, and by what it stands on at first (``--for``)."""

_GALLERY: Final = "\n## New connectors\n\n| | |\n|---|---|\n"

Cells = dict[str, list[str]]
"""The code cells of a template by their tag."""

_ASYNC_TEST: Final = """\
@pytest.mark.spark
def test_each_row_gets_its_answer(spark: Any) -> None:
    orders = spark.range(1, 101).selectExpr("id", "id % 7 AS product")
    rows = orders.transform(async_io.unordered_wait, ask, schema="name string, price double").collect()
    assert sorted((row.id, row.name) for row in rows) == [(n, f"product {n % 7}") for n in range(1, 101)]
"""


_GROUP: Final = f'[project.entry-points."{ENTRY_POINTS}"]'
_GROUP_LINE: Final = re.compile(rf"^[ \t]*\[\s*project\.entry-points\.([\"']){ENTRY_POINTS}\1\s*\][^\r\n]*", re.MULTILINE)
_OTHER_GROUP: Final = re.compile(rf"^[^#\n]*(\bentry-points\b(?!\.)|{ENTRY_POINTS})", re.MULTILINE)
"""Entry points as no line may follow: an inline table, or a key that a build backend fills."""
_PLUGINS: Final = 'pytest_plugins = ["connectors.testing.environments"]\n'
_VERSION: Final = "0.1.0"
"""The version of a new package."""
_PROOF_ENVIRONMENTS: Final = """
        - environment_key: default
          spec:
            environment_version: "6"
            dependencies:
              - -r ../requirements-jobs.txt
              - pytest>=8.3"""
_TODO: Final = "# TODO: a part of the stand-in; yours takes its place."
_CONDITIONS: Final = '    conditions = "TODO: what your system must keep for the promise to hold"'


def write_connector(root: Path, name: str, kind: str, example: str = "table", *, is_foreign: bool = False) -> list[Path]:
    """Writes the connector ``name`` into the repository at ``root`` and returns the files, also those with a new row.

    ``kind`` is ``source``, ``sink`` or ``async``; ``example`` is what it stands on at first, as in :data:`TEMPLATES`. A folder
    that ``is_foreign``, not this repository, gets a package and a bundle, where it has none. Raises
    :class:`~connectors.ground.errors.Misconfigured`, and writes nothing, for a name that is taken or that no module can have,
    and for an unknown example.
    """
    template = TEMPLATES.get((kind, example))
    connector = _Connector(root, name, template or TEMPLATES[kind, "table"], is_foreign)
    if problems := [*connector.problems(), *([] if template else [_unknown_example(kind, example)])]:
        raise Misconfigured("connectors new", problems)
    files = connector.files()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _tidy_imports(files)
    return [*files, *([] if is_foreign else connector.add_to_readmes())]


def missing_dependencies(root: Path, name: str, kind: str, example: str = "table") -> list[str]:
    """What the jobs of the connector ``name`` need, and the bundle at ``root``, which was there before it, does not name."""
    bundle = next(path for path in (root / "databricks.yml", root / "databricks.yaml") if path.exists()).read_text()
    return [line for line in _Connector(root, name, TEMPLATES[kind, example], True).dependencies() if line not in bundle]


def _unknown_example(kind: str, example: str) -> Problem:
    known = [other for of_kind, other in TEMPLATES if of_kind == kind]
    choice = f"{', '.join(known[:-1])} or {known[-1]}" if len(known) > 1 else known[0]
    return Problem("--for", f'must be {choice} for a new {kind}; got "{example}".')


class _Connector:
    """One connector to be written: its names, and the texts of its files."""

    def __init__(self, root: Path, name: str, template: Template, is_foreign: bool) -> None:
        self.root = root
        self.name = name
        self.template = template
        self.is_foreign = is_foreign
        self.camel = "".join(word.capitalize() for word in name.split("_"))
        self.systems = root / "lib" / "connectors" / "systems"
        self.module = name if is_foreign else f"connectors.systems.{name}"

    def problems(self) -> Iterator[Problem]:
        """The reasons why the connector cannot be written."""
        if not self._template_path().is_file():
            text = f"is written from the templates in the library's repository; there is no {self._template_path()}."
            yield Problem("--kind", text)
        elif not self.is_foreign and not (self.systems / "__init__.py").is_file():
            text = f"must be the root of this repository; {self.root} has no lib/connectors. Another one: --into."
            yield Problem("folder", text)
        elif not re.fullmatch(r"[a-z][a-z0-9_]*", self.name) or self._is_a_word():
            text = f'must be a name such as "orders_queue": small letters, digits and underscores; got "{self.name}".'
            yield Problem("NAME", text)
        elif existing := [str(path.relative_to(self.root)) for path in self._taken() if path.exists()]:
            yield Problem("NAME", f"{self.name} is taken: {', '.join(existing)} exists. Choose another name.")
        elif self.is_foreign and (self.name in SYSTEMS or find_spec(self.name)):
            yield Problem("NAME", f"{self.name} is taken: it is a system of the library, or a module of another package.")
        elif self.is_foreign and self.template.suite and self._project_text() is None:
            text = f"has no place for a line that belongs under {_GROUP}. Add it, and call again: {self._entry()}"
            yield Problem("pyproject.toml", text)

    def _is_a_word(self) -> bool:
        """True for a name that means something else in Python or YAML."""
        return keyword.iskeyword(self.name) or hasattr(builtins, self.name) or yaml.safe_load(self.name) != self.name

    def _taken(self) -> list[Path]:
        return [*self._paths().values(), *([] if self.is_foreign else [self.systems / self.name])]

    def files(self) -> dict[Path, str]:
        """The text of each new file, and of the table of systems."""
        pipeline = nbformat.read(self._template_path(), as_version=4)
        cells, paths = self._cells(pipeline), self._paths()
        files = {paths["module"]: self._module(cells), paths["job"]: self._job()}
        notebooks = {"notebook": self._pipeline(pipeline, [*cells["system"], *cells["connector"]])}
        if self.template.suite:
            proof = nbformat.read(self._template_path("_proof"), as_version=4)
            cells["proof"] = self._cells(proof)["proof"]
            notebooks["proof"] = self._proof(proof, [*cells["system"], *cells["connector"]])
            if not self.is_foreign:
                files[self.systems / "__init__.py"] = self._table_of_systems()
        files[paths["test"]] = self._test(cells)
        files |= {paths[key]: nbformat.writes(notebook) + "\n" for key, notebook in notebooks.items()}
        return files | (self._package() if self.is_foreign else {})

    def dependencies(self) -> list[str]:
        """What the jobs of a package of the user's own need besides the library: its wheel, and pytest for proofs."""
        wheel = dependency(self._declared("name", self._project()), self._declared("version", _VERSION))
        return [wheel, *(["pytest>=8.3"] if self.template.suite else [])]

    def _declared(self, key: str, default: str) -> str:
        """What the project at the root says of itself."""
        project = self.root / "pyproject.toml"
        found = re.search(rf"^{key}\s*=\s*[\"'](.+?)[\"']", project.read_text(), re.MULTILINE) if project.exists() else None
        return found[1] if found else default

    def _project(self) -> str:
        return re.sub(r"[^A-Za-z0-9]+", "-", self.root.resolve().name).strip("-").lower() or "own-connectors"

    def _package(self) -> dict[Path, str]:
        """What a package of the user's own has besides: a project with an entry point, the fixtures of the tests, a bundle."""
        files, fixtures = {}, self.root / "tests" / "conftest.py"
        if not fixtures.exists():
            files[fixtures] = _PLUGINS
        if text := self._project_text():
            files[self.root / "pyproject.toml"] = text
        return files | bundle_files(self.root, self.dependencies())

    def _entry(self) -> str:
        return f'{self.name} = "{self.module}:{self._kind()}"'

    def _project_text(self) -> str | None:
        """The project with the entry point of the connector; empty if it stays as it is, ``None`` if no place is found."""
        project = self.root / "pyproject.toml"
        if not project.exists():
            own = f"{_GROUP}\n{self._entry()}\n" if self.template.suite else ""
            return filled("project.toml", {"project": self._project(), "version": _VERSION, "entry_point": own})
        text = project.read_bytes().decode()  # with its own ends of lines
        if not self.template.suite or self._entry().partition(" = ")[2] in text:
            return ""
        end = "\r\n" if "\r\n" in text else "\n"
        if group := _GROUP_LINE.search(text):
            return f"{text[: group.end()]}{end}{self._entry()}{text[group.end() :]}"
        if _OTHER_GROUP.search(text) or not re.search(r"^\[project\]", text, re.MULTILINE):
            return None
        return f"{text.rstrip()}{end}{end}{_GROUP}{end}{self._entry()}{end}"

    def add_to_readmes(self) -> Iterator[Path]:
        """Adds the notebooks to the gallery, and the page with its options, by a process that has the system.

        Yields the files that have changed.
        """
        gallery = self.root / "notebooks" / "README.md"
        text = gallery.read_text()
        links = f"[{self.name}]({self.name}.ipynb)" + (f", [proof]({self.name}_proof.ipynb)" if self.template.suite else "")
        gallery.write_text(f"{text}{'' if _GALLERY in text else _GALLERY}| {links} | {self._description()} |\n")
        yield gallery
        if self.template.suite:
            docs = self.root / "lib" / "docs"
            line = [sys.executable, "-m", "connectors", "options", "--pages", str(docs)]
            environment = {"PYTHONPATH": str(self.root / "lib"), "PATH": ""}
            subprocess.run(line, capture_output=True, check=True, env=environment)
            yield docs / "systems" / f"{self.name}.md"

    def _cells(self, notebook: Any) -> Cells:
        cells: Cells = {tag: [] for tag in _TAGS}
        for cell in notebook.cells:
            for tag in cell.metadata.get("tags", ()):
                cells[tag].append(self._renamed(cell.source))
        return cells

    def _paths(self) -> dict[str, Path]:
        paths = {
            "module": (self.root / "src" if self.is_foreign else self.systems) / f"{self.name}.py",
            "test": self.root / "tests" / ("" if self.is_foreign else "systems") / f"test_{self.name}.py",
            "notebook": self.root / "notebooks" / f"{self.name}.ipynb",
            "job": self.root / "jobs" / f"{self.name}.yml",
        }
        return paths | ({"proof": self.root / "notebooks" / f"{self.name}_proof.ipynb"} if self.template.suite else {})

    def _template_path(self, suffix: str = "") -> Path:
        return library().parent / "notebooks" / "templates" / f"{self.template.notebook}{suffix}.ipynb"

    def _kind(self) -> str:
        return f"{self.camel}{self.template.suite}"

    def _renamed(self, text: str) -> str:
        template = self.template
        if not template.suite:
            return text
        if template.client:
            text = re.sub(rf"\b{template.client}\b(?=\(|\"|, send)", "connect", text)
        text = re.sub(rf"\b{template.example.capitalize()}(?=[A-Z])", self.camel, text)
        return re.sub(rf'(?<=connectors\.){template.example}\b|(?<="){template.example}(?=")', self.name, text)

    def _module(self, cells: Cells) -> str:
        title = f"``connectors.{self.name}``: {self.template.summary}."
        if not self.template.suite:
            title = f"Calls of {self.name} for asynchronous I/O, with a stand-in for your service."
        imports, body = _split_imports([*cells["system"], *cells["connector"]])
        advice = "Each TODO is a part of the stand-in. Run the tests often: they name what is left."
        return _module_text(f"{title}\n\n{advice}\n", imports, _marked(body))

    def _test(self, cells: Cells) -> str:
        suite, code = self.template.suite, [*cells["system"], *cells["connector"]]
        module = self.module
        imports = [*_split_imports(code)[0], "import pytest", f"from {module} import {', '.join(_defined_names(code))}"]
        if not suite:
            title = f"Each row gets the answer of ``{module}``."
            return _module_text(title, [*imports, "from typing import Any", "from connectors import async_io"], _ASYNC_TEST)
        more, context = _split_imports(cells["proof"])
        cases = {"": self.template.cases} if self.template.cases else {}
        cases["OnSpark"] = f"Spark{suite}Suite"
        if self.template.has_histories:
            cases["InHistories"] = "SimulationSuite"
        classes = [context.partition("\n\n\nprint(")[0]]
        for kind, base in cases.items():
            mark = "@pytest.mark.spark\n" if kind == "OnSpark" else ""
            classes.append(f"{mark}class Test{self.camel}{kind}({base}):\n    context = {self.camel}Context")
        own = ", ".join(base for kind, base in cases.items() if kind != "OnSpark")
        suites = f"from connectors.testing.spark_suites import Spark{suite}Suite"
        suites += f"\nfrom connectors.testing import {own}" if own else ""
        title = f"``connectors.{self.name}`` passes every case of the test kit, without Spark and on Spark."
        return _module_text(title, [*imports, *more, suites], "\n\n\n".join(classes))

    def _pipeline(self, template: Any, code: Sequence[str]) -> Any:
        """The cells that use the connector, each with the text in front of it; the module is imported before the first."""
        start = [*_split_imports(code)[0], f"from {self.module} import {', '.join(_defined_names(code))}"]
        if self.template.suite:
            start.append("import connectors")
        notebook = self._new_notebook(template, f"{self._description()} Say here what a reader will see.")
        text, is_started = None, False
        for cell in template.cells[1:]:
            tags = cell.metadata.get("tags", ())
            if "bootstrap" in tags or "parameters" in tags:
                notebook.cells.append(v4.new_code_cell(self._parameters(cell.source)))
            if "register" in tags or "use" in tags or "gate" in tags:
                if text:
                    notebook.cells.append(v4.new_markdown_cell(text.split("\n")[0] if "register" in tags else text))
                if not is_started:
                    notebook.cells.append(v4.new_code_cell("\n".join(start)))
                is_started = True
                if "register" not in tags:
                    notebook.cells.append(v4.new_code_cell(self._renamed(cell.source)))
            text = cell.source if cell.cell_type == "markdown" else None
        return notebook

    def _proof(self, template: Any, code: Sequence[str]) -> Any:
        """The proof of the template, with the new names; the classes come from the module."""
        text = f"The suite of `connectors.{self.name}`, and its pipeline on scratch names while its driver is killed."
        notebook = self._new_notebook(template, text)
        for cell in template.cells[1:]:
            tags = cell.metadata.get("tags", ())
            if cell.cell_type == "markdown":
                notebook.cells.append(v4.new_markdown_cell(cell.source))
            elif "names" in tags:
                notebook.cells.append(v4.new_code_cell(f"from {self.module} import {', '.join(_defined_names(code))}"))
            else:
                notebook.cells.append(v4.new_code_cell(self._parameters(self._renamed(cell.source))))
        return notebook

    def _new_notebook(self, template: Any, text: str) -> Any:
        return v4.new_notebook(metadata=template.metadata, cells=[v4.new_markdown_cell(f"# {self.name}\n\n{text}")])

    def _parameters(self, code: str) -> str:
        own = re.sub(rf'"{self.template.notebook}(_proof)?"', rf'"{self.name}\1"', code)
        return own.replace("/data/templates", "/data")

    def _description(self) -> str:
        return self.template.description.format(name=self.name)

    def _job(self) -> str:
        parameter, meaning, default = ("workdir", "folder of the pipelines' checkpoints", "${var.workdir}")
        if not self.template.suite:
            parameter, meaning, default = "rows", "how many rows are enriched", '"1000"'
        texts = {"name": self.name, "description": self._description()}
        texts |= {"parameter": parameter, "meaning": meaning, "default": default}
        own = "${var.environments}"
        texts["environments"] = own if self.is_foreign else _PROOF_ENVIRONMENTS
        return filled("connector.yml", texts) + (filled("proof.yml", texts) if self.template.suite else "")

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


def _marked(code: str) -> str:
    """``code`` with a line at each class and function of a stand-in, and without its promise."""
    lines = code.split("\n")
    for node in reversed(ast.parse(code).body):
        if isinstance(node, _DEFINITIONS):
            lines.insert(min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1, _TODO)
    return re.sub(r'^    conditions = ".*"$', _CONDITIONS, "\n".join(lines), flags=re.MULTILINE)


def _defined_names(cells: Sequence[str]) -> list[str]:
    """The functions and classes that cells define."""
    return [node.name for cell in cells for node in ast.parse(cell).body if isinstance(node, _DEFINITIONS)]


def _tidy_imports(files: Iterable[Path]) -> None:
    """Lets the linter sort imports and remove those that a file does not use; a cell that had nothing else goes, too."""
    code = [str(file) for file in files if file.suffix in (".py", ".ipynb")]
    subprocess.run([sys.executable, "-m", "ruff", "check", "--fix", "--quiet", "--select", "I,F401", *code], check=False)
    for file in (file for file in files if file.suffix == ".ipynb"):
        notebook = json.loads(file.read_text())
        notebook["cells"] = [cell for cell in notebook["cells"] if cell["source"]]
        file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
