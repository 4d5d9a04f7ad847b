"""The join of two tables on their key. Source: the conformance README, "Table-table join (primary key)"; KIP-914."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.emits.tables import Side, looked_up

if TYPE_CHECKING:
    from hindcast.compiled import Integers


class Joined(NamedTuple):
    """What a join of tables emits, in order: a pair of values, of which one may be NOTHING, or twice NOTHING for a
    tombstone. And the pair that it tells to have been before: the side that changes as it was, the other as it is.
    """

    cause: Integers
    key: Integers
    left: Integers
    right: Integers
    time: Integers
    left_before: Integers | None = None
    right_before: Integers | None = None

    def take(self, rows: Integers) -> Joined:
        """Return some of the results, by their numbers."""
        cause, key, left, right, time = (column[rows] for column in self[:5])
        before = (None if column is None else column[rows] for column in self[5:])
        return Joined(cause, key, left, right, time, *before)


def table_table(left: Side, right: Side, how: Literal["inner", "left", "outer"], home: Integers) -> Joined:
    """What the changes of two tables make of their join; out of order ones trigger nothing.

    left a @0, right b @2, right tombstone @6    ->    inner: (a, b) @2, tombstone @6
    """
    triggers = [side.changes.where(side.changes.latest) for side in (left, right)]
    found = [looked_up(side, it.order, it.key, home) for it, side in zip(triggers, (right, left), strict=True)]
    order, key, own, before, at = (
        np.concatenate([getattr(it, name) for it in triggers]) for name in ("order", "key", "value", "before", "time")
    )
    other, since = (np.concatenate(columns) for columns in zip(*found, strict=True))
    of_left = np.arange(len(order)) < len(triggers[0].order)

    # Without a row on the other side this side has a say in the join, or none.
    alone = (other == NOTHING) & {"inner": np.zeros(len(order), np.bool_), "left": of_left, "outer": True}[how]
    told = (other != NOTHING) | (alone & ((own != NOTHING) | (before != NOTHING)))
    # A row that is gone leaves the other side's where the join keeps that.
    survives = {"inner": np.zeros(len(order), np.bool_), "left": ~of_left, "outer": True}[how]
    is_nothing_alone = ~(survives & (other != NOTHING))
    ended, absent = (own == NOTHING) & is_nothing_alone, (before == NOTHING) & is_nothing_alone
    pair = [np.where(ended, NOTHING, column) for column in (own, other)]
    pair_before = [np.where(absent, NOTHING, column) for column in (before, other)]
    merged = np.flatnonzero(told)[np.argsort(order[told], kind="stable")]
    return Joined(
        order[merged],
        key[merged],
        np.where(of_left, pair[0], pair[1])[merged],
        np.where(of_left, pair[1], pair[0])[merged],
        np.maximum(at, since)[merged],
        np.where(of_left, pair_before[0], pair_before[1])[merged],
        np.where(of_left, pair_before[1], pair_before[0])[merged],
    )
