"""``connectors.files``: files in a folder that any engine can read, each complete, none twice.

The sink stages files where no reader sees them, records the batch in its ledger, and then moves each file to its final name.
Spark's own file sink is exactly-once only for readers of its log; these files need none. The source reads each finished file
once.
"""

from .folders import FORMATS
from .sink import FilesSink
from .source import FilesSource

__all__ = ["FORMATS", "FilesSink", "FilesSource"]
