"""The join of a stream with a table, without a grace period and with one (KIP-923).

Source: the conformance README, "Stream-table join"; KIP-914.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.emits.records import Records
from hindcast.emits.tables import Side, looked_up

if TYPE_CHECKING:
    from hindcast.compiled import Integers


class Met(NamedTuple):
    """What a stream-table join emits: the events that have a result, by number, and the table's value or NOTHING."""

    event: Integers
    right: Integers


def stream_table(events: Records, table: Side, how: Literal["inner", "left"], home: Integers) -> Met:
    """Each event with the table's value at its timestamp; of a table that is not versioned, with its last one.

    An event without a value gives nothing; without a key nothing (`inner`), or a null (`left`).

        store: 8 @0, 10 @4; history retention 5, stream time 4    ->    event @3: 8    event @-2: nothing
    """
    right, _ = looked_up(table, events.order, events.key, home, events.timestamp)
    met = np.flatnonzero((events.value != NOTHING) & ((right != NOTHING) | (how == "left")))
    return Met(met, right[met])
