"""``make docs``: the README, the pages and the notebooks with their outputs as a folder of Markdown, for mkdocs.

The folder has the shape of the repository, so that links lead where they lead there.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

_PAGES: Final = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "lib/README.md", "lib/docs/**/*.md", "notebooks/**/*.md")
_PICTURES: Final = ("lib/docs/*.css", "lib/docs/pictures/*", "notebooks/*/pictures/*")
_NOTEBOOK: Final = re.compile(r"(\]\([^)\s]+)\.ipynb(?=[)#])")
_FOLDER: Final = re.compile(r"\]\((notebooks/(?:quickstart|templates))\)")


def assemble(root: Path, folder: Path) -> None:
    """Writes all that the site shows of the repository at ``root`` into ``folder``, which is made anew.

    ``llms.txt`` lists the pages for a reader that is a program.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for page in _found(root, _PAGES):
        _write(folder / page, _linked((root / page).read_text()))
    for picture in _found(root, _PICTURES):
        (folder / picture).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / picture, folder / picture)
    for notebook in _found(root, ("notebooks/**/*.ipynb",)):
        _convert(root / notebook, folder / notebook.with_suffix(".md"))
    shutil.move(folder / "README.md", folder / "index.md")
    pages = sorted(path.relative_to(folder) for path in folder.rglob("*.md"))
    titles = (re.search(r"^# (.*)$", (folder / page).read_text(), re.MULTILINE) for page in pages)
    lines = [f"- [{title[1] if title else page.stem}]({page})" for page, title in zip(pages, titles, strict=True)]
    _write(folder / "llms.txt", "\n".join(["# Connector accelerator", "", *lines, ""]))


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


def _linked(text: str) -> str:
    return _NOTEBOOK.sub(r"\1.md", _FOLDER.sub(r"](\1/README.md)", text))


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


if __name__ == "__main__":
    assemble(Path(sys.argv[1]), Path(sys.argv[2]))
