"""Into which slices of time a kernel divides its work: about equally many rows begin in each.

They are told by the statistics of Delta's log alone; where a slice begins never matters for what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from hindcast.kernels.form import Form, Span

ROWS = 1_250_000
"""About so many rows begin in a slice."""

FINE = 125_000
"""A slice with fewer rows is not worth a task of its own, even if a core has nothing to do."""


def parts(form: Form, tables: Sequence[DeltaTable], cores: int) -> list[Span] | None:
    """The slices of a join by its events, or by the starts of both tables; of an aggregate one unbounded span for each
    part of its groups, of which each reads all rows: no more than `cores`. None where the log tells no times.
    """
    driving = tables[:1] if form.operator == "stream_table" else tables
    files = [_files(table, side.periods[0]) for table, side in zip(driving, form.sides, strict=False)]
    if any(some is None for some in files):
        return None
    every = [file for some in files for file in some or ()]
    rows = sum(count for *_, count in every)
    wanted = max(math.ceil(rows / ROWS), min(cores, rows // FINE), 1)
    if form.operator == "of_table":
        return [Span()] * min(wanted, cores)
    return spans(every, wanted)


def spans(files: Sequence[tuple[Any, Any, int]], wanted: int) -> list[Span]:
    """So many slices, or fewer, of files whose first and last moment and rows are told.

    As if the rows of a file were spread evenly.
    """
    if wanted == 1:
        return [Span()]
    points = [(low + (high - low) * n / _POINTS, count / _POINTS) for low, high, count in files for n in range(_POINTS)]
    points.sort(key=lambda point: point[0])
    passed = np.cumsum([weight for _, weight in points])
    places = np.searchsorted(passed, [passed[-1] * n / wanted for n in range(1, wanted)])
    cuts = sorted({points[place][0] for place in places} - {points[0][0]})
    return [Span(start, end) for start, end in zip([None, *cuts], [*cuts, None], strict=True)]


_POINTS = 32


def _files(table: DeltaTable, column: str) -> list[tuple[Any, Any, int]] | None:
    """The first and last moment, and the number of rows, of each file with rows that are believed."""
    added = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    found = []
    for file in added:
        if file.get("partition._belief") == "superseded":
            continue
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        if low is None or high is None:
            return None
        found.append((low, high, file["num_records"] or 0))
    return found
