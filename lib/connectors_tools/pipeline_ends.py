"""The two ends of a pipeline, as the table of sources and the table of targets have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

ORDER: Final = "id long, city string, cents long, at timestamp"
"""The records of every demonstration."""
ENRICH: Final = "enrich"
"""The pipeline from Delta into Delta, through a service."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of a pipeline: a widget of its notebook, and a parameter of its job.

    ``of_job`` is the default there where it is another one: the bundle's variables.
    """

    name: str
    default: str
    meaning: str
    of_job: str = ""

    def widget(self) -> str:
        """The line of code that declares it in the notebook."""
        return f'dbutils.widgets.text("{self.name}", "{self.default}", "{self.meaning}")'


@dataclass(frozen=True)
class SourceEnd:
    """A system that pipelines read.

    ``records`` are what is read, in words, and ``record`` is one of them. The first of ``parameters`` is the address, unless
    ``other_address`` names another one, or none. ``options`` are Python code by option. ``rows`` is the body of the function
    that makes rows of records, and no two rows have the same ``key``. ``query`` is the skeleton of the query: ``copy`` for a
    source that is read as a whole at each run, ``changes`` for one that tells of inserts, updates and deletions,
    ``all_changes`` where it does so of many tables, and ``tables`` where it follows many tables by queries.
    """

    title: str
    records: str
    record: str
    format: str
    parameters: Sequence[Parameter]
    options: Mapping[str, str]
    rows: str
    other_address: str | None = None
    plain: str = ""
    """The same without the places of records, for another target than Delta, where that is another text."""
    key: Sequence[str] = ("id",)
    query: str = "stream"

    @property
    def address(self) -> str:
        """The parameter that is empty for a demonstration."""
        return self.parameters[0].name if self.other_address is None else self.other_address

    @property
    def plural(self) -> str:
        """Several records."""
        return f"{self.record[:-1]}ies" if self.record.endswith("y") else f"{self.record}s"


@dataclass(frozen=True)
class TargetEnd:
    """A system that pipelines write.

    ``effect`` is what becomes of the rows, in words; ``promise`` goes on with "each row …". ``parameters`` and
    ``other_address`` are as those of a source. ``added`` are columns that the system wants beside those of a row. ``look`` is
    the code by which the gate sees what the system has, empty where it cannot.
    """

    title: str
    effect: str
    promise: str
    format: str
    parameters: Sequence[Parameter] = ()
    other_address: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    added: str = ""
    refusal: str = "A row that the target refuses is set aside."
    look: str = ""
    no_look: str = ""
    lookback: str = ""
    """How far back the gate looks for rows, where the system keeps them for a time only."""

    @property
    def address(self) -> str:
        """The parameter that is empty for a demonstration."""
        return self.parameters[0].name if self.other_address is None else self.other_address


ONCE: Final = "also when a run is killed at any moment"
BROKERS: Final = Parameter("kafka_bootstrap_servers", "", "Brokers; empty: a demonstration")
HUB: Final = Parameter("connectionString", "", "{{secrets/scope/key}}; empty: a demonstration")
REGION: Final = Parameter("region", "", "AWS region; empty: a demonstration")
PROJECT: Final = Parameter("projectId", "", "Project; empty: a demonstration")
REDIS: Final = Parameter("url", "", "redis://host:port/0; empty: a demonstration")
JDBC: Final = Parameter("url", "", "JDBC URL; empty: a demonstration")
HOSTS: Final = Parameter("hosts", "", "URLs of nodes; empty: a demonstration")
NODES: Final = Parameter("contactPoints", "", "Nodes; empty: a demonstration")
API: Final = Parameter("url", "", "URL of the API; empty: a demonstration")
CONNECTOR: Final = Parameter("config", "", "The connector's properties, JSON; empty: a demonstration")
DECODED: Final = {"value.format": '"json"', "schema": f'"{ORDER}"'}
