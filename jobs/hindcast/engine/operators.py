"""Operators of `corrected` on Arrow tables: joins for one slice of time, aggregates over time for some of the groups.

The inputs of joins are sorted by their times. All have the columns that the specification names; results are sorted by
time. These are second implementations of `bitemporal/joins.py` and `bitemporal/aggregates.py`, which say what the
operators mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.engine import arrow_expressions, integer_encoding, sweeps
from hindcast.engine.arrow_expressions import Projection
from hindcast.engine.slice_reader import MAX_BYTES, MAX_BYTES_HERE, MAX_ROWS_HERE
from hindcast.engine.spec import AggregateSpec, JoinSpec, TimeSlice
from hindcast.engine.sweeps import FOREVER
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class KernelRows(NamedTuple):
    """The rows of an aggregate, and the numbers of input rows that it leaves out (`derivation.count_left_out`).

    Of windows also the latest event of each partition, in microseconds.
    """

    rows: pa.Table
    no_key: int
    no_value: int
    too_late: int = 0
    reached: Mapping[int, int] | None = None


def join_sides(form: JoinSpec, span: TimeSlice, sides: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of a join for a slice of time, given the rows of its inputs (`slice_reader.read_sides`)."""
    match form.operator:
        case "table_table":
            return join_tables(form, span, *sides)
        case "stream_stream":
            moments = [integer_encoding.encode_timestamps(side.column("timestamp")) for side in sides]
            return join_streams(form, sides, [find_rows_in_slice(span, at) for at in moments])
    return join_stream_table(form, *sides)


def join_stream_table(form: JoinSpec, events: pa.Table, versions: pa.Table, *, is_here: bool = False) -> pa.Table:
    """Return `joins.join_stream_table` of the events in a slice and the versions valid in it.

    OverflowError if the rows take too much memory. `is_here`: of a step's own process, which takes little.
    """
    (on, key), count = integer_encoding.encode_keys(
        [events, versions], [side.key for side in form.sides], whole=form.whole
    )
    start, end = (integer_encoding.encode_timestamps(versions.column(name)) for name in ("validFrom", "validTo"))
    met = sweeps.find_valid_versions(
        on, integer_encoding.encode_timestamps(events.column("timestamp")), key, start, end, count
    )
    if form.how == "inner":  # rule: an inner join drops an event without a version
        kept = met != NOTHING
        events, met = events.filter(pa.array(kept)), met[kept]
    _refuse_large_rows(form, (events, versions), len(met), is_here=is_here)
    return pa.table(
        {
            name: integer_encoding.take_values(versions.column(column), met) if side else events.column(column)
            for name, (side, column) in form.columns.items()
        }
    )


def join_streams(
    form: JoinSpec, sides: Sequence[pa.Table], own: Sequence[Booleans], *, is_here: bool = False
) -> pa.Table:
    """Return the rows of `joins.join_stream_stream` that come from some `own` events of either side.

    These are the pairs of the left ones, and of either the rows without a pair. The sides have all events near them.
    OverflowError if there are more than `MAX_PAIRS`, or if they take too much memory (`join_stream_table`).
    """
    keys, count = integer_encoding.encode_keys(sides, [side.key for side in form.sides], whole=form.whole)
    moments = [integer_encoding.encode_timestamps(side.column("timestamp")) for side in sides]
    (before, after), is_kept = form.reach, form.how != "inner"

    def find(side: int, *reach: int) -> tuple[Integers, Integers, Integers]:
        """Return the places of what is near the events of a side, as `sweeps.find_near_events`, and what is at them."""
        others = sweeps.group_by_key(keys[1 - side], count)
        return *sweeps.find_near_events(keys[side], moments[side], others, moments[1 - side], *reach), others[0]

    low, high, rights = find(0, before, after)
    near = np.where(own[0], high - low, 0)
    if near.sum() > (MAX_ROWS_HERE if is_here else MAX_PAIRS):
        raise OverflowError(f"a task has {near.sum():,} pairs of events")
    lefts, numbers = integer_encoding.repeat_numbers(near)
    places = low[lefts] + numbers
    # rule: a left join keeps an event without a pair
    alone = np.flatnonzero(own[0] & (high == low) & is_kept)
    lefts, rights = np.append(lefts, alone), np.append(rights[places], np.full(len(alone), NOTHING))
    if form.how == "outer":
        low, high, _ = find(1, after, before)
        # rule: an outer join keeps a right event without a pair
        alone = np.flatnonzero(own[1] & (high == low))
        lefts, rights = np.append(lefts, np.full(len(alone), NOTHING)), np.append(rights, alone)
    # rule: a pair is true from its later event on
    latest = np.maximum(*(np.append(at, -FOREVER)[of] for at, of in zip(moments, (lefts, rights), strict=True)))
    order = np.argsort(latest, kind="stable")
    _refuse_large_rows(form, sides, len(order), is_here=is_here)
    columns = {
        name: integer_encoding.take_values(sides[side].column(c), (lefts, rights)[side][order])
        for name, (side, c) in form.columns.items()
    }
    return pa.table({**columns, "timestamp": integer_encoding.decode_timestamps(latest[order], ARROW_TIMESTAMP)})


