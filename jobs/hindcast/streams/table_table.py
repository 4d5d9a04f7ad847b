"""The join of two tables on their key in the `kafka` reading. Source: docs/kafka-parity.md, rules 26-30; KIP-914.

`corrected`, the default reading, has it in bitemporal/joins.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams.tables import JoinSide, look_up_values

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


class TableJoinResults(NamedTuple):
    """The results of a join of tables, in order: pairs of values; one is NOTHING without a match, both in a tombstone.

    `left_before`, `right_before`: the old result: the old value of the side that changes, the other's current value.
    """

    cause: Integers
    key: Integers
    left: Integers
    right: Integers
    time: Integers
    left_before: Integers | None = None
    right_before: Integers | None = None

    def take(self, rows: Integers) -> TableJoinResults:
        """Return the results with these numbers."""
        cause, key, left, right, time = (column[rows] for column in self[:5])
        before = (None if column is None else column[rows] for column in self[5:])
        return TableJoinResults(cause, key, left, right, time, *before)


def join_table_table(
    left: JoinSide, right: JoinSide, how: Literal["inner", "left", "outer"], home: Integers
) -> TableJoinResults:
    """Return the results of joining the changes of two tables on their key; a change out of order triggers nothing.

    left a @0, right b @2, right tombstone @6    ->    inner: (a, b) @2, tombstone @6
    """
    # rule: records out of order do not trigger
    triggers = [side.changes.where(side.changes.latest) for side in (left, right)]
    matches = [
        look_up_values(side, trigger.order, trigger.key, home)
        for trigger, side in zip(triggers, (right, left), strict=True)
    ]
    order, key, own, before, at = (
        np.concatenate([getattr(trigger, name) for trigger in triggers])
        for name in ("order", "key", "value", "before", "time")
    )
    other, since = (np.concatenate(columns) for columns in zip(*matches, strict=True))
    of_left = np.arange(len(order)) < len(triggers[0].order)

    # Without a row on the other side, whether this side gives a result depends on the kind of join.
    # rule: an outer join tells of a right record alone
    alone = (other == NOTHING) & {"inner": np.zeros(len(order), np.bool_), "left": of_left, "outer": True}[how]
    # rule: a tombstone where there was no row is told of the other only
    emits = (other != NOTHING) | (alone & ((own != NOTHING) | (before != NOTHING)))
    # When a row ends, the other side's row remains if the join keeps it.
    # rule: a right tombstone leaves the row of a left join
    survives = {"inner": np.zeros(len(order), np.bool_), "left": ~of_left, "outer": True}[how]
    is_nothing_alone = ~(survives & (other != NOTHING))
    ended, absent = (own == NOTHING) & is_nothing_alone, (before == NOTHING) & is_nothing_alone
    pair = [np.where(ended, NOTHING, column) for column in (own, other)]
    pair_before = [np.where(absent, NOTHING, column) for column in (before, other)]
    merged = np.flatnonzero(emits)[np.argsort(order[emits], kind="stable")]
    # rule: a result has the later time
    return TableJoinResults(
        order[merged],
        key[merged],
        np.where(of_left, pair[0], pair[1])[merged],
        np.where(of_left, pair[1], pair[0])[merged],
        np.maximum(at, since)[merged],
        np.where(of_left, pair_before[0], pair_before[1])[merged],
        np.where(of_left, pair_before[1], pair_before[0])[merged],
    )
