"""Histories of pipelines against an adversary, each decided by one seed: see :mod:`connectors.testing.simulation.history`."""
