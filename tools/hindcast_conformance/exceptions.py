"""Exceptions: what vectors ask for and contracts cannot say, run by the operators of the `kafka` reading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pyarrow as pa

from hindcast.common.jit import NOTHING
from hindcast.streams import emit_strategy, measures, tables
from hindcast.streams.aggregation_tree import ADD, KEPT, MERGE
from hindcast.streams.tables import TableStore
from hindcast.streams.versioned import empty_store_state
from hindcast_conformance.vectors import DeclinedVector, Json

Operation = Mapping[str, Json]

STORE = "a versioned store by itself: contracts have no step that asks one"
GLOBAL = "a global table: contracts have none"
TRACE = "the aggregation `trace` of the vectors shows the order of its calls; contracts have no such aggregate"
REDUCE = "a reduce of windows meets a null value; contracts aggregate, which leaves it out"
FILTER = "a filter has a versioned store of its own, or reads a table without a store"
NEGATIVE = "a negative grace period of a stream-table join: Kafka Streams takes it, contracts refuse it"


class TaskRecord(NamedTuple):
    """A record of a topic or view. It `passes` unless its value does not pass the view's condition; then it is `put`.

    `order` and `window` are those of the row of a task, the window as start and end.
    """

    key: str | None
    value: Json
    put: bool
    passes: bool
    time: int
    order: Json
    window: tuple[int, int] | None = None

    @property
    def place(self) -> tuple[int, ...]:
        """The place in processing order: the number of the vector's record, and the turns below it."""
        return (self.order["offset"], *self.order["turn"])


@dataclass(frozen=True)
class StoredFilters:
    """Filters and projections of a table that contracts cannot express, run by the operators.

    `source`: the table that they read, stored as `versioned` and `retention` say. `drops`: whether each step leaves out
    tombstones (`tables.plan_tombstone_drops`). `store`: that of the last step, if it has one.
    """

    source: str
    versioned: bool
    retention: int | None
    steps: Sequence[Operation]
    drops: Sequence[bool]
    store: Operation | None


def apply_filters(filters: StoredFilters, records: list[TaskRecord]) -> list[TaskRecord]:
    """Return what filters and projections pass on, the last through its store, if it has one."""
    records = [record for record in records if record.key is not None]
    names = sorted({record.key or "" for record in records}, key=str.encode)
    key = np.array([names.index(record.key or "") for record in records], np.int64)
    value = np.array([n if record.value is not None else NOTHING for n, record in enumerate(records)], np.int64)
    time, home = np.array([record.time for record in records], np.int64), np.zeros(len(names), np.int64)
    store = _empty_store(versioned=filters.versioned, retention=filters.retention)
    changes, _ = tables.materialize_source(np.arange(len(records)), key, time, value, store, home)
    values = [record.value for record in records]
    for number, (step, leaves_out) in enumerate(zip(filters.steps, filters.drops, strict=True)):
        own = filters.store if number == len(filters.steps) - 1 else None
        if step["op"] == "filter":
            passing = np.array([value is not None and passes_filter(step, value) for value in values], np.bool_)
            changes = tables.filter_changes(changes, passing, leaves_out=leaves_out and own is None)
        else:
            values = [None if value is None else value * step["multiplyBy"] for value in values]
        if own is not None:
            store = _empty_store(versioned=own["versioned"], retention=own.get("historyRetentionMs"))
            changes, _ = tables.materialize_changes(changes, store, home, unless_absent=leaves_out)
    return [
        records[order]._replace(value=None if code == NOTHING else values[code], put=code != NOTHING, passes=True)
        for order, code in zip(changes.order.tolist(), changes.value.tolist(), strict=True)
    ]


def _empty_store(*, versioned: bool, retention: int | None) -> TableStore:
    return TableStore(empty_store_state(), retention if versioned else None)


def passes_filter(step: Mapping[str, Json], value: Json) -> bool:
    match step["predicate"]:
        case {"type": "even"}:
            return bool(value % 2 == 0)
        case {"type": "gte", "value": least}:
            return bool(value >= least)
    raise DeclinedVector(f"no predicate {step['predicate']}")


@contextmanager
def traced_aggregates() -> Iterator[None]:
    """Within the block, aggregates have the measure `trace`."""

    def evaluate(_part: measures.MeasurePart, nodes: Any, arguments: pa.Array, state: pa.Array) -> pa.Array:
        return pa.array(evaluate_trace(nodes, arguments.to_pylist(), state.to_pylist()), pa.string())

    with mock.patch.dict(measures.PARTS, trace=("trace",)), mock.patch.object(measures, "evaluate_part", evaluate):
        yield


@contextmanager
def reduced_windows() -> Iterator[None]:
    """Within the block, windows are reduced, not aggregated."""
    aggregate = emit_strategy.aggregate_windows

    def reduce_windows(*arguments: Any) -> Any:
        return aggregate(*arguments, reduce=True)

    with mock.patch.object(emit_strategy, "aggregate_windows", reduce_windows):
        yield


def evaluate_trace(nodes: Any, values: Sequence[Json], kept: Sequence[str]) -> list[str]:
    """Return the trace of each node (aggregation_tree.py). `kept`: the traces of kept nodes."""
    results: list[str] = []
    for what, first, second in nodes.tolist():
        if what == KEPT:
            results.append(kept[first])
            continue
        before = "0" if first == NOTHING else results[first]
        if what == MERGE:
            results.append(f"({before}&{'0' if second == NOTHING else results[second]})")
            continue
        value = None if second == NOTHING else values[second]
        results.append(f"{before}{'+' if what == ADD else '-'}{'null' if value is None else value}")
    return results
