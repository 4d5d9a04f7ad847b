"""Events that are judged otherwise because others came at offsets before theirs, or are gone.

An event is judged by stream time: the latest timestamp that its partition had reached with it. An event moves it only
if none before it had that timestamp or a later one, and only up to the next one that has. Those in between are read.

    offsets 0 to 3    @10, @12, @5, @13    ->    without @12, @5 is judged by @10
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import late_events, operators
from hindcast.engine.increment_rows import Needs, ReadNear, list_among, read_moments
from hindcast.engine.spec import TimeSlice, WindowIncrement
from hindcast.engine.sweeps import FOREVER
from hindcast.engine.task import RefusalError
from hindcast.store.closing import find_matching_rows

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

MAX_DOUBTFUL = 1_000_000
"""The most offsets between events that moved stream time and the next ones that do."""


def find_rejudged_events(
    form: WindowIncrement, moved: pa.Table, gone: pa.Table, new: pa.Table, read_near: ReadNear
) -> pa.Table:
    """Return the events, as members, that are judged otherwise, and are neither `gone` nor `new`: those that count.

    `moved`: those of `gone` and `new` that may move stream time (`find_moved_events`). RefusalError if they may be
    too many, or if the latest event of a partition is gone.
    """
    if not moved.num_rows:
        return moved
    rows = _read_members(form, read_near, int(read_moments(moved, "timestamp").min()))
    _refuse_lost_stream_time(form, gone, rows)
    stable = rows.filter(pa.array(~_are_at(rows, new)))
    doubtful = _list_doubtful_places(moved, stable, form.ends)
    if not doubtful.num_rows:
        return moved.slice(0, 0)
    last = read_moments(moved, "timestamp").max()
    since = np.full(doubtful.num_rows, -FOREVER)
    needed = list_among(PLACE_COLUMNS, Needs(doubtful, PLACE_COLUMNS, since, np.full(doubtful.num_rows, last)))
    found = list_members(form, read_near((-FOREVER, int(last)), needed))
    found = found.filter(pa.array(_are_at(found, doubtful) & ~_are_at(found, new)))
    found = select_counted_events(form, found)
    if not found.num_rows:
        return found
    first = int(read_moments(found, "timestamp").min())
    rows = _read_members(form, read_near, first)
    before = restore_events(rows, new, gone, first)
    judged = late_events.find_judged_otherwise(form.events, before, rows)
    return rows.filter(pa.array(_are_at(rows, judged) & ~_are_at(rows, new)))


def find_moved_events(form: WindowIncrement, gone: pa.Table, new: pa.Table) -> pa.Table:
    """Return the events that may move stream time for others: those that are gone, and new ones before known offsets.

    None of an event that has only changed its values.
    """
    columns = [*PLACE_COLUMNS, "timestamp"]
    lost = gone.filter(pa.array(~find_matching_rows(gone, new, columns))) if gone.num_rows else gone
    partition, offset = (new.column(name).to_numpy() for name in PLACE_COLUMNS)
    inserted = new.filter(pa.array(offset < _find_ends(partition, form.ends)))
    if inserted.num_rows and gone.num_rows:
        inserted = inserted.filter(pa.array(~find_matching_rows(inserted, gone, columns)))
    return pa.concat_tables([lost, inserted])


def restore_events(rows: pa.Table, new: pa.Table, gone: pa.Table, first: int) -> pa.Table:
    """Return rows as they were before a change: all that are dated from a moment on."""
    then = gone.filter(pa.array(read_moments(gone, "timestamp") >= first))
    return pa.concat_tables([rows.filter(pa.array(~_are_at(rows, new))), then.select(rows.column_names)])


def list_members(form: WindowIncrement, rows: pa.Table) -> pa.Table:
    """Return group, arguments, place and timestamp of the events that pass the view's condition."""
    if form.events.projection is None:
        raise RefusalError("expressions of the view are Spark's to evaluate")
    return operators.project_members(form.events.projection, form.events.measures, rows)


