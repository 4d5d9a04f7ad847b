"""Operators of `corrected` on Arrow tables: for one slice of time, or for some of the groups.

Their inputs are in the order of their times and have the columns that the form takes; what they give is in that order.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.compiled import NOTHING
from hindcast.delta.tables import MOMENT
from hindcast.kernels import numbers, sweeps
from hindcast.kernels.form import Form, Span
from hindcast.kernels.sweeps import FOREVER

if TYPE_CHECKING:
    from hindcast.compiled import Integers


class Derived(NamedTuple):
    """The rows of a part; of an aggregate, how many input rows are in none: without a group, without a value."""

    rows: pa.Table
    no_key: int = 0
    no_value: int = 0


def derived(form: Form, parts: Sequence[Span], number: int, sides: Sequence[pa.Table]) -> Derived:
    """What the operator of a form makes of the rows of a part's inputs."""
    match form.operator:
        case "of_table":
            return of_table(form, sides[0], number, len(parts))
        case "table_table":
            return Derived(table_table(form, parts[number], *sides))
        case "stream_table":
            return Derived(stream_table(form, *sides))


def stream_table(form: Form, events: pa.Table, versions: pa.Table) -> pa.Table:
    """`joins.stream_table` of a slice's events and of the versions that are valid in it."""
    (on, key), count = numbers.keys([events, versions], [side.key for side in form.sides], whole=form.whole)
    start, end = (numbers.moments(versions.column(name)) for name in ("validFrom", "validTo"))
    met = sweeps.valid(on, numbers.moments(events.column("timestamp")), key, start, end, count)
    if form.inner:
        kept = met != NOTHING
        events, met = events.filter(pa.array(kept)), met[kept]
    return pa.table(
        {
            name: numbers.taken(versions.column(column), met) if side else events.column(column)
            for name, (side, column) in form.columns.items()
        }
    )


def table_table(form: Form, span: Span, left: pa.Table, right: pa.Table) -> pa.Table:
    """`joins.table_table`, inner: the rows that begin in a slice, of the versions that are valid in it."""
    sides = left, right
    (one, other), count = numbers.keys(sides, [side.key for side in form.sides], whole=None)
    (start, end), (other_start, other_end) = (
        [numbers.moments(side.column(name)) for name in ("validFrom", "validTo")] for side in sides
    )
    since = -FOREVER if span.start is None else pa.scalar(span.start, MOMENT).value
    met = sweeps.overlaps(one, start, end, other, other_start, other_end, since, count)
    columns = {name: numbers.taken(sides[side].column(c), met[side]) for name, (side, c) in form.columns.items()}
    periods = {
        "validFrom": np.maximum(start[met[0]], other_start[met[1]]),
        "validTo": np.minimum(end[met[0]], other_end[met[1]]),
    }
    return pa.table(columns | {name: numbers.timestamps(micros, MOMENT) for name, micros in periods.items()})


def of_table(form: Form, versions: pa.Table, part: int, parts: int) -> Derived:
    """`aggregates.of_table` of counts and exact sums, for the groups that one of so many parts has.

    OverflowError if a sum is too large for its type.
    """
    side = form.sides[0]
    (group,), count = numbers.keys([versions], [side.key], whole=form.whole)
    no_key = int(np.count_nonzero(group == NOTHING)) if part == 0 else 0
    firsts = numbers.first_of(group, count) if len(group) else np.full(count, NOTHING)
    mine = np.append(_part_of(versions, side.key, firsts, parts) == part, False)  # of NOTHING, at -1
    versions, group = versions.filter(pa.array(mine[group])), group[mine[group]]
    counted = _counted(form, versions)
    there = counted.any(axis=0)
    no_value = int(np.count_nonzero(~there))
    if no_value:
        versions, group, counted = versions.filter(pa.array(there)), group[there], counted[:, there]
    start, end = (numbers.moments(versions.column(name)) for name in side.periods)
    added = [_halves(versions, column) for _, column in form.measures.values()]
    high, low = (np.stack([half[which] for half in added]) for which in (0, 1))
    ends = np.flatnonzero(end != FOREVER)
    by_end = ends[np.argsort(end[ends], kind="stable")]
    of, since, until, counts, highs, lows = sweeps.steps(
        group, start, end, by_end, counted.astype(np.int64), high, low, count
    )
    places = numbers.first_of(group, count)[of] if len(group) else of
    columns = {name: numbers.taken(versions.column(column), places) for name, (_, column) in form.columns.items()}
    for n, (name, (function, _)) in enumerate(form.measures.items()):
        columns[name] = _measured(function, counts[n], highs[n], lows[n], form.types.field(name).type)
    periods = {"validFrom": since, "validTo": until}
    columns |= {name: numbers.timestamps(micros, MOMENT) for name, micros in periods.items()}
    return Derived(pa.table(columns), no_key, no_value)


def _part_of(rows: pa.Table, key: tuple[str, ...], firsts: Integers, parts: int) -> Integers:
    """Which part each group belongs to, told by its values alone: the same in every task."""
    if parts == 1:
        return np.zeros(len(firsts), np.int64)
    texts = [numbers.taken(rows.column(name), firsts).cast(pa.string()).to_pylist() for name in key]
    return np.array([zlib.crc32(repr(values).encode()) % parts for values in zip(*texts, strict=True)], np.int64)


def _counted(form: Form, rows: pa.Table) -> np.ndarray:
    """Of each measure a row that tells which of `rows` count."""
    found = [
        np.ones(rows.num_rows, bool) if column is None else pc.is_valid(rows.column(column)).to_numpy()
        for _, column in form.measures.values()
    ]
    return np.stack(found)


def _halves(rows: pa.Table, column: str | None) -> tuple[Integers, Integers]:
    none = np.zeros(rows.num_rows, np.int64)
    return numbers.halves(rows.column(column)) if column and _is_number(rows.column(column).type) else (none, none)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _measured(function: str, counts: Integers, high: Integers, low: Integers, kind: pa.DataType) -> pa.Array:
    """A measure from how many values count, and from their sum."""
    if function == "count":
        return pa.array(counts)
    if function == "sum":
        return numbers.sums(high, low, kind, counts == 0)
    whole = numbers.sums(high, low, pa.int64(), counts == 0).cast(pa.float64(), safe=False)
    return pc.divide(whole, pa.array(counts).cast(pa.float64()))
