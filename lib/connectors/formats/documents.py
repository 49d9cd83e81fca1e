"""Rows as JSON documents. Nulls stay: a partial update must be able to empty a field."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from ..ground.errors import Poison
from .text import json_objects


def documents(rows: pa.RecordBatch) -> list[bytes | Poison]:
    """The document of each row. JSON has no NaN and no infinity: a row with one is a bad row."""
    bodies: list[bytes | Poison] = json_objects(rows).cast(pa.binary()).to_pylist()
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for place in np.flatnonzero(_not_finite(column)).tolist():
            bodies[place] = Poison(f'the column "{name}" is not a number that JSON has (NaN or infinity)')
    return bodies


def _not_finite(column: pa.Array) -> npt.NDArray[np.bool_]:
    """The rows with NaN or infinity in them."""
    kind = column.type
    if types.is_floating(kind):
        mask = pc.invert(pc.fill_null(pc.is_finite(column), True)).to_numpy(zero_copy_only=False)
    elif types.is_struct(kind):
        mask = _any_of([_not_finite(child) for child in column.flatten()], len(column))
    elif types.is_map(kind) or types.is_list(kind) or types.is_large_list(kind):
        places = column.offsets.to_numpy()
        first, last = places[0], places[-1]
        parts = [column.keys, column.items] if types.is_map(kind) else [column.values]
        inner = _any_of([_not_finite(part[first:last]) for part in parts], int(last - first))
        before = np.concatenate([[0], np.cumsum(inner)])
        ends = before[places - first]
        mask = ends[1:] > ends[:-1]
    else:
        mask = np.zeros(len(column), np.bool_)
    odd: npt.NDArray[np.bool_] = mask & column.is_valid().to_numpy(zero_copy_only=False)
    return odd


def _any_of(masks: list[npt.NDArray[np.bool_]], count: int) -> npt.NDArray[np.bool_]:
    either = np.zeros(count, np.bool_)
    for mask in masks:
        either |= mask
    return either
