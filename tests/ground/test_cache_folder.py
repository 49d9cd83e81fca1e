"""Where the library keeps what it has fetched or made."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.ground.cache_folder import cache
from connectors.ground.errors import Misconfigured


def test_a_cache_that_cannot_be_made_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONNECTORS_CACHE", str(tmp_path / "file"))
    with pytest.raises(Misconfigured, match="CONNECTORS_CACHE   cannot make"):
        cache("jars")
