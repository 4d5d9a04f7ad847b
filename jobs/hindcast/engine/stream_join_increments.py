"""Increments of joins of two streams: the rows of all events near which something has changed, joined anew."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.contract.shapes import PLACE_COLUMNS, identity_columns
from hindcast.engine import integer_encoding, operators, sweeps
from hindcast.engine.increment_rows import (
    ChangedRows,
    Comparison,
    Needs,
    ReadNear,
    compare_nothing,
    list_among,
    read_moments,
)
from hindcast.engine.join_increments import concat_rows, drop_duplicates, project_joined
from hindcast.engine.spec import JoinIncrement, JoinSpec
from hindcast.store.closing import find_matching_rows

RIGHT_PLACE_COLUMNS = tuple(column for column in identity_columns("pairs", ()) if column not in PLACE_COLUMNS)
"""The columns with the place of a pair's right event."""


def refresh_stream_stream_join(
    form: JoinIncrement, inputs: Sequence[ChangedRows], read_view: ReadNear, *, is_here: bool
) -> Comparison:
    """Return the affected rows of a join of two streams.

    They are the pairs of changed left events, and of those near a changed right one; of an outer join also the right
    events alone that have changed, or are near a changed left one.
    """
    join = form.join
    is_outer = join.how == "outer"
    rights = _find_affected_events(join, 1, inputs) if is_outer else inputs[1].opened.slice(0, 0)
    affected = [_find_affected_events(join, 0, inputs), rights]
    touched = [concat_rows(rows, it.closed) for rows, it in zip(affected, inputs, strict=True)][: 1 + is_outer]
    if not any(some.num_rows for some in touched):
        return compare_nothing(form)
    sides = [_add_near_events(join, side, affected, inputs) for side in range(2)]
    own = [find_matching_rows(rows, some, PLACE_COLUMNS) for rows, some in zip(sides, affected, strict=True)]
    derived = project_joined(join, operators.join_streams(join, sides, own, is_here=is_here))
    current = _read_current_rows(form, touched, read_view)
    unit, key = tuple(form.unit.values()), join.sides[1].key
    units = [(part, unit) for part in (affected[0], inputs[0].closed)]
    units += [(part, key) for part in (affected[1], inputs[1].opened, inputs[1].closed)]
    return Comparison(current, derived, units=units)


def _find_affected_events(join: JoinSpec, side: int, inputs: Sequence[ChangedRows]) -> pa.Table:
    """Return the current events of a side that are new, or near an event of the other side that has changed."""
    own, other = inputs[side], inputs[1 - side]
    changed = integer_encoding.sort_by_time(concat_rows(other.closed, other.opened), "timestamp")
    if not changed.num_rows:
        return own.opened
    near = _read_near_events(join, side, own, changed)
    columns = [join.sides[side].key, join.sides[1 - side].key]
    (keys, others), count = integer_encoding.encode_keys([near, changed], columns, whole=join.whole)
    low, high = sweeps.find_near_events(
        keys,
        read_moments(near, "timestamp"),
        sweeps.group_by_key(others, count),
        read_moments(changed, "timestamp"),
        *_reach_from(join, side),
    )
    # rule: an event is affected by what it may be a pair with
    return drop_duplicates(concat_rows(own.opened, near.filter(pa.array(high > low))), PLACE_COLUMNS)


def _add_near_events(
    join: JoinSpec, side: int, affected: Sequence[pa.Table], inputs: Sequence[ChangedRows]
) -> pa.Table:
    """Return, by time, the affected events of a side and all that may be near affected events of the other side."""
    rows = affected[side]
    if affected[1 - side].num_rows:
        near = _read_near_events(join, side, inputs[side], affected[1 - side])
        rows = drop_duplicates(concat_rows(rows, near), PLACE_COLUMNS)
    return integer_encoding.sort_by_time(rows, "timestamp")


def _read_near_events(join: JoinSpec, side: int, rows: ChangedRows, others: pa.Table) -> pa.Table:
    """Return the current events of a side that may be near some of the other side."""
    before, after = _reach_from(join, 1 - side)
    moments = read_moments(others, "timestamp")
    own, other = (join.sides[number].key for number in (side, 1 - side))
    near = list_among(own, Needs(others, other, moments - before, moments + after))
    return rows.read_near((int(moments.min()) - before, int(moments.max()) + after), near)


def _reach_from(join: JoinSpec, side: int) -> tuple[int, int]:
    """Return how long before an event of a side one of the other side may be, and how long after it."""
    before, after = join.reach
    # rule: a right event reaches back as far as a left one reaches ahead
    return (before, after) if side == 0 else (after, before)


def _read_current_rows(form: JoinIncrement, touched: Sequence[pa.Table], read_view: ReadNear) -> pa.Table:
    """Return the view's current rows that come from left events, and from right ones alone: `touched` has those."""
    parts = []
    for events, columns in zip(touched, (PLACE_COLUMNS, RIGHT_PLACE_COLUMNS), strict=False):
        if events.num_rows:
            places, moments = events.select(PLACE_COLUMNS).rename_columns(columns), read_moments(events, "timestamp")
            # rule: a pair is true at most so long after its left event
            last = moments + form.join.reach[1]
            span = int(moments.min()), int(last.max())
            rows = read_view(span, list_among(columns, Needs(places, columns, moments, last)))
            rows = rows.filter(pa.array(find_matching_rows(rows, places, columns)))
            # rule: a right event's pairs are those of its left events
            parts.append(rows if columns == PLACE_COLUMNS else rows.filter(pc.is_null(rows.column(PLACE_COLUMNS[0]))))
    return concat_rows(*parts)
