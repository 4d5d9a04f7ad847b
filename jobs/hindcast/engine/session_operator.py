"""The aggregate of events in sessions on Arrow tables, for all events of some groups.

It is the second implementation of `windows.aggregate_windows` in `bitemporal`, which says what the operator means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.contract.shapes import PERIODS, PLACE_COLUMNS
from hindcast.engine import integer_encoding, late_events, operators, sweeps, window_operator
from hindcast.engine.operators import KernelRows
from hindcast.engine.spec import SessionSpec, TimeSlice
from hindcast.store.tables import ARROW_TIMESTAMP

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


def aggregate_sessions(form: SessionSpec, rows: pa.Table) -> KernelRows:
    """Return the aggregate in sessions, given all rows of some groups (`EventSpec`), in any order.

    OverflowError if a sum is too large for its type.

        gap 10 ms    @3: 5, @12: 1, @30: 2    sum    ->    [3, 12]: 6, [30, 30]: 2
    """
    (group,), count = integer_encoding.encode_keys([rows], [form.key], whole=form.whole)
    counted = operators.find_counted_rows(form.measures, rows)
    at = integer_encoding.encode_timestamps(rows.column("timestamp"))
    has_key, has_value = group != NOTHING, counted.any(axis=0)
    is_member = has_key & has_value
    is_late = np.zeros(len(at), np.bool_)
    is_late[_find_refused_rows(form, rows, group, at, is_member)] = True
    members = np.flatnonzero(is_member & ~is_late)
    members = members[np.argsort(at[members], kind="stable")]  # nearly sorted, as the tasks have read them
    members = members[sweeps.group_by_key(group[members], count)[0]]
    session = np.cumsum(_find_starts(form, at[members], group[members])) - 1
    firsts = np.flatnonzero(np.diff(session, prepend=-1))
    lasts = np.append(firsts[1:], len(members))[: len(firsts)] - 1
    columns = {name: integer_encoding.take_values(rows.column(name), members[firsts]) for name in form.key}
    for n, name in enumerate(form.measures):
        which = counted[n, members]
        columns[name] = window_operator.aggregate_measure(form, rows, name, members[which], session[which], len(firsts))
    columns |= _list_periods(at[members], firsts, lasts)
    reached = window_operator.find_latest(rows.filter(pa.array(is_member)))
    no_key, no_value = np.count_nonzero(~has_key), np.count_nonzero(has_key & ~has_value)
    return KernelRows(pa.table(columns), int(no_key), int(no_value), int(np.count_nonzero(is_late)), reached)


def list_refused_events(form: SessionSpec, rows: pa.Table) -> pa.Table:
    """Return the `partition` and `offset` of the events that no session takes, in this order.

    `rows`: all of some groups.
    """
    (group,), _ = integer_encoding.encode_keys([rows], [form.key], whole=form.whole)
    is_member, at = late_events.find_counted_events(form, TimeSlice(), rows)
    refused = pa.array(_find_refused_rows(form, rows, group, at, is_member), pa.int64())
    return late_events.sort_by_place(rows.select(PLACE_COLUMNS).take(refused).rename_columns(["partition", "offset"]))


def list_chains(form: SessionSpec, rows: pa.Table) -> pa.Table:
    """Return the sessions that rows would form if none were refused: the columns of the key and the periods."""
    (group,), _ = integer_encoding.encode_keys([rows], [form.key], whole=form.whole)
    is_member, at = late_events.find_counted_events(form, TimeSlice(), rows)
    members = np.flatnonzero(is_member)
    members = members[np.lexsort((at[members], group[members]))]
    firsts = np.flatnonzero(_find_starts(form, at[members], group[members]))
    lasts = np.append(firsts[1:], len(members))[: len(firsts)] - 1
    columns = {name: integer_encoding.take_values(rows.column(name), members[firsts]) for name in form.key}
    return pa.table(columns | _list_periods(at[members], firsts, lasts))


def _list_periods(at: Integers, firsts: Integers, lasts: Integers) -> dict[str, pa.Array]:
    """Return the periods of sessions, given the times of all members, and the first and the last of each."""
    # rule: a session lasts from its first event to its last
    places = zip(PERIODS["windows"], (firsts, lasts), strict=True)
    return {name: integer_encoding.decode_timestamps(at[ends], ARROW_TIMESTAMP) for name, ends in places}


def _find_starts(form: SessionSpec, at: Integers, *groups: Integers) -> Booleans:
    """Return whether each event, in the order of groups and times, is the first of a session if none is refused."""
    # rule: sessions the gap apart are one
    starts: Booleans = np.diff(at, prepend=at[:1]) > form.gap
    starts[:1] = True
    for of in groups:
        starts[1:] |= of[1:] != of[:-1]
    return starts


def _find_refused_rows(
    form: SessionSpec, rows: pa.Table, group: Integers, at: Integers, is_member: Booleans
) -> list[int]:
    """Return the numbers of the rows that no session takes, since the one that they would be in has closed.

    Were none refused, the events of a group and a partition would form certain sessions. Whatever is refused, events of
    different ones of these never meet; so only those with a late event are gone through, each in the order of offsets.
    """
    reached = np.full(len(at), np.iinfo(np.int64).min)
    late, places = late_events.match_rows(form.late, rows)
    if not len(late):
        return []
    reached[late] = form.late.column("reached").to_numpy()[places]
    partition, offset = (rows.column(name).to_numpy() for name in PLACE_COLUMNS)
    members = np.flatnonzero(is_member)
    # rule: partitions judge apart
    members = members[np.lexsort((at[members], partition[members], group[members]))]
    session = np.cumsum(_find_starts(form, at[members], group[members], partition[members])) - 1
    doubtful = np.isin(session, session[np.isin(members, late)])
    members, session = members[doubtful], session[doubtful]
    order = np.lexsort((offset[members], session))
    members, session = members[order], session[order]
    refused: list[int] = []
    for history in np.split(members, np.flatnonzero(np.diff(session)) + 1):
        refused += _judge_history(form, history.tolist(), at, reached)
    return refused


def _judge_history(form: SessionSpec, history: list[int], at: Integers, reached: Integers) -> list[int]:
    """Return the rows that are refused of those of one doubtful session, in the order of their offsets."""
    sessions: list[tuple[int, int]] = []
    refused = []
    for row in history:
        moment = int(at[row])
        met = [it for it in sessions if it[0] - form.gap <= moment <= it[1] + form.gap]
        low, high = min([moment, *(it[0] for it in met)]), max([moment, *(it[1] for it in met)])
        # rule: an event is late with its session
        if high >= int(reached[row]) - form.grace - form.gap:
            sessions = [*(it for it in sessions if it not in met), (low, high)]
        else:
            refused.append(row)
    return refused
