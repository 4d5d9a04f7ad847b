"""Texts beside the records of a batch: what is wrong with each, null where nothing is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def state(is_so: pa.Array, text: str) -> pa.Array:
    """Return a text where something is so, and null elsewhere."""
    return pc.if_else(is_so.fill_null(False), pa.scalar(text), pa.scalar(None, pa.string()))


def state_each(is_so: pa.Array, describe: Callable[[int], str]) -> pa.Array:
    """Return what a function says of each place where something is so, and null elsewhere."""
    texts = np.full(len(is_so), None)
    for place in np.flatnonzero(is_so.fill_null(False).to_numpy(zero_copy_only=False)).tolist():
        texts[place] = describe(place)
    return pa.array(texts, pa.string())
