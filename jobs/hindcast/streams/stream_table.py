"""The join of a stream with a table in the `kafka` reading, without a grace period and with one (KIP-923).

`corrected`, the default reading, has it in bitemporal/joins.py.
Source: docs/kafka-parity.md, rules 18-25; KIP-914.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams.records import Records
from hindcast.streams.tables import JoinSide, look_up_values

if TYPE_CHECKING:
    from hindcast.common.jit import Integers


class StreamTableMatches(NamedTuple):
    """The numbers of the events that have a result, and for each the table's value or NOTHING."""

    event: Integers
    right: Integers


def join_stream_table(
    events: Records, table: JoinSide, how: Literal["inner", "left"], home: Integers
) -> StreamTableMatches:
    """Return each event with the table's value at its timestamp, or with the last value if the table is not versioned.

    An event without a value gives no result; an event without a key none (`inner`), or a null right (`left`).
    `home`: the partition of each key.

        store: 8 @0, 10 @4; history retention 5, stream time 4    ->    event @3: 8    event @-2: nothing
    """
    # rule: an event meets the version of its time
    right, _ = look_up_values(table, events.order, events.key, home, events.timestamp)
    # rule: an event needs a value, and a row in an inner join
    met = np.flatnonzero((events.value != NOTHING) & ((right != NOTHING) | (how == "left")))
    return StreamTableMatches(met, right[met])
