"""The changes that a table passes on: its records, through filters and stores.

Source: docs/kafka-parity.md, rules 12-17; KIP-914.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams import stores
from hindcast.streams.stores import GET, GET_AT, LEFT_OUT, PUT, PUT_UNLESS_ABSENT, StoreRequests
from hindcast.streams.versioned import REJECTED, StoreState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindcast.common.jit import Booleans, Integers


class TableChanges(NamedTuple):
    """The changes of a table in processing order: the key's new value and the one before, NOTHING for none.

    `order`: the place, among all records of the task, of the causing record. `latest`: the change is not out of order.
    """

    order: Integers
    key: Integers
    value: Integers
    before: Integers
    time: Integers
    latest: Booleans

    def where(self, condition: Booleans) -> TableChanges:
        """Return the changes for which a condition is true."""
        return TableChanges(*[column[condition] for column in self])  # type: ignore[arg-type]  # the last column is of booleans


class TableStore(NamedTuple):
    """A store of a table: its versions at first, and its history retention in ms (None: it is not versioned)."""

    versions: StoreState
    retention: int | None


class StorePuts(NamedTuple):
    """The puts into a store, from which look-ups can be answered, and its state after them."""

    order: Integers
    requests: StoreRequests
    store: TableStore
    state: StoreState


class JoinSide(NamedTuple):
    """A table as a side of a join: its changes, the store for look-ups, and for each value in the store whether it
    passes the filters between store and join.
    """

    changes: TableChanges
    stored: StorePuts
    passing: Booleans


def materialize_source(
    order: Integers,
    key: Integers,
    time: Integers,
    value: Integers,
    store: TableStore,
    home: Integers,
    puts: Integers | None = None,
) -> tuple[TableChanges, StorePuts]:
    """Return the changes of a topic's table, and its puts; keys are never null. `puts` as in `materialize_changes`."""
    changes = TableChanges(order, key, value, np.full(len(key), NOTHING), time, np.ones(len(key), np.bool_))
    return materialize_changes(changes, store, home, puts=puts)


def materialize_changes(
    changes: TableChanges,
    store: TableStore,
    home: Integers,
    *,
    unless_absent: bool = False,
    puts: Integers | None = None,
) -> tuple[TableChanges, StorePuts]:
    """Return changes as a store passes them on, without those that it rejects, and the puts into it.

    The store decides the value before each change and whether it is the latest. `unless_absent`: tombstones for keys
    without a row are left out, and not put (`filter_changes`). `puts`: the places from which look-ups find the
    changes, if these differ from their `order`. `home`: the partition of each key.
    """
    what = np.full(len(changes.key), PUT_UNLESS_ABSENT if unless_absent else PUT)
    order = changes.order if puts is None else puts
    ascending = np.argsort(order, kind="stable")
    requests = StoreRequests(*(column[ascending] for column in (what, changes.key, changes.time, changes.value)))
    answers = stores.answer_requests(store.versions, requests, home, store.retention)
    code, before = np.empty_like(answers.code), np.empty_like(answers.value)
    code[ascending], before[ascending] = answers.code, answers.value
    passed = (code != REJECTED) & (code != LEFT_OUT)  # rule: what a store rejects is dropped
    stored = changes._replace(before=before, latest=code < 0).where(passed)  # rule: an older record is out of order
    return stored, StorePuts(order[ascending], requests, store, answers.state)


def filter_changes(changes: TableChanges, passing: Booleans, *, leaves_out: bool) -> TableChanges:
    """Return changes with a tombstone in place of each value that does not pass. `passing`: for each value.

    `leaves_out` (`plan_tombstone_drops`): a tombstone is left out if the value before did not pass either. That is what
    a filter does on a table that is not versioned, if it knows the old value.
    """
    passes = np.append(passing, False)  # NOTHING, the last one, does not pass
    value = np.where(passes[changes.value], changes.value, NOTHING)
    before = np.where(passes[changes.before], changes.before, NOTHING)
    # rule: a filter leaves out tombstones of what it never passed
    stays = (value != NOTHING) | (before != NOTHING) | (not leaves_out)
    return changes._replace(value=value, before=before).where(stays)


def look_up_values(
    table: JoinSide, order: Integers, key: Integers, home: Integers, at: Integers | None = None
) -> tuple[Integers, Integers]:
    """Return the values, and their times, that a table has for keys when the records at `order` are processed.

    NOTHING where there is no value, and for null keys. `order` is ascending. `at`: the times (ms) at which values are
    looked up; without it the latest values.
    """
    stored = table.stored
    with_key = np.flatnonzero(key != NOTHING)
    what = GET if at is None else GET_AT
    gets = stores.build_requests(
        what, key[with_key], at[with_key] if at is not None else np.zeros(len(with_key), np.int64)
    )
    # rule: a look-up sees the record before
    merged = np.argsort(np.concatenate((stored.order, order[with_key])), kind="stable")
    requests = StoreRequests(*(np.concatenate(columns)[merged] for columns in zip(stored.requests, gets, strict=True)))
    answers = stores.answer_requests(stored.store.versions, requests, home, stored.store.retention)
    back = np.empty(len(merged), np.int64)
    back[merged] = np.arange(len(merged))
    matches = np.full((2, len(key)), NOTHING)
    matches[:, with_key] = answers.value[back[len(stored.order) :]], answers.time[back[len(stored.order) :]]
    passing = np.append(table.passing, False)[matches[0]]  # rule: a look-up finds what the filter has passed
    return np.where(passing, matches[0], NOTHING), np.where(passing, matches[1], NOTHING)


class TransformStep(NamedTuple):
    """A transformation of a table's changes: a filter or a projection, with a store of its own if `materialized`."""

    filters: bool
    materialized: bool


NO_OLD_VALUES, OLD_VALUES_IF_KNOWN, OLD_VALUES_MATERIALIZED = 0, 1, 2
"""The old values that an operator asks for: none, those that are known, or all, so that the source keeps a store."""


def plan_tombstone_drops(
    steps: Sequence[TransformStep], *, source_materialized: bool, versioned: Sequence[bool], asks: int
) -> list[bool]:
    """Return, for each step, whether it leaves out a tombstone if the value before did not pass either.

    `versioned`: whether the table of the source, and of each step, is versioned. `asks`: the old values that the
    operator after the last step asks for.
    """
    requested = [asks]  # for each step, from the last to the source
    for number in range(len(steps) - 1, -1, -1):
        step, request = steps[number], requested[-1]
        passes_on = NO_OLD_VALUES if step.materialized else request
        # rule: a filter asks for what was before
        requested.append(max(passes_on, OLD_VALUES_IF_KNOWN if step.filters else NO_OLD_VALUES))
    requested.reverse()
    known = source_materialized or requested[0] == OLD_VALUES_MATERIALIZED  # rule: a filter that asks makes no store
    drops = []
    for number, step in enumerate(steps):
        knows = known or (step.materialized and requested[number + 1] != NO_OLD_VALUES)
        # rule: a filter on a versioned table passes tombstones
        drops.append(step.filters and knows and not versioned[number])
        known = known or step.materialized
    return drops
