"""Where a reference to a secret leads."""

from __future__ import annotations

import sys
import types

import pytest

from connectors.core.secret_references import resolved


def test_what_is_no_reference_stays_as_it_is() -> None:
    for text in ("plain", "{{secrets/only-a-scope}}", "a {{secrets/in/the}} middle", "{{job.id}}"):
        assert resolved(text) == text


def test_outside_a_workspace_the_environment_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KV_DB_PASSWORD", "hush")
    assert resolved(" {{ secrets/kv/db-password }} ") == "hush"
    with pytest.raises(ValueError, match=r'"other" of scope "kv" is read from \$SECRET_KV_OTHER'):
        resolved("{{secrets/kv/other}}")


def test_in_a_workspace_its_store_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = types.ModuleType("databricks.sdk.runtime")
    known = {("kv", "key"): "hush"}
    secrets = types.SimpleNamespace(get=lambda scope, key: known[scope, key])
    runtime.dbutils = types.SimpleNamespace(secrets=secrets)  # type: ignore[attr-defined]
    for name in ("databricks", "databricks.sdk"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "19.0")
    assert resolved("{{secrets/kv/key}}") == "hush"
    with pytest.raises(ValueError, match='"other" of scope "kv": KeyError'):
        resolved("{{secrets/kv/other}}")
