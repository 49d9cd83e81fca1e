"""Folders of dead letters, and storages that die or come late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from connectors.core.dead_letters import SourceLetters
from connectors.core.source import Split
from connectors.storage.local import LocalStorage
from connectors_tools.cli import main
from connectors_tools.letters import Filter, Letters, Target

DAMAGED = [b'{"id":1,"city":"Bern",}', b'{"id":2,"city":"Rome",}', b"neither"]
MEND = "regexp_replace(string(record), ',}$', '}')"
COMMA = Filter(error="comma")


def letters(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["letters", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


@dataclass(frozen=True)
class Part(Split):
    number: int


def put(folder: Path, split: int = 0, records: list[bytes] = DAMAGED) -> None:
    """What a source does with bad records of one split, each time that it reads it."""
    found = SourceLetters("connectors.kafka", LocalStorage(folder))
    for number, record in enumerate(records):
        error = f"no JSON: a comma at {len(record)}" if record.endswith(b",}") else "no JSON at all"
        found.add(f"orders-{split}-{number}", "Poison", error, record, key=b"user-7", headers=[])
    found.put(Part(split))


def records(folder: Path) -> list[bytes]:
    return [letter["record"] for _, letter in Letters(str(folder)).letters(Filter())]


def lines(folder: Path) -> list[str]:
    return sorted(line for file in folder.glob("part-*") for line in file.read_text().splitlines())


def target(folder: Path, **more: Any) -> Target:
    return Target("file_stream", {"path": str(folder)}, **{"value": MEND, "select": ["string(record) AS value"], **more})


def die(*_: object) -> None:
    raise KeyboardInterrupt


class DyingStorage(LocalStorage):
    """Dies before the change of this number."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(folder)
        self.number = number

    def _count(self) -> None:
        if not self.number:
            raise KeyboardInterrupt
        self.number -= 1

    def put_if_absent(self, name: str, content: Any) -> bool:
        self._count()
        return super().put_if_absent(name, content)

    def replace(self, name: str, content: Any, *, durable: bool = False) -> None:
        self._count()
        super().replace(name, content, durable=durable)


class LateStorage(LocalStorage):
    """Lets ``others`` work between the time when a letter file was read and the time when it is replaced."""

    def __init__(self, folder: Path, others: Callable[[], object]) -> None:
        super().__init__(folder)
        self.others: Callable[[], object] | None = others

    def replace(self, name: str, content: Any, *, durable: bool = False) -> None:
        if name.endswith(".parquet") and self.others:
            others, self.others = self.others, None
            others()
        super().replace(name, content, durable=durable)
