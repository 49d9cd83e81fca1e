"""The base of the systems, and the orders that they take."""

from __future__ import annotations

import datetime
import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from ...ground import machine
from ...ground.errors import ConnectorError
from ...systems import source_class

Order = Mapping[str, Any]

COLUMNS: Final = "id long, city string, cents long, at timestamp"
"""The columns of an order."""
_READY_SECONDS: Final = 60.0


class Scratch(ABC):
    """A system at ``address``; ``options`` are those of its connector, as the parameter ``options`` of a pipeline has them."""

    address: str
    options: Mapping[str, str] = {}
    batch_limit: ClassVar[str] = "maxRowsPerTrigger"
    """The option of the source that bounds the rows of a batch, or its bytes or files."""

    def __init__(self, address: str, options: Mapping[str, str]) -> None:
        self.address, self.options = address, options

    def place(self, name: str) -> str:
        """What a pipeline's parameter ``source`` must be to read ``name``; for a target, see :meth:`target_place`."""
        return name

    def target_place(self, name: str) -> str:
        """What a pipeline's parameter ``target`` must be to write ``name``."""
        return name

    @abstractmethod
    def exists(self, name: str) -> bool:
        """True if the system has something called ``name``."""

    @abstractmethod
    def create(self, name: str) -> None:
        """Makes ``name`` where it is missing; does nothing where the first row makes it."""

    @abstractmethod
    def put(self, name: str, orders: Sequence[Order]) -> None:
        """Adds orders to ``name``."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Removes ``name``, if it is there."""


def table_rows(orders: Sequence[Order]) -> list[dict[str, Any]]:
    """Orders whose times are times."""
    return [{**order, "at": datetime.datetime.fromisoformat(order["at"])} for order in orders]


def parquet(orders: Sequence[Order]) -> bytes:
    """A Parquet file of orders."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(table_rows(orders)), content)
    return content.getvalue()


def is_cut_off(order: Order) -> bool:
    """True for an order that a system which takes any bytes gets without its end."""
    return bool(order["id"] % 100 == 13)


def text_of(order: Order, *, is_ascii: bool = False) -> str:
    """An order as JSON, or the beginning of it."""
    text = json.dumps(order, ensure_ascii=is_ascii)
    return text[:20] if is_cut_off(order) else text


def values_of(system: str, scratch: Scratch, **options: str) -> Any:
    """The options of the system's source, those of ``scratch`` that it knows included."""
    kind = source_class(system)
    known = kind.known_options()
    more = {name: value for name, value in scratch.options.items() if known.knows(name)}
    return kind.of({**more, **options}).values


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Waits until the system shows a change of ``what``. Raises :class:`ConnectorError` after a minute."""
    until = machine.monotonic() + _READY_SECONDS
    while not is_true():
        if machine.monotonic() > until:
            raise ConnectorError(f"{what} is not to be seen after {_READY_SECONDS:g} s")
        machine.sleep(0.1)
