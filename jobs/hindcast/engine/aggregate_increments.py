"""Increments of aggregates over time: the rows of the groups that a change of the input affects, aggregated anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.engine import arrow_expressions, hulls, integer_encoding, operators
from hindcast.engine.arrow_expressions import ColumnReference
from hindcast.engine.hulls import Hulls
from hindcast.engine.increment_rows import (
    ChangedRows,
    Comparison,
    LeftOutRows,
    ReadNear,
    add_hulls,
    clip_rows,
    compare_nothing,
    list_values,
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

    An event counts from its moment on: of a group that gets one all events are read.
    """
    key = form.aggregate.key
    closed, opened = (list_members(form, rows) for rows in (source.closed, source.opened))
    changes = number_versions(closed, opened, [*key, *form.member], [*form.aggregate.measures])
    more, less = (_count_left_out(form, members) for members in (opened, closed))
    left_out = LeftOutRows(more[0] - less[0], more[1] - less[1])
    if (span := changes.find_span()) is None:
        return compare_nothing(form, left_out)
    is_lasting = form.aggregate.operator == "of_table"
    changed = (closed, key), (opened, key)
    plain = [column.name for name in key if isinstance(column := form.projection.columns[name], ColumnReference)]
    among = [list_values(plain, *changed)] if len(plain) == len(key) else []
    near = list_members(form, source.read_near(span if is_lasting else (-FOREVER, span[1]), *among))
    current = read_view(span, list_values(key, *changed))
    (*groups, members, units), count = integer_encoding.encode_keys(
        [closed, opened, near, current], [key] * 4, whole=form.whole
    )
    learnt = hulls.build_hulls(count, changes.find_periods(groups))
    touching = learnt.touch(read_periods(current, units))
    hull = learnt.include_periods(read_periods(current, units).select(touching))
    is_needed = learnt.touch(read_periods(near, members))
    near, members = near.filter(pa.array(is_needed)), members[is_needed]
    found = operators.aggregate_rows(form.aggregate, near)
    derived = clip_rows(_find_hulls(found.rows, near, members, hull, key))
    return Comparison(current.filter(pa.array(touching)), derived, left_out, changed)


def list_members(form: AggregateIncrement, rows: pa.Table) -> pa.Table:
    """Return group, arguments and periods of the rows that the aggregate reads; an event never ends."""
    members = arrow_expressions.project_rows(form.projection, rows)
    if "validTo" not in members.column_names:
        members = members.append_column("validTo", pa.nulls(members.num_rows, ARROW_TIMESTAMP))
    return integer_encoding.decode_dictionaries(members, form.aggregate.measures)


def _count_left_out(form: AggregateIncrement, members: pa.Table) -> tuple[int, int]:
    """Return how many members have no group, and how many of the others no value (`derivation.count_left_out`)."""
    (groups,), _ = integer_encoding.encode_keys([members], [form.aggregate.key], whole=form.whole)
    has_value = operators.find_counted_rows(form.aggregate.measures, members).any(axis=0)
    is_grouped = groups != NOTHING
    return int(np.count_nonzero(~is_grouped)), int(np.count_nonzero(is_grouped & ~has_value))


def _find_hulls(rows: pa.Table, members: pa.Table, numbers: Integers, of: Hulls, key: Sequence[str]) -> pa.Table:
    """Return rows of groups with the bounds of their hulls, given members of all the groups by the group's number."""
    groups, firsts = np.unique(numbers, return_index=True)
    (known, own), count = integer_encoding.encode_keys([members.take(pa.array(firsts)), rows], [key, key], whole=None)
    place = np.full(count, NOTHING)
    place[known] = groups
    return add_hulls(rows, place[own], of)
