"""How many records of a run each partition has, and whether more are malformed than the contract allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from hindcast.common.errors import RecordError, show_briefly
from hindcast.contract import Topic
from hindcast.contract.sensitive import REDACTED
from hindcast.formats import limits, mismatch
from hindcast.ingest.segments import Segments

MAX_REASON_LENGTH = 1_000
"""Characters kept of the reason why a record does not decode."""


_SHOWN_KEY = 200
"""Characters shown of a key."""


def count_records(
    segments: Segments,
    place: Callable[[int], str],
    topic: Topic,
    field: str,
    before: Counter[str],
    to_come: int,
    written: str,
    *,
    hidden: bool,
    has_limit: bool = True,
) -> Counter[int]:
    """Return how many records each partition has.

    Raises RecordError if more records of the run are malformed than the contract allows, and it `has_limit`; of a
    share, perhaps only when later offsets turn out to have no record. `place` describes a partition.
    `before`: how many `records` earlier commits of the run added, how many they `refused`, how many were `malformed`,
    and how many had an arrival `ahead` of the run; this adds to it. `to_come`: how many offsets later commits will add:
    a share is one of the whole run.
    `written`: what was written before, for the error; if `hidden`, it shows nothing of a record.
    """
    counts, malformed = Counter[int](), sum(it.malformed for it in segments.starts)
    for it in segments.starts:
        counts[it.partition] += it.records
    before["records"] += counts.total()
    before["malformed"] += malformed
    before["ahead"] += sum(it.ahead for it in segments.starts)
    before["refused"] += sum(it.refused for it in segments.starts) + segments.count_expired()
    total, allowed = before["malformed"], limits.malformed_limit(topic, before["records"] + to_come)
    if total > allowed and has_limit:
        if not malformed:
            raise RecordError(
                f"{total} of the run's records do not decode, and the limit is {allowed}: all are in its earlier "
                "chunks, and too many offsets after them have no record",
                where=field,
                fix=f"let them into quarantine with {field}: {total}; {written}",
            )
        first = segments.find_malformed()
        key = "no key" if first.key is None else f"key {'***' if hidden else _show_key(first.key)}"
        reason = REDACTED if hidden else show_briefly(first.reason, MAX_REASON_LENGTH)
        reason += "" if hidden else mismatch.describe_mismatch(topic, first.value)
        ways = "" if first.reason.startswith("op ") else "fix the columns in the contract, or "
        which = "" if malformed == total else " of this chunk"
        raise RecordError(
            f"{total} of the run's records do not decode, and the limit is {allowed}; the first{which}: {reason}",
            where=f"{place(first.partition)}, offset {first.offset}, {key}",
            fix=f"{ways}let them into quarantine with {field}: {total}; {written}",
        )
    return counts


def _show_key(key: bytes) -> str:
    return key.decode(errors="replace")[:_SHOWN_KEY]
