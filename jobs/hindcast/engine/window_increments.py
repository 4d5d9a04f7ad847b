"""Increments of aggregates in windows: the windows of the groups whose events have changed, aggregated anew.

An event is judged by stream time, so by events dated after it: all those are read, of all groups, that are dated from
the start of the first window concerned on. Those that are judged otherwise, since others came at offsets before theirs
or are gone, are found before (rejudged_events.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.contract.shapes import PERIODS
from hindcast.engine import (
    hulls,
    integer_encoding,
    late_events,
    rejudged_events,
    session_operator,
    window_operator,
)
from hindcast.engine.hulls import Hulls, Periods
from hindcast.engine.increment_rows import (
    ChangedRows,
    Comparison,
    LeftOutRows,
    ReadNear,
    compare_nothing,
    list_hulls,
    read_moments,
)
from hindcast.engine.join_increments import concat_rows
from hindcast.engine.operators import KernelRows
from hindcast.engine.spec import EventSpec, SessionSpec, SlidingSpec, TimeSlice, WindowIncrement, WindowSpec
from hindcast.engine.sweeps import FOREVER

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


def refresh_windows(form: WindowIncrement, source: ChangedRows, read_view: ReadNear, *, is_here: bool) -> Comparison:
    """Return the affected rows of an aggregate in windows.

    RefusalError if the latest event of a partition is gone, or if too many may be judged otherwise.
    """
    events = form.events
    closed, opened = (rejudged_events.list_members(form, rows) for rows in (source.closed, source.opened))
    gone, new = (rejudged_events.select_counted_events(form, rows) for rows in (closed, opened))
    moved = rejudged_events.find_moved_events(form, gone, new)
    rejudged = rejudged_events.find_rejudged_events(form, moved, gone, new, source.read_near)
    changed = concat_rows(gone, new, rejudged)
    low, high = _span_windows(events, read_moments(changed, "timestamp"))
    is_possible = low <= high  # no window takes an event before 1970
    spans = _Spans(changed.filter(pa.array(is_possible)), low[is_possible], high[is_possible])
    change = _MemberChange(concat_rows(closed, rejudged), concat_rows(opened, rejudged))
    if not spans.rows.num_rows:
        return compare_nothing(form, _count_left_out(events, (events.late, events.late), change, is_here=is_here))
    sides = (closed, opened) if closed.num_rows or moved.num_rows else None
    nearby = _read_nearby(form, spans, source.read_near, read_view, sides)
    while isinstance(events, SessionSpec) and sides and (wider := _include_chains(events, nearby, spans, closed)):
        spans = wider
        nearby = _read_nearby(form, spans, source.read_near, read_view, sides)
    current, near = nearby.current, nearby.near
    (of, units, members, own), count = integer_encoding.encode_keys(
        [spans.rows, current, near, closed], [events.key] * 4, whole=events.whole
    )
    learnt = hulls.build_hulls(count, Periods(of, spans.low, spans.high))
    windows = Periods(units, *_read_windows(events, current))
    touching = learnt.touch(windows)
    # rule: sessions are joined with those that were near
    hull = learnt.include_periods(windows.select(touching))
    rows = near.filter(pa.array(_find_within(events, hull, near, members)))
    if isinstance(events, SessionSpec):
        derived = session_operator.aggregate_sessions(replace(events, late=nearby.now), rows).rows
        lost = closed.filter(pa.array(_find_within(events, hull, closed, own)))
        before = rejudged_events.restore_events(rows, opened, lost, nearby.since)
        refused = [
            session_operator.list_refused_events(replace(events, late=late), members).num_rows
            for late, members in ((nearby.then, before), (nearby.now, rows))
        ]
        change = change._replace(too_late=refused[1] - refused[0])
    else:
        form_now = replace(events, late=nearby.now)
        found = window_operator.aggregate_windows(form_now, TimeSlice(), rows, is_here=is_here)
        derived = _select_windows(events, found.rows, spans)
    columns = [derived.column(name).cast(form.output.types.field(name).type) for name in form.columns]
    derived = pa.table(columns, list(form.columns))
    left_out = _count_left_out(events, (nearby.then, nearby.now), change, is_here=is_here)
    return Comparison(current.filter(pa.array(touching)), derived, left_out, ((spans.rows, events.key),))


class _Spans(NamedTuple):
    """Rows with keys of groups, and for each the first and the last moment of what may be affected (`_span_windows`).

    `margin`: how much earlier than that members are read.
    """

    rows: pa.Table
    low: Integers
    high: Integers
    margin: int = 0


class _NearbyMembers(NamedTuple):
    """The view's current rows near what has changed; all members from a moment on; and the late ones as they are `now`,
    and as they were `then`.
    """

    current: pa.Table
    since: int
    near: pa.Table
    now: pa.Table
    then: pa.Table


class _MemberChange(NamedTuple):
    """Members that have changed, or are judged otherwise, as they were before and as they are now.

    `too_late`: how many more of those in sessions no session takes.
    """

    before: pa.Table
    now: pa.Table
    too_late: int = 0


def _read_nearby(
    form: WindowIncrement,
    spans: _Spans,
    read_near: ReadNear,
    read_view: ReadNear,
    sides: tuple[pa.Table, pa.Table] | None,
) -> _NearbyMembers:
    """Return what is near some spans. `sides`: the members closed and opened; None if they only came behind others."""
    events = form.events
    needed = list_hulls(
        events.key, [(spans.rows, events.key)], lambda groups: [Periods(groups[0], spans.low, spans.high)]
    )
    current = read_view((int(spans.low.min()), int(spans.high.max())), needed)
    begun, _ = _read_windows(events, current)
    since = int(min(spans.low.min(), begun.min(initial=FOREVER))) - events.reach[0] - spans.margin
    near = rejudged_events.list_members(form, read_near((since, FOREVER)))
    now = then = late_events.judge_events(events, near)
    if sides is not None:
        closed, opened = sides
        before = rejudged_events.restore_events(near, opened, closed, since)
        then = late_events.judge_events(events, before)
    return _NearbyMembers(current, since, near, now, then)


def _include_chains(form: SessionSpec, nearby: _NearbyMembers, spans: _Spans, closed: pa.Table) -> _Spans | None:
    """Return spans that have all events that may be in a session with those near them, late ones too; None if they do.

    A late event that a session takes now, and did not before, may connect others with it.
    """
    if not nearby.now.num_rows + nearby.then.num_rows:
        return None
    chains = session_operator.list_chains(form, concat_rows(nearby.near, closed))
    (of, units, chained), count = integer_encoding.encode_keys(
        [spans.rows, nearby.current, chains], [form.key] * 3, whole=form.whole
    )
    learnt = hulls.build_hulls(count, Periods(of, spans.low, spans.high))
    sessions = Periods(units, *_read_windows(form, nearby.current))
    hull = learnt.include_periods(sessions.select(learnt.touch(sessions)))
    begun, ended = _read_windows(form, chains)
    low, high = begun - form.gap, ended + form.gap
    is_near = hull.touch(Periods(chained, begun, ended))
    # rule: a session may have all events that are the gap apart
    is_wider = is_near & ((low < learnt.low[chained]) | (high > learnt.high[chained]))
    is_cut = bool((low[is_near] < nearby.since).any())
    if not is_cut and not is_wider.any():
        return None
    rows = concat_rows(spans.rows.select(form.key), chains.select(form.key).filter(pa.array(is_wider)))
    low, high = np.append(spans.low, low[is_wider]), np.append(spans.high, high[is_wider])
    return _Spans(rows, low, high, 2 * spans.margin + form.gap if is_cut else spans.margin)


def _find_within(
    form: WindowSpec | SlidingSpec | SessionSpec, hull: Hulls, members: pa.Table, keys: Integers
) -> Booleans:
    """Return which members are in a window of the hull of their group."""
    moments = read_moments(members, "timestamp")
    before, after = form.reach
    # rule: a window is aggregated of all its events
    return hull.touch(Periods(keys, moments - after, moments + before))


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


def _select_windows(form: EventSpec, rows: pa.Table, spans: _Spans) -> pa.Table:
    """Return the derived rows whose window may have one of the events that have changed."""
    (own, changed), count = integer_encoding.encode_keys([rows, spans.rows], [form.key] * 2, whole=form.whole)
    learnt = hulls.build_hulls(count, Periods(changed, spans.low, spans.high))
    starts = read_moments(rows, "windowStart")
    return rows.filter(pa.array(learnt.touch(Periods(own, starts, starts))))


def _count_left_out(
    form: WindowSpec | SlidingSpec | SessionSpec,
    late: tuple[pa.Table, pa.Table],
    change: _MemberChange,
    *,
    is_here: bool,
) -> LeftOutRows:
    """Return how many more members are left out, given the late ones before and now."""
    before, now = (_aggregate_members(form, *of, is_here=is_here) for of in zip(late, change, strict=False))
    counts = (getattr(now, kind) - getattr(before, kind) for kind in ("no_key", "no_value", "too_late"))
    no_key, no_value, too_late = counts
    return LeftOutRows(no_key, no_value, too_late + change.too_late, now.reached)


def _aggregate_members(
    form: WindowSpec | SlidingSpec | SessionSpec, late: pa.Table, members: pa.Table, *, is_here: bool
) -> KernelRows:
    """Return the aggregate of members alone; no session refuses one."""
    if isinstance(form, SessionSpec):
        return session_operator.aggregate_sessions(form, members)
    return window_operator.aggregate_windows(replace(form, late=late), TimeSlice(), members, is_here=is_here)
