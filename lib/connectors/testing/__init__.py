"""The test kit: suites that a connector inherits, failure injection, kills of drivers, and an engine without Spark."""

from .batch_suite import BatchSuite
from .compare import same_order, same_records
from .contexts import FolderContext, SinkContext, SourceContext
from .engine import Checkpoint, Engine, in_a_child
from .epoch_suite import EpochSourceSuite
from .faults import Action, FailureInjector, Injected, Point, faulty_sink, faulty_source, forget_commit
from .notebooks import kill_driver, kill_notebook, run_notebook
from .queue_suite import QueueSuite
from .run import run_suite
from .sampling import Sampler, wait_until
from .simulation_suite import SimulationSuite
from .sink_suite import SinkSuite
from .source_suite import SourceSuite

__all__ = [
    "Action",
    "BatchSuite",
    "Checkpoint",
    "Engine",
    "EpochSourceSuite",
    "FailureInjector",
    "FolderContext",
    "Injected",
    "Point",
    "QueueSuite",
    "Sampler",
    "SimulationSuite",
    "SinkContext",
    "SinkSuite",
    "SourceContext",
    "SourceSuite",
    "faulty_sink",
    "faulty_source",
    "forget_commit",
    "in_a_child",
    "kill_driver",
    "kill_notebook",
    "run_notebook",
    "run_suite",
    "same_order",
    "same_records",
    "wait_until",
]
