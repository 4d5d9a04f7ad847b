"""Suppression of a table until a time limit (KTableSuppressProcessor; docs/kafka-parity.md, rules 62-65).

`P` is the largest timestamp of the updates so far. It is known for all updates of a run in advance; so when a key's
first update is buffered, the update that will release it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop
from hindcast.streams.records import Records

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


class SuppressState(NamedTuple):
    """The keys in the buffer in the order of their release: place and last update of each; `largest`: P."""

    place: Integers
    update: Records
    largest: int


class SuppressedUpdates(NamedTuple):
    """The released updates, in order. `update` is the update's own order, `cause` that of the one releasing it."""

    cause: Integers
    update: Integers
    key: Integers
    value: Integers
    timestamp: Integers


def empty_suppress_state() -> SuppressState:
    """Return the state before the first run."""
    none = np.empty(0, np.int64)
    return SuppressState(none, Records(none, none, none, none), NOTHING)


def suppress_updates(updates: Records, limit: int, state: SuppressState) -> tuple[SuppressedUpdates, SuppressState]:
    """Return the updates released when each key waits for `limit` milliseconds of stream time, and the state after."""
    updates = updates.take(updates.key != NOTHING)
    largest = np.maximum.accumulate(np.append(state.largest, updates.timestamp))  # rule: P lasts over runs
    every = Records(*(np.concatenate(pair) for pair in zip(state.update, updates, strict=True)))
    place = np.append(state.place, updates.timestamp)
    known = state.place.size
    let_out = np.searchsorted(largest[1:] - limit, place)  # rule: an update waits until P reaches the limit
    first, final = _find_buffer_stays(np.unique(every.key, return_inverse=True)[1], let_out, known)
    cause = np.maximum(let_out[first], first - known)
    rows = np.lexsort((every.key[final], place[first], cause))  # rule: a later update keeps the place
    first, final, cause = first[rows], final[rows], cause[rows]
    out = cause < updates.key.size  # rule: tombstones come out
    released, remaining = every.take(final[out]), every.take(final[~out])
    return SuppressedUpdates(updates.order[cause[out]], *released), SuppressState(
        place[first[~out]], remaining, int(largest[-1])
    )


@compile_loop
def _find_buffer_stays(key: Integers, let_out: Integers, known: int) -> tuple[Integers, Integers]:
    """Return the first and last update of each stay of a key in the buffer; it has those before `known` already."""
    stay = np.full(key.max() + 1 if key.size else 0, NOTHING)
    first, final, used = np.empty_like(key), np.empty_like(key), 0
    for update in range(key.size):
        of = stay[key[update]]
        if of == NOTHING or max(let_out[first[of]], first[of] - known) < update - known:
            stay[key[update]] = of = used
            first[of] = update
            used += 1
        final[of] = update
    return first[:used], final[:used]
