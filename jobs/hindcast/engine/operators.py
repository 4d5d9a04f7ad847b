"""Operators of `corrected` on Arrow tables: for one slice of time, or for some of the groups.

Inputs are sorted by their times and have the columns that the specification names; results are sorted alike. These
are second implementations of `bitemporal/joins.py` and `bitemporal/aggregates.py`, which say what the operators mean.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.engine import integer_encoding, sweeps
from hindcast.engine.spec import KernelSpec, TimeSlice
from hindcast.engine.sweeps import FOREVER
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


class KernelRows(NamedTuple):
    """The result rows of a part; for an aggregate also the numbers of input rows without a group or without a value."""

    rows: pa.Table
    no_key: int = 0
    no_value: int = 0


def run_operator(form: KernelSpec, parts: Sequence[TimeSlice], number: int, sides: Sequence[pa.Table]) -> KernelRows:
    """Return the result rows of a kernel's operator for part `number`, given the rows of its inputs (`sides`)."""
    match form.operator:
        case "of_table":
            return aggregate_table(form, sides[0], number, len(parts))
        case "table_table":
            return KernelRows(join_tables(form, parts[number], *sides))
        case "stream_table":
            return KernelRows(join_stream_table(form, *sides))


def join_stream_table(form: KernelSpec, events: pa.Table, versions: pa.Table) -> pa.Table:
    """Return `joins.join_stream_table` of the events in a slice and the versions valid in it."""
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
    return pa.table(
        {
            name: integer_encoding.take_values(versions.column(column), met) if side else events.column(column)
            for name, (side, column) in form.columns.items()
        }
    )


def join_tables(form: KernelSpec, span: TimeSlice, left: pa.Table, right: pa.Table, *later: pa.Table) -> pa.Table:
    """Return the rows of `joins.join_table_table` or `joins.join_foreign_key` that begin in a slice.

    Given are the versions valid in it or up to its start. `later`: of an outer join, and of a left one, the versions of
    the right and then of the left side that start after it, since a row without a partner lasts until one comes.
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
    since = -FOREVER if span.start is None else pa.scalar(span.start, ARROW_TIMESTAMP).value
    until = FOREVER if span.end is None else pa.scalar(span.end, ARROW_TIMESTAMP).value
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


def aggregate_table(form: KernelSpec, versions: pa.Table, part: int, parts: int) -> KernelRows:
    """Return `aggregates.aggregate_table` of counts and exact sums, for the groups of part `part` of `parts`.

    OverflowError if a sum is too large for its type.
    """
    side = form.sides[0]
    (group,), count = integer_encoding.encode_keys([versions], [side.key], whole=form.whole)
    no_key = int(np.count_nonzero(group == NOTHING)) if part == 0 else 0
    firsts = integer_encoding.find_first_rows(group, count) if len(group) else np.full(count, NOTHING)
    # rule: a part has its own groups, rows without a group have none
    mine = np.append(_assign_parts(versions, side.key, firsts, parts) == part, False)  # of NOTHING, at -1
    versions, group = versions.filter(pa.array(mine[group])), group[mine[group]]
    counted = _count_mask(form, versions)
    there = counted.any(axis=0)
    no_value = int(np.count_nonzero(~there))
    if no_value:  # rule: who has no value is no member
        versions, group, counted = versions.filter(pa.array(there)), group[there], counted[:, there]
    start, end = (integer_encoding.encode_timestamps(versions.column(name)) for name in side.periods)
    added = [_split_measure(versions, column) for _, column in form.measures.values()]
    high, low = (np.stack([half[which] for half in added]) for which in (0, 1))
    ends = np.flatnonzero(end != FOREVER)
    by_end = ends[np.argsort(end[ends], kind="stable")]
    of, since, until, counts, highs, lows = sweeps.sum_steps(
        group, start, end, by_end, counted.astype(np.int64), high, low, count
    )
    places = integer_encoding.find_first_rows(group, count)[of] if len(group) else of
    columns = {
        name: integer_encoding.take_values(versions.column(column), places)
        for name, (_, column) in form.columns.items()
    }
    for n, (name, (function, _)) in enumerate(form.measures.items()):
        columns[name] = _measure_values(function, counts[n], highs[n], lows[n], form.types.field(name).type)
    periods = {"validFrom": since, "validTo": until}
    columns |= {name: integer_encoding.decode_timestamps(micros, ARROW_TIMESTAMP) for name, micros in periods.items()}
    return KernelRows(pa.table(columns), no_key, no_value)


def _assign_parts(rows: pa.Table, key: tuple[str, ...], firsts: Integers, parts: int) -> Integers:
    """Return the part of each group, derived from its values alone: the same in every task."""
    if parts == 1:
        return np.zeros(len(firsts), np.int64)
    texts = [integer_encoding.take_values(rows.column(name), firsts).cast(pa.string()).to_pylist() for name in key]
    return np.array([zlib.crc32(repr(values).encode()) % parts for values in zip(*texts, strict=True)], np.int64)


def _count_mask(form: KernelSpec, rows: pa.Table) -> np.ndarray:
    """Return a matrix with a row per measure that says which of `rows` count."""
    # rule: null values are not counted
    found = [
        np.ones(rows.num_rows, bool) if column is None else pc.is_valid(rows.column(column)).to_numpy()
        for _, column in form.measures.values()
    ]
    return np.stack(found)


def _split_measure(rows: pa.Table, column: str | None) -> tuple[Integers, Integers]:
    none = np.zeros(rows.num_rows, np.int64)
    return (
        integer_encoding.split_halves(rows.column(column))
        if column and _is_number(rows.column(column).type)
        else (none, none)
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _measure_values(function: str, counts: Integers, high: Integers, low: Integers, kind: pa.DataType) -> pa.Array:
    """Return the values of a measure from the number of values that count, and their sum."""
    if function == "count":
        return pa.array(counts)
    if function == "sum":
        return integer_encoding.combine_halves(high, low, kind, counts == 0)  # rule: a sum of nothing is null
    whole = integer_encoding.combine_halves(high, low, pa.int64(), counts == 0).cast(pa.float64(), safe=False)
    return pc.divide(whole, pa.array(counts).cast(pa.float64()))