def _refuse_large_rows(form: JoinSpec, sides: Sequence[pa.Table], count: int, *, is_here: bool) -> None:
    """Raise OverflowError if so many joined rows are too large, by the mean size of their columns.

    They are for a task; or, if `is_here`, for a step's own process, which takes little.
    """
    mean = sum(sides[side].column(name).nbytes / max(sides[side].num_rows, 1) for side, name in form.columns.values())
    if mean * count > (MAX_BYTES_HERE if is_here else MAX_BYTES) or (is_here and count > MAX_ROWS_HERE):
        raise OverflowError(f"a task has {count:,} joined rows of about {mean:,.0f} bytes")


MAX_PAIRS = 20_000_000
"""So many pairs of events a task has at most; they are in memory."""


def join_tables(
    form: JoinSpec, span: TimeSlice, left: pa.Table, right: pa.Table, *later: pa.Table, is_here: bool = False
) -> pa.Table:
    """Return the rows of `joins.join_table_table` or `joins.join_foreign_key` that begin in a slice.

    Given are the versions valid in it or up to its start. `later`: of an outer join, and of a left one, the versions of
    the right and then of the left side that start after it, since a row without a partner lasts until one comes.
    OverflowError if the rows take too much memory (`join_stream_table`).
    """
    on = [side.key for side in form.sides]
    (one, other, *after), count = integer_encoding.encode_keys(
        [left, right, *later], [*on, *reversed(on)][: 2 + len(later)], whole=form.whole
    )
    never = np.full(count, FOREVER)
    following = [*(_find_next_starts(keys, rows, count) for keys, rows in zip(after, later, strict=True)), never, never]
    (start, end), (other_start, other_end) = (
        [integer_encoding.encode_timestamps(side.column(name)) for name in ("validFrom", "validTo")]
        for side in (left, right)
    )
    since, until = slice_bounds(span)
    lefts, rights = (sweeps.group_by_key(keys, count) for keys in (one, other))
    is_kept = form.how != "inner"
    pieces = sweeps.find_pieces(
        one, start, end, rights, other_start, other_end, following[0], since, until, True, is_kept
    )
    if form.how == "outer":  # rule: an outer join has rows of the right side alone too
        alone = sweeps.find_pieces(
            other, other_start, other_end, lefts, start, end, following[1], since, until, False, True
        )
        pieces = np.concatenate([pieces, alone[:, [1, 0, 2, 3]]])
    pieces = pieces[np.argsort(pieces[:, 2], kind="stable")]
    _refuse_large_rows(form, (left, right), len(pieces), is_here=is_here)
    columns = {
        name: integer_encoding.take_values((left, right)[side].column(c), pieces[:, side])
        for name, (side, c) in form.columns.items()
    }
    return pa.table(
        columns
        | {
            name: integer_encoding.decode_timestamps(pieces[:, n], ARROW_TIMESTAMP)
            for n, name in ((2, "validFrom"), (3, "validTo"))
        }
    )


def _find_next_starts(keys: Integers, rows: pa.Table, count: int) -> Integers:
    """Return the first start of each key among rows that are sorted by their starts; FOREVER if it has none."""
    places = integer_encoding.find_first_rows(keys, count)
    starts = np.append(integer_encoding.encode_timestamps(rows.column("validFrom")), FOREVER)
    # rule: an absence lasts until the next version of the key, in the slice or after it
    return starts[places]  # of NOTHING the last


