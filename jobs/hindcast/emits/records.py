"""Records as most operators take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from hindcast.compiled import Integers


class Records(NamedTuple):
    """Records of one input, in the order in which they are looked at; a value is NOTHING for a null or a tombstone.

    `order`: the place, among all records of the task, of the record that is being processed then.
    """

    order: Integers
    key: Integers
    value: Integers
    timestamp: Integers
