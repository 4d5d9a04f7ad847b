"""Increments of aggregates in windows: the windows of the groups that get new events, aggregated anew.

The input only gets events that come after all others of their partition, so no earlier event is judged otherwise. An
event is judged by stream time, so by events dated after it: all those are read, of all groups, that are dated from the
start of the first window concerned on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from hindcast.contract.shapes import PERIODS
from hindcast.engine import (
    hulls,
    integer_encoding,
    late_events,
    operators,
    session_operator,
    window_operator,
)
from hindcast.engine.hulls import Periods
from hindcast.engine.increment_rows import (
    ChangedRows,
    Comparison,
    LeftOutRows,
    ReadNear,
    compare_nothing,
    list_hulls,
    read_moments,
)
from hindcast.engine.spec import EventSpec, SessionSpec, SlidingSpec, TimeSlice, WindowIncrement, WindowSpec
from hindcast.engine.sweeps import FOREVER
from hindcast.engine.task import RefusalError

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


def refresh_windows(form: WindowIncrement, source: ChangedRows, read_view: ReadNear, *, is_here: bool) -> Comparison:
    """Return the affected rows of an aggregate in windows.

    RefusalError if events of the input are gone: then others may be judged otherwise.
    """
    events = form.events
    if source.closed.num_rows:
        raise RefusalError(f"{source.closed.num_rows} events of {events.side.uri} are gone")
    added = _list_members(events, source.opened)
    is_counted, at = late_events.find_counted_events(events, TimeSlice(), added)
    new, at = added.filter(pa.array(is_counted)), at[is_counted]
    low, high = _span_windows(events, at)
    is_possible = low <= high  # no window takes an event before 1970
    new, low, high = new.filter(pa.array(is_possible)), low[is_possible], high[is_possible]
    if not new.num_rows:
        return compare_nothing(form, _count_left_out(events, added, 0, is_here=is_here))
    needed = list_hulls(events.key, [(new, events.key)], lambda groups: [Periods(groups[0], low, high)])
    current = read_view((int(low.min()), int(high.max())), needed)
    begun, ended = _read_windows(events, current)
    since = int(min(low.min(), begun.min(initial=FOREVER))) - events.reach[0]
    near = _list_members(events, source.read_near((since, FOREVER)))
    events = replace(events, late=late_events.judge_events(events, near))
    (changed, units, members), count = integer_encoding.encode_keys(
        [new, current, near], [events.key] * 3, whole=events.whole
    )
    learnt = hulls.build_hulls(count, Periods(changed, low, high))
    touching = learnt.touch(Periods(units, begun, ended))
    # rule: sessions are joined with those that were near
    hull = learnt.include_periods(Periods(units, begun, ended).select(touching))
    moments = read_moments(near, "timestamp")
    before, after = events.reach
    # rule: a window is aggregated of all its events
    rows = near.filter(pa.array(hull.touch(Periods(members, moments - after, moments + before))))
    too_late = 0
    if isinstance(events, SessionSpec):
        derived = session_operator.aggregate_sessions(events, rows).rows
        too_late = len(late_events.match_rows(session_operator.list_refused_events(events, rows), new)[0])
    else:
        found = window_operator.aggregate_windows(events, TimeSlice(), rows, is_here=is_here)
        derived = _select_windows(events, found.rows, new)
    columns = [derived.column(name).cast(form.output.types.field(name).type) for name in form.columns]
    derived = pa.table(columns, list(form.columns))
    left_out = _count_left_out(events, added, too_late, is_here=is_here)
    return Comparison(current.filter(pa.array(touching)), derived, left_out, ((new, events.key),))


def _list_members(form: EventSpec, rows: pa.Table) -> pa.Table:
    """Return group, arguments, place and timestamp of the events that pass the view's condition."""
    if form.projection is None:
        raise RefusalError("expressions of the view are Spark's to evaluate")
    return operators.project_members(form.projection, form.measures, rows)


def _span_windows(form: EventSpec, at: Integers) -> tuple[Integers, Integers]:
    """Return the first and the last start of the windows of each event; of a session how far its neighbours may be."""
    if isinstance(form, WindowSpec):
        return late_events.find_first_starts(form, at), at - at % form.advance
    if isinstance(form, SlidingSpec):
        return at - form.difference, at + form.tick
    gap = form.gap if isinstance(form, SessionSpec) else 0
    return at - gap, at + gap


def _read_windows(form: EventSpec, rows: pa.Table) -> tuple[Integers, Integers]:
    """Return what `_span_windows` is compared with, of current rows: their starts, and of sessions their ends."""
    start, end = (read_moments(rows, name) for name in PERIODS["windows"])
    return start, end if isinstance(form, SessionSpec) else start


def _select_windows(form: EventSpec, rows: pa.Table, new: pa.Table) -> pa.Table:
    """Return the derived rows whose window may have one of the new events."""
    (own, changed), count = integer_encoding.encode_keys([rows, new], [form.key] * 2, whole=form.whole)
    learnt = hulls.build_hulls(count, Periods(changed, *_span_windows(form, read_moments(new, "timestamp"))))
    starts = read_moments(rows, "windowStart")
    return rows.filter(pa.array(learnt.touch(Periods(own, starts, starts))))


def _count_left_out(form: EventSpec, added: pa.Table, too_late: int, *, is_here: bool) -> LeftOutRows:
    """Return what of added events is left out; `too_late`: of those in sessions."""
    if isinstance(form, SessionSpec):
        found = session_operator.aggregate_sessions(replace(form, late=late_events.NO_LATE_EVENTS), added)
    elif isinstance(form, WindowSpec | SlidingSpec):
        found = window_operator.aggregate_windows(form, TimeSlice(), added, is_here=is_here)
        too_late = found.too_late
    return LeftOutRows(found.no_key, found.no_value, too_late, found.reached)
