"""The fates of the records of a segment, as `fates.decide_fates` has them, from the stream time before it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.bitemporal.fates import is_too_old
from hindcast.bitemporal.intervals import format_micros
from hindcast.ingest.arrivals import ArrivalRule, judge_arrivals, set_column

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

_NEVER = np.iinfo(np.int64).min
_MOMENT = pa.timestamp("us", "UTC")


class FateRule(NamedTuple):
    """The history retention in microseconds, None for no limit, how the reason of an expired record begins, and how
    arrivals are judged, None for a topic without.
    """

    retention: int | None
    expiry_reason: str
    arrival: ArrivalRule | None = None


class SegmentStart(NamedTuple):
    """The stream time before the first record of a segment, and the arrival of the record before it.

    In microseconds since 1970; None if there was none.
    """

    stream_time: int | None = None
    arrival: int | None = None


class ExpiredRecords(NamedTuple):
    """How many records of a segment expire whatever the stream time before it, and the earliest of the others.

    In microseconds since 1970; None if there is no other one whose fate is undecided.
    """

    expired: int
    earliest: int | None


def find_expired_records(records: pa.Table | pa.RecordBatch, rule: FateRule) -> ExpiredRecords:
    """Return which records of a segment expire by the others; the arguments are those of `decide_fates`.

    retention 10 ms    @20 @40 @29    one, and the earliest of the others @20
    """
    timestamps, undecided = _read_moments(records)
    _, expired = _judge_records(timestamps, undecided, None, rule)
    others = timestamps[undecided & ~expired]
    return ExpiredRecords(int(expired.sum()), int(others.min()) if len(others) else None)


def may_more_expire(rule: FateRule, stream_time: int | None, earliest: int | None) -> bool:
    """Return whether more records of a segment expire than by itself, given the stream time before it and the
    `earliest` of the others; in microseconds since 1970.

        retention 10 ms, stream time 30 ms    earliest at 20 ms: no    at 19 ms: yes
    """
    if rule.retention is None or earliest is None or stream_time is None:
        return False
    # rule: the stream time before a segment makes the earliest record expire first
    return bool(is_too_old(np.array([stream_time]), np.array([earliest]), rule.retention)[0])


def decide_fates(records: pa.Table, start: SegmentStart, rule: FateRule) -> pa.Table:
    """Return records of a partition in offset order with their `fate`, `reason` and `streamTime`.

    `records` has `timestamp`, `fate` (null = undecided) and `reason`, and of a topic with `arrival` that column
    (`judge_arrivals`). `start`: what the records before them had reached.

        retention 10 ms, stream time 30 ms    @20 accepted    @40 accepted    @29 expired
    """
    if rule.arrival is not None:
        records = judge_arrivals(records, start.arrival, rule.arrival)
    before, expired = _judge_records(*_read_moments(records), start.stream_time, rule)
    stream_times = pa.array(before, mask=before == _NEVER).view(_MOMENT)
    records = set_column(records, "streamTime", stream_times)
    fates = records.column("fate")
    if not expired.any():
        return set_column(records, "fate", fates.fill_null("accepted"))
    records = set_column(records, "fate", pc.coalesce(fates, pc.if_else(pa.array(expired), "expired", "accepted")))
    reasons = np.full(len(before), None)
    reasons[expired] = [f"{rule.expiry_reason}{format_micros(micros)}" for micros in before[expired].tolist()]
    return set_column(records, "reason", pc.coalesce(records.column("reason"), pa.array(reasons, pa.string())))


def _read_moments(records: pa.Table | pa.RecordBatch) -> tuple[Integers, Booleans]:
    """Return the timestamps of records, `_NEVER` for null, and for which no fate is decided."""
    timestamps = records.column("timestamp").cast(pa.int64()).fill_null(_NEVER).to_numpy()
    return timestamps, records.column("fate").is_null().to_numpy(zero_copy_only=False)


def _judge_records(
    timestamps: Integers, undecided: Booleans, stream_time: int | None, rule: FateRule
) -> tuple[Integers, Booleans]:
    """Return the stream time before each record, `_NEVER` if there was none, and which of them expire."""
    # rule: a record whose fate is decided does not move stream time
    moves = np.where(undecided, timestamps, _NEVER)
    # rule: a segment goes on from the stream time before it
    reached = np.concatenate([[_NEVER if stream_time is None else stream_time], moves])
    # rule: a record does not count for its own stream time
    before = np.maximum.accumulate(reached)[:-1]
    expired = np.zeros(len(before), dtype=bool)
    if rule.retention is not None:
        judged = undecided & (before != _NEVER)
        expired[judged] = is_too_old(before[judged], timestamps[judged], rule.retention)
    return before, expired
