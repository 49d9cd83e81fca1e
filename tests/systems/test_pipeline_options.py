"""The options of a sink in a declarative pipeline, as Spark carries them, mean what they mean to ``foreach_batch``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from connectors import pipelines
from connectors.systems import sink_class


class Conf:
    def get(self, name: str, default: Any) -> str:
        return "/state"


class Session:
    conf = Conf()


def test_values_of_python_arrive_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declared: list[dict[str, str]] = []
    monkeypatch.setattr("pyspark.pipelines.create_sink", lambda name, system, options: declared.append(options))
    monkeypatch.setattr(pipelines, "_session", Session)
    given: dict[str, Any] = {
        "url": f"jdbc:sqlite:{tmp_path}/orders.db", "dbtable": "t", "user": None, "deadLetterPath": tmp_path / "letters",
        "createTable": False, "keyColumns": ("a", "b,c"), "batch.maxRecords": 0o17, "request.timeout": 2.5,
        "storageOptions": {"key": "k"},
    }  # fmt: skip
    pipelines.create_sink("orders", "jdbc", given, errors=None)
    kind = sink_class("jdbc")
    values = kind.of(declared[0]).values
    assert dict(values) == dict(kind.of({"sinkId": "orders", "errors": "deadLetter", **given}).values)
    assert values["user"] is None
