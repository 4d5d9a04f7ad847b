"""The versioned store (KIP-889): puts, and look-ups of the latest version or of the one valid at a time.

Source: the conformance README, "Versioned store". The store knows in advance which times each key can have (`slots`),
so that a version is a place, and the next one is found in a few steps whatever the order of the puts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled
from hindcast.emits.places import at_or_above, at_or_below, free, is_taken, ranked, take

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers

REJECTED = -(2**63)
"""What a put answers that came too late."""

UNLIMITED = 2**61
"""A history retention without end."""


class Versions(NamedTuple):
    """What a store holds: versions of keys, by key and time; `value` NOTHING ends what was before.

    `latest`: it is its key's latest; all others are boundaries. `reached` is the stream time of each partition.
    """

    key: Integers
    time: Integers
    value: Integers
    latest: Booleans
    reached: Integers


class Slots(NamedTuple):
    """The times that each key can have: those of key k are time[first[k]:first[k + 1]], ascending."""

    time: Integers
    first: Integers


class Store(NamedTuple):
    """A store in work. `latest` is a key's latest version (a slot), or NOTHING; `boundaries` are the slots of others.

    `home` is the partition of each key: a partition has a store of its own, with its own stream time.
    """

    home: Integers
    slots: Slots
    boundaries: Booleans
    value: Integers
    latest: Integers
    latest_value: Integers
    reached: Integers


def empty(partitions: int = 1) -> Versions:
    """Stores without versions."""
    none = np.empty(0, np.int64)
    return Versions(none, none, none, np.empty(0, np.bool_), np.full(partitions, NOTHING))


def slots(key: Integers, time: Integers, keys: int) -> tuple[Slots, Integers]:
    """The slots of some keys and times, and the slot of each."""
    slot, row = ranked(key, time)
    return Slots(time[row], np.searchsorted(key[row], np.arange(keys + 1))), slot


def opened(kept: Versions, key: Integers, time: Integers, home: Integers) -> tuple[Store, Integers]:
    """A store that holds `kept`, and the slots of what will be put or looked up."""
    keys = len(home)
    its_slots, slot = slots(np.concatenate((kept.key, key)), np.concatenate((kept.time, time)), keys)
    store = Store(
        home,
        its_slots,
        free(len(its_slots.time)),
        np.full(len(its_slots.time), NOTHING),
        np.full(keys, NOTHING),
        np.full(keys, NOTHING),
        kept.reached.copy(),
    )
    _load(store, kept.key, slot[: len(kept.key)], kept.value, kept.latest)
    return store, slot[len(kept.key) :]


def held(store: Store, retention: int) -> Versions:
    """What the store holds that a put or a look-up can still meet."""
    rows = _held(store, retention)
    return Versions(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] > 0, store.reached)


@compiled
def put(store: Store, key: int, slot: int, value: int, retention: int) -> int:
    """Puts a version; returns REJECTED, NOTHING if it is the latest, or the time of the key's next version (rules 1, 2,
    10).
    """
    time = store.slots.time
    home = store.home[key]
    if time[slot] < store.reached[home] - retention:
        return REJECTED
    store.reached[home] = max(store.reached[home], time[slot])
    latest = store.latest[key]
    if latest == NOTHING or slot < latest:
        following = at_or_above(store.boundaries, slot + 1)
        if following > (latest if latest != NOTHING else store.slots.first[key + 1] - 1):
            following = NOTHING
        if following == NOTHING and latest == NOTHING:
            if value != NOTHING:
                store.latest[key], store.latest_value[key] = slot, value
            else:
                _bound(store, slot, NOTHING)
            return NOTHING
        if following == NOTHING:
            following = latest
        take(store.boundaries, slot)
        store.value[slot] = value
        _bound(store, following, NOTHING)
        return int(time[following])
    if slot > latest:
        take(store.boundaries, latest)
        store.value[latest] = store.latest_value[key]
        _bound(store, slot, NOTHING)
    # At the latest's own time nothing tells that it has ended: such a tombstone is forgotten (rule 10).
    store.latest[key] = slot if value != NOTHING else NOTHING
    store.latest_value[key] = value
    return NOTHING


@compiled
def look_up(store: Store, key: int, slot: int, retention: int) -> tuple[int, int]:
    """The value valid at a slot's time and the time that it is valid from, NOTHING twice if there is none (rule 6)."""
    latest = store.latest[key]
    if latest != NOTHING and latest <= slot:
        return store.latest_value[key], store.slots.time[latest]
    if store.slots.time[slot] < store.reached[store.home[key]] - retention:
        return NOTHING, NOTHING
    boundary = at_or_below(store.boundaries, slot)
    if boundary < store.slots.first[key] or store.value[boundary] == NOTHING:
        return NOTHING, NOTHING
    return store.value[boundary], store.slots.time[boundary]


@compiled
def get(store: Store, key: int) -> tuple[int, int]:
    """The latest value and its time, NOTHING twice if there is none (rule 5)."""
    latest = store.latest[key]
    if latest == NOTHING:
        return NOTHING, NOTHING
    return store.latest_value[key], store.slots.time[latest]


@compiled
def _bound(store: Store, slot: int, value: int) -> None:
    """Makes a slot a boundary, unless it is one."""
    if not is_taken(store.boundaries, slot):
        take(store.boundaries, slot)
        store.value[slot] = value


@compiled
def _load(store: Store, key: Integers, slot: Integers, value: Integers, latest: Booleans) -> None:
    for row in range(len(key)):
        if latest[row]:
            store.latest[key[row]], store.latest_value[key[row]] = slot[row], value[row]
        else:
            _bound(store, slot[row], value[row])


@compiled
def _held(store: Store, retention: int) -> Integers:
    """Rows of key, time, value and whether it is the latest, by key and time; of equal times the latest last.

    Of a key's boundaries that lie before what the store still answers only the last one counts, and it only if it is
    what is valid then.
    """
    rows = np.empty((len(store.slots.time) + len(store.latest), 4), np.int64)
    used = 0
    for key in range(len(store.latest)):
        begun, latest, bound = used, store.latest[key], store.reached[store.home[key]] - retention
        for slot in range(store.slots.first[key], store.slots.first[key + 1]):
            if is_taken(store.boundaries, slot):
                time = store.slots.time[slot]
                if time <= bound:
                    used = begun
                if time >= bound or store.value[slot] != NOTHING:
                    rows[used] = key, time, store.value[slot], 0
                    used += 1
            if slot == latest:
                if store.slots.time[slot] <= bound and not is_taken(store.boundaries, slot):
                    used = begun
                rows[used] = key, store.slots.time[slot], store.latest_value[key], 1
                used += 1
    return rows[:used]
