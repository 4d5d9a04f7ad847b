"""Increments of operators on Arrow tables: what a run changes in a view, found from what changed in its inputs.

    changed periods -> hulls -> the rows that touch them -> the same operator -> compare within the hulls

Rows of a result are made of what is valid with them. So within the hull of a key the operator is right if it sees all
that touches the hull; where a current row reaches beyond it, it is made of what touches it there. Outside nothing has
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from hindcast.engine import (
    aggregate_increments,
    join_increments,
    select_increments,
    stream_join_increments,
    window_increments,
)
from hindcast.engine.increment_rows import ChangedRows, Comparison, LeftOutRows, ReadNear, diff_rows
from hindcast.engine.spec import AggregateIncrement, JoinIncrement, SelectIncrement, ViewIncrement, WindowIncrement


class ViewChange(NamedTuple):
    """The rows to close and to open in a view (`increment_rows.diff_rows`); `left_out` as in `Comparison`."""

    rows: pa.Table
    left_out: LeftOutRows


def find_change(
    form: ViewIncrement, inputs: Sequence[ChangedRows], read_view: ReadNear, *, is_here: bool = False
) -> ViewChange:
    """Return what a run changes in a view, as `plane.diff_rows` does for the whole view.

    `read_view`: reads the view's current rows. `is_here`: as in `refresh_view`.
    """
    compared = refresh_view(form, inputs, read_view, is_here=is_here)
    return ViewChange(diff_rows(form, compared), compared.left_out)


def refresh_view(
    form: ViewIncrement, inputs: Sequence[ChangedRows], read_view: ReadNear, *, is_here: bool = False
) -> Comparison:
    """Return the affected rows of a view; of a join whose expressions are Spark's, the joined rows of the new ones.

    `is_here`: this is a step's own process, and no task; then OverflowError already if it would make many rows.
    """
    match form:
        case SelectIncrement():
            return select_increments.refresh_selection(form, inputs[0], read_view)
        case AggregateIncrement():
            return aggregate_increments.refresh_aggregate(form, inputs[0], read_view)
        case WindowIncrement():
            return window_increments.refresh_windows(form, inputs[0], read_view, is_here=is_here)
        case JoinIncrement() if form.join.operator == "table_table":
            return join_increments.refresh_table_join(form, inputs, read_view, is_here=is_here)
        case JoinIncrement() if form.join.operator == "stream_stream":
            return stream_join_increments.refresh_stream_stream_join(form, inputs, read_view, is_here=is_here)
        case JoinIncrement():
            return join_increments.refresh_stream_table_join(form, inputs, read_view, is_here=is_here)
    raise AssertionError(f"no operator has increments like {form}")
