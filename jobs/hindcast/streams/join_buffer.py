"""The grace period of a stream-table join (KIP-923; docs/kafka-parity.md, rules 22-25).

The buffer decides when each stream record is looked up; the join looks it up. `S` is the largest timestamp of the
records put in the buffer. It is known for all records of a run in advance, so no loop is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams.records import Records

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


class BufferState(NamedTuple):
    """The records in the buffer, in order of arrival, and S."""

    records: Records
    largest: int


class ReleasedRecords(NamedTuple):
    """Stream records in the order in which they are looked up, each while the record `cause` is processed.

    `failed` is the order of the record on which Kafka Streams fails, NOTHING if there is none. Nothing is released
    after it.
    """

    cause: Integers
    records: Records
    failed: int


def empty_buffer() -> BufferState:
    """Return the state before the first run."""
    none = np.empty(0, np.int64)
    return BufferState(Records(none, none, none, none), NOTHING)


def release_records(records: Records, grace: int, how: str, state: BufferState) -> tuple[ReleasedRecords, BufferState]:
    """Return the records that the buffer of an `inner` or `left` join releases, and what stays in it.

    A record that is late by more than `grace` milliseconds is looked up at once, and so is one that is due on arrival.
    An inner join drops null keys; a left join with a grace period fails on them (without one it takes them).
    """
    records = records.take(records.value != NOTHING)  # rule: an event without a value does not move S
    nameless = np.flatnonzero(records.key == NOTHING)
    failed = NOTHING
    if how == "inner":
        records = records.take(records.key != NOTHING)
    elif nameless.size:  # rule: a left join with a grace period fails on null keys
        failed = int(records.order[nameless[0]])
        records = records.take(slice(nameless[0]))

    largest = np.maximum.accumulate(np.append(state.largest, records.timestamp))  # rule: S lasts over runs
    every = Records(*(np.concatenate(pair) for pair in zip(state.records, records, strict=True)))
    arrival = np.arange(every.key.size) - state.records.key.size
    # rule: an event is released when S reaches its grace period
    at = np.maximum(np.searchsorted(largest[1:] - grace, every.timestamp), arrival)
    stays = at == records.key.size
    # rule: events are released by timestamp, key, arrival
    rows = np.lexsort((arrival, every.key, every.timestamp, at))[: np.count_nonzero(~stays)]
    out = ReleasedRecords(records.order[at[rows]], every.take(rows), failed)
    return out, BufferState(every.take(stays), int(largest[-1]))
