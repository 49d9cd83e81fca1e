"""Where a reference to a secret leads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors.ground import secrets
from connectors.ground.secrets import filled
from connectors.workbench.shim import DbUtils
from connectors_tools.fake_workspace import FakeWorkspace
from tests.fake_runtime import FakeRuntime


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


def test_a_secret_of_unity_catalog_has_three_parts_and_a_scope_may_have_dots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_MAIN_SHOP_DB_PASSWORD", "hush")
    monkeypatch.setenv("SECRET_MY_OWN_SCOPE_KEY", "other")
    assert filled("a={{secrets/main.shop.db-password}};b={{ secrets/my.own.scope/key }}") == "a=hush;b=other"
    for text in ("{{secrets/main.shop}}", "{{secrets/a.b.c.d}}", "{{secrets/main..db}}"):
        assert filled(text) == text
    with pytest.raises(ValueError, match=r'"main.shop.other" of Unity Catalog is read from \$SECRET_MAIN_SHOP_OTHER'):
        filled("{{secrets/main.shop.other}}")


def test_in_a_workspace_its_store_has_it() -> None:
    runtime = FakeRuntime({})
    runtime.secrets.scopes["kv"] = {"key": "hush"}
    runtime.secrets.catalog_secrets |= {"main.shop.db": "three parts", "main.shop.closed": "unseen"}
    runtime.secrets.unreadable.add("main.shop.closed")
    with runtime.installed():
        assert filled("{{secrets/kv/key}}") == "hush"
        assert filled("{{secrets/main.shop.db}}") == "three parts"
        for reference, name in (
            ("kv/other", '"other" of scope "kv"'),
            ("main.shop.other", '"main.shop.other" of Unity Catalog'),
            ("main.shop.closed", '"main.shop.closed" of Unity Catalog'),
        ):
            with pytest.raises(ValueError, match=f"{name}: RuntimeRefusal") as error:
                filled(f"{{{{secrets/{reference}}}}}")
            assert "hush" not in str(error.value)


def test_a_secret_of_unity_catalog_comes_from_the_workspace_that_the_sdk_is_configured_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeWorkspace() as workspace:
        workspace.secrets.catalog_secrets |= {"main.shop.db": "hush", "main.shop.closed": "unseen"}
        workspace.secrets.unreadable.add("main.shop.closed")
        for name, value in workspace.environment.items():
            monkeypatch.setenv(name, value)
        assert filled("{{secrets/main.shop.db}}") == "hush"
        with pytest.raises(ValueError, match=r'"main.shop.other" of Unity Catalog: ResourceDoesNotExist'):
            filled("{{secrets/main.shop.other}}")
        with pytest.raises(ValueError, match=r'"main.shop.closed" of Unity Catalog: PermissionError'):
            filled("{{secrets/main.shop.closed}}")


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
