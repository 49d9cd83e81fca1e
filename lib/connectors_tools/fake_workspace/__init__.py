"""A workspace on this machine, for tests and for trying a deployment out: a server that the SDK and the CLI talk to.

It keeps what is deployed, and runs it: a run of a job is the local runner with the deployed library and notebooks, in a
process of its own, below the states of the Jobs service. ``python -m connectors_tools.fake_workspace`` starts one by hand.
It knows the calls of this library and of the Databricks CLI's bundles, and refuses all others.
"""

from .calls import Refusal
from .server import USER, FakeWorkspace

__all__ = ["USER", "FakeWorkspace", "Refusal"]
