"""The fates of the records of a segment, as `fates.decide_fates` has them, from the stream time before it alone."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hindcast.bitemporal.fates import is_too_old
from hindcast.bitemporal.intervals import format_micros

_NEVER = np.iinfo(np.int64).min
_MOMENT = pa.timestamp("us", "UTC")


class FateRule(NamedTuple):
    """The history retention in microseconds, None for no limit, and how the reason of an expired record begins."""

    retention: int | None
    expiry_reason: str


def may_expire(rule: FateRule, stream_time: int | None, earliest: int | None, latest: int | None) -> bool:
    """Return whether one of some records may expire, given the stream time before the first of them and the bounds of
    their timestamps, None if all of their fates are decided; in microseconds since 1970.

        retention 10 ms, stream time 30 ms    records from 20 ms on: no    from 19 ms on: maybe
    """
    if rule.retention is None or earliest is None or latest is None:
        return False
    # rule: no record is older than the earliest at a stream time later than the latest
    reached = latest if stream_time is None else max(stream_time, latest)
    return bool(is_too_old(np.array([reached]), np.array([earliest]), rule.retention)[0])


def decide_fates(records: pa.Table, stream_time: int | None, rule: FateRule) -> pa.Table:
    """Return records of a partition in offset order with their `fate`, `reason` and `streamTime`.

    `records` has `timestamp`, `fate` (null = undecided) and `reason`. `stream_time`: that before the first of them, in
    microseconds since 1970, None if there was none.

        retention 10 ms, stream time 30 ms    @20 accepted    @40 accepted    @29 expired
    """
    timestamps = records.column("timestamp").cast(pa.int64()).fill_null(_NEVER).to_numpy()
    undecided = records.column("fate").is_null().to_numpy(zero_copy_only=False)
    # rule: a record whose fate is decided does not move stream time
    moves = np.where(undecided, timestamps, _NEVER)
    # rule: a segment goes on from the stream time before it
    reached = np.concatenate([[_NEVER if stream_time is None else stream_time], moves])
    # rule: a record does not count for its own stream time
    before = np.maximum.accumulate(reached)[:-1]
    known = before != _NEVER
    expired = np.zeros(len(before), dtype=bool)
    if rule.retention is not None:
        judged = undecided & known
        expired[judged] = is_too_old(before[judged], timestamps[judged], rule.retention)
    stream_times = pa.array(before, mask=~known).view(_MOMENT)
    records = _set_column(records, "streamTime", stream_times)
    fates = records.column("fate")
    if not expired.any():
        return _set_column(records, "fate", fates.fill_null("accepted"))
    records = _set_column(records, "fate", pc.coalesce(fates, pc.if_else(pa.array(expired), "expired", "accepted")))
    reasons = np.full(len(before), None)
    reasons[expired] = [f"{rule.expiry_reason}{format_micros(micros)}" for micros in before[expired].tolist()]
    return _set_column(records, "reason", pc.coalesce(records.column("reason"), pa.array(reasons, pa.string())))


def _set_column(records: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    if name in records.column_names:
        return records.set_column(records.column_names.index(name), name, values)
    return records.append_column(name, values)