def select_counted_events(form: WindowIncrement, members: pa.Table) -> pa.Table:
    """Return the members that have a group and a value."""
    is_counted, _ = late_events.find_counted_events(form.events, TimeSlice(), members)
    return members.filter(pa.array(is_counted))


def _read_members(form: WindowIncrement, read_near: ReadNear, first: int) -> pa.Table:
    """Return the events that count from a moment on."""
    return select_counted_events(form, list_members(form, read_near((first, FOREVER))))


def _are_at(rows: pa.Table, places: pa.Table) -> Booleans:
    """Return which rows are at the places of others."""
    found: Booleans = find_matching_rows(rows, places, PLACE_COLUMNS)
    return found


def _find_ends(partition: Integers, ends: Mapping[int, int]) -> Integers:
    """Return for each partition the offset behind the last one that was known."""
    every, place = np.unique(partition, return_inverse=True)
    known: Integers = np.array([ends.get(int(number), 0) for number in every], np.int64)
    return known[place]


def _refuse_lost_stream_time(form: WindowIncrement, gone: pa.Table, rows: pa.Table) -> None:
    """Raise RefusalError if an event is gone that was the latest of its partition."""
    partition, at = rows.column(PLACE_COLUMNS[0]).to_numpy(), read_moments(rows, "timestamp")
    places, moments = gone.column(PLACE_COLUMNS[0]).to_numpy(), read_moments(gone, "timestamp")
    for number in np.unique(places):
        if moments[places == number].max() > at[partition == number].max(initial=-FOREVER):
            raise RefusalError(f"the latest event of partition {number} of {form.events.side.uri} is gone")


def _list_doubtful_places(moved: pa.Table, stable: pa.Table, ends: Mapping[int, int]) -> pa.Table:
    """Return the places whose stream time may have changed: from each moved event that was ahead of all before it, to
    the next one that is as late.

    `stable`: all other events from the first of these on.
    """
    partition, offset = (moved.column(name).to_numpy() for name in PLACE_COLUMNS)
    others, offsets = (stable.column(name).to_numpy() for name in PLACE_COLUMNS)
    at, moments = (read_moments(rows, "timestamp") for rows in (moved, stable))
    parts, total = [], 0
    for number in np.unique(partition):
        own, rows = partition == number, np.flatnonzero(others == number)
        rows = rows[np.argsort(offsets[rows])]
        reached = np.maximum.accumulate(moments[rows])
        following = np.searchsorted(reached, at[own])
        # rule: an event moves stream time up to the next one that is as late
        until = np.append(offsets[rows], ends.get(int(number), 0))[following]
        is_ahead = until > offset[own] + 1
        begin, end = _join_ranges(offset[own][is_ahead] + 1, until[is_ahead])
        total += int((end - begin).sum())
        if total > MAX_DOUBTFUL:
            raise RefusalError(f"stream time has changed for more than {MAX_DOUBTFUL:,} offsets")
        places = [np.arange(*pair) for pair in zip(begin, end, strict=True)]
        parts += [(number, np.concatenate(places))] if places else []
    numbers = np.concatenate([np.empty(0, np.int64), *(np.full(len(places), number) for number, places in parts)])
    found = np.concatenate([np.empty(0, np.int64), *(places for _, places in parts)])
    types = [moved.schema.field(name).type for name in PLACE_COLUMNS]
    columns = [pa.array(values).cast(kind) for values, kind in zip((numbers, found), types, strict=True)]
    return pa.table(columns, names=list(PLACE_COLUMNS))


def _join_ranges(begin: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Return ranges, each up to before its end, so that none meets another."""
    order = np.argsort(begin)
    begin, end = begin[order], np.maximum.accumulate(end[order])
    is_first = np.append(True, begin[1:] > end[:-1])[: len(begin)]
    is_last = np.append(is_first[1:], True)[: len(begin)]
    return begin[is_first], end[is_last]
