"""Increments of aggregates over time: the rows of the groups that a change of the input affects, aggregated anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.engine import hulls, integer_encoding, operators
from hindcast.engine.arrow_expressions import ColumnReference
from hindcast.engine.hulls import CrowdedError, Islands
from hindcast.engine.increment_rows import (
    BOUNDS,
    ChangedRows,
    ChangedVersions,
    Comparison,
    LeftOutRows,
    Needs,
    ReadNear,
    clip_rows,
    compare_nothing,
    list_among,
    number_versions,
    read_periods,
)
from hindcast.engine.spec import AggregateIncrement
from hindcast.engine.sweeps import FOREVER
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


def refresh_aggregate(form: AggregateIncrement, source: ChangedRows, read_view: ReadNear) -> Comparison:
    """Return the affected rows of an aggregate over valid time.

    Of a group with a new event all events are read.
    """
    key = form.aggregate.key
    closed, opened = (list_members(form, rows) for rows in (source.closed, source.opened))
    changes = number_versions(closed, opened, [*key, *form.member], [*form.aggregate.measures])
    more, less = (_count_left_out(form, members) for members in (opened, closed))
    left_out = LeftOutRows(more[0] - less[0], more[1] - less[1])
    if (span := changes.find_span()) is None:
        return compare_nothing(form, left_out)
    refresh = partial(_refresh_islands, form, source, read_view, changes, span)
    try:
        current, derived = refresh(as_hulls=False)
    except CrowdedError:
        current, derived = refresh(as_hulls=True)
    return Comparison(current, derived, left_out, ((closed, key), (opened, key)))


def _refresh_islands(
    form: AggregateIncrement,
    source: ChangedRows,
    read_view: ReadNear,
    changes: ChangedVersions,
    span: tuple[int, int],
    *,
    as_hulls: bool,
) -> tuple[pa.Table, pa.Table]:
    """Return the affected rows of an aggregate, and the rows that replace them.

    They are those in the islands of what has changed, or in the hull of each group (`as_hulls`).
    """
    key = form.aggregate.key
    needed = _list_groups(form, changes, as_hulls=as_hulls)
    near = list_members(form, _read_members(form, source, span, needed))
    current = read_view(span, list_among(key, needed))
    (*groups, members, units), _ = integer_encoding.encode_keys(
        [*(side.select(key) for side in changes.sides), near, current], [key] * 4, whole=form.aggregate.whole
    )
    learnt = _find_islands(changes, groups, as_hulls=as_hulls)
    touching = np.unique(learnt.find_touching(read_periods(current, units))[0])
    current, units = current.take(pa.array(touching)), units[touching]
    grown, places = learnt.include_periods(read_periods(current, units))
    rows, islands = learnt.find_touching(read_periods(near, members))
    count = max(1, len(grown.key))
    rows, islands = np.divmod(np.unique(rows * count + places[islands]), count)
    return current, _aggregate_islands(form, near.take(pa.array(rows)), islands, grown)


def _find_islands(changes: ChangedVersions, groups: Sequence[Integers], *, as_hulls: bool) -> Islands:
    islands = hulls.build_islands(changes.find_periods(groups))
    return islands.join_by_key() if as_hulls else islands


def _list_groups(form: AggregateIncrement, changes: ChangedVersions, *, as_hulls: bool) -> Needs:
    """Return the groups that have changed, each with its islands, or with its hull."""
    key = form.aggregate.key
    sides = [side.select(key) for side in changes.sides]
    groups, count = integer_encoding.encode_keys(sides, [key] * 2, whole=form.aggregate.whole)
    islands = _find_islands(changes, groups, as_hulls=as_hulls)
    first = integer_encoding.find_first_rows(np.concatenate(groups), count)[islands.key]
    return Needs(pa.concat_tables(sides).take(pa.array(first)), key, islands.low, islands.high)


def _read_members(form: AggregateIncrement, source: ChangedRows, span: tuple[int, int], groups: Needs) -> pa.Table:
    """Return the current rows of the input that may be members of changed groups in their islands."""
    if form.aggregate.operator != "of_table":
        # rule: an event counts from its moment on
        span, groups = (-FOREVER, span[1]), groups._replace(low=np.full(len(groups.low), -FOREVER))
    columns = {name: form.projection.columns[name] for name in form.aggregate.key}
    plain = {name: column.name for name, column in columns.items() if isinstance(column, ColumnReference)}
    return source.read_near(span, list_among(list(plain.values()), groups._replace(columns=list(plain))))


def _aggregate_islands(form: AggregateIncrement, rows: pa.Table, numbers: Integers, islands: Islands) -> pa.Table:
    """Return the aggregate of rows within their islands, given the number of each row's island."""
    one = replace(form.aggregate, key=(_ISLAND,))
    found = operators.aggregate_rows(one, rows.append_column(_ISLAND, pa.array(numbers))).rows
    own = found.column(_ISLAND).to_numpy()
    first = integer_encoding.find_first_rows(numbers, len(islands.key))[own]
    for name in form.aggregate.key:
        found = found.append_column(name, integer_encoding.take_values(rows.column(name), first))
    for name, bounds in zip(BOUNDS, islands[1:], strict=True):
        found = found.append_column(name, pa.array(bounds[own]))
    return clip_rows(found)


_ISLAND = "_island"


def list_members(form: AggregateIncrement, rows: pa.Table) -> pa.Table:
    """Return group, arguments and periods of the rows that the aggregate reads; an event never ends."""
    members = operators.project_members(form.projection, form.aggregate.measures, rows)
    if "validTo" not in members.column_names:
        members = members.append_column("validTo", pa.nulls(members.num_rows, ARROW_TIMESTAMP))
    return members


def _count_left_out(form: AggregateIncrement, members: pa.Table) -> tuple[int, int]:
    """Return how many members have no group, and how many of the others no value (`derivation.count_left_out`)."""
    (groups,), _ = integer_encoding.encode_keys([members], [form.aggregate.key], whole=form.aggregate.whole)
    has_value = operators.find_counted_rows(form.aggregate.measures, members).any(axis=0)
    is_grouped = groups != NOTHING
    return int(np.count_nonzero(~is_grouped)), int(np.count_nonzero(is_grouped & ~has_value))
