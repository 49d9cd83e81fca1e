"""Systems of other packages, which their entry points make known."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors import systems
from connectors.core import Sink, Source

MODULE = """
from connectors.core import Sink, Source

class Inbox(Source):
    name = "shelves"

class Shelf(Sink):
    name = "shelves"

class Kafka(Sink):
    name = "kafka"

class Another(Sink):
    name = "shelves"
"""
ENTRIES = """[connectors.systems]
inbox = shelves:Inbox
kafka = shelves:Kafka
missing = shelves:Missing
number = shelves:MODULE
shelf = shelves:Shelf
shelf_again = shelves:Shelf
twin = shelves:Another
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed."""
    info = tmp_path / "shelves-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shelves\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "shelves.py").write_text(f"{MODULE}\nMODULE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    systems.installed_systems.cache_clear()
    yield
    systems.installed_systems.cache_clear()


@pytest.mark.usefixtures("site")
def test_a_source_and_a_sink_of_one_name_are_one_system(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "connectors.systems"):
        found = systems.all_systems()
    source, sink = found["shelves"]
    assert (source.__name__, sink.__name__) == ("Inbox", "Shelf")  # type: ignore[union-attr]
    assert issubclass(source, Source)  # type: ignore[arg-type]
    assert issubclass(sink, Sink)  # type: ignore[arg-type]
    assert all(kind is not None and kind.__module__ != "shelves" for kind in found["kafka"])
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "kafka = shelves", "missing = shelves", "number = shelves", "twin = shelves"
    ]  # fmt: skip
    assert "connectors.kafka is the library's own" in caplog.text
    assert "cannot be loaded and is left out: AttributeError" in caplog.text
    assert "it is neither a Source nor a Sink" in caplog.text
    assert "connectors.shelves is that of <class 'shelves.Shelf'>" in caplog.text
    systems.all_systems()
    assert len(caplog.records) == 4


@pytest.mark.usefixtures("site")
def test_a_class_that_is_registered_takes_the_place_of_an_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "_ADDED", {})

    class Shelf(Sink):
        name = "shelves"

    systems.add_system(Shelf)
    source, sink = systems.all_systems()["shelves"]
    assert (source and source.__name__, sink) == ("Inbox", Shelf)
