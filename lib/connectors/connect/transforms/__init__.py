"""Transforms between a task and its converters, under Connect's names and options, with predicates and ``negate``."""

from .chain import Chain

__all__ = ["Chain"]