def aggregate_rows(form: AggregateSpec, rows: pa.Table) -> KernelRows:
    """Return `aggregates.aggregate_table`, or `aggregate_stream`, of rows with periods (`AggregateSpec`), in any order.

    OverflowError if a sum is too large for its type.
    """
    (group,), count = integer_encoding.encode_keys([rows], [form.key], whole=form.whole)
    counted = find_counted_rows(form.measures, rows)
    has_key, has_value = group != NOTHING, counted.any(axis=0)
    starts, ends = (
        integer_encoding.encode_timestamps(rows.column(name))
        if name in rows.column_names
        else np.full(rows.num_rows, FOREVER)
        for name in ("validFrom", "validTo")
    )
    # rule: rows without a group or a value are no members
    members = np.flatnonzero(has_key & has_value)
    members = members[np.argsort(starts[members], kind="stable")]
    group, start, end, counted = group[members], starts[members], ends[members], counted[:, members]
    added = [split_measure(rows, function, name) for name, function in form.measures.items()]
    high, low = (np.stack([half[which] for half in added])[:, members] for which in (0, 1))
    ending = np.flatnonzero(end != FOREVER)
    by_end = ending[np.argsort(end[ending], kind="stable")]
    of, since, until, counts, highs, lows = sweeps.sum_steps(
        group, start, end, by_end, counted.astype(np.int64), high, low, count
    )
    firsts = np.append(members, NOTHING)[integer_encoding.find_first_rows(group, count)[of]]
    columns = {name: integer_encoding.take_values(rows.column(name), firsts) for name in form.key}
    steps = sweeps.group_by_key(of, count)
    for n, (name, function) in enumerate(form.measures.items()):
        if function in EXTREMES:
            order = _order_members(rows.column(name), function, members)
            order = order[counted[n, order]]
            by_key, _ = sweeps.group_by_key(group[order], count)
            found = sweeps.find_extremes(order[by_key], group, start, end, steps, since)
            columns[name] = integer_encoding.take_values(rows.column(name), np.append(members, NOTHING)[found])
        else:
            kind = form.output.types.field(name).type
            columns[name] = compute_measure(function, counts[n], highs[n], lows[n], kind)
    periods = {"validFrom": since, "validTo": until}
    columns |= {name: integer_encoding.decode_timestamps(micros, ARROW_TIMESTAMP) for name, micros in periods.items()}
    without_key = int(np.count_nonzero(~has_key))
    return KernelRows(pa.table(columns), without_key, rows.num_rows - without_key - len(members))


def project_members(projection: Projection | None, measures: Iterable[str], rows: pa.Table) -> pa.Table:
    """Return what an aggregate reads of rows of its input: they have it already if there is no projection.

    Arguments of measures are plain values; other columns may be dictionaries.
    """
    members = rows if projection is None else arrow_expressions.project_rows(projection, rows)
    return integer_encoding.decode_dictionaries(members, {*measures})


def slice_bounds(span: TimeSlice) -> tuple[int, int]:
    """Return the bounds of a slice in microseconds."""
    since = -FOREVER if span.start is None else pa.scalar(span.start, ARROW_TIMESTAMP).value
    until = FOREVER if span.end is None else pa.scalar(span.end, ARROW_TIMESTAMP).value
    return since, until


def find_rows_in_slice(span: TimeSlice, at: Integers) -> Booleans:
    """Return which moments, in microseconds, are in a slice."""
    since, until = slice_bounds(span)
    # rule: a slice has the rows of the events in it
    own: Booleans = (at >= since) & (at < until)
    return own


# rule: a minimum is the first in ascending order
EXTREMES = {"min": "ascending", "max": "descending"}
"""Functions that take the first value in an order."""


def _order_members(values: pa.ChunkedArray, function: str, members: Integers) -> Integers:
    """Return the numbers of all members in the order of their values, the one that the function takes first."""
    numbers = np.full(len(values), NOTHING)
    numbers[members] = np.arange(len(members))
    order = numbers[pc.sort_indices(values, sort_keys=[("", EXTREMES[function])]).to_numpy()]
    found: Integers = order[order != NOTHING]
    return found


def find_counted_rows(measures: Iterable[str], rows: pa.Table) -> np.ndarray:
    """Return a matrix with a row per measure that says which of `rows` count."""
    # rule: null values are not counted
    return np.stack([pc.is_valid(rows.column(name)).to_numpy() for name in measures])


def split_measure(rows: pa.Table, function: str, column: str) -> tuple[Integers, Integers]:
    """Return the halves of what each row adds to a sum; zeros for other functions."""
    if function in ("sum", "avg"):
        return integer_encoding.split_halves(rows.column(column))
    none = np.zeros(rows.num_rows, np.int64)
    return none, none


def compute_measure(function: str, counts: Integers, high: Integers, low: Integers, kind: pa.DataType) -> pa.Array:
    """Return the values of a measure from the number of values that count, and their sum."""
    if function == "count":
        return pa.array(counts)
    if function == "sum":
        return integer_encoding.combine_halves(high, low, kind, counts == 0)  # rule: a sum of nothing is null
    # An average needs no sum that fits a type. Spark, too, divides the double that is nearest to the exact sum.
    nearest = integer_encoding.round_halves(high, low, counts == 0)
    return pc.divide(nearest, pa.array(counts).cast(pa.float64()))
