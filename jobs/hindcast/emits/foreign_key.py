"""The join of two tables on a foreign key (KIP-213). Source: the conformance README, "Foreign-key join"; KIP-914."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled, room
from hindcast.emits.places import at_or_above, leave, take, taken_at
from hindcast.emits.table_table import Joined
from hindcast.emits.tables import Changes, Side, looked_up
from hindcast.emits.versioned import Slots, slots

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers


class Subscriptions(NamedTuple):
    """The rows of the left table that name a right key; sorted by that and by their own key."""

    names: Integers
    key: Integers
    value: Integers


class Content(NamedTuple):
    """What tells whether a left row is another one by the time that an answer for it comes, of each row: the record
    that is behind it, how many repartition topics it came through, and a hash of its value.
    """

    root: Integers
    hops: Integers
    hash: Integers


def nobody() -> Subscriptions:
    """No left row names any right key."""
    return Subscriptions(*(np.empty(0, np.int64) for _ in range(3)))


def foreign_key(
    left: Changes,
    right: Side,
    named: Integers,
    how: Literal["inner", "left"],
    kept: Subscriptions,
    home: Integers,
    content: Content | None = None,
) -> tuple[Joined, Subscriptions]:
    """What the changes of two tables make of their join; out of order ones trigger nothing.

    `content` of both tables' rows, where one record can change both: an answer for a left row that has changed since is
    then left out.

    `named`: the right key that each value names, NOTHING for none; keys of both tables have codes of one coding, of
    which there are `keys`. A right record gives a result for each left row that names its key, in the order of the
    left keys.
    """
    lefts, rights = left.where(left.latest), right.changes.where(right.changes.latest)
    names = np.append(named, NOTHING)  # NOTHING, the last one, names nothing
    new, old = names[lefts.value], names[lefts.before]
    found = looked_up(right, lefts.order, new, home)
    left_behind = looked_up(right, lefts.order, np.where(new == NOTHING, old, NOTHING), home)

    name = np.concatenate((new, old, kept.names))
    there = name != NOTHING
    place = np.full(len(name), NOTHING)
    # Places by right key, and within it by left key: the order in which a right record meets them.
    places, place[there] = slots(name[there], np.concatenate((lefts.key, lefts.key, kept.key))[there], len(home))
    joins_now, leaves, is_kept = np.split(place, (len(new), 2 * len(new)))
    subscribed, holds = taken_at(len(places.time), is_kept), np.full(len(places.time), NOTHING)
    holds[is_kept] = kept.value
    if content is None:
        # Each has a root of its own.
        roots = np.arange(len(lefts.order) + len(rights.order))
        hops = np.zeros(len(roots), np.int64)
        hashes = np.empty(0, np.int64)
    else:
        roots, hops = (np.concatenate((of[lefts.order], of[rights.order])) for of in (content.root, content.hops))
        hashes = content.hash
    changed = np.stack((lefts.order, lefts.key, lefts.value, lefts.before, lefts.time, joins_now, leaves), 1)
    rows = _emit(
        changed,
        np.stack((*found, left_behind[1]), 1),
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
    return Joined(*rows.T), Subscriptions(names, places.time[left_over], holds[left_over])


@compiled
def _emit(
    lefts: Integers,
    found: Integers,
    rights: Integers,
    places: Slots,
    subscribed: Booleans,
    holds: Integers,
    outer: bool,
    roots: Integers,
    hops: Integers,
    hashes: Integers,
    changes: Integers,
) -> Integers:
    """Rows of cause, key, left, right, time."""
    out, used = np.empty((len(lefts) + 16, 5), np.int64), 0
    m = 0
    for n in range(len(lefts) + 1):
        while m < len(rights) and (n == len(lefts) or rights[m, 0] < lefts[n, 0]):
            order, key, value, time = rights[m]
            end = places.first[key + 1]
            place = at_or_above(subscribed, places.first[key])
            root, hop = roots[len(lefts) + m], hops[len(lefts) + m]
            while NOTHING < place < end:
                # The answer goes to the left row through one topic; the left row's way here has one as well.
                if not _has_changed(lefts, hashes, changes, n, root, hop + 1, places.time[place], holds[place]):
                    out = room(out, used)
                    there = holds[place] if value != NOTHING or outer else NOTHING
                    out[used] = order, places.time[place], there, value, time
                    used += 1
                place = at_or_above(subscribed, place + 1)
            m += 1
        if n == len(lefts):
            break
        order, key, value, before, time, joins_now, leaves = lefts[n]
        stays = not _has_changed(lefts, hashes, changes, n + 1, roots[n], hops[n], key, value)
        other, other_time, left_behind_time = found[n]
        if leaves != NOTHING and leaves != joins_now:
            leave(subscribed, leaves)
        if joins_now != NOTHING:
            take(subscribed, joins_now)
            holds[joins_now] = value
        moved = leaves != NOTHING and leaves != joins_now
        at = max(time, other_time)
        if outer:
            told = value != NOTHING or before != NOTHING
        elif joins_now != NOTHING:
            told = other != NOTHING or moved
            value = value if other != NOTHING else NOTHING
        else:
            told, value = moved, NOTHING
            at = max(time, left_behind_time)
        if told and stays:
            out = room(out, used)
            out[used] = order, key, value, other, at
            used += 1
    return out[:used]


def _sort_changes(lefts: Integers, roots: Integers, hops: Integers) -> Integers:
    """Return, sorted, each root, key and number of hops with the last left row that came by as few or fewer."""
    number = np.arange(len(lefts))
    root, key = roots[: len(lefts)], lefts[:, 1]
    by = np.lexsort((number, hops[: len(lefts)], key, root))
    root, key = root[by], key[by]
    starts = np.append(0, np.flatnonzero((root[1:] != root[:-1]) | (key[1:] != key[:-1])) + 1)
    of = np.repeat(starts, np.diff(np.append(starts, len(by)))) * len(by)
    return np.stack((root, key, hops[: len(lefts)][by], np.maximum.accumulate(of + by) - of), 1)


@compiled
def _has_changed(
    lefts: Integers, hashes: Integers, changes: Integers, first: int, root: int, hop: int, key: int, value: int
) -> bool:
    """Whether a record changes the left row of a key, from the number `first` on, which has `value` so far."""
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
