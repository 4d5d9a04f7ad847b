"""Aggregates without windows: of a table with adder and subtractor, of a stream with the adder.

Source: docs/kafka-parity.md, rules 38-48; KIP-914.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING, compile_loop, ensure_room
from hindcast.streams.aggregation_tree import ADD, KEPT, SUBTRACT
from hindcast.streams.tables import TableChanges
from hindcast.streams.versioned import (
    REJECTED,
    UNLIMITED,
    StoreState,
    get_latest,
    open_store,
    put_version,
    snapshot_store,
)

if TYPE_CHECKING:
    from hindcast.common.jit import Integers
    from hindcast.streams.versioned import VersionedStore


class Contributions(NamedTuple):
    """The values that are added to groups and subtracted from them, in processing order; NOTHING for none."""

    order: Integers
    group: Integers
    added: Integers
    subtracted: Integers
    time: Integers


class AggregateResult(NamedTuple):
    """The changes that an aggregate passes on, their values being nodes (aggregation_tree.py); all its nodes; and the
    state of its store after them.
    """

    changes: TableChanges
    nodes: Integers
    state: StoreState


def stream_contributions(order: Integers, key: Integers, time: Integers, value: Integers) -> Contributions:
    """Return the contributions of a stream's records: of those with key and value."""
    valid = (key != NOTHING) & (value != NOTHING)  # rule: null values of a stream are dropped
    nothing = np.full(np.count_nonzero(valid), NOTHING)
    return Contributions(order[valid], key[valid], value[valid], nothing, time[valid])


def table_contributions(changes: TableChanges, group: Integers) -> Contributions:
    """Return the contributions of a table's changes; changes out of order have none.

    `group`: the group of each value, NOTHING for none. A value that moves to another group is first subtracted from
    the old one, then added to the new one; within a group it is one contribution.
    """
    latest = changes.where(changes.latest)  # rule: votes out of order are not counted
    groups = np.append(group, NOTHING)  # NOTHING, the last one, is in no group
    new, old = groups[latest.value], groups[latest.before]
    leaves = np.flatnonzero((old != NOTHING) & (old != new))  # rule: within a group an update gives one result
    joins = np.flatnonzero(new != NOTHING)
    nothing = np.full(len(leaves), NOTHING)
    out = Contributions(latest.order[leaves], old[leaves], nothing, latest.before[leaves], latest.time[leaves])
    stays = np.where(old == new, latest.before, NOTHING)[joins]
    into = Contributions(latest.order[joins], new[joins], latest.value[joins], stays, latest.time[joins])
    # rule: the old group's result comes first
    merged = np.argsort(np.concatenate((2 * leaves, 2 * joins + 1)), kind="stable")
    return Contributions(*(np.concatenate(columns)[merged] for columns in zip(out, into, strict=True)))


def aggregate_contributions(
    contributions: Contributions, state: StoreState, home: Integers, retention: int | None
) -> AggregateResult:
    """Return the result of applying contributions, in order, to the aggregates of their groups.

    `retention`: the history retention (ms) of the versioned store of the results; what the store rejects is lost. None:
    the store is not versioned. `home`: the partition of each group.
    The timestamp of a result is that of its contribution, or of the group's last result if that is later.
    """
    nodes = np.stack((np.full(len(state.key), KEPT), np.arange(len(state.key)), np.full(len(state.key), NOTHING)), 1)
    value = np.where(state.value == NOTHING, NOTHING, np.arange(len(state.key)))
    state = state._replace(value=value)
    # Each result has the time of a contribution to its group, so the times of its store are known in advance.
    store, slot = open_store(state, contributions.group, contributions.time, home)
    rows, nodes = _put_aggregates(store, *contributions[1:], slot, UNLIMITED if retention is None else retention, nodes)
    passed = rows[:, 0] != REJECTED  # rule: an update that the store rejects is dropped
    changes = TableChanges(
        contributions.order, contributions.group, rows[:, 1], rows[:, 2], rows[:, 3], rows[:, 0] < 0
    ).where(passed)
    return AggregateResult(changes, nodes, snapshot_store(store, retention or 0))


@compile_loop
def _put_aggregates(
    store: VersionedStore,
    group: Integers,
    added: Integers,
    subtracted: Integers,
    time: Integers,
    slot: Integers,
    retention: int,
    nodes: Integers,
) -> tuple[Integers, Integers]:
    """Return a row for each contribution (the put's code, the new node, the old node, the time), and all nodes."""
    rows, used = np.empty((len(group), 4), np.int64), len(nodes)
    for n in range(len(group)):
        before, since = get_latest(store, group[n])
        node, at, its_slot = before, time[n], slot[n]
        if before != NOTHING and since > at:  # rule: a result has the latest time
            at, its_slot = since, store.latest[group[n]]
        if subtracted[n] != NOTHING and node != NOTHING:  # rule: a subtraction from nothing gives nothing
            nodes = ensure_room(nodes, used)
            nodes[used] = SUBTRACT, node, subtracted[n]
            node, used = used, used + 1
        if added[n] != NOTHING:
            nodes = ensure_room(nodes, used)
            nodes[used] = ADD, node, added[n]
            node, used = used, used + 1
        code = put_version(store, group[n], its_slot, node, retention)
        rows[n] = code, node, before, at
    return rows, nodes[:used]
