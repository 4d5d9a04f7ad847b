"""The versioned store (KIP-889): puts, and look-ups of the latest version or of the one valid at a time.

Source: docs/kafka-parity.md, rules 1-11. The store knows in advance which times each key can have
(`assign_slots`), so that a version is a slot, and the next one is found in a few steps whatever the order of the puts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop
from hindcast.streams.slot_index import empty_index, find_at_or_above, find_at_or_below, is_taken, rank_rows, take_slot

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers

REJECTED = -(2**63)
"""The code of a put that came too late."""

UNLIMITED = 2**61
"""An unlimited history retention."""


class StoreState(NamedTuple):
    """The versions in a store, by key and time; a `value` of NOTHING ends the version before.

    `latest`: the version is its key's latest; all others are boundaries. `stream_time`: that of each partition.
    Times in ms.
    """

    key: Integers
    time: Integers
    value: Integers
    latest: Booleans
    stream_time: Integers


class TimeSlots(NamedTuple):
    """The times that each key can have: those of key k are time[first[k]:first[k + 1]], ascending."""

    time: Integers
    first: Integers


class VersionedStore(NamedTuple):
    """An open store. `latest` is the slot of a key's latest version, or NOTHING; `boundaries` indexes all others.

    `home` is the partition of each key: a partition has a store of its own, with its own stream time.
    """

    home: Integers
    slots: TimeSlots
    boundaries: Booleans
    value: Integers
    latest: Integers
    latest_value: Integers
    stream_time: Integers


def empty_store_state(partitions: int = 1) -> StoreState:
    """Return the state of a store without versions."""
    none = np.empty(0, np.int64)
    return StoreState(none, none, none, np.empty(0, np.bool_), np.full(partitions, NOTHING))


def assign_slots(key: Integers, time: Integers, keys: int) -> tuple[TimeSlots, Integers]:
    """Return the slots of keys and times, and the slot of each. `keys`: the number of key codes."""
    slot, row = rank_rows(key, time)
    return TimeSlots(time[row], np.searchsorted(key[row], np.arange(keys + 1))), slot


def open_store(state: StoreState, key: Integers, time: Integers, home: Integers) -> tuple[VersionedStore, Integers]:
    """Return a store with the versions of `state`, and the slots of the keys and times to be put or looked up.

    `home`: the partition of each key.
    """
    keys = len(home)
    slots, slot = assign_slots(np.concatenate((state.key, key)), np.concatenate((state.time, time)), keys)
    store = VersionedStore(
        home,
        slots,
        empty_index(len(slots.time)),
        np.full(len(slots.time), NOTHING),
        np.full(keys, NOTHING),
        np.full(keys, NOTHING),
        state.stream_time.copy(),
    )
    _load_versions(store, state.key, slot[: len(state.key)], state.value, state.latest)
    return store, slot[len(state.key) :]


def snapshot_store(store: VersionedStore, retention: int) -> StoreState:
    """Return the versions of a store that a put or a look-up can still find. `retention` in ms."""
    rows = _snapshot_rows(store, retention)
    return StoreState(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] > 0, store.stream_time)


@compile_loop
def put_version(store: VersionedStore, key: int, slot: int, value: int, retention: int) -> int:
    """Put a version; return REJECTED, NOTHING if it is the latest, or the time of the key's next version.

    docs/kafka-parity.md, rules 1, 2 and 10.
    """
    time = store.slots.time
    home = store.home[key]
    if time[slot] < store.stream_time[home] - retention:  # rule: a put at T - R is taken
        return REJECTED
    store.stream_time[home] = max(store.stream_time[home], time[slot])  # rule: tombstones move stream time
    latest = store.latest[key]
    if latest == NOTHING or slot < latest:  # rule: a put at the latest's own time is in order
        following = find_at_or_above(store.boundaries, slot + 1)
        if following > (latest if latest != NOTHING else store.slots.first[key + 1] - 1):
            following = NOTHING
        if following == NOTHING and latest == NOTHING:
            if value != NOTHING:
                store.latest[key], store.latest_value[key] = slot, value
            else:
                _add_boundary(store, slot, NOTHING)
            return NOTHING
        if following == NOTHING:
            following = latest
        take_slot(store.boundaries, slot)
        store.value[slot] = value
        _add_boundary(store, following, NOTHING)
        return int(time[following])  # rule: a put out of order returns the time of the version after it
    if slot > latest:
        take_slot(store.boundaries, latest)
        store.value[latest] = store.latest_value[key]
        _add_boundary(store, slot, NOTHING)  # rule: the end of the version before is kept
    # At the latest's own time no boundary marks its end: such a tombstone is forgotten (rule 10).
    store.latest[key] = slot if value != NOTHING else NOTHING  # rule: a tombstone at the latest's own time is forgotten
    store.latest_value[key] = value
    return NOTHING


@compile_loop
def get_as_of(store: VersionedStore, key: int, slot: int, retention: int) -> tuple[int, int]:
    """Return the value valid at a slot's time and the time from which it is valid; NOTHING for both if there is none.

    docs/kafka-parity.md, rule 6.
    """
    latest = store.latest[key]
    if latest != NOTHING and latest <= slot:  # rule: a look-up finds the latest version past T - R too
        return store.latest_value[key], store.slots.time[latest]
    # rule: a look-up at T - R finds an older version
    if store.slots.time[slot] < store.stream_time[store.home[key]] - retention:
        return NOTHING, NOTHING
    boundary = find_at_or_below(store.boundaries, slot)
    if boundary < store.slots.first[key] or store.value[boundary] == NOTHING:
        return NOTHING, NOTHING
    return store.value[boundary], store.slots.time[boundary]


@compile_loop
def get_latest(store: VersionedStore, key: int) -> tuple[int, int]:
    """Return the latest value and its time; NOTHING for both if there is none (docs/kafka-parity.md, rule 5)."""
    latest = store.latest[key]
    if latest == NOTHING:
        return NOTHING, NOTHING
    return store.latest_value[key], store.slots.time[latest]


@compile_loop
def _add_boundary(store: VersionedStore, slot: int, value: int) -> None:
    """Make a slot a boundary with a value, unless it is one already."""
    if not is_taken(store.boundaries, slot):  # rule: a boundary keeps its value
        take_slot(store.boundaries, slot)
        store.value[slot] = value


@compile_loop
def _load_versions(store: VersionedStore, key: Integers, slot: Integers, value: Integers, latest: Booleans) -> None:
    """Put versions of a state into an empty store."""
    for row in range(len(key)):
        if latest[row]:
            store.latest[key[row]], store.latest_value[key[row]] = slot[row], value[row]
        else:
            _add_boundary(store, slot[row], value[row])


@compile_loop
def _snapshot_rows(store: VersionedStore, retention: int) -> Integers:
    """Return rows of key, time, value and whether it is the latest, by key and time; at equal times the latest is last.

    Of a key's boundaries before the time that the store still answers only the last one matters, and only if it is
    valid at that time.
    """
    rows = np.empty((len(store.slots.time) + len(store.latest), 4), np.int64)
    used = 0
    for key in range(len(store.latest)):
        begun, latest, bound = used, store.latest[key], store.stream_time[store.home[key]] - retention
        for slot in range(store.slots.first[key], store.slots.first[key + 1]):
            if is_taken(store.boundaries, slot):
                time = store.slots.time[slot]
                if time <= bound:  # rule: what is valid at T - R is kept
                    used = begun
                if time >= bound or store.value[slot] != NOTHING:  # rule: tombstones are kept
                    rows[used] = key, time, store.value[slot], 0
                    used += 1
            if slot == latest:
                if store.slots.time[slot] <= bound and not is_taken(store.boundaries, slot):
                    used = begun
                rows[used] = key, store.slots.time[slot], store.latest_value[key], 1
                used += 1
    return rows[:used]
