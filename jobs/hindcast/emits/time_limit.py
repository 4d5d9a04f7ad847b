"""Suppression of a table until a time limit (KTableSuppressProcessor; conformance README, of the same name).

`P` is the largest timestamp of the updates so far, and known for all of a run's updates beforehand. So it is known as
soon as a key's first update is buffered which update will let it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled
from hindcast.emits.records import Records

if TYPE_CHECKING:
    from hindcast.compiled import Integers


class Kept(NamedTuple):
    """The keys in the buffer, in the order in which they come out: their places and last updates; and P."""

    place: Integers
    update: Records
    largest: int


class Emitted(NamedTuple):
    """What comes out, in order. `update` is the order of the update that it is."""

    cause: Integers
    update: Integers
    key: Integers
    value: Integers
    timestamp: Integers


def nothing_kept() -> Kept:
    none = np.empty(0, np.int64)
    return Kept(none, Records(none, none, none, none), NOTHING)


def suppress(updates: Records, limit: int, kept: Kept) -> tuple[Emitted, Kept]:
    """What comes out when each key's changes wait for `limit` milliseconds of stream time, and what is kept."""
    updates = Records(*(column[updates.key != NOTHING] for column in updates))
    largest = np.maximum.accumulate(np.append(kept.largest, updates.timestamp))
    every = Records(*(np.concatenate(pair) for pair in zip(kept.update, updates, strict=True)))
    place = np.append(kept.place, updates.timestamp)
    known = kept.place.size
    let_out = np.searchsorted(largest[1:] - limit, place)
    first, final = _stays(np.unique(every.key, return_inverse=True)[1], let_out, known)
    cause = np.maximum(let_out[first], first - known)
    rows = np.lexsort((every.key[final], place[first], cause))
    first, final, cause = first[rows], final[rows], cause[rows]
    out = cause < updates.key.size
    come = Records(*(column[final[out]] for column in every))
    stay = Records(*(column[final[~out]] for column in every))
    return Emitted(updates.order[cause[out]], *come), Kept(place[first[~out]], stay, int(largest[-1]))


@compiled
def _stays(key: Integers, let_out: Integers, known: int) -> tuple[Integers, Integers]:
    """The first and the last update of each stay of a key in the buffer. Those before `known` are there already."""
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
