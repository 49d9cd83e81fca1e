"""Databricks bundles, run on this machine.

:func:`load` reads ``databricks.yml`` and what it includes for one target, :func:`validate` says what is wrong with it,
:func:`run_job` runs one of its jobs as the Jobs service would: the same parameters, order, conditions, retries,
timeouts and result states, with one local Spark session, tasks one at a time.
"""

from .checks import check_job
from .findings import Findings
from .loading import Bundle, load
from .progress import Reporter
from .runner import run_job
from .states import State
from .validation import validate

__all__ = ["Bundle", "Findings", "Reporter", "State", "check_job", "load", "run_job", "validate"]
