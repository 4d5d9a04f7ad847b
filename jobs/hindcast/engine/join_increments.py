"""Increments of joins with a table: the rows of a view that a change of its inputs affects, joined anew.

What a join means is in `bitemporal/joins.py`, and in `operators.py` as compiled loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import arrow_expressions, hulls, integer_encoding, operators
from hindcast.engine.hulls import Hulls, Periods
from hindcast.engine.increment_rows import (
    BOUNDS,
    ChangedRows,
    ChangedVersions,
    Comparison,
    Needs,
    ReadNear,
    add_hulls,
    clip_rows,
    compare_nothing,
    list_among,
    list_changed,
    list_hulls,
    number_versions,
    read_moments,
    read_periods,
)
from hindcast.engine.spec import JoinIncrement, JoinSpec, TimeSlice
from hindcast.store.closing import find_matching_rows

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


def refresh_stream_table_join(
    form: JoinIncrement, inputs: Sequence[ChangedRows], read_view: ReadNear, *, is_here: bool
) -> Comparison:
    """Return the affected rows of a join of a stream with a table.

    They are those of changed events, and of events that look up what has changed.
    """
    join, (events, versions) = form.join, inputs
    on, key = (side.key for side in join.sides)
    changed = _number_changes(join, 1, versions, key)
    near = events.opened.slice(0, 0)
    if (span := changed.find_span()) is not None:
        near = events.read_near(span, list_changed(on, (changed, key)))
    (*keys, looking), count = integer_encoding.encode_keys([*changed.sides, near], [key, key, on], whole=join.whole)
    learnt = hulls.build_hulls(count, changed.find_periods(keys))
    moments = read_moments(near, "timestamp")
    # rule: an event is affected by what it looks up
    affected = near.filter(pa.array(learnt.touch(Periods(looking, moments, moments))))
    plan = drop_duplicates(concat_rows(events.opened, affected), PLACE_COLUMNS)
    touched = concat_rows(*(rows.select([*PLACE_COLUMNS, "timestamp"]) for rows in (plan, events.closed)))
    if not touched.num_rows:
        return compare_nothing(form)
    plan = integer_encoding.sort_by_time(plan, "timestamp")
    moments = read_moments(plan, "timestamp")
    found = versions.opened.slice(0, 0)
    if len(moments):
        needed = list_among(key, Needs(plan, on, moments, moments))
        found = versions.read_near((int(moments[0]), int(moments[-1])), needed)
    derived = project_joined(join, operators.join_stream_table(join, plan, found, is_here=is_here))
    moments = read_moments(touched, "timestamp")
    span = int(moments.min()), int(moments.max())
    current = read_view(span, list_among(PLACE_COLUMNS, Needs(touched, PLACE_COLUMNS, moments, moments)))
    current = current.filter(pa.array(find_matching_rows(current, touched, PLACE_COLUMNS)))
    unit = tuple(form.unit.values())
    return Comparison(current, derived, units=((plan, unit), (events.closed, unit)))


def refresh_table_join(
    form: JoinIncrement, inputs: Sequence[ChangedRows], read_view: ReadNear, *, is_here: bool
) -> Comparison:
    """Return the affected rows of a join of tables, on their keys or on a foreign key."""
    join, (left, right) = form.join, inputs
    unit, key = tuple(form.unit.values()), join.sides[1].key
    changed = _number_changes(join, 0, left, unit), _number_changes(join, 1, right, key)
    spans = [span for span in (some.find_span() for some in changed) if span is not None]
    if not spans:
        return compare_nothing(form)
    span = min(low for low, _ in spans), max(high for _, high in spans)
    if join.whole is None:
        near = _read_by_key(form, inputs, changed, read_view, span)
        affected = _affect_by_key(form, *changed, near)
    else:
        near = _read_by_foreign_key(form, inputs, changed, read_view, span)
        affected = _affect_by_foreign_key(form, *changed, near)
    current = read_periods(near.current, affected.current)
    touching = affected.hulls.touch(current)
    hull = affected.hulls.include_periods(current.select(touching))
    lefts, rights = (
        add_hulls(rows, keys, hull).filter(pa.array(mask))
        for rows, keys, mask in (
            (near.left, affected.left, affected.hulls.touch(read_periods(near.left, affected.left))),
            (near.right, affected.right, affected.met),
        )
    )
    joined = operators.join_tables(_carry_hulls(join), TimeSlice(), lefts, rights, is_here=is_here)
    derived = project_joined(join, clip_rows(_join_bounds(joined)))
    units = [(part, unit) for part in (left.closed, left.opened, lefts)]
    units += [(part, key) for part in (right.closed, right.opened) if join.whole is None]
    return Comparison(near.current.filter(pa.array(touching)), derived, units=units)


class _NearbyRows(NamedTuple):
    """The current rows of both inputs and of the view that touch the span of all changes."""

    left: pa.Table
    right: pa.Table
    current: pa.Table


class _Affected(NamedTuple):
    """The hulls of the view's rows; the keys of rows nearby in their numbers; and which right rows are needed.

    On a foreign key the right rows have no key of the view's: NOTHING.
    """

    hulls: Hulls
    left: Integers
    right: Integers
    current: Integers
    met: Booleans


def _read_by_key(
    form: JoinIncrement,
    inputs: Sequence[ChangedRows],
    changed: tuple[ChangedVersions, ChangedVersions],
    read_view: ReadNear,
    span: tuple[int, int],
) -> _NearbyRows:
    """Return the rows near the changes of tables that are joined on their keys."""
    unit, key = tuple(form.unit.values()), form.join.sides[1].key
    needed = list_changed(unit, (changed[0], unit), (changed[1], key))
    return _NearbyRows(
        inputs[0].read_near(span, needed),
        inputs[1].read_near(span, needed.rename_columns(key)),
        read_view(span, needed.rename_columns(tuple(form.unit))),
    )


def _read_by_foreign_key(
    form: JoinIncrement,
    inputs: Sequence[ChangedRows],
    changed: tuple[ChangedVersions, ChangedVersions],
    read_view: ReadNear,
    span: tuple[int, int],
) -> _NearbyRows:
    """Return the rows near the changes of tables that are joined on a foreign key."""
    unit, (on, key) = tuple(form.unit.values()), (side.key for side in form.join.sides)
    naming = inputs[0].read_near(span, list_changed(on, (changed[1], key)))
    needed = list_hulls(
        unit,
        [(rows, unit) for rows in (*changed[0].sides, naming)],
        lambda units: (changed[0].find_periods(units[:2]), read_periods(naming, units[2])),
    )
    lefts = inputs[0].read_near(span, needed)
    current = read_view(span, needed.rename_columns(tuple(form.unit)))
    _, start, end = read_periods(lefts, np.zeros(lefts.num_rows, np.int64))
    return _NearbyRows(lefts, inputs[1].read_near(span, list_among(key, Needs(lefts, on, start, end))), current)


def _affect_by_key(form: JoinIncrement, left: ChangedVersions, right: ChangedVersions, near: _NearbyRows) -> _Affected:
    """Return what changes affect in a join of tables on their keys."""
    unit, key = tuple(form.unit.values()), form.join.sides[1].key
    (*keys, lefts, rights, current), count = integer_encoding.encode_keys(
        [*left.sides, *right.sides, *near],
        [unit, unit, key, key, unit, key, tuple(form.unit)],
        whole=None,
    )
    learnt = hulls.build_hulls(count, left.find_periods(keys[:2]), right.find_periods(keys[2:]))
    return _Affected(learnt, lefts, rights, current, learnt.touch(read_periods(near.right, rights)))


def _affect_by_foreign_key(
    form: JoinIncrement, left: ChangedVersions, right: ChangedVersions, near: _NearbyRows
) -> _Affected:
    """Return what changes affect in a join on a foreign key."""
    unit, (on, key) = tuple(form.unit.values()), (side.key for side in form.join.sides)
    (*keys, lefts, current), count = integer_encoding.encode_keys(
        [*left.sides, near.left, near.current], [unit, unit, unit, tuple(form.unit)], whole=None
    )
    (*others, rights, named), many = integer_encoding.encode_keys(
        [*right.sides, near.right, near.left], [key, key, key, on], whole=form.join.whole
    )
    changed = hulls.build_hulls(many, right.find_periods(others))
    # rule: a foreign key is affected by what it names
    naming = hulls.intersect_hulls(read_periods(near.left, named), changed, lefts)
    learnt = hulls.build_hulls(count, left.find_periods(keys), naming)
    asked = hulls.build_hulls(many, hulls.intersect_hulls(read_periods(near.left, lefts), learnt, named))
    none = np.full(near.right.num_rows, NOTHING)
    return _Affected(learnt, lefts, none, current, asked.touch(read_periods(near.right, rights)))


def _carry_hulls(join: JoinSpec) -> JoinSpec:
    """Return a join of versions whose rows also have the bounds of their hull, as either side has them."""
    carried = {f"{name}{side}": (side, name) for side in range(2) for name in BOUNDS}
    return replace(join, columns={**join.columns, **carried})


def _join_bounds(joined: pa.Table) -> pa.Table:
    """Return joined rows with the bounds of their hulls, which either side has."""
    for name in BOUNDS:
        joined = joined.append_column(name, pc.coalesce(*(joined.column(f"{name}{side}") for side in range(2))))
    return joined


def project_joined(join: JoinSpec, rows: pa.Table) -> pa.Table:
    """Return the view's rows of joined ones; these as they are if their expressions are Spark's to evaluate."""
    if join.projection is None:
        return rows.select([*join.columns, *join.periods])
    return arrow_expressions.project_rows(join.projection, rows)


def _number_changes(join: JoinSpec, side: int, rows: ChangedRows, key: Sequence[str]) -> ChangedVersions:
    """Return the versions of an input that have changed, by the columns of their keys."""
    columns = dict.fromkeys((*join.sides[side].key, *join.sides[side].columns))
    content = [column for column in columns if column not in join.sides[side].periods]
    return number_versions(rows.closed, rows.opened, key, content)


def drop_duplicates(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return the first of the rows that are equal in these columns."""
    (keys,), _ = integer_encoding.encode_keys([rows], [columns], whole=None)
    return rows.take(pa.array(np.unique(keys, return_index=True)[1]))


def concat_rows(*parts: pa.Table) -> pa.Table:
    """Return all rows in one piece, with one dictionary for each column."""
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()
