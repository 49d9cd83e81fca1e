"""A notebook file, and what its source shows without running it."""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from connectors.ground.runtime import LIBRARY, STREAM_SINK, STREAM_SOURCE, Feature

_FORMATS: Final = "connectors."
_STREAMS: Final = {"readStream": STREAM_SOURCE, "writeStream": STREAM_SINK}
_HEADING: Final = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
SECRET: Final = re.compile(r"\{\{\s*secrets/([^/{}\s]+)/([^/{}\s]+)\s*\}\}")
"""A reference to a secret: its scope and its key."""
_DECLARING: Final = ("text", "dropdown", "combobox", "multiselect")


class UnreadableNotebook(ValueError):
    """A file that is no notebook; the message says why."""


@dataclass(frozen=True)
class Notebook:
    """A notebook file as read: ``content`` is the nbformat 4 document."""

    path: Path
    content: Any

    @property
    def code(self) -> list[str]:
        """The sources of its code cells."""
        return [cell.source for cell in self.content.cells if cell.cell_type == "code"]

    @property
    def uses_spark(self) -> bool:
        """True when the name ``spark`` stands in its code."""
        return any(re.search(r"\bspark\b", source) for source in self.code)

    def widgets(self) -> set[str]:
        """The names of the widgets that its code declares by a literal name."""
        return {name for tree in self._trees() for name in _declared(tree)}

    def volumes(self) -> dict[str, str]:
        """The widgets whose default is a place in a volume, with it."""
        calls = (call for tree in self._trees() for call in ast.walk(tree) if isinstance(call, ast.Call))
        declared = ((_literal(call), _constant(call.args[1:2])) for call in calls if _widget_method(call) in _DECLARING)
        return {name: default for name, default in declared if name and default and default.startswith("/Volumes/")}

    def takes_any(self) -> bool:
        """True when its code looks at all parameters, or at one whose name is computed: then no list is complete."""
        return any(
            isinstance(call, ast.Call)
            and (_widget_method(call) == "getAll" or (_widget_method(call) in _DECLARING and _literal(call) is None))
            for tree in self._trees()
            for call in ast.walk(tree)
        )

    def features(self) -> list[Feature]:
        """The features, with their needs of Spark, that its code uses, as far as the formats show that stand in it by name."""
        return [feature for tree in self._trees() for node in ast.walk(tree) if (feature := _feature(node))]

    def secrets(self) -> set[tuple[str, str]]:
        """Scope and key of each secret that its code names: in a reference, or in ``dbutils.secrets.get`` by literals."""
        return {pair for tree in self._trees() for node in ast.walk(tree) for pair in _secrets(node)}

    def faults(self) -> Iterator[tuple[int, str]]:
        """The code cells that are no Python, by number (the first is 1), and what is wrong with them."""
        for number, source in enumerate(self.code, start=1):
            try:
                _parse(source)
            except SyntaxError as wrong:
                yield number, f"{wrong.msg} (line {wrong.lineno})"

    def _trees(self) -> Iterator[ast.AST]:
        for source in self.code:
            try:
                yield _parse(source)
            except SyntaxError:
                continue


def read_notebook(path: Path) -> Notebook:
    """The notebook in ``path``. Raises :class:`UnreadableNotebook`."""
    import nbformat

    try:
        content = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except FileNotFoundError:
        raise UnreadableNotebook(f"{path} does not exist{_neighbour(path)}") from None
    except Exception as wrong:
        raise UnreadableNotebook(f"{path} is no notebook of nbformat 4: {wrong!s:.200}") from wrong
    return Notebook(path, content)


def pictures(document: Any) -> Iterator[bytes]:
    """The pictures among the outputs of a notebook's document, each a PNG."""
    cells = (cell for cell in document.cells if cell.cell_type == "code")
    encoded = (output.get("data", {}).get("image/png") for cell in cells for output in cell.outputs)
    return (base64.b64decode(picture) for picture in encoded if picture)


def with_headings(document: Any) -> Iterator[tuple[Any, str]]:
    """Each cell of a notebook's document with the nearest heading above it, as plain text; empty above the first one."""
    heading = ""
    for cell in document.cells:
        if cell.cell_type == "markdown" and (headings := _HEADING.findall(cell.source)):
            heading = re.sub(r"[`*]", "", headings[-1]).strip()
        yield cell, heading


def _neighbour(path: Path) -> str:
    near = path.with_suffix(".ipynb")
    return f'; did you mean "{near.name}"?' if near != path and near.exists() else "."


def _parse(source: str) -> ast.AST:
    from IPython.core.inputtransformer2 import TransformerManager

    return ast.parse(TransformerManager().transform_cell(source), mode="exec", type_comments=False)


def _declared(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _widget_method(node) in _DECLARING:
            name = _literal(node)
            if name is not None:
                yield name


def _widget_method(call: ast.Call) -> str | None:
    method = call.func
    if not isinstance(method, ast.Attribute) or not isinstance(method.value, ast.Attribute):
        return None
    return method.attr if method.value.attr == "widgets" else None


def _literal(call: ast.Call) -> str | None:
    named = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
    return _constant([*call.args, *named])


def _constant(arguments: Sequence[ast.expr]) -> str | None:
    first = next(iter(arguments), None)
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def _secrets(node: ast.AST) -> list[tuple[str, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return SECRET.findall(node.value)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "get":
        return []
    holder = node.func.value
    texts = [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    is_secret = isinstance(holder, ast.Attribute) and holder.attr == "secrets" and len(texts) == 2
    return [(texts[0], texts[1])] if is_secret else []


def _feature(node: ast.AST) -> Feature | None:
    """The feature, with its need of Spark, of an import of the library or a ``format`` call that names one of its formats."""
    if isinstance(node, ast.ImportFrom | ast.Import):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        return LIBRARY if any(f"{name}.".startswith(_FORMATS) for name in names) else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "format":
        return None
    if not any(_first_text(argument).startswith(_FORMATS) for argument in node.args[:1]):
        return None
    carriers = {part.attr for part in ast.walk(node.func) if isinstance(part, ast.Attribute)}
    return next((feature for name, feature in _STREAMS.items() if name in carriers), LIBRARY)


def _first_text(argument: ast.AST) -> str:
    """A literal text; of an f-string, what stands before its first field."""
    part = argument.values[0] if isinstance(argument, ast.JoinedStr) and argument.values else argument
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
