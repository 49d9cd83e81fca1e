"""``make docs``: the README, the pages, the notebooks with their outputs and the docstrings as Markdown, for mkdocs.

The folder has the shape of the repository, so that links lead where they lead there.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lib/README.md", "lib/docs/**/*.md", "notebooks/**/*.md")
_PICTURES: Final = ("lib/docs/site.*", "lib/docs/pictures/*", "notebooks/*/pictures/*")
_MODULES: Final = ("connectors", *(f"connectors.{name}" for name in ("quality", "async_io", "metrics", "workbench", "testing")))
_ROLE: Final = re.compile(r":\w+:`~?(?:\.*[\w.]*\.)?(\w+)`|``(.+?)``")
"""A reference or a literal in a docstring."""
_LONGEST: Final = 88
"""A line of code that is longer is cut on the site."""
_NOTEBOOK: Final = re.compile(r"(\]\([^)\s]+)\.ipynb(?=[)#])")
_FOLDER: Final = re.compile(r"\]\((notebooks/(?:quickstart|templates))\)")


def assemble(root: Path, folder: Path) -> None:
    """Writes all that the site shows of the repository at ``root`` into ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    for page in _found(root, _PAGES):
        _write(folder / page, _linked((root / page).read_text()))
    for picture in _found(root, _PICTURES):
        (folder / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / picture, folder / picture)
    for notebook in _found(root, ("notebooks/**/*.ipynb",)):
        _convert(root / notebook, folder / notebook.with_suffix(".md"))
    for module in _MODULES:
        _write(folder / "lib" / "docs" / "python" / f"{module.rpartition('.')[2]}.md", "\n".join(_described(module)))
    shutil.move(folder / "README.md", folder / "index.md")


def _found(root: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        found = (path.relative_to(root) for path in sorted(root.glob(pattern)) if path.is_file())
        yield from (path for path in found if not any(part.startswith(".") for part in path.parts))


def _convert(notebook: Path, page: Path) -> None:
    """A notebook as a page: what it says, its cells, and what they have shown."""
    exporter: Any = import_module("nbconvert").MarkdownExporter()
    text, resources = exporter.from_filename(str(notebook), {"output_files_dir": f"{page.stem}_files"})
    _write(page, _linked(text))
    for name, content in resources["outputs"].items():
        (page.parent / name).parent.mkdir(exist_ok=True)
        (page.parent / name).write_bytes(content)


def _described(name: str) -> Iterator[str]:
    """The page of a module: its public functions and classes, each with its signature and docstring."""
    module = import_module(name)
    yield f"# {name}\n\n{_markdown(inspect.getdoc(module))}\n"
    for public in module.__all__:
        value = getattr(module, public)
        if callable(value) and inspect.getdoc(value):
            yield f"## {public}\n"
            yield from _signed(public, value)
            for method, function in vars(value).items() if inspect.isclass(value) else ():
                if method[0] != "_" and callable(function := inspect.unwrap(function)) and inspect.getdoc(function):
                    yield f"### {public}.{method}\n"
                    yield from _signed(method, function)


def _signed(name: str, value: Any) -> Iterator[str]:
    signature: Any = ""
    with contextlib.suppress(ValueError):  # an error has none
        known = inspect.signature(value)
        own = (each for each in known.parameters.values() if each.name != "self")
        parameters = [each.replace(annotation=_Bare.of(each.annotation)) for each in own]
        signature = known.replace(parameters=parameters, return_annotation=_Bare.of(known.return_annotation))
    line = f"{name}{signature}"
    text = line if len(line) <= _LONGEST else f"{name}{_in_lines(signature)}"
    yield f"```python\n{text}\n```\n\n{_markdown(inspect.getdoc(value))}\n"


def _in_lines(signature: inspect.Signature) -> str:
    """A signature with a line for each parameter."""
    lines: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not any(line.startswith("*") for line in lines):
            lines.append("*")
        lines.append(str(parameter))
    result = signature.return_annotation
    returned = "" if result is signature.empty else f" -> {result}"
    return "".join(["(\n", *(f"    {line},\n" for line in lines), f"){returned}"])


class _Bare(str):
    """An annotation that stands in a signature without quotation marks."""

    @classmethod
    def of(cls, annotation: Any) -> Any:
        annotation = getattr(annotation, "__forward_arg__", annotation)
        return cls(annotation) if isinstance(annotation, str) else annotation

    def __repr__(self) -> str:
        return str(self)


def _markdown(docstring: str | None) -> str:
    text = re.sub(r"^::\n\n", "", docstring or "", flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return _ROLE.sub(lambda found: f"`{found[1] or found[2]}`", text)


def _linked(text: str) -> str:
    return _NOTEBOOK.sub(r"\1.md", _FOLDER.sub(r"](\1/README.md)", text))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]), Path(sys.argv[2]))
