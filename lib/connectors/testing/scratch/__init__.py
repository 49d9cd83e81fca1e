"""Systems in which tests and demonstrations make topics, tables, indexes and files of sample orders, and remove them.

A system is reached by its address and the options of its connector, so with the user's own login, whatever it is.
"""

from collections.abc import Callable, Mapping
from typing import Final

from .base import COLUMNS, Order, Scratch, is_cut_off, parquet, text_of
from .databases import Changes, Jdbc, Slots
from .files import Delta, Files, Lines
from .servers import DynamoDb, Kafka, Kinesis, Redis, Search

__all__ = [
    "COLUMNS",
    "SCRATCH",
    "Changes",
    "Delta",
    "DynamoDb",
    "Files",
    "Jdbc",
    "Kafka",
    "Kinesis",
    "Lines",
    "Order",
    "Redis",
    "Scratch",
    "Search",
    "Slots",
    "is_cut_off",
    "parquet",
    "text_of",
]

SCRATCH: Final[Mapping[str, Callable[[str, Mapping[str, str]], Scratch]]] = {
    "cdc": Changes,
    "delta": Delta,
    "dynamodb": DynamoDb,
    "elasticsearch": Search,
    "files": Files,
    "jdbc": Jdbc,
    "kafka": Kafka,
    "kinesis": Kinesis,
    "lines": Lines,
    "redis": Redis,
}
"""The systems, by name."""
