"""The specification of a processor, which is a view as its tasks see it, and the output of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.streams.depth_first import InputRoute
from hindcast.streams.emit_strategy import EmitStrategy
from hindcast.streams.stream_stream import JoinWindows
from hindcast.streams.task_rows import TaskRows
from hindcast.streams.versioned import UNLIMITED
from hindcast.streams.windowed import Windows

if TYPE_CHECKING:
    from hindcast.common.jit import Booleans, Integers
    from hindcast.streams.task_rows import ColumnArray


@dataclass(frozen=True)
class StoreSpec:
    """How a table is stored. `retention`: history retention in ms, None for no limit."""

    versioned: bool
    retention: int | None = None

    @property
    def bound(self) -> int | None:
        """The retention as `stores` takes it: None for a store that is not versioned."""
        if not self.versioned:
            return None
        return UNLIMITED if self.retention is None else self.retention


@dataclass(frozen=True)
class ProcessorSpec:
    """A view, as far as its tasks need to know it. All lengths are in milliseconds.

    `stores`: by side, the store of each input that is a table. `filters`: a condition applies to the first input, a
    table. `result`: the store that results are put in. `measures`: the functions of an aggregate; measure n has
    argument n. `input_routes`: how the records of each input reach a view that is processed depth first; empty for any
    other view. `sends_old_values`: each result is emitted with the one before it.
    """

    operator: Literal["stream", "table", "stream_table", "table_table", "foreign_key", "pairs", "aggregate", "windows"]
    how: Literal["inner", "left", "outer"] = "inner"
    stores: Mapping[int, StoreSpec] | None = None
    filters: bool = False
    result: StoreSpec | None = None
    grace: int | None = None
    suppress: int | None = None
    span: JoinWindows | None = None
    windows: Windows | None = None
    emit: EmitStrategy = EmitStrategy.UPDATE
    measures: tuple[str, ...] = ()
    input_routes: tuple[InputRoute, ...] = ()
    sends_old_values: bool = False


class ProcessorOutput(NamedTuple):
    """Results in order: for each the number of the row that caused it, and of the rows that its sides are taken from.

    An aggregate has `measures` in place of sides. `headers`: the row whose headers a result has, NOTHING for none;
    None: the row that caused it. `before_first`, `before_second`: the rows that the old value's sides are taken from.
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


def partition_state_rows(rows: TaskRows, part: str, partition: int) -> Integers:
    """Return the numbers of the rows that belong to a part of a partition's state."""
    return np.flatnonzero(rows.is_part(part) & (rows.partition == partition))


def partition_clock_rows(rows: TaskRows, part: str, partition: int, number: int) -> pa.Table:
    """Return the state row of one partition's clock; no row for NOTHING."""
    numbers = np.full(rows.partition_count, NOTHING)
    numbers[partition] = number
    return rows.build_clock_rows(part, numbers)


def merge_outputs(outs: list[ProcessorOutput]) -> ProcessorOutput:
    """Return the outputs of several partitions as one, in the order of the causes."""
    cause = np.concatenate([out.cause for out in outs])
    by_cause = np.argsort(cause, kind="stable")  # rule: results come by their cause

    def column(name: str) -> ColumnArray | None:
        columns = [getattr(out, name) for out in outs]
        if columns[0] is None:
            return None
        if name == "measures":
            return pa.concat_arrays(columns).take(pa.array(by_cause))
        return np.concatenate(columns)[by_cause]

    return ProcessorOutput._make(column(name) for name in ProcessorOutput._fields)
