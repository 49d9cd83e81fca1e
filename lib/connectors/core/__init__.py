"""What a connector is made of. Imports neither Spark nor any client library, so a connector can be tested without them."""

from .errors import (
    CommitRefused,
    ConnectorError,
    DataLoss,
    Fatal,
    Misconfigured,
    Poison,
    Problem,
    StateError,
    Transient,
)
from .options import REQUIRED, Choice, Duration, Flag, Int, Json, Names, Options, Size, Text, Values
from .progress import PartitionProgress
from .simple import source
from .sink import Batch, Committable, Committer, GlobalCommitter, Guarantee, Sink, SinkWriter
from .source import (
    UNLIMITED,
    Position,
    ReadLimit,
    RecordEmitter,
    Slice,
    Source,
    Split,
    SplitEnumerator,
    SplitReader,
)

__all__ = [
    "REQUIRED",
    "UNLIMITED",
    "Batch",
    "Choice",
    "CommitRefused",
    "Committable",
    "Committer",
    "ConnectorError",
    "DataLoss",
    "Duration",
    "Fatal",
    "Flag",
    "GlobalCommitter",
    "Guarantee",
    "Int",
    "Json",
    "Misconfigured",
    "Names",
    "Options",
    "PartitionProgress",
    "Poison",
    "Position",
    "Problem",
    "ReadLimit",
    "RecordEmitter",
    "Sink",
    "SinkWriter",
    "Size",
    "Slice",
    "Source",
    "Split",
    "SplitEnumerator",
    "SplitReader",
    "StateError",
    "Text",
    "Transient",
    "Values",
    "source",
]
