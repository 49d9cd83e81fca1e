"""What the tests of the workbench share: a pipeline without a notebook."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from connectors.workbench import Pipeline, pipeline


def pipeline_in(folder: Path | str, ends: str = "lines to delta", **parameters: str) -> Pipeline:
    source, _, target = ends.partition(" to ")
    defaults = {
        "name": "p",
        "workdir": str(folder),
        "source": f"{folder}/*.log",
        "target": f"{folder}/table",
        "address": "there",
        "options": "{}",
        "checks": '[{"not_null": "id"}, {"unique": "id"}]',
        "lookback": "",
        "trigger": "availableNow",
    }
    widgets = SimpleNamespace(get={**defaults, **parameters}.__getitem__)
    address = "source" if source == "lines" else "address"
    return pipeline(SimpleNamespace(widgets=widgets), source=source, target=target, address=address)
