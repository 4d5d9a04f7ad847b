"""Late events: which events came after one of their windows, or a session of their time, had closed.

An event is judged by stream time: the latest timestamp that its partition had reached with it (`windows.judge_events`
in `bitemporal` says what that means). Tasks summarize blocks of offsets; that is enough to see that nearly all blocks
have no late event. Of the others they give the events, and those are judged one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.common.jit import NOTHING
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.engine import integer_encoding, operators
from hindcast.engine.spec import EventSpec, SessionSpec, SlidingSpec, TimeSlice, WindowSpec

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

OFFSETS_PER_BLOCK = 1000
BLOCK_SCHEMA = "partition int, block bigint, earliest bigint, latest bigint, events bigint"
"""A block of offsets: the first and the last timestamp in it, in microseconds, and the number of its events."""
EVENT_SCHEMA = "partition int, offset bigint, at bigint"
NO_LATE_EVENTS = pa.table(
    {"partition": pa.array([], pa.int32()), **dict.fromkeys(("offset", "first", "reached"), pa.array([], pa.int64()))}
)


def summarize_blocks(form: EventSpec, span: TimeSlice, members: pa.Table) -> pa.Table:
    """Return the blocks (`BLOCK_SCHEMA`) of the events of a slice that count; `members` as for `aggregate_windows`."""
    events = _add_blocks(_list_events(form, span, members))
    found = events.group_by(["partition", "block"]).aggregate([("at", "min"), ("at", "max"), ("at", "count")])
    return found.rename_columns({"at_min": "earliest", "at_max": "latest", "at_count": "events"}).select(_BLOCK_COLUMNS)


_BLOCK_COLUMNS = [column.split()[0] for column in BLOCK_SCHEMA.split(", ")]


def find_doubtful_blocks(form: EventSpec, blocks: pa.Table) -> pa.Table:
    """Return the blocks that may have a late event: `partition`, `block`, `events`, and stream time `before` them.

    `blocks`: of all slices. `before` is null if no event of the partition is before the block.
    """
    every = blocks.group_by(["partition", "block"]).aggregate(
        [("earliest", "min"), ("latest", "max"), ("events", "sum")]
    )
    every = every.sort_by([("partition", "ascending"), ("block", "ascending")])
    partition, latest = (every.column(name).to_numpy() for name in ("partition", "latest_max"))
    through = _accumulate(latest, partition)
    before = np.append(0, through[:-1])[: len(through)]
    doubtful = every.append_column("before", pa.array(before, mask=_find_firsts(partition))).filter(
        pa.array(_is_late(form, every.column("earliest_min").to_numpy(), through))
    )
    return doubtful.select(["partition", "block", "events_sum", "before"]).rename_columns({"events_sum": "events"})


def pick_events(form: EventSpec, span: TimeSlice, members: pa.Table, blocks: pa.Table) -> pa.Table:
    """Return the events (`EVENT_SCHEMA`) of a slice that count and lie in some blocks."""
    events, place = _add_blocks(_list_events(form, span, members)), ["partition", "block"]
    return events.join(blocks.select(place), place, join_type="left semi").drop(["block"])


def find_late_events(form: EventSpec, events: pa.Table, blocks: pa.Table) -> pa.Table:
    """Return the late ones of all events of some blocks (`find_doubtful_blocks`) as their specification has them.

    hopping 10 ms by 5 ms, no grace    @12, @8, @3    ->    @8: 5, @3: null
    """
    events = _add_blocks(events).join(blocks.select(["partition", "block", "before"]), ["partition", "block"])
    events = events.sort_by([("partition", "ascending"), ("offset", "ascending")])
    partition, block, at = (events.column(name).to_numpy() for name in ("partition", "block", "at"))
    own = _accumulate(at, partition * (block.max(initial=0) + 1) + block)
    # rule: an event is judged by what came before it
    reached = np.maximum(own, events.column("before").fill_null(-(2**63)).to_numpy())
    return _select_late_events(form, events, reached)


def judge_events(form: EventSpec, members: pa.Table) -> pa.Table:
    """Return the late ones of all events from a moment on, as their specification has them."""
    events = _list_events(form, TimeSlice(), members)
    events = events.sort_by([("partition", "ascending"), ("offset", "ascending")])
    return _select_late_events(
        form, events, _accumulate(*(events.column(name).to_numpy() for name in ("at", "partition")))
    )


def _select_late_events(form: EventSpec, events: pa.Table, stream_time: Integers) -> pa.Table:
    """Return the late ones of events, given the stream time of each."""
    at = events.column("at").to_numpy()
    late = events.select(["partition", "offset"]).append_column("reached", pa.array(stream_time))
    if isinstance(form, WindowSpec):
        late = late.append_column("first", _find_open_windows(form, at, stream_time))
    return late.filter(pa.array(_is_late(form, at, stream_time)))


def match_rows(late: pa.Table, rows: pa.Table) -> tuple[Integers, Integers]:
    """Return the numbers of the rows that are late events, and their numbers among these."""
    partition, offset = (rows.column(name).to_numpy() for name in PLACE_COLUMNS)
    late_partition, late_offset = (late.column(name).to_numpy() for name in ("partition", "offset"))
    none = np.zeros(0, np.int64)
    found, places = [none], [none]
    for number in np.unique(late_partition):
        own = np.flatnonzero(late_partition == number)
        own = own[np.argsort(late_offset[own])]
        events = np.flatnonzero(partition == number)
        at = np.minimum(np.searchsorted(late_offset[own], offset[events]), len(own) - 1)
        is_late = late_offset[own[at]] == offset[events]
        found.append(events[is_late])
        places.append(own[at[is_late]])
    return np.concatenate(found), np.concatenate(places)


def _find_open_windows(form: WindowSpec, at: Integers, stream_time: Integers) -> pa.Array:
    """Return the start of the first window that takes each event at a stream time; null if none does."""
    last_start = at - at % form.advance
    still_open = (stream_time - form.grace - form.size) // form.advance * form.advance + form.advance
    # rule: a closed window takes no event
    is_taken = (last_start >= 0) & (stream_time - (last_start + form.size) < form.grace)
    return pa.array(np.maximum(find_first_starts(form, at), still_open), mask=~is_taken)


def _list_events(form: EventSpec, span: TimeSlice, members: pa.Table) -> pa.Table:
    """Return place and time of the events that count."""
    counts, at = find_counted_events(form, span, members)
    places = (members.column(name).filter(pa.array(counts)) for name in PLACE_COLUMNS)
    return pa.table([*places, pa.array(at[counts])], ["partition", "offset", "at"])


def find_counted_events(form: EventSpec, span: TimeSlice, members: pa.Table) -> tuple[Booleans, Integers]:
    """Return which events count, those in the slice with a group and a value, and the times of all."""
    (group,), _ = integer_encoding.encode_keys([members], [form.key], whole=form.whole)
    at = integer_encoding.encode_timestamps(members.column("timestamp"))
    has_value = operators.find_counted_rows(form.measures, members).any(axis=0)
    # rule: an event without a group or a value moves no stream time
    counts: Booleans = (group != NOTHING) & has_value & operators.find_rows_in_slice(span, at)
    return counts, at


def _add_blocks(events: pa.Table) -> pa.Table:
    return events.append_column("block", pc.divide(events.column("offset"), OFFSETS_PER_BLOCK))


def _is_late(form: EventSpec, at: Integers, stream_time: Integers) -> Booleans:
    """Return whether the first window that an event may be in had closed at a stream time, or a session of its own.

    Of sliding windows all have then closed.
    """
    late: Booleans = np.zeros(len(at), np.bool_)
    if isinstance(form, WindowSpec):
        late = stream_time - find_first_starts(form, at) >= form.size + form.grace
    elif isinstance(form, SlidingSpec | SessionSpec):
        # rule: a sliding window closes by its end, a session with its gap
        late = stream_time - at > form.length + form.grace
    return late


def find_first_starts(form: WindowSpec, at: Integers) -> Integers:
    """Return the start of the first window that each event may be in, whether it has closed or not."""
    begun = (at - form.size) // form.advance * form.advance + form.advance
    # rule: no window starts before 1970
    first: Integers = np.maximum(begun, 0)
    return first


def _find_firsts(groups: Integers) -> Booleans:
    """Return whether each is the first of a run of equal groups."""
    firsts: Booleans = np.append(True, groups[1:] != groups[:-1])[: len(groups)]
    return firsts


def _accumulate(values: Integers, groups: Integers) -> Integers:
    """Return the largest value so far in each run of equal groups."""
    starts = np.flatnonzero(_find_firsts(groups))
    parts = [np.maximum.accumulate(part) for part in np.split(values, starts[1:])] if len(values) else [values]
    return np.concatenate(parts)
