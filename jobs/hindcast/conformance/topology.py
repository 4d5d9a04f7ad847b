"""Vectors of Kafka Streams through the operators of the `kafka` reading: the adapter between the two.

Java's exceptions have their names here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.conformance.storing import Steps, versions
from hindcast.conformance.vectors import Declined, Json, Vector, join_of, understanding
from hindcast.emits import (
    aggregates,
    buffer,
    closing,
    foreign_key,
    stream_stream,
    stream_table,
    table_table,
    tables,
    time_limit,
    versioned,
    windowed,
)
from hindcast.emits.folds import ADD, KEPT, MERGE, SUBTRACT
from hindcast.emits.records import Records
from hindcast.emits.session_windows import SessionWindows
from hindcast.emits.sliding_windows import SlidingWindows
from hindcast.emits.tables import ASKS_NOTHING, INSISTS, Changes, Kept, Step, Stored
from hindcast.emits.time_windows import TimeWindows
from hindcast.emits.windowed import Windows

Values = list[Any]


class Refused(Exception):  # noqa: N818  # a finding, not a fault
    """What Kafka Streams answers instead: `phase`, and the class and message of its exception."""

    def __init__(self, name: str, message: str, **more: Json) -> None:
        super().__init__(message)
        self.error = {"phase": "build", "class": name, "message": message, **more}


class Table:
    """A table of a vector as its transforms leave it: what it passes on, and the store that look-ups go to."""

    def __init__(
        self, changes: Changes, stored: Stored, values: Values, passing: Any, spec: Mapping[str, Json]
    ) -> None:
        self.changes, self.stored, self.values, self.passing = changes, stored, values, passing
        self.versioned = bool(spec["versioned"])
        self.retention = spec.get("historyRetentionMs")

    @property
    def side(self) -> tables.Side:
        """The table as a side of a join."""
        return tables.Side(self.changes, self.stored, self.passing)

    def meets(self, code: int) -> Json:
        """A value that a look-up into the store has found."""
        return None if code == NOTHING else self.values[code]


class Task:
    """One vector: its records as arrays, its stores as they are found at the end."""

    def __init__(self, vector: Vector) -> None:
        self.operation, self.records = vector.operation, vector.records
        names = {r["key"] for r in self.records if r.get("key") is not None} | self._other_keys()
        self.names = sorted(names, key=lambda name: str(name).encode())
        self.code = {name: n for n, name in enumerate(self.names)}
        self.home = np.zeros(len(self.names), np.int64)
        self.raw: Values = [record.get("value") for record in self.records]
        self.history: dict[str, Json] = {}
        self.state: dict[str, Json] = {}

    def _other_keys(self) -> set[str]:
        """Keys that stand in values: foreign keys and groups."""
        fields = [self.operation.get("foreignKeyField"), (self.operation.get("groupBy") or {}).get("keyField")]
        values = [record.get("value") for record in self.records]
        found = {v.get(field) for v in values if isinstance(v, dict) for field in fields if field}
        return {it for it in found if it is not None}

    def columns(self, *topics: str) -> tuple[Any, Any, Any, Any]:
        """Order, key, value and time of the records of some topics."""
        order = np.array([n for n, r in enumerate(self.records) if r["topic"] in topics], np.int64)
        its = [self.records[n] for n in order]
        key = np.array([NOTHING if r["key"] is None else self.code[r["key"]] for r in its], np.int64)
        value = np.array([NOTHING if r["value"] is None else n for n, r in zip(order, its, strict=True)], np.int64)
        return order, key, value, np.array([r["timestamp"] for r in its], np.int64)

    def field(self, values: Values, name: str) -> Any:
        """The key that stands in a field of each value; NOTHING where there is none."""
        found = [value.get(name) if isinstance(value, dict) else None for value in values]
        return np.array([NOTHING if it is None else self.code[it] for it in found], np.int64)

    def table(self, spec: Mapping[str, Json], topic: str, asks: int = ASKS_NOTHING) -> Table:
        """A table of the operation, its transforms applied."""
        order, key, value, time = self.columns(topic)
        if spec.get("historyRetentionMs", 0) < 0:
            raise Refused("java.lang.IllegalArgumentException", "historyRetention cannot be negative")
        there = key != NOTHING
        changes, stored = tables.source(order[there], key[there], time[there], value[there], _kept(spec), self.home)
        known = _stored(spec)
        values = [value if r["topic"] == topic else None for value, r in zip(self.raw, self.records, strict=True)]
        table = Table(changes, stored, values, np.ones(len(values), np.bool_), spec)
        keys = sorted(set(key[there].tolist()))
        self.note(topic, spec, table, keys)
        steps = list(spec.get("transforms") or ())
        done = 0
        while done < len(steps):
            upto = next((n for n in range(done, len(steps)) if steps[n]["op"] not in _STEPS), len(steps))
            below = asks if upto == len(steps) else INSISTS if steps[upto]["op"] in _INSISTING else ASKS_NOTHING
            table = self._stepped(table, steps[done:upto], topic, done, below, keys, source_materialized=known)
            if upto < len(steps):
                table = self._begun_anew(
                    table, steps[upto], f"{topic}-{upto + 1}", keys, inherits=self._inherits(steps[done:upto])
                )
                known = "materialized" in steps[upto] or steps[upto]["op"] != "toStreamToTable"
            done = upto + 1
        return table

    def _stepped(
        self,
        table: Table,
        steps: Sequence[Mapping[str, Json]],
        topic: str,
        done: int,
        asks: int,
        keys: list[int],
        *,
        source_materialized: bool,
    ) -> Table:
        """Filters and projections, of which some may have stores."""
        kinds = [Step(step["op"] == "filter", "materialized" in step) for step in steps]
        versions = [table.versioned]
        for step in steps:
            versions.append(step["materialized"]["versioned"] if "materialized" in step else versions[-1])
        leaves = tables.leaves_out(kinds, source_materialized=source_materialized, versioned=versions, asks=asks)
        for number, (step, out) in enumerate(zip(steps, leaves, strict=True)):
            store = step.get("materialized")
            values, changes = table.values, table.changes
            if step["op"] == "filter":
                test = _passes(step["predicate"])
                passing = np.array([value is not None and test(value) for value in values], np.bool_)
                changes = tables.filtered(changes, passing, leaves_out=out and store is None)
            else:
                passing = np.ones(len(values), np.bool_)
                values = [None if v is None else v * step["multiplyBy"] for v in values]
            spec = {"versioned": table.versioned, "historyRetentionMs": table.retention} if store is None else store
            if store is None:
                table = Table(changes, table.stored, values, table.passing & passing, spec)
            else:
                changes, stored = tables.materialized(changes, _kept(store), self.home, unless_absent=out)
                table = Table(changes, stored, values, np.ones(len(values), np.bool_), store)
                self.note(f"{topic}-{done + number + 1}", store, table, keys)
        return table

    def _begun_anew(
        self, table: Table, step: Mapping[str, Json], name: str, keys: list[int], *, inherits: bool
    ) -> Table:
        """What is a table of its own again: of its own stream, counted, or held back."""
        store = step.get("materialized") or {"versioned": False}
        changes, values, passing = table.changes, table.values, np.ones(len(table.values), np.bool_)
        match step["op"]:
            case "toStreamToTable":
                changes, stored = tables.materialized(changes, _kept(store), self.home)
            case "count":
                group = np.full(len(values), NOTHING)
                for at in (changes.value, changes.before):
                    group[at[at != NOTHING]] = changes.key[at != NOTHING]
                given = aggregates.of_table(changes, group)
                done = aggregates.aggregate(given, versioned.empty(), self.home, store.get("historyRetentionMs"))
                values = measured(done.nodes, "count", values)
                passing = np.ones(len(values), np.bool_)
                changes, stored = tables.materialized(done.changes, _kept(store), self.home)
            case "suppressUntilTimeLimit":
                if table.versioned:
                    inherited = " (note that version semantics might be inherited from upstream)" if inherits else ""
                    raise Refused(_SUPPRESSED[0], _SUPPRESSED[1] + inherited)
                return self._suppressed(table, step["timeLimitMs"])
            case other:
                raise Declined(f"no transform {other!r}")
        table = Table(changes, stored, values, passing, store)
        if "materialized" in step:
            self.note(name, store, table, keys)
        return table

    @staticmethod
    def _inherits(steps: Sequence[Mapping[str, Json]]) -> bool:
        """Whether a table has no store of its own."""
        return bool(steps) and "materialized" not in steps[-1]

    def note(self, name: str, spec: Mapping[str, Json], table: Table, keys: list[int]) -> None:
        """What a store holds at the end."""
        if not _stored(spec):
            return
        left, values = table.stored.left, table.values
        if spec["versioned"]:
            self.history[name] = {self.names[key]: versions(left, key, values) for key in keys}
        else:
            rows = zip(left.key.tolist(), left.value.tolist(), left.time.tolist(), strict=True)
            self.state[name] = {self.names[key]: {"value": values[v], "timestamp": time} for key, v, time in rows}

    def _suppressed(self, table: Table, limit: int) -> Table:
        """A table held back until a time limit. Look-ups find what has come out of it last; what was before an update
        that comes out is what was before it in the table, whether or not that has come out.
        """
        it = table.changes
        updates = Records(np.arange(len(it.key)), it.key, it.value, it.time)
        out, _ = time_limit.suppress(updates, limit, time_limit.nothing_kept())
        latest = np.ones(len(out.key), np.bool_)
        changes = Changes(it.order[out.cause], out.key, out.value, it.before[out.update], out.timestamp, latest)
        stored = tables.materialized(changes, _kept({"versioned": False}), self.home)[1]
        return Table(changes, stored, table.values, table.passing, {"versioned": False})


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


def _kept(spec: Mapping[str, Json]) -> Kept:
    retention = spec.get("historyRetentionMs")
    if retention is not None and retention < 0:
        raise Refused("java.lang.IllegalArgumentException", "historyRetention cannot be negative")
    return Kept(versioned.empty(), retention if spec["versioned"] else None)


def _stored(spec: Mapping[str, Json]) -> bool:
    """Whether a table has a store."""
    return bool(spec["versioned"] or spec.get("materialized", True))


def _passes(predicate: Mapping[str, Json]) -> Callable[[Json], bool]:
    match predicate:
        case {"type": "even"}:
            return lambda value: value % 2 == 0
        case {"type": "gte", "value": least}:
            return lambda value: bool(value >= least)
    raise Declined(f"no predicate {predicate}")


def measured(nodes: Any, aggregation: str, values: Values, kept: Values | None = None) -> Values:
    """What nodes amount to (folds.py), as the vectors' aggregations have it. `kept`: what was kept amounts to."""
    found: Values = []
    initial: Any = {"count": 0, "sum": 0, "trace": "0"}[aggregation]
    for what, first, second in nodes.tolist():
        if what == KEPT:
            found.append((kept or [])[first])
            continue
        before = initial if first == NOTHING else found[first]
        if what == MERGE:
            other = initial if second == NOTHING else found[second]
            found.append(f"({before}&{other})" if aggregation == "trace" else before + other)
            continue
        sign = {ADD: 1, SUBTRACT: -1}[what]
        value = None if second == NOTHING else values[second]
        match aggregation:
            case "count":
                found.append(before + sign)
            case "sum":
                found.append(before + sign * (value or 0))
            case _:
                found.append(f"{before}{'+' if sign > 0 else '-'}{'null' if value is None else value}")
    return found


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
        changes, stored = tables.materialized(changes, _kept(spec), task.home)
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
    kept = _kept(spec)
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
    """A kind of windows, with its lengths."""
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
    given, window = pairs_of(task)
    out, _ = stream_stream.join(given, window, join_of(task.operation), stream_stream.nothing_kept())
    pairs = [
        {"left": _at(task.raw, a), "right": _at(task.raw, b)}
        for a, b in zip(out.left.tolist(), out.right.tolist(), strict=True)
    ]
    return _told(task, _emitted(task, out.cause, out.key, pairs, out.timestamp))


def pairs_of(task: Task) -> tuple[stream_stream.Records, stream_stream.Window]:
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
_NOT_VERSIONED = "KTable must be versioned to use a grace period in a stream table join."
_STEPS = ("filter", "mapValues")
_INSISTING = ("count", "suppressUntilTimeLimit")
_SUPPRESSED = (
    "org.apache.kafka.streams.errors.TopologyException",
    "Invalid topology: suppress() is only supported for non-versioned KTables",
)
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
