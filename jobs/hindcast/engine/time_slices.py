"""Time slices: how a kernel divides its work in time, with about equally many rows beginning in each.

Those of views come from the statistics of Delta's log, those of a topic from its log's timestamps; where a slice begins
never changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from hindcast.engine.spec import JoinSpec, KernelInput, TimeSlice
from hindcast.store import arrow_reader, tables
from hindcast.store.tables import Table

ROWS_PER_TASK = 1_250_000
"""About so many rows begin in a slice of a view."""

RECORDS_PER_TASK = 400_000
"""About so many records of a topic has a task, which holds all of their columns several times."""

MIN_ROWS_PER_TASK = 125_000
"""A slice with fewer rows is not worth a task of its own, even if a core has nothing to do."""


def count_tasks(rows: int, cores: int, most: int) -> int:
    """Return among how many tasks so many rows are divided, `most` for each."""
    return max(math.ceil(rows / most), min(cores, rows // MIN_ROWS_PER_TASK), 1)


def plan_join_slices(form: JoinSpec, inputs: Sequence[DeltaTable], cores: int) -> list[TimeSlice] | None:
    """Return the slices of a join: by its events, or by the starts of both tables; None if the log has no times."""
    driving = 1 if form.operator == "stream_table" else 2
    return plan_time_slices(inputs[:driving], form.sides[:driving], cores)


def plan_time_slices(inputs: Sequence[DeltaTable], sides: Sequence[KernelInput], cores: int) -> list[TimeSlice] | None:
    """Return slices in which about equally many rows of some inputs begin; None if the log has no times."""
    files = [_read_file_statistics(table, side.periods[0]) for table, side in zip(inputs, sides, strict=True)]
    if any(some is None for some in files):
        return None
    every = [file for some in files for file in some or ()]
    return split_time(every, count_tasks(sum(count for *_, count in every), cores, ROWS_PER_TASK))


def split_time(files: Sequence[tuple[datetime, datetime, int]], wanted: int) -> list[TimeSlice]:
    """Return at most `wanted` slices with about equally many rows.

    `files`: first moment, last moment and number of rows of each. The rows of a file are taken as evenly spread.
    """
    if wanted == 1:
        return [TimeSlice()]
    points = [(low + (high - low) * n / _POINTS, count / _POINTS) for low, high, count in files for n in range(_POINTS)]
    points.sort(key=lambda point: point[0])
    passed = np.cumsum([weight for _, weight in points])
    places = np.searchsorted(passed, [passed[-1] * n / wanted for n in range(1, wanted)])
    cuts = sorted({points[place][0] for place in places} - {points[0][0]})
    return [TimeSlice(start, end) for start, end in zip([None, *cuts], [*cuts, None], strict=True)]


_POINTS = 32


def find_cuts(log: Table, wanted: int) -> list[int]:
    """Return the moments, in microseconds since 1970, at which so many slices begin but for the first.

    About equally many records of a topic's log are dated in each.
    """
    delta_table = tables.open_table(log)
    if wanted == 1 or delta_table is None:
        return []
    every = max(tables.count_rows(log) // _SAMPLE, 1)
    sample = [
        batch.column("timestamp").cast(pa.int64()).drop_null().to_numpy()[::every].copy()
        for batch in arrow_reader.read_rows(delta_table, columns={"timestamp"})
    ]
    moments = np.sort(np.concatenate(sample)) if sample else np.empty(0, np.int64)
    places = (len(moments) * number // wanted for number in range(1, wanted))
    return sorted({int(moments[place]) for place in places}) if len(moments) else []


_SAMPLE = 1_000_000


def _read_file_statistics(table: DeltaTable, column: str) -> list[tuple[datetime, datetime, int]] | None:
    """Return the first and last moment, and the number of rows, of each file with current rows."""
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
