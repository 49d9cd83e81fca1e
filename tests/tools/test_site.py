"""The folder of which the site is made: every link of a page and of a notebook leads to something."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from connectors.workbench.settings import library
from connectors_tools.site import assemble


def test_every_link_and_picture_of_the_site_is_there(tmp_path: Path) -> None:
    assemble(library().parent, tmp_path)
    pages = list(tmp_path.rglob("*.md"))
    assert len(pages) > 100
    missing = []
    for page in pages:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            if not (page.parent / target).exists():
                missing.append(f"{page.relative_to(tmp_path)}: {target}")
    assert missing == []
    config = yaml.safe_load((library() / "mkdocs.yml").read_text())
    named = re.findall(r"[\w/-]+\.(?:md|css|js)", str(config))
    assert [name for name in named if not (tmp_path / name).exists()] == []
    quality = (tmp_path / "lib/docs/python/quality.md").read_text()
    assert "## fresh\n\n```python\nfresh(\n    column: str,\n    within: str | float,\n    *,\n    as_of: " in quality
    blocks = re.findall(r"```python\n(.*?)```", quality, re.DOTALL)
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 100
    assert not re.search(r":class:|``[^`\n]", re.sub(r"```.*?```", "", quality, flags=re.DOTALL))
    systems = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "lib/docs/systems").glob("*.md")}
    assert systems - {*named} == {f"lib/docs/systems/{name}.md" for name in ("buffered", "print", "sequence")}
