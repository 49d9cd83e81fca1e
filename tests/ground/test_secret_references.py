"""Where a reference to a secret leads."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from connectors.ground import secrets
from connectors.ground.secrets import filled
from connectors.workbench.shim import DbUtils
from connectors_tools.fake_workspace import FakeWorkspace


def test_what_is_no_reference_stays_as_it_is() -> None:
    for text in ("plain", "{{secrets/only-a-scope}}", "{{job.id}}"):
        assert filled(text) == text


def test_outside_a_workspace_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KV_DB_PASSWORD", "hush")
    assert filled("{{ secrets/kv/db-password }}") == "hush"
    with pytest.raises(ValueError, match=r'"other" of scope "kv" is read from \$SECRET_KV_OTHER'):
        filled("{{secrets/kv/other}}")


def test_references_are_filled_in_the_middle_of_text_and_anywhere_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KV_A", 'h"u}sh')
    options = {"key": "{{secrets/kv/a}}", "deep": [{"x": "user={{ secrets/kv/a }};{{secrets/kv/a}}"}, 1, None]}
    assert filled(options) == {"key": 'h"u}sh', "deep": [{"x": 'user=h"u}sh;h"u}sh'}, 1, None]}
    with pytest.raises(ValueError, match='"b" of scope "kv"'):
        filled(["{{secrets/kv/b}}"])


def test_in_a_workspace_its_store_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = types.ModuleType("databricks.sdk.runtime")
    known = {("kv", "key"): "hush"}
    secrets = types.SimpleNamespace(get=lambda scope, key: known[scope, key])
    runtime.dbutils = types.SimpleNamespace(secrets=secrets)  # type: ignore[attr-defined]
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "19.0")
    assert filled("{{secrets/kv/key}}") == "hush"
    with pytest.raises(ValueError, match='"other" of scope "kv": KeyError'):
        filled("{{secrets/kv/other}}")


def test_elsewhere_the_workspace_that_the_sdk_is_configured_for_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeWorkspace() as workspace:
        workspace.secrets.scopes["kv"] = {"db-password": "hush"}
        for name, value in workspace.environment.items():
            monkeypatch.setenv(name, value)
        assert filled("{{secrets/kv/db-password}}") == "hush"
        assert DbUtils().secrets.get("kv", "db-password") == "hush"
        with pytest.raises(ValueError, match='"other" of scope "kv": ResourceDoesNotExist'):
            filled("{{secrets/kv/other}}")
        monkeypatch.setenv("SECRET_KV_DB_PASSWORD", "from here")
        assert filled("{{secrets/kv/db-password}}") == "from here"


@pytest.fixture(autouse=True)
def no_workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("DATABRICKS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(tmp_path / "none"))
    secrets._remote_store.cache_clear()
