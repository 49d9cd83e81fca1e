"""Databricks bundles, run on this machine.

:func:`load` reads ``databricks.yml`` and what it includes for one target, :func:`validate` says what is wrong with it,
:func:`run_job` runs one of its jobs as the Jobs service would: the same parameters, order, conditions, retries,
timeouts and result states, with one local Spark session, tasks one at a time.
"""

from . import lazy_grammar as _lazy_grammar  # noqa: F401  # before the others import nbformat
from .checks import check_job, check_only, validate
from .configuration import Findings
from .loading import Bundle, load
from .model import State
from .progress import Reporter
from .runner import run_job

__all__ = ["Bundle", "Findings", "Reporter", "State", "check_job", "check_only", "load", "run_job", "validate"]
