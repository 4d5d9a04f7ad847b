"""When decoded records are true, and which times a run accepts (KIP-32), in Arrow's batches.

A record is dated by its topic's `valid_time`, else by Kafka's own timestamp; Kafka's negative ones are none. A record
without a value, of which the expression names a column, is dated by Kafka's own. A change event's own time, `at`, takes
the place of Kafka's.

    valid_time: timestamp_millis(ts)    {"ts": 1000} sent @9: @1    {"ts": null} @9: none    null @9: @9
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.bitemporal import valid_time
from hindcast.bitemporal.intervals import LAST_MICROS, format_micros, to_micros
from hindcast.contract import Topic
from hindcast.contract import valid_time as expression
from hindcast.contract.valid_time import TimeColumn
from hindcast.formats.reasons import state, state_each
from hindcast.formats.record_part import take_field

MOMENT = pa.timestamp("us", "UTC")
_FIRST_MICROS = to_micros(valid_time.FIRST_MOMENT)
_LATEST_CLAMPED = to_micros(valid_time.LATEST_CLAMPED)
_NO_MICROS = pa.scalar(None, pa.int64())


class Dating(NamedTuple):
    """What dates records: a `column`, an expression that Spark computes (`is_computed`), or Kafka's timestamp.

    `needs_value`: only those with a value; `missing`: the reason of a record that it does not date.
    """

    column: TimeColumn | None
    is_computed: bool
    needs_value: bool
    missing: str


class ArrivalSource(NamedTuple):
    """What says when records could be known: a `column`, a `header`, or an expression that Spark computes."""

    column: TimeColumn | None
    header: str | None

    @property
    def is_computed(self) -> bool:
        """Whether Spark computes it."""
        return self.column is None and self.header is None


class TimeBounds(NamedTuple):
    """The times that a run accepts, both included, in microseconds since 1970: of all records, or of each."""

    latest: pa.Array | int
    earliest: pa.Array | int


WITHOUT_SKEW = TimeBounds(LAST_MICROS, _FIRST_MICROS)
"""All times that tables hold."""


def find_time_bounds(topic: Topic, known_at: datetime) -> TimeBounds:
    """Return the times that a run which is known at a moment accepts of a topic."""
    return TimeBounds(*map(to_micros, valid_time.skew_bounds(topic, known_at)))


def plan_dating(topic: Topic) -> Dating:
    """Return what dates a topic's records."""
    if topic.valid_time is None:
        return Dating(None, False, False, valid_time.NO_TIMESTAMP)
    column, missing = expression.find_time_column(topic), valid_time.describe_no_time(topic)
    return Dating(column, column is None, expression.needs_value(topic), missing)


def plan_arrival(topic: Topic) -> ArrivalSource | None:
    """Return what says when a topic's records could be known; None for a topic without `arrival`."""
    if topic.arrival is None:
        return None
    if topic.arrival_header is not None:
        return ArrivalSource(None, topic.arrival_header)
    return ArrivalSource(expression.find_time_column(topic, "arrival"), None)


def read_time_column(column: TimeColumn, sent: pa.Array, key: pa.StructArray, value: pa.StructArray) -> pa.Array:
    """Return the microseconds since 1970 of a column that is a time of records; null for none. `sent`: Kafka's."""
    if column.part is None:
        return pc.if_else(pc.greater_equal(sent, 0), sent, _NO_MICROS)
    struct = key if column.part == "key" else value
    found = take_field(struct, column.name).cast(pa.int64())
    most = ((1 << 63) - 1) // column.micros
    # rule: a time that overflows is none
    held = pc.and_(pc.less_equal(found, most), pc.greater_equal(found, -most - (column.micros == 1)))
    return pc.if_else(held, pc.multiply(pc.if_else(held, found, 0), column.micros), _NO_MICROS)


def date_records(
    how: Dating, found: pa.Array | None, sent: pa.Array, at: pa.Array, has_value: pa.Array
) -> tuple[pa.Array, pa.Array]:
    """Return the valid times of records, null for none, and why they have none; all times in microseconds since 1970.

    `found`: the times by `valid_time`, None for a topic without; `sent`: Kafka's timestamps; `at`: those of change
    events, null for none.
    """
    own = pc.coalesce(at, pc.if_else(pc.greater_equal(sent, 0), sent, _NO_MICROS))  # rule: Kafka's -1 is no time
    if found is None:
        return own, state(own.is_null(), how.missing)
    missing = state(found.is_null(), how.missing)  # rule: a record whose valid_time is null has no time
    if how.needs_value:
        missing = pc.if_else(has_value, missing, state(own.is_null(), valid_time.NO_TIMESTAMP))
        found = pc.if_else(has_value, found, own)  # rule: a tombstone has Kafka's timestamp
    return found, missing  # rule: a valid time may be before 1970


def describe_skew(
    at: pa.Array, latest: pa.Array | int, earliest: pa.Array | int, origin: str = valid_time.KNOWN_AT
) -> pa.Array:
    """Return the reason why the time of a record is not accepted; null if it is. The bounds: of all, or of each.

    `origin`: what they are reckoned from.
    """
    # rule: both bounds of the time skew are taken
    reasons = [
        state(pc.greater(at, LAST_MICROS), valid_time.AFTER_LAST_DAY),
        state(pc.less(at, _FIRST_MICROS), valid_time.BEFORE_FIRST_DAY),
        _describe_bound(pc.greater(at, latest), latest, valid_time.AFTER_LATEST, origin),
        _describe_bound(pc.less(at, earliest), earliest, valid_time.BEFORE_EARLIEST, origin),
    ]
    return pc.coalesce(*reasons)


def clamp_moments(micros: pa.Array) -> pa.Array:
    """Return moments, moved to the bounds of what tables hold (years 1 to 9999)."""
    within = pc.max_element_wise(micros, _FIRST_MICROS, skip_nulls=False)
    return pc.min_element_wise(within, _LATEST_CLAMPED, skip_nulls=False)


def _describe_bound(is_beyond: pa.Array, bound: pa.Array | int, words: tuple[str, str], origin: str) -> pa.Array:
    def describe(place: int) -> str:
        micros = bound if isinstance(bound, int) else bound[place].as_py()
        return format_micros(micros).replace(" ", "T").join(words).format(origin)

    return state_each(is_beyond, describe)
