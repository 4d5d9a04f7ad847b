"""The join of two tables on a foreign key (KIP-213). Source: docs/kafka-parity.md, rules 31-37; KIP-914."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop, ensure_room
from hindcast.streams.slot_index import build_index, find_at_or_above, release_slot, take_slot
from hindcast.streams.table_table import TableJoinResults
from hindcast.streams.tables import JoinSide, TableChanges, look_up_values
from hindcast.streams.versioned import TimeSlots, assign_slots

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class Subscriptions(NamedTuple):
    """The left rows that name a right key, sorted by right key, then left key."""

    names: Integers
    key: Integers
    value: Integers


class SubscriptionHashes(NamedTuple):
    """By row, what shows that a left row has changed before a response for it arrives: the topic record that caused the
    row, the number of repartition topics that it passed, and a hash of its value.
    """

    root: Integers
    hops: Integers
    hash: Integers


def empty_subscriptions() -> Subscriptions:
    """Return the subscriptions before the first run: none."""
    return Subscriptions(*(np.empty(0, np.int64) for _ in range(3)))


def join_foreign_key(
    left: TableChanges,
    right: JoinSide,
    named: Integers,
    how: Literal["inner", "left"],
    state: Subscriptions,
    home: Integers,
    content: SubscriptionHashes | None = None,
) -> tuple[TableJoinResults, Subscriptions]:
    """Return the results of joining the changes of two tables on a foreign key, and the subscriptions after them.

    A change out of order triggers nothing. A right record gives a result for each left row that names its key, in the
    order of the left keys. `named`: the right key that each value names, NOTHING for none; both tables' keys share one
    coding. `home`: the partition of each key. `content`: given where one record can change both tables; a response for
    a left row that has changed since is then discarded.
    """
    # rule: records out of order do not trigger
    lefts, rights = left.where(left.latest), right.changes.where(right.changes.latest)
    names = np.append(named, NOTHING)  # NOTHING, the last one, names nothing
    new, old = names[lefts.value], names[lefts.before]
    matches = look_up_values(right, lefts.order, new, home)
    left_behind = look_up_values(right, lefts.order, np.where(new == NOTHING, old, NOTHING), home)

    name = np.concatenate((new, old, state.names))
    named_here = name != NOTHING
    place = np.full(len(name), NOTHING)
    # Places by right key, and within it by left key: the order in which a right record meets them.
    places, place[named_here] = assign_slots(
        name[named_here], np.concatenate((lefts.key, lefts.key, state.key))[named_here], len(home)
    )
    joins_now, leaves, is_kept = np.split(place, (len(new), 2 * len(new)))
    subscribed, holds = build_index(len(places.time), is_kept), np.full(len(places.time), NOTHING)
    holds[is_kept] = state.value
    if content is None:
        # Each has a root of its own.
        roots = np.arange(len(lefts.order) + len(rights.order))
        hops = np.zeros(len(roots), np.int64)
        hashes = np.empty(0, np.int64)
    else:
        roots, hops = (np.concatenate((of[lefts.order], of[rights.order])) for of in (content.root, content.hops))
        hashes = content.hash
    changed = np.stack((lefts.order, lefts.key, lefts.value, lefts.before, lefts.time, joins_now, leaves), 1)
    rows = _emit_results(
        changed,
        np.stack((*matches, left_behind[1]), 1),
        np.stack((rights.order, rights.key, rights.value, rights.time), 1),
        places,
        subscribed,
        holds,
        how == "left",
        roots,
        hops,
        hashes,
        _sort_changes(changed, roots, hops),
    )
    left_over = np.flatnonzero(subscribed[len(subscribed) // 2 :])
    names = np.searchsorted(places.first, left_over, side="right") - 1
    return TableJoinResults(*rows.T), Subscriptions(names, places.time[left_over], holds[left_over])


@compile_loop
def _emit_results(
    lefts: Integers,
    matches: Integers,
    rights: Integers,
    places: TimeSlots,
    subscribed: Booleans,
    holds: Integers,
    keeps_left: bool,
    roots: Integers,
    hops: Integers,
    hashes: Integers,
    changes: Integers,
) -> Integers:
    """Return rows of cause, key, left, right and time."""
    out, used = np.empty((len(lefts) + 16, 5), np.int64), 0
    m = 0
    for n in range(len(lefts) + 1):
        while m < len(rights) and (n == len(lefts) or rights[m, 0] < lefts[n, 0]):
            order, key, value, time = rights[m]
            end = places.first[key + 1]
            place = find_at_or_above(subscribed, places.first[key])
            root, hop = roots[len(lefts) + m], hops[len(lefts) + m]
            while NOTHING < place < end:
                # The response reaches the left row through one topic, as the left row reached this store.
                if not _has_changed(lefts, hashes, changes, n, root, hop + 1, places.time[place], holds[place]):
                    out = ensure_room(out, used)
                    # rule: a right tombstone ends the row of an inner join
                    left_value = holds[place] if value != NOTHING or keeps_left else NOTHING
                    out[used] = order, places.time[place], left_value, value, time
                    used += 1
                place = find_at_or_above(subscribed, place + 1)
            m += 1
        if n == len(lefts):
            break
        order, key, value, before, time, joins_now, leaves = lefts[n]
        stays = not _has_changed(lefts, hashes, changes, n + 1, roots[n], hops[n], key, value)
        other, other_time, left_behind_time = matches[n]
        if leaves != NOTHING and leaves != joins_now:
            release_slot(subscribed, leaves)  # rule: a subscription ends when the foreign key changes
        if joins_now != NOTHING:
            take_slot(subscribed, joins_now)
            holds[joins_now] = value
        moved = leaves != NOTHING and leaves != joins_now
        at = max(time, other_time)  # rule: a left record's result has the later time
        if keeps_left:
            emits = value != NOTHING or before != NOTHING  # rule: a left join emits no tombstone without a row
        elif joins_now != NOTHING:
            emits = other != NOTHING or moved  # rule: a change of the foreign key gives a tombstone
            value = value if other != NOTHING else NOTHING
        else:
            emits, value = moved, NOTHING
            at = max(time, left_behind_time)  # rule: the tombstone of a foreign key given up has the later time
        if emits and stays:
            out = ensure_room(out, used)
            out[used] = order, key, value, other, at
            used += 1
    return out[:used]


def _sort_changes(lefts: Integers, roots: Integers, hops: Integers) -> Integers:
    """Return sorted rows of root, key, hops, and the last left row of these that passed at most so many hops."""
    number = np.arange(len(lefts))
    root, key = roots[: len(lefts)], lefts[:, 1]
    by = np.lexsort((number, hops[: len(lefts)], key, root))
    root, key = root[by], key[by]
    starts = np.append(0, np.flatnonzero((root[1:] != root[:-1]) | (key[1:] != key[:-1])) + 1)
    of = np.repeat(starts, np.diff(np.append(starts, len(by)))) * len(by)
    return np.stack((root, key, hops[: len(lefts)][by], np.maximum.accumulate(of + by) - of), 1)


@compile_loop
def _has_changed(
    lefts: Integers, hashes: Integers, changes: Integers, first: int, root: int, hop: int, key: int, value: int
) -> bool:
    """Return whether a topic record changes the left row of a key from `value`, by a change from number `first` on."""
    low, high = 0, len(changes)
    while low < high:
        middle = (low + high) // 2
        its_root, its_key, its_hop, _ = changes[middle]
        if its_root < root or (its_root == root and (its_key < key or (its_key == key and its_hop <= hop))):
            low = middle + 1
        else:
            high = middle
    if low == 0 or changes[low - 1, 0] != root or changes[low - 1, 1] != key or changes[low - 1, 3] < first:
        return False
    new = lefts[changes[low - 1, 3], 2]
    if new == NOTHING or value == NOTHING:
        return bool(new != value)
    return bool(hashes[new] != hashes[value])
