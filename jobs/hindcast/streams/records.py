"""The records that most operators take."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers


class Records(NamedTuple):
    """Records of one input in processing order; a value is NOTHING for a null or a tombstone.

    `order`: the place, among all records of the task, of the record that is being processed. `timestamp` in ms.
    """

    order: Integers
    key: Integers
    value: Integers
    timestamp: Integers

    def take(self, which: Integers | Booleans | slice) -> Records:
        """Return the records with these numbers, or those for which a condition is true."""
        return Records(*(column[which] for column in self))
