"""Vectors of Kafka Streams through the operators of the `kafka` reading: the adapter between the two.

Java's exceptions have their names here and in `tasks`, nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.conformance.storing import Steps, versions
from hindcast.conformance.tasks import Table, Task, Values, kept_as, measured
from hindcast.conformance.vectors import Declined, Json, Refused, Vector, join_of, understanding
from hindcast.emits import (
    aggregates,
    buffer,
    closing,
    foreign_key,
    stream_stream,
    stream_table,
    table_table,
    tables,
    windowed,
)
from hindcast.emits.records import Records
from hindcast.emits.session_windows import SessionWindows
from hindcast.emits.sliding_windows import SlidingWindows
from hindcast.emits.tables import ASKS_NOTHING, INSISTS, Changes
from hindcast.emits.time_windows import TimeWindows
from hindcast.emits.windowed import Windows


def computed(vector: Vector) -> Json:
    """What the operators of the `kafka` reading make of a vector, in the form of its own `expected`."""
    with understanding():
        operator = _OPERATORS.get(vector.operation["type"])
        if operator is None:
            raise Declined(f"no operator for {vector.operation['type']!r}")
        try:
            return operator(Task(vector))
        except Refused as refused:
            return {"error": refused.error}


def _emitted(task: Task, cause: Any, key: Any, value: Sequence[Json], time: Any) -> list[Json]:
    rows = zip(cause.tolist(), key.tolist(), value, time.tolist(), strict=True)
    return [
        {"key": None if k == NOTHING else task.names[k], "value": v, "timestamp": t, "cause": c} for c, k, v, t in rows
    ]


def _told(task: Task, emitted: list[Json], **more: Json) -> Json:
    """In the form of `expected`."""
    stores = {name: it for name, it in (("history", task.history), ("state", task.state)) if it}
    return {"emitted": emitted, **stores, **more}


def _of_changes(task: Task, changes: Changes, values: Values) -> Json:
    told = [None if v == NOTHING else values[v] for v in changes.value.tolist()]
    return _told(task, _emitted(task, changes.order, changes.key, told, changes.time))


def _table_transform(task: Task) -> Json:
    table = task.table(task.operation["table"], "table")
    return _of_changes(task, table.changes, table.values)


def _to_table(task: Task) -> Json:
    table = task.table(task.operation["materialized"], "stream")
    there = {task.names[key] for key in table.changes.key.tolist()}
    task.history = {
        name.replace("stream", "result"): {key: rows for key, rows in it.items() if key in there}
        for name, it in task.history.items()
    }
    task.state = {name.replace("stream", "result"): it for name, it in task.state.items()}
    return _of_changes(task, table.changes, table.values)


def _stream_table_join(task: Task) -> Json:
    how, grace = join_of(task.operation), task.operation.get("graceMs")
    table = task.table(task.operation["table"], "table")
    records = Records(*task.columns("stream"))
    cause, failed = records.order, NOTHING
    if grace is not None:
        if not table.versioned:
            raise Refused("java.lang.IllegalArgumentException", _NOT_VERSIONED)
        if grace > table.retention:
            raise Refused("java.lang.IllegalArgumentException", "History retention must be at least grace period.")
        (cause, records, failed), _ = buffer.release(records, grace, how, buffer.nothing_kept())
    events = records._replace(order=cause)
    met = stream_table.stream_table(events, table.side, how, task.home)
    pairs = [
        {"left": task.raw[records.value[e]], "right": table.meets(r)}
        for e, r in zip(met.event.tolist(), met.right.tolist(), strict=True)
    ]
    emitted = _emitted(task, cause[met.event], records.key[met.event], pairs, records.timestamp[met.event])
    if failed == NOTHING:
        return _told(task, emitted)
    return {"emitted": emitted, "error": {**_NULL_KEY, "record": failed}}


def _joined(task: Task, joined: table_table.Joined, left: Values, right: Values) -> Json:
    """A join of tables, maybe materialized."""
    pairs = [
        None if a == b == NOTHING else {"left": _at(left, a), "right": _at(right, b)}
        for a, b in zip(joined.left.tolist(), joined.right.tolist(), strict=True)
    ]
    value = np.where([pair is None for pair in pairs], NOTHING, np.arange(len(pairs)))
    nothing = np.full(len(pairs), NOTHING)
    changes = Changes(joined.cause, joined.key, value, nothing, joined.time, nothing == NOTHING)
    return _resulting(task, changes, pairs, task.operation.get("materialized"))


def _resulting(task: Task, changes: Changes, values: Values, spec: Mapping[str, Json] | None) -> Json:
    """What comes of changes, maybe through a store."""
    if spec is not None:
        changes, stored = tables.materialized(changes, kept_as(spec), task.home)
        keys = sorted(set(changes.key.tolist()))
        task.note("result", spec, Table(changes, stored, values, np.ones(len(values), np.bool_), spec), keys)
    return _of_changes(task, changes, values)


def _at(values: Values, place: int) -> Json:
    return None if place == NOTHING else values[place]


def _table_table_join(task: Task) -> Json:
    how = join_of(task.operation)
    left = task.table(task.operation["left"], "left", INSISTS if how != "inner" else ASKS_NOTHING)
    right = task.table(task.operation["right"], "right", INSISTS if how == "outer" else ASKS_NOTHING)
    joined = table_table.table_table(left.side, right.side, how, task.home)
    return _joined(task, joined, left.values, right.values)


def _foreign_key_join(task: Task) -> Json:
    left = task.table(task.operation["left"], "left", INSISTS)
    right = task.table(task.operation["right"], "right", INSISTS)
    named = task.field(left.values, task.operation["foreignKeyField"])
    joined, _ = foreign_key.foreign_key(
        left.changes,
        right.side,
        named,
        join_of(task.operation),
        foreign_key.nobody(),
        task.home,
    )
    return _joined(task, joined, left.values, right.values)


def _aggregated(task: Task, given: aggregates.Contributions, values: Values) -> Json:
    spec = task.operation.get("materialized") or {"versioned": False}
    kept = kept_as(spec)
    done = aggregates.aggregate(given, kept.versions, task.home, kept.retention)
    values = measured(done.nodes, task.operation["aggregation"], values)
    return _resulting(task, done.changes, values, spec)


def _table_aggregate(task: Task) -> Json:
    by = task.operation["groupBy"]
    table = task.table(task.operation["table"], "table", INSISTS)
    group = task.field(table.values, by["keyField"])
    values = [value.get(by["valueField"]) if isinstance(value, dict) else None for value in table.values]
    group[[value is None for value in values]] = NOTHING
    return _aggregated(task, aggregates.of_table(table.changes, group), values)


def _stream_aggregate(task: Task) -> Json:
    order, key, value, time = task.columns("stream")
    return _aggregated(task, aggregates.of_stream(order, key, time, value), task.raw)


def _windowed_aggregate(task: Task) -> Json:
    given, aggregation = Records(*task.columns("stream")), task.operation["aggregation"]
    its, kept, emit = (
        windows_of(task.operation["window"]),
        windowed.nothing_kept(),
        closing.Emit(task.operation["emit"]),
    )
    out, nodes, _ = closing.aggregate(its, emit, given, kept, reduce=aggregation == "sum")
    told = measured(nodes, aggregation, task.raw)
    emitted = _emitted(task, out.cause, out.key, [_at(told, node) for node in out.value.tolist()], out.timestamp)
    for row, start, end in zip(emitted, out.start.tolist(), out.end.tolist(), strict=True):
        row["key"] = {"key": row["key"], "start": start, "end": end}
    return _told(task, emitted)


def windows_of(spec: Mapping[str, Json]) -> Windows:
    """Return a kind of windows, with its lengths; Refused if their store would not retain what they need."""
    windows = _windows_of(spec)
    needed, retention = replace(windows, retention=None).store_retention, spec.get("storeRetentionMs")
    if retention is not None and retention < needed:
        store, reason, lengths = _TOO_SHORT[spec["kind"]]
        told = ", ".join(f"{name}=[{spec[field]}]" for name, field in (*lengths, ("grace", "graceMs")))
        message = (
            f"The retention period of the {store} must be no smaller than {reason} plus the grace period. "
            f"Got {told}, retention=[{retention}]"
        )
        raise Refused("java.lang.IllegalArgumentException", message)
    return windows


def _windows_of(spec: Mapping[str, Json]) -> TimeWindows | SlidingWindows | SessionWindows:
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
    raise Declined(f"no window {spec['kind']!r}")


def _stream_stream_join(task: Task) -> Json:
    given, window = _pairs_of(task)
    out, _ = stream_stream.join(given, window, join_of(task.operation), stream_stream.nothing_kept())
    pairs = [
        {"left": _at(task.raw, a), "right": _at(task.raw, b)}
        for a, b in zip(out.left.tolist(), out.right.tolist(), strict=True)
    ]
    return _told(task, _emitted(task, out.cause, out.key, pairs, out.timestamp))


def _pairs_of(task: Task) -> tuple[stream_stream.Records, stream_stream.Window]:
    """The records of both sides of a join of streams, and its window."""
    order, *columns = task.columns("left", "right")
    is_left = np.array([record["topic"] == "left" for record in task.records], np.bool_)
    side = np.where(is_left[order], stream_stream.LEFT, stream_stream.RIGHT)
    its = task.operation["window"]
    window = stream_stream.Window(its["beforeMs"], its["afterMs"], its["graceMs"])
    return stream_stream.Records(order, side, *columns), window


def _store(task: Task) -> Json:
    steps = Steps(task.operation, task.records, task.code)
    left = steps.history()
    written = {step["key"] for step in task.records if step["op"] in ("put", "delete")}
    keys = {name: versions(left, code, task.raw) for name, code in task.code.items() if name in written}
    return {"results": steps.results(), "history": {"store": keys}}


def _stream_global_table_join(task: Task) -> Json:
    if task.operation["table"]["versioned"]:
        told = "Invalid topology: GlobalTables cannot be versioned."
        raise Refused("org.apache.kafka.streams.errors.TopologyException", told)
    raise Declined("a global table has no order beside the stream")


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
"""By the kind of windows: what Kafka Streams calls their store, what that has to retain, and lengths that it names."""

_NOT_VERSIONED = "KTable must be versioned to use a grace period in a stream table join."
_OPERATORS: Mapping[str, Callable[[Task], Json]] = {
    "table_transform": _table_transform,
    "to_table": _to_table,
    "stream_table_join": _stream_table_join,
    "table_table_join": _table_table_join,
    "foreign_key_join": _foreign_key_join,
    "table_aggregate": _table_aggregate,
    "stream_aggregate": _stream_aggregate,
    "windowed_aggregate": _windowed_aggregate,
    "stream_stream_join": _stream_stream_join,
    "store": _store,
    "stream_global_table_join": _stream_global_table_join,
}
