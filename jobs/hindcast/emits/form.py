"""The form of a view for its tasks, and what its operator gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.compiled import NOTHING
from hindcast.emits.closing import Emit
from hindcast.emits.depth import Way
from hindcast.emits.rows import Rows
from hindcast.emits.stream_stream import Window
from hindcast.emits.versioned import UNLIMITED
from hindcast.emits.windowed import Windows

if TYPE_CHECKING:
    from hindcast.compiled import Booleans, Integers


@dataclass(frozen=True)
class Store:
    """How a table is stored. `retention` in ms; None: without limit."""

    versioned: bool
    retention: int | None = None

    @property
    def bound(self) -> int | None:
        """As the stores take it."""
        if not self.versioned:
            return None
        return UNLIMITED if self.retention is None else self.retention


@dataclass(frozen=True)
class Form:
    """What a view is, as far as its task has to know. `stores`: of each input that is a table, by its side.

    `filters`: it has a condition (on a table, of its first input). `result`: the store that its results are put in.
    `measures`: the functions of an aggregate, each of the argument of its number. `ways`: how the records of each input
    come into a view that is processed depth first; none of any other. `tells`: what it emits tells what was before.
    """

    operator: Literal["stream", "table", "stream_table", "table_table", "foreign_key", "pairs", "aggregate", "windows"]
    how: Any = "inner"
    stores: Mapping[int, Store] | None = None
    filters: bool = False
    result: Store | None = None
    grace: int | None = None
    suppress: int | None = None
    span: Window | None = None
    windows: Windows | None = None
    emit: Emit = Emit.UPDATE
    measures: tuple[str, ...] = ()
    ways: tuple[Way, ...] = ()
    tells: bool = False


class Out(NamedTuple):
    """What is emitted, in order: the rows that caused it and that its sides are taken from, or its measures.

    `headers`: the row whose headers it has, NOTHING for none; of None, the one that caused it. `before_first` and
    `before_second`: the rows that the sides of what was before are taken from.
    """

    cause: Integers
    key: Integers
    first: Integers
    second: Integers
    time: Integers
    tombstone: Booleans
    start: Integers | None = None
    end: Integers | None = None
    measures: pa.Array | None = None
    headers: Integers | None = None
    before_first: Integers | None = None
    before_second: Integers | None = None


def kept_of(rows: Rows, part: str, partition: int) -> Integers:
    """What a partition has kept of a part."""
    return np.flatnonzero(rows.is_part(part) & (rows.partition == partition))


def clock_of(rows: Rows, part: str, partition: int, number: int) -> pa.Table:
    numbers = np.full(rows.partitions, NOTHING)
    numbers[partition] = number
    return rows.clock(part, numbers)


def merged(outs: list[Out]) -> Out:
    """What several partitions emit, in the order of its causes."""
    cause = np.concatenate([out.cause for out in outs])
    by_cause = np.argsort(cause, kind="stable")

    def column(name: str) -> Any:
        its = [getattr(out, name) for out in outs]
        if its[0] is None:
            return None
        if name == "measures":
            return pa.concat_arrays(its).take(pa.array(by_cause))
        return np.concatenate(its)[by_cause]

    return Out(*(column(name) for name in Out._fields))
