"""Transforms between a task and its converters, under Connect's names and options, with predicates and ``negate``."""

from .base import RecordTransform, Transform
from .chain import PREDICATES, TRANSFORMS, TWO_SIDED, Chain
from .predicates import Predicate, RecordPredicate

__all__ = [
    "PREDICATES",
    "TRANSFORMS",
    "TWO_SIDED",
    "Chain",
    "Predicate",
    "RecordPredicate",
    "RecordTransform",
    "Transform",
]
