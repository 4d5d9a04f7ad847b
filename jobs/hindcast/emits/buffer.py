"""The grace period of a stream-table join (KIP-923; conformance README, "Stream-table join").

It says when each stream record is looked up; the look-up is the join's. `S` is the largest timestamp of the records
that were put in the buffer, and is known for all of a run's records beforehand: no loop is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.emits.records import Records

if TYPE_CHECKING:
    from hindcast.compiled import Integers


class Kept(NamedTuple):
    """The records in the buffer, by arrival, and S."""

    records: Records
    largest: int


class Released(NamedTuple):
    """Stream records in the order in which they are looked up, each while the record `cause` is processed.

    `failed` is the order of the record at which Kafka Streams fails, NOTHING if it does not. Nothing comes after it.
    """

    cause: Integers
    records: Records
    failed: int


def nothing_kept() -> Kept:
    none = np.empty(0, np.int64)
    return Kept(Records(none, none, none, none), NOTHING)


def release(records: Records, grace: int, how: str, kept: Kept) -> tuple[Released, Kept]:
    """Which record of an `inner` or `left` join is looked up when, and what stays in the buffer.

    A record that is late by more than `grace` milliseconds is looked up at once, and so is one that is let out by
    itself. A null key is dropped by an inner join; a left join without a grace period takes it, one with it fails.
    """
    records = _chosen(records, records.value != NOTHING)
    nameless = np.flatnonzero(records.key == NOTHING)
    failed = NOTHING
    if how == "inner":
        records = _chosen(records, records.key != NOTHING)
    elif nameless.size:
        failed = int(records.order[nameless[0]])
        records = _chosen(records, slice(nameless[0]))

    largest = np.maximum.accumulate(np.append(kept.largest, records.timestamp))
    every = Records(*(np.concatenate(pair) for pair in zip(kept.records, records, strict=True)))
    arrival = np.arange(every.key.size) - kept.records.key.size
    at = np.maximum(np.searchsorted(largest[1:] - grace, every.timestamp), arrival)
    stays = at == records.key.size
    rows = np.lexsort((arrival, every.key, every.timestamp, at))[: np.count_nonzero(~stays)]
    out = Released(records.order[at[rows]], _chosen(every, rows), failed)
    return out, Kept(_chosen(every, stays), int(largest[-1]))


def _chosen(records: Records, which: Integers | slice) -> Records:
    return Records(*(column[which] for column in records))
