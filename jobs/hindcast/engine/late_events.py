"""Late events: which events came after one of their windows, or a session of their time, had closed.

An event is judged by stream time: the latest timestamp that its partition had reached with it (`windows.judge_events`
in `bitemporal` says what that means). Slices divide time, so the tasks go through their events up to three times: they
summarize blocks of offsets; of these they give the events that are late if all of their block came first; and for each
of those, the latest timestamp between it and the one before it.
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
from hindcast.store.closing import find_matching_rows

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

OFFSETS_PER_BLOCK = 1000
BLOCK_SCHEMA = "partition int, block bigint, earliest bigint, latest bigint"
"""A block of offsets: the first and the last timestamp in it, in microseconds."""
EVENT_SCHEMA = "partition int, offset bigint, at bigint"
LATEST_SCHEMA = "number bigint, latest bigint"
"""The number of a doubtful event, and the latest timestamp from the one before it, in its partition, up to it."""
NO_LATE_EVENTS = pa.table(
    {"partition": pa.array([], pa.int32()), **dict.fromkeys(("offset", "first", "reached"), pa.array([], pa.int64()))}
)


def summarize_blocks(form: EventSpec, span: TimeSlice, members: pa.Table) -> pa.Table:
    """Return the blocks (`BLOCK_SCHEMA`) of the events of a slice that count; `members` as for `aggregate_windows`."""
    events = _add_blocks(_list_events(form, span, members))
    found = events.group_by(["partition", "block"]).aggregate([("at", "min"), ("at", "max")])
    return found.rename_columns({"at_min": "earliest", "at_max": "latest"}).select(_BLOCK_COLUMNS)


_BLOCK_COLUMNS = [column.split()[0] for column in BLOCK_SCHEMA.split(", ")]


def find_doubtful_blocks(form: EventSpec, blocks: pa.Table) -> pa.Table:
    """Return the blocks that may have a late event: `partition`, `block`, and the stream time `reached` with them.

    `blocks`: of all slices.
    """
    every = blocks.group_by(["partition", "block"]).aggregate([("earliest", "min"), ("latest", "max")])
    every = every.sort_by([("partition", "ascending"), ("block", "ascending")])
    partition, latest = (every.column(name).to_numpy() for name in ("partition", "latest_max"))
    reached = _accumulate(latest, partition)
    is_doubtful = _is_late(form, every.column("earliest_min").to_numpy(), reached)
    return every.select(["partition", "block"]).append_column("reached", pa.array(reached)).filter(is_doubtful)


def pick_doubtful_events(form: EventSpec, span: TimeSlice, members: pa.Table, blocks: pa.Table) -> pa.Table:
    """Return the events (`EVENT_SCHEMA`) of a slice that are late if all of their block came before them.

    `blocks`: the doubtful ones.
    """
    events = _add_blocks(_list_events(form, span, members)).join(blocks, ["partition", "block"], join_type="inner")
    # rule: an event is late at most by what its block reached
    is_doubtful = _is_late(form, events.column("at").to_numpy(), events.column("reached").to_numpy())
    return events.filter(pa.array(is_doubtful)).select(_EVENT_COLUMNS)


_EVENT_COLUMNS = [column.split()[0] for column in EVENT_SCHEMA.split(", ")]


def sort_by_place(events: pa.Table) -> pa.Table:
    """Return events in the order of their partitions and offsets, by which doubtful ones are numbered."""
    return events.sort_by([("partition", "ascending"), ("offset", "ascending")])


def find_latest_before(form: EventSpec, span: TimeSlice, members: pa.Table, doubtful: pa.Table) -> pa.Table:
    """Return for doubtful events (`sort_by_place`) the latest of the events in a slice that lead up to them.

    As `LATEST_SCHEMA` has it. An event leads up to the next doubtful one of its partition, and that one to itself.
    """
    events = _list_events(form, span, members)
    number = _find_next_listed(doubtful, *(events.column(name).to_numpy() for name in ("partition", "offset")))
    found = pa.table({"number": number, "latest": events.column("at")}).filter(pa.array(number != NOTHING))
    return found.group_by("number").aggregate([("latest", "max")]).rename_columns({"latest_max": "latest"})


def judge_doubtful_events(form: EventSpec, doubtful: pa.Table, latest: pa.Table) -> pa.Table:
    """Return the late ones of all doubtful events (`sort_by_place`) as their specification has them.

    `latest`: of all slices (`find_latest_before`).

    hopping 10 ms by 5 ms, no grace    @12, @8, @3    ->    @8: 5, @3: null
    """
    found = latest.group_by("number").aggregate([("latest", "max")]).sort_by("number")
    # rule: an event is judged by what came before it
    reached = _accumulate(found.column("latest_max").to_numpy(), doubtful.column("partition").to_numpy())
    return _select_late_events(form, doubtful, reached)


def find_judged_otherwise(form: EventSpec, before: pa.Table, now: pa.Table) -> pa.Table:
    """Return the places of the events that are late only before or only now, or otherwise late than before.

    `before`, `now`: all events from a moment on, as they were and as they are.
    """
    judged = judge_events(form, before), judge_events(form, now)
    columns = judged[0].column_names
    parts = [
        own.filter(pa.array(~find_matching_rows(own, other, columns))).select(["partition", "offset"])
        for own, other in (judged, judged[::-1])
    ]
    return pa.concat_tables(parts).rename_columns(PLACE_COLUMNS)


def judge_events(form: EventSpec, members: pa.Table) -> pa.Table:
    """Return the late ones of all events from a moment on, as their specification has them."""
    events = sort_by_place(_list_events(form, TimeSlice(), members))
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
    """Return the numbers of the rows that are late events, and their numbers among these (`sort_by_place`)."""
    partition, offset = (rows.column(name).to_numpy() for name in PLACE_COLUMNS)
    number = _find_next_listed(late, partition, offset)
    listed = np.append(late.column("offset").to_numpy(), -1)[number]  # of NOTHING the last
    found = np.flatnonzero(listed == offset)
    return found, number[found]


def _find_next_listed(listed: pa.Table, partition: Integers, offset: Integers) -> Integers:
    """Return the number of the first of some events that is at each place or after it in its partition; else NOTHING.

    `listed`: as `sort_by_place` has them.
    """
    next_ = np.full(len(partition), NOTHING)
    listed_partition, listed_offset = (listed.column(name).to_numpy() for name in ("partition", "offset"))
    numbers, firsts = np.unique(listed_partition, return_index=True)
    lasts = np.append(firsts[1:], len(listed_offset))[: len(firsts)]
    for own, low, high in zip(numbers, firsts, lasts, strict=True):
        rows = np.flatnonzero(partition == own)
        places = low + np.searchsorted(listed_offset[low:high], offset[rows])
        next_[rows] = np.where(places < high, places, NOTHING)
    return next_


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
    has_key = ~integer_encoding.find_null_keys(members, form.key, whole=form.whole)
    at = integer_encoding.encode_timestamps(members.column("timestamp"))
    has_value = operators.find_counted_rows(form.measures, members).any(axis=0)
    # rule: an event without a group or a value moves no stream time
    counts: Booleans = has_key & has_value & operators.find_rows_in_slice(span, at)
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
