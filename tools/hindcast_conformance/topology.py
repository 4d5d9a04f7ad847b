"""Topologies: the adapter between vectors of Kafka Streams and the operators of the `kafka` reading.

Java's exceptions are named only in this package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams import (
    aggregates,
    emit_strategy,
    foreign_key,
    join_buffer,
    stream_stream,
    stream_table,
    table_table,
    tables,
    windowed,
)
from hindcast.streams.records import Records
from hindcast.streams.session_windows import SessionWindows
from hindcast.streams.sliding_windows import SlidingWindows
from hindcast.streams.tables import NO_OLD_VALUES, OLD_VALUES_MATERIALIZED, TableChanges
from hindcast.streams.time_windows import TimeWindows
from hindcast.streams.windowed import Windows
from hindcast_conformance.vector_task import Values, VectorTable, VectorTask, build_table_store, evaluate_nodes
from hindcast_conformance.vectors import DeclinedVector, Json, KafkaStreamsError, Vector, decline_unreadable, join_kind
from hindcast_conformance.versioned_store import StoreSteps, visible_versions


def compute_vector(vector: Vector) -> Json:
    """Return the result of a `kafka` vector in the form of its own `expected`; DeclinedVector if unsupported."""
    with decline_unreadable():
        operator = _OPERATORS.get(vector.operation["type"])
        if operator is None:
            raise DeclinedVector(f"no operator for {vector.operation['type']!r}")
        try:
            return operator(VectorTask(vector))
        except KafkaStreamsError as failure:
            return {"error": failure.error}


def _emitted_rows(task: VectorTask, cause: Any, key: Any, value: Sequence[Json], time: Any) -> list[Json]:
    rows = zip(cause.tolist(), key.tolist(), value, time.tolist(), strict=True)
    return [
        {"key": None if k == NOTHING else task.names[k], "value": v, "timestamp": t, "cause": c} for c, k, v, t in rows
    ]


def _format_computed(task: VectorTask, emitted: list[Json], **more: Json) -> Json:
    """Return a result in the form of `expected`."""
    stores = {"history": task.history, "state": task.state}
    return {"emitted": emitted, **{name: contents for name, contents in stores.items() if contents}, **more}


def _format_changes(task: VectorTask, changes: TableChanges, values: Values) -> Json:
    emitted = [_value_at(values, code) for code in changes.value.tolist()]
    return _format_computed(task, _emitted_rows(task, changes.order, changes.key, emitted, changes.time))


def _table_transform(task: VectorTask) -> Json:
    table = task.table(task.operation["table"], "table")
    return _format_changes(task, table.changes, table.values)


def _to_table(task: VectorTask) -> Json:
    table = task.table(task.operation["materialized"], "stream")
    changed = {task.names[key] for key in table.changes.key.tolist()}
    task.history = {
        name.replace("stream", "result"): {key: rows for key, rows in keys.items() if key in changed}
        for name, keys in task.history.items()
    }
    task.state = {name.replace("stream", "result"): keys for name, keys in task.state.items()}
    return _format_changes(task, table.changes, table.values)


def _stream_table_join(task: VectorTask) -> Json:
    how, grace = join_kind(task.operation), task.operation.get("graceMs")
    table = task.table(task.operation["table"], "table")
    records = Records(*task.columns("stream"))
    cause, failed = records.order, NOTHING
    if grace is not None:
        if not table.versioned:
            raise KafkaStreamsError("java.lang.IllegalArgumentException", _NOT_VERSIONED)
        if grace > table.retention:
            raise KafkaStreamsError(
                "java.lang.IllegalArgumentException", "History retention must be at least grace period."
            )
        (cause, records, failed), _ = join_buffer.release_records(records, grace, how, join_buffer.empty_buffer())
    events = records._replace(order=cause)
    joined = stream_table.join_stream_table(events, table.side, how, task.home)
    pairs = [
        {"left": task.raw[records.value[e]], "right": table.value_at(r)}
        for e, r in zip(joined.event.tolist(), joined.right.tolist(), strict=True)
    ]
    at = joined.event
    emitted = _emitted_rows(task, cause[at], records.key[at], pairs, records.timestamp[at])
    if failed == NOTHING:
        return _format_computed(task, emitted)
    return {"emitted": emitted, "error": {**_NULL_KEY, "record": failed}}


def _format_join(task: VectorTask, joined: table_table.TableJoinResults, left: Values, right: Values) -> Json:
    """Return the result of a join of tables, which may be materialized."""
    pairs = [
        None if a == b == NOTHING else {"left": _value_at(left, a), "right": _value_at(right, b)}
        for a, b in zip(joined.left.tolist(), joined.right.tolist(), strict=True)
    ]
    value = np.where([pair is None for pair in pairs], NOTHING, np.arange(len(pairs)))
    nothing = np.full(len(pairs), NOTHING)
    changes = TableChanges(joined.cause, joined.key, value, nothing, joined.time, nothing == NOTHING)
    return _store_changes(task, changes, pairs, task.operation.get("materialized"))


def _store_changes(task: VectorTask, changes: TableChanges, values: Values, spec: Mapping[str, Json] | None) -> Json:
    """Return the result of changes, through a store if there is a `spec` for one."""
    if spec is not None:
        changes, stored = tables.materialize_changes(changes, build_table_store(spec), task.home)
        keys = sorted(set(changes.key.tolist()))
        task.note("result", spec, VectorTable(changes, stored, values, np.ones(len(values), np.bool_), spec), keys)
    return _format_changes(task, changes, values)


def _value_at(values: Values, place: int) -> Json:
    return None if place == NOTHING else values[place]


def _table_table_join(task: VectorTask) -> Json:
    how = join_kind(task.operation)
    left = task.table(task.operation["left"], "left", OLD_VALUES_MATERIALIZED if how != "inner" else NO_OLD_VALUES)
    right = task.table(task.operation["right"], "right", OLD_VALUES_MATERIALIZED if how == "outer" else NO_OLD_VALUES)
    joined = table_table.join_table_table(left.side, right.side, how, task.home)
    return _format_join(task, joined, left.values, right.values)


def _foreign_key_join(task: VectorTask) -> Json:
    left = task.table(task.operation["left"], "left", OLD_VALUES_MATERIALIZED)
    right = task.table(task.operation["right"], "right", OLD_VALUES_MATERIALIZED)
    foreign_keys = task.field(left.values, task.operation["foreignKeyField"])
    joined, _ = foreign_key.join_foreign_key(
        left.changes,
        right.side,
        foreign_keys,
        join_kind(task.operation),
        foreign_key.empty_subscriptions(),
        task.home,
    )
    return _format_join(task, joined, left.values, right.values)


def _aggregate_groups(task: VectorTask, contributions: aggregates.Contributions, values: Values) -> Json:
    spec = task.operation.get("materialized") or {"versioned": False}
    store = build_table_store(spec)
    result = aggregates.aggregate_contributions(contributions, store.versions, task.home, store.retention)
    values = evaluate_nodes(result.nodes, task.operation["aggregation"], values)
    return _store_changes(task, result.changes, values, spec)


def _table_aggregate(task: VectorTask) -> Json:
    by = task.operation["groupBy"]
    table = task.table(task.operation["table"], "table", OLD_VALUES_MATERIALIZED)
    group = task.field(table.values, by["keyField"])
    values = [value.get(by["valueField"]) if isinstance(value, dict) else None for value in table.values]
    group[[value is None for value in values]] = NOTHING
    return _aggregate_groups(task, aggregates.table_contributions(table.changes, group), values)


def _stream_aggregate(task: VectorTask) -> Json:
    order, key, value, time = task.columns("stream")
    return _aggregate_groups(task, aggregates.stream_contributions(order, key, time, value), task.raw)


def _windowed_aggregate(task: VectorTask) -> Json:
    records, aggregation = Records(*task.columns("stream")), task.operation["aggregation"]
    windows, emit = parse_windows(task.operation["window"]), emit_strategy.EmitStrategy(task.operation["emit"])
    state = windowed.empty_window_state()
    out, nodes, _ = emit_strategy.aggregate_windows(windows, emit, records, state, reduce=aggregation == "sum")
    results = evaluate_nodes(nodes, aggregation, task.raw)
    values = [_value_at(results, node) for node in out.value.tolist()]
    emitted = _emitted_rows(task, out.cause, out.key, values, out.timestamp)
    for row, start, end in zip(emitted, out.start.tolist(), out.end.tolist(), strict=True):
        row["key"] = {"key": row["key"], "start": start, "end": end}
    return _format_computed(task, emitted)


def parse_windows(spec: Mapping[str, Json]) -> Windows:
    """Return the windows of an operation; KafkaStreamsError if their store would not retain what they need."""
    windows = _build_windows(spec)
    needed, retention = replace(windows, retention=None).store_retention, spec.get("storeRetentionMs")
    if retention is not None and retention < needed:
        store, reason, lengths = _TOO_SHORT[spec["kind"]]
        given = ", ".join(f"{name}=[{spec[field]}]" for name, field in (*lengths, ("grace", "graceMs")))
        message = (
            f"The retention period of the {store} must be no smaller than {reason} plus the grace period. "
            f"Got {given}, retention=[{retention}]"
        )
        raise KafkaStreamsError("java.lang.IllegalArgumentException", message)
    return windows


def _build_windows(spec: Mapping[str, Json]) -> TimeWindows | SlidingWindows | SessionWindows:
    grace, retention = spec["graceMs"], spec.get("storeRetentionMs")
    match spec["kind"]:
        case "tumbling":
            return TimeWindows(spec["sizeMs"], spec["sizeMs"], grace, retention)
        case "hopping":
            return TimeWindows(spec["sizeMs"], spec["advanceMs"], grace, retention)
        case "sliding":
            return SlidingWindows(spec["timeDifferenceMs"], grace, retention)
        case "session":
            return SessionWindows(spec["inactivityGapMs"], grace, retention)
    raise DeclinedVector(f"no window {spec['kind']!r}")


def _stream_stream_join(task: VectorTask) -> Json:
    records, window = _join_input(task)
    out, _ = stream_stream.join_stream_stream(
        records, window, join_kind(task.operation), stream_stream.empty_join_state()
    )
    pairs = [
        {"left": _value_at(task.raw, a), "right": _value_at(task.raw, b)}
        for a, b in zip(out.left.tolist(), out.right.tolist(), strict=True)
    ]
    return _format_computed(task, _emitted_rows(task, out.cause, out.key, pairs, out.timestamp))


def _join_input(task: VectorTask) -> tuple[stream_stream.JoinRecords, stream_stream.JoinWindows]:
    """Return the records of both sides of a join of streams, and its window."""
    order, *columns = task.columns("left", "right")
    is_left = np.array([record["topic"] == "left" for record in task.records], np.bool_)
    side = np.where(is_left[order], stream_stream.LEFT, stream_stream.RIGHT)
    spec = task.operation["window"]
    window = stream_stream.JoinWindows(spec["beforeMs"], spec["afterMs"], spec["graceMs"])
    return stream_stream.JoinRecords(order, side, *columns), window


def _store_steps(task: VectorTask) -> Json:
    steps = StoreSteps(task.operation, task.records, task.code)
    state = steps.history()
    written = {step["key"] for step in task.records if step["op"] in ("put", "delete")}
    keys = {name: visible_versions(state, code, task.raw) for name, code in task.code.items() if name in written}
    return {"results": steps.run_all(), "history": {"store": keys}}


def _stream_global_table_join(task: VectorTask) -> Json:
    if task.operation["table"]["versioned"]:
        message = "Invalid topology: GlobalTables cannot be versioned."
        raise KafkaStreamsError("org.apache.kafka.streams.errors.TopologyException", message)
    raise DeclinedVector("a global table has no order beside the stream")


_NULL_KEY = {
    "phase": "process",
    "class": "java.lang.NullPointerException",
    "message": "key cannot be null",
    "thrownAs": "org.apache.kafka.streams.errors.StreamsException",
}
_OF_SIZE = (
    "window store KSTREAM-AGGREGATE-STATE-STORE-0000000002",
    "its window size",
    (("size", "sizeMs"),),
)
_TOO_SHORT = {
    "tumbling": _OF_SIZE,
    "hopping": _OF_SIZE,
    "sliding": (
        "window store KSTREAM-AGGREGATE-STATE-STORE-0000000001",
        "2 * time difference",
        (("time difference", "timeDifferenceMs"),),
    ),
    "session": (
        "session store KSTREAM-AGGREGATE-STATE-STORE-0000000002",
        "the session inactivity gap",
        (("gap", "inactivityGapMs"),),
    ),
}
"""By the kind of windows: Kafka Streams' name of their store, what it must retain, and the lengths in its message."""

_NOT_VERSIONED = "KTable must be versioned to use a grace period in a stream table join."
_OPERATORS: Mapping[str, Callable[[VectorTask], Json]] = {
    "table_transform": _table_transform,
    "to_table": _to_table,
    "stream_table_join": _stream_table_join,
    "table_table_join": _table_table_join,
    "foreign_key_join": _foreign_key_join,
    "table_aggregate": _table_aggregate,
    "stream_aggregate": _stream_aggregate,
    "windowed_aggregate": _windowed_aggregate,
    "stream_stream_join": _stream_stream_join,
    "store": _store_steps,
    "stream_global_table_join": _stream_global_table_join,
}
