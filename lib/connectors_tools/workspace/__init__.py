"""A Databricks workspace, by databricks-sdk: deploys the bundle, starts its jobs there and watches them.

:func:`open_target` logs in, :class:`Deployment` plans, deploys and destroys, :mod:`~connectors_tools.workspace.runs` starts
runs and watches them. How the SDK logs in is its own affair: profiles, environment, OAuth.
"""

from .deployment import Deployment, Plan
from .target import Target, open_target

__all__ = ["Deployment", "Plan", "Target", "open_target"]
