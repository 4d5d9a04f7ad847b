"""Aggregates without windows: of a table with adder and subtractor, of a stream with the adder.

Source: the conformance README, "Aggregation of a table" and "Aggregation of a stream (not windowed)"; KIP-914.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING, compiled, room
from hindcast.emits.folds import ADD, KEPT, SUBTRACT
from hindcast.emits.tables import Changes
from hindcast.emits.versioned import REJECTED, UNLIMITED, Versions, get, held, opened, put

if TYPE_CHECKING:
    from hindcast.compiled import Integers
    from hindcast.emits.versioned import Store


class Contributions(NamedTuple):
    """What goes into and out of groups, in processing order: values, or NOTHING."""

    order: Integers
    group: Integers
    added: Integers
    subtracted: Integers
    time: Integers


class Aggregated(NamedTuple):
    """What an aggregate passes on, a value being a node (folds.py); all its nodes; and what its store holds then."""

    changes: Changes
    nodes: Integers
    left: Versions


def of_stream(order: Integers, key: Integers, time: Integers, value: Integers) -> Contributions:
    """What the records of a stream contribute: those with key and value."""
    there = (key != NOTHING) & (value != NOTHING)
    nothing = np.full(np.count_nonzero(there), NOTHING)
    return Contributions(order[there], key[there], value[there], nothing, time[there])


def of_table(changes: Changes, group: Integers) -> Contributions:
    """What the changes of a table contribute; those out of order do not. `group`: of each value, NOTHING for none.

    A value that moves is first taken out of its old group, then put into the new one; within a group both is one.
    """
    it = changes.where(changes.latest)
    groups = np.append(group, NOTHING)  # NOTHING, the last one, is in no group
    new, old = groups[it.value], groups[it.before]
    leaves = np.flatnonzero((old != NOTHING) & (old != new))
    joins = np.flatnonzero(new != NOTHING)
    nothing = np.full(len(leaves), NOTHING)
    out = Contributions(it.order[leaves], old[leaves], nothing, it.before[leaves], it.time[leaves])
    stays = np.where(old == new, it.before, NOTHING)[joins]
    into = Contributions(it.order[joins], new[joins], it.value[joins], stays, it.time[joins])
    merged = np.argsort(np.concatenate((2 * leaves, 2 * joins + 1)), kind="stable")
    return Contributions(*(np.concatenate(columns)[merged] for columns in zip(out, into, strict=True)))


def aggregate(given: Contributions, kept: Versions, home: Integers, retention: int | None) -> Aggregated:
    """What contributions make of the groups' aggregates. `retention`, in ms, of a versioned store that they are put in;
    what it rejects is lost. None: the store is not versioned.

    A result is dated with its own contribution, or with the group's last result if that is later.
    """
    nodes = np.stack((np.full(len(kept.key), KEPT), np.arange(len(kept.key)), np.full(len(kept.key), NOTHING)), 1)
    value = np.where(kept.value == NOTHING, NOTHING, np.arange(len(kept.key)))
    kept = kept._replace(value=value)
    # Each result has the time of a contribution to its group, so that a store can be told its times in advance.
    store, slot = opened(kept, given.group, given.time, home)
    rows, nodes = _aggregate(store, *given[1:], slot, UNLIMITED if retention is None else retention, nodes)
    passed = rows[:, 0] != REJECTED
    changes = Changes(given.order, given.group, rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 0] < 0).where(passed)
    return Aggregated(changes, nodes, held(store, retention or 0))


@compiled
def _aggregate(
    store: Store,
    group: Integers,
    added: Integers,
    subtracted: Integers,
    time: Integers,
    slot: Integers,
    retention: int,
    nodes: Integers,
) -> tuple[Integers, Integers]:
    """Rows of the put's code, the new node, the one before and the time; and all nodes."""
    rows, used = np.empty((len(group), 4), np.int64), len(nodes)
    for n in range(len(group)):
        before, since = get(store, group[n])
        node, at, its_slot = before, time[n], slot[n]
        if before != NOTHING and since > at:
            at, its_slot = since, store.latest[group[n]]
        if subtracted[n] != NOTHING and node != NOTHING:
            nodes = room(nodes, used)
            nodes[used] = SUBTRACT, node, subtracted[n]
            node, used = used, used + 1
        if added[n] != NOTHING:
            nodes = room(nodes, used)
            nodes[used] = ADD, node, added[n]
            node, used = used, used + 1
        code = put(store, group[n], its_slot, node, retention)
        rows[n] = code, node, before, at
    return rows, nodes[:used]
