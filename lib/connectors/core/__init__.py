"""The parts of a connector. Imports neither Spark nor any client library, so a connector can be tested without them."""

from ..ground.errors import (
    CommitRefused,
    ConnectorError,
    DataLoss,
    Fatal,
    Misconfigured,
    MissingFeature,
    Poison,
    Problem,
    StateError,
    Transient,
)
from ..ground.options import REQUIRED, Choice, Duration, Flag, Int, Json, Names, Options, Size, Text, Values
from .batch import Batch, Committable
from .cursor_source import CursorSource, Discovery
from .cursors import Cursor, Page
from .epoch_source import EpochSource
from .epochs import Messages, Receiver
from .ledger import Entry
from .progress import PartitionProgress
from .simple import source
from .sink import Committer, FrameCommitter, FrameSink, GlobalCommitter, Guarantee, Sink, SinkWriter
from .source import (
    UNLIMITED,
    Position,
    Predicate,
    ReadLimit,
    RecordEmitter,
    SeekingReader,
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
    "Cursor",
    "CursorSource",
    "DataLoss",
    "Discovery",
    "Duration",
    "Entry",
    "EpochSource",
    "Fatal",
    "Flag",
    "FrameCommitter",
    "FrameSink",
    "GlobalCommitter",
    "Guarantee",
    "Int",
    "Json",
    "Messages",
    "Misconfigured",
    "MissingFeature",
    "Names",
    "Options",
    "Page",
    "PartitionProgress",
    "Poison",
    "Position",
    "Predicate",
    "Problem",
    "ReadLimit",
    "Receiver",
    "RecordEmitter",
    "SeekingReader",
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
