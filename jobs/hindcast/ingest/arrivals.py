"""When the records of a topic with `arrival` could be known, and which are dated too far from it.

Along a partition, in offset order, arrival never goes back: a record has the latest of its own and those before it, and
one without has that of the record before it. An arrival later than a run can know of counts as none. It is decided
once, when a run ingests the record, and is in the log; `max_time_skew` goes by it, so fates do not depend on how
records were divided into runs.

    arrival 10, none, 8, 12    ->    10, 10, 10, 12
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.bitemporal import valid_time
from hindcast.bitemporal.intervals import LAST_MICROS, to_micros
from hindcast.contract import Topic, arrival
from hindcast.formats import dating
from hindcast.formats.reasons import state

if TYPE_CHECKING:
    from hindcast.common.jit import Integers

COLUMN = "arrival"
BEGINNING = to_micros(valid_time.FIRST_MOMENT)
"""The arrival of a record if neither it nor any before it has one; its time skew is not judged."""
_MOMENT = pa.timestamp("us", "UTC")


class ArrivalRule(NamedTuple):
    """The latest arrival that a run takes, and how far after and before its arrival a record may be dated, None for no
    limit; in microseconds. `needs_broker`: whether Kafka's timestamps must be the broker's.
    """

    latest: int
    after: int
    before: int | None
    needs_broker: bool


class ArrivalFacts(NamedTuple):
    """What is known of the arrivals of a segment's records by themselves: that of the first record and the latest one,
    None for none; how many were `ahead` of the run; and the offset of the first record whose timestamp should be the
    broker's and is the producer's.
    """

    first_arrival: int | None = None
    latest_arrival: int | None = None
    ahead: int = 0
    created: int | None = None


def build_rule(topic: Topic, latest: int) -> ArrivalRule | None:
    """Return how the arrivals of a topic's records are judged; None for a topic without. `latest`: as the run's."""
    if topic.arrival is None:
        return None
    skew = topic.time_skew
    after, before = (None if it is None else round(it.total_seconds() * 1_000_000) for it in (skew.after, skew.before))
    return ArrivalRule(latest, min(after or 0, LAST_MICROS), before, arrival.needs_broker_time(topic))


def find_facts(records: pa.Table | pa.RecordBatch, rule: ArrivalRule) -> ArrivalFacts:
    """Return what is known of the arrivals of a segment's records, which are in offset order."""
    own = records.column(COLUMN).cast(pa.int64())
    is_ahead = pc.greater(own, rule.latest).fill_null(False)
    taken = pc.if_else(is_ahead, pa.scalar(None, pa.int64()), own)
    created = None
    if rule.needs_broker:
        offsets = records.column("offset").filter(pc.equal(records.column("timestampType"), 0))
        created = offsets[0].as_py() if len(offsets) else None
    return ArrivalFacts(taken[0].as_py(), pc.max(taken).as_py(), pc.sum(is_ahead, min_count=0).as_py(), created)


def are_moved(first_arrival: int | None, reached: int | None) -> bool:
    """Return whether records of a segment have other arrivals than by themselves, given that of the record before."""
    return reached is not None and (first_arrival is None or reached > first_arrival)


def judge_arrivals(records: pa.Table, reached: int | None, rule: ArrivalRule) -> pa.Table:
    """Return records of a partition in offset order with their `arrival`, and with `time_skew` where it says so.

    `records`: `timestamp`, `arrival` (their own, null for none), `fate` (null = undecided) and `reason`. `reached`: the
    arrival of the record before the first, in microseconds since 1970; None if there was none.

        reached 10    own 12, none, 8    ->    12, 12, 12
    """
    arrivals = _find_arrivals(records, reached, rule)
    timestamps, fates = records.column("timestamp").cast(pa.int64()), records.column("fate")
    is_judged = pc.and_(fates.is_null(), pa.array(arrivals > BEGINNING))
    latest, earliest = _limit_times(arrivals, rule)
    is_beyond = pc.or_(pc.greater(timestamps, latest), pc.less(timestamps, earliest))
    records = set_column(records, COLUMN, pa.array(arrivals).view(_MOMENT))
    if not pc.any(is_refused := pc.and_(is_judged, is_beyond)).as_py():
        return records
    at = pc.if_else(is_refused, timestamps, pa.scalar(None, pa.int64()))
    reasons = dating.describe_skew(at, latest, earliest, valid_time.ARRIVAL)
    records = set_column(records, "fate", pc.coalesce(fates, state(is_refused, "time_skew")))
    return set_column(records, "reason", pc.coalesce(records.column("reason"), reasons))


def _find_arrivals(records: pa.Table | pa.RecordBatch, reached: int | None, rule: ArrivalRule) -> Integers:
    """Return the arrivals of records, in microseconds since 1970; the arguments are those of `judge_arrivals`."""
    own = records.column(COLUMN).cast(pa.int64()).fill_null(BEGINNING).to_numpy().copy()
    # rule: an arrival that the run cannot know of is none
    own[own > rule.latest] = BEGINNING
    # rule: arrival goes on from the record before
    before = BEGINNING if reached is None else reached
    # rule: along a partition arrival never goes back
    return np.maximum.accumulate(np.maximum(own, before))


def _limit_times(arrivals: Integers, rule: ArrivalRule) -> tuple[pa.Array, pa.Array]:
    """Return the latest and the earliest time that each record may have."""
    # No arrival is beyond the years that tables hold, so neither sum overflows.
    latest = np.minimum(arrivals + rule.after, LAST_MICROS)
    earliest = np.full(len(arrivals), BEGINNING)
    if rule.before is not None:
        earliest = np.maximum(arrivals - min(rule.before, LAST_MICROS), BEGINNING)
    return pa.array(latest), pa.array(earliest)


def set_column(records: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return records with a column, in the place of one of its name."""
    if name in records.column_names:
        return records.set_column(records.column_names.index(name), name, values)
    return records.append_column(name, values)
