"""The aggregate of events in hopping and sliding windows on Arrow tables, for those that start in one slice of time.

It is the second implementation of `windows.aggregate_windows` in `bitemporal`, which says what the operator means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.bitemporal.intervals import LAST_MICROS
from hindcast.common.jit import NOTHING
from hindcast.engine import integer_encoding, late_events, operators, sweeps
from hindcast.engine.operators import EXTREMES, KernelRows
from hindcast.engine.spec import EventSpec, SlidingSpec, TimeSlice, WindowSpec
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

MAX_MEMBERS, MAX_MEMBERS_HERE = 50_000_000, 1_000_000
"""So many events a task, or a step's own process, has in windows at most, each counted in all of its windows."""


def aggregate_windows(
    form: WindowSpec | SlidingSpec, span: TimeSlice, rows: pa.Table, *, is_here: bool = False
) -> KernelRows:
    """Return the aggregate in the windows that start in a slice, given the rows within their `reach` (`EventSpec`).

    The rows are in the order of the windows' starts. What is left out is counted among the events in the slice.
    OverflowError if a sum is too large for its type, or if the events have more than `MAX_MEMBERS` windows;
    `is_here`: than `MAX_MEMBERS_HERE`.

        tumbling 10 ms    @3: 5, @12: 1, @14: 2    sum    ->    [0, 10): 5, [10, 20): 3
    """
    # rule: a null in a group is no group, if the view groups by expressions
    (group,), count = integer_encoding.encode_keys([rows], [form.key], whole=form.whole)
    counted = operators.find_counted_rows(form.measures, rows)
    at = integer_encoding.encode_timestamps(rows.column("timestamp"))
    has_key, has_value = group != NOTHING, counted.any(axis=0)
    most = MAX_MEMBERS_HERE if is_here else MAX_MEMBERS
    if isinstance(form, SlidingSpec):
        is_taken = _find_taken_rows(form, rows)
        members, starts = _list_sliding_members(
            form, span, np.flatnonzero(has_key & has_value & is_taken), group, at, most
        )
    else:
        first, last = _find_windows(form, rows, at)
        is_taken = first <= last
        members, starts = _list_members(form, span, has_key & has_value & is_taken, first, last, most)
    begun, number = np.unique(starts, return_inverse=True)
    codes, window = np.unique(number * count + group[members], return_inverse=True)
    one = np.empty(len(codes), np.int64)
    one[window] = members
    columns = {name: integer_encoding.take_values(rows.column(name), one) for name in form.key}
    for n, name in enumerate(form.measures):
        which = counted[n, members]
        columns[name] = aggregate_measure(form, rows, name, members[which], window[which], len(codes))
    start = begun[codes // count]
    end = np.minimum(start + form.length, LAST_MICROS)
    for name, moment in (("windowStart", start), ("windowEnd", end)):
        columns[name] = integer_encoding.decode_timestamps(moment, ARROW_TIMESTAMP)
    # rule: what a slice leaves out is counted of its own events
    is_own = operators.find_rows_in_slice(span, at)
    reached = find_latest(rows.filter(pa.array(is_own & has_key & has_value)))
    left_out = [~has_key, has_key & ~has_value, has_key & has_value & ~is_taken]
    no_key, no_value, too_late = (int(np.count_nonzero(is_own & some)) for some in left_out)
    return KernelRows(pa.table(columns), no_key, no_value, too_late, reached)


def _find_windows(form: WindowSpec, rows: pa.Table, at: Integers) -> tuple[Integers, Integers]:
    """Return the starts of the first and the last window that take each event; the first is later if none does."""
    first, last = late_events.find_first_starts(form, at), at - at % form.advance
    late, places = late_events.match_rows(form.late, rows)
    opened = integer_encoding.encode_timestamps(form.late.column("first"))
    # rule: a late event is in the windows that were open
    first[late] = opened[places]
    return first, last


def _find_taken_rows(form: SlidingSpec, rows: pa.Table) -> Booleans:
    """Return which events sliding windows take: those that are not late."""
    is_taken: Booleans = np.ones(rows.num_rows, np.bool_)
    is_taken[late_events.match_rows(form.late, rows)[0]] = False
    return is_taken


class _Members(NamedTuple):
    """Events in windows, each as often as it is in one: the number of its row, and the start of the window."""

    row: Integers
    start: Integers


def _list_members(
    form: WindowSpec, span: TimeSlice, is_counted: Booleans, first: Integers, last: Integers, most: int
) -> _Members:
    """Return the members of the windows that start in a slice; OverflowError if there are more than `most`."""
    since, until = operators.slice_bounds(span)
    # rule: a slice has the windows that start in it
    low, high = -(-max(since, 0) // form.advance) * form.advance, (until - 1) // form.advance * form.advance
    first, last = np.maximum(first, low), np.minimum(last, high)
    times = np.where(is_counted & (first <= last), (last - first) // form.advance + 1, 0)
    _refuse_many_members(times, most)
    row, number = integer_encoding.repeat_numbers(times)
    return _Members(row, first[row] + number * form.advance)


def _list_sliding_members(
    form: SlidingSpec, span: TimeSlice, taken: Integers, group: Integers, at: Integers, most: int
) -> _Members:
    """Return the members of the sliding windows that start in a slice, given the numbers of the `taken` events.

    OverflowError if there are more than `most`.
    """
    taken = taken[np.argsort(at[taken], kind="stable")]
    group, at = group[taken], at[taken]
    since, until = operators.slice_bounds(span)
    # rule: a sliding window ends at an event, or begins just after one
    starts = np.append(np.maximum(at - form.difference, 0), at + form.tick)
    is_own = (starts >= since) & (starts < until)
    starts, groups = starts[is_own], np.append(group, group)[is_own]
    order = np.lexsort((starts, groups))
    starts, groups = starts[order], groups[order]
    is_new = (np.diff(starts, prepend=-1) != 0) | (np.diff(groups, prepend=-1) != 0)
    starts, groups = starts[is_new], groups[is_new]
    by_group = sweeps.group_by_key(group, int(group.max(initial=-1)) + 1)
    # rule: a sliding window holds its end
    low, high = sweeps.find_near_events(groups, starts, by_group, at, 0, form.difference)
    _refuse_many_members(high - low, most)
    window, number = integer_encoding.repeat_numbers(high - low)
    return _Members(taken[by_group[0][low[window] + number]], starts[window])


def _refuse_many_members(counts: Integers, most: int) -> None:
    # As doubles: the sum of windows of a thousand years that are a millisecond apart is no bigint.
    if (total := counts.sum(dtype=np.float64)) > most:
        raise OverflowError(f"the events of a task are in {total:,.0f} windows")


def aggregate_measure(
    form: EventSpec, rows: pa.Table, name: str, members: Integers, window: Integers, windows: int
) -> pa.Array:
    """Return a measure of each window, given the members that count, as numbers of rows, and their windows' numbers."""
    function, values = form.measures[name], rows.column(name)
    if function in EXTREMES:
        order = pc.sort_indices(values, sort_keys=[("", EXTREMES[function])]).to_numpy().astype(np.int64)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        least = sweeps.find_least(window, rank[members], windows)
        return integer_encoding.take_values(values, np.where(least == NOTHING, NOTHING, order[least]))
    high, low = (half[members] for half in operators.split_measure(rows, function, name))
    counts, highs, lows = sweeps.sum_groups(window, high, low, windows)
    return operators.compute_measure(function, counts, highs, lows, form.output.types.field(name).type)


def find_latest(events: pa.Table) -> dict[int, int]:
    """Return by partition the latest timestamp of events, in microseconds."""
    found = events.select(["_partition", "timestamp"]).group_by("_partition").aggregate([("timestamp", "max")])
    latest = integer_encoding.encode_timestamps(found.column("timestamp_max")).tolist()
    return dict(zip(found.column("_partition").to_pylist(), latest, strict=True))
