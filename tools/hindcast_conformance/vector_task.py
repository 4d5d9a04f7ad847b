"""Vector tasks: a vector in the form that operators of the `kafka` reading take: arrays, tables and their stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hindcast.common.jit import NOTHING
from hindcast.streams import aggregates, suppress, tables, versioned
from hindcast.streams.aggregation_tree import ADD, KEPT, MERGE, SUBTRACT
from hindcast.streams.records import Records
from hindcast.streams.tables import (
    NO_OLD_VALUES,
    OLD_VALUES_MATERIALIZED,
    StorePuts,
    TableChanges,
    TableStore,
    TransformStep,
)
from hindcast_conformance.vectors import DeclinedVector, Json, KafkaStreamsError, Vector
from hindcast_conformance.versioned_store import visible_versions

Values = list[Any]


class VectorTable:
    """A table of a vector after its transforms: the `changes` it passes on, and the store `stored` for look-ups."""

    def __init__(
        self, changes: TableChanges, stored: StorePuts, values: Values, passing: Any, spec: Mapping[str, Json]
    ) -> None:
        self.changes, self.stored, self.values, self.passing = changes, stored, values, passing
        self.versioned = bool(spec["versioned"])
        self.retention = spec.get("historyRetentionMs")

    @property
    def side(self) -> tables.JoinSide:
        """The table as a side of a join."""
        return tables.JoinSide(self.changes, self.stored, self.passing)

    def value_at(self, code: int) -> Json:
        """Return the value for the code that a look-up into the store returned; None for NOTHING."""
        return None if code == NOTHING else self.values[code]


class VectorTask:
    """One vector: its records as arrays, and the final contents of its stores."""

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
        """Return the keys that occur in values: foreign keys and groups."""
        fields = [self.operation.get("foreignKeyField"), (self.operation.get("groupBy") or {}).get("keyField")]
        values = [record.get("value") for record in self.records]
        keys = {v.get(field) for v in values if isinstance(v, dict) for field in fields if field}
        return {key for key in keys if key is not None}

    def columns(self, *topics: str) -> tuple[Any, Any, Any, Any]:
        """Return order, key, value and time of the records of some topics, as arrays of integers."""
        order = np.array([n for n, r in enumerate(self.records) if r["topic"] in topics], np.int64)
        records = [self.records[n] for n in order]
        key = np.array([NOTHING if r["key"] is None else self.code[r["key"]] for r in records], np.int64)
        value = np.array([NOTHING if r["value"] is None else n for n, r in zip(order, records, strict=True)], np.int64)
        return order, key, value, np.array([r["timestamp"] for r in records], np.int64)

    def field(self, values: Values, name: str) -> Any:
        """Return the code of the key in a field of each value; NOTHING where there is none."""
        keys = [value.get(name) if isinstance(value, dict) else None for value in values]
        return np.array([NOTHING if key is None else self.code[key] for key in keys], np.int64)

    def table(self, spec: Mapping[str, Json], topic: str, asks: int = NO_OLD_VALUES) -> VectorTable:
        """Return a table of the operation with its transforms applied; note the final contents of its stores.

        `asks`: whether what reads the table needs the old values of changes.
        """
        order, key, value, time = self.columns(topic)
        if spec.get("historyRetentionMs", 0) < 0:
            raise KafkaStreamsError("java.lang.IllegalArgumentException", "historyRetention cannot be negative")
        has_key = key != NOTHING
        changes, stored = tables.materialize_source(
            order[has_key], key[has_key], time[has_key], value[has_key], build_table_store(spec), self.home
        )
        source_materialized = _has_store(spec)
        values = [value if r["topic"] == topic else None for value, r in zip(self.raw, self.records, strict=True)]
        table = VectorTable(changes, stored, values, np.ones(len(values), np.bool_), spec)
        keys = sorted(set(key[has_key].tolist()))
        self.note(topic, spec, table, keys)
        steps = list(spec.get("transforms") or ())
        done = 0
        while done < len(steps):
            upto = next((n for n in range(done, len(steps)) if steps[n]["op"] not in _STEPS), len(steps))
            if upto == len(steps):
                needed = asks
            else:
                needed = OLD_VALUES_MATERIALIZED if steps[upto]["op"] in _MATERIALIZING else NO_OLD_VALUES
            table = self._apply_stateless(
                table, steps[done:upto], topic, done, needed, keys, source_materialized=source_materialized
            )
            if upto < len(steps):
                table = self._apply_stateful(
                    table, steps[upto], f"{topic}-{upto + 1}", keys, inherits=self._has_no_store(steps[done:upto])
                )
                source_materialized = "materialized" in steps[upto] or steps[upto]["op"] != "toStreamToTable"
            done = upto + 1
        return table

    def _apply_stateless(
        self,
        table: VectorTable,
        steps: Sequence[Mapping[str, Json]],
        topic: str,
        done: int,
        asks: int,
        keys: list[int],
        *,
        source_materialized: bool,
    ) -> VectorTable:
        """Return a table after filters and projections, some of which may have stores."""
        kinds = [TransformStep(step["op"] == "filter", "materialized" in step) for step in steps]
        versions = [table.versioned]
        for step in steps:
            versions.append(step["materialized"]["versioned"] if "materialized" in step else versions[-1])
        leaves = tables.plan_tombstone_drops(
            kinds, source_materialized=source_materialized, versioned=versions, asks=asks
        )
        for number, (step, out) in enumerate(zip(steps, leaves, strict=True)):
            store = step.get("materialized")
            values, changes = table.values, table.changes
            if step["op"] == "filter":
                test = _parse_predicate(step["predicate"])
                passing = np.array([value is not None and test(value) for value in values], np.bool_)
                changes = tables.filter_changes(changes, passing, leaves_out=out and store is None)
            else:
                passing = np.ones(len(values), np.bool_)
                values = [None if v is None else v * step["multiplyBy"] for v in values]
            spec = {"versioned": table.versioned, "historyRetentionMs": table.retention} if store is None else store
            if store is None:
                table = VectorTable(changes, table.stored, values, table.passing & passing, spec)
            else:
                changes, stored = tables.materialize_changes(
                    changes, build_table_store(store), self.home, unless_absent=out
                )
                table = VectorTable(changes, stored, values, np.ones(len(values), np.bool_), store)
                self.note(f"{topic}-{done + number + 1}", store, table, keys)
        return table

    def _apply_stateful(
        self, table: VectorTable, step: Mapping[str, Json], name: str, keys: list[int], *, inherits: bool
    ) -> VectorTable:
        """Return the new table that a transform makes of a table: of its stream, of counts, or suppressed."""
        store = step.get("materialized") or {"versioned": False}
        changes, values, passing = table.changes, table.values, np.ones(len(table.values), np.bool_)
        match step["op"]:
            case "toStreamToTable":
                changes, stored = tables.materialize_changes(changes, build_table_store(store), self.home)
            case "count":
                group = np.full(len(values), NOTHING)
                for at in (changes.value, changes.before):
                    group[at[at != NOTHING]] = changes.key[at != NOTHING]
                contributions = aggregates.table_contributions(changes, group)
                result = aggregates.aggregate_contributions(
                    contributions, versioned.empty_store_state(), self.home, store.get("historyRetentionMs")
                )
                values = evaluate_nodes(result.nodes, "count", values)
                passing = np.ones(len(values), np.bool_)
                changes, stored = tables.materialize_changes(result.changes, build_table_store(store), self.home)
            case "suppressUntilTimeLimit":
                if table.versioned:
                    inherited = " (note that version semantics might be inherited from upstream)" if inherits else ""
                    raise KafkaStreamsError(_SUPPRESSED[0], _SUPPRESSED[1] + inherited)
                return self._suppress_table(table, step["timeLimitMs"])
            case other:
                raise DeclinedVector(f"no transform {other!r}")
        table = VectorTable(changes, stored, values, passing, store)
        if "materialized" in step:
            self.note(name, store, table, keys)
        return table

    @staticmethod
    def _has_no_store(steps: Sequence[Mapping[str, Json]]) -> bool:
        """Return whether a table after these steps has no store of its own."""
        return bool(steps) and "materialized" not in steps[-1]

    def note(self, name: str, spec: Mapping[str, Json], table: VectorTable, keys: list[int]) -> None:
        """Add the final contents of a store to `history` (versioned) or `state`; nothing if the table has no store."""
        if not _has_store(spec):
            return
        state, values = table.stored.state, table.values
        if spec["versioned"]:
            self.history[name] = {self.names[key]: visible_versions(state, key, values) for key in keys}
        else:
            rows = zip(state.key.tolist(), state.value.tolist(), state.time.tolist(), strict=True)
            self.state[name] = {self.names[key]: {"value": values[v], "timestamp": time} for key, v, time in rows}

    def _suppress_table(self, table: VectorTable, limit: int) -> VectorTable:
        """Return a table suppressed until a time limit.

        Look-ups find the last update that was emitted. The old value of an emitted update is the one before it in the
        table, emitted or not.
        """
        source = table.changes
        updates = Records(np.arange(len(source.key)), source.key, source.value, source.time)
        out, _ = suppress.suppress_updates(updates, limit, suppress.empty_suppress_state())
        latest = np.ones(len(out.key), np.bool_)
        changes = TableChanges(
            source.order[out.cause], out.key, out.value, source.before[out.update], out.timestamp, latest
        )
        stored = tables.materialize_changes(changes, build_table_store({"versioned": False}), self.home)[1]
        return VectorTable(changes, stored, table.values, table.passing, {"versioned": False})


def build_table_store(spec: Mapping[str, Json]) -> TableStore:
    """Return the empty store of a table; KafkaStreamsError if its retention is negative."""
    retention = spec.get("historyRetentionMs")
    if retention is not None and retention < 0:
        raise KafkaStreamsError("java.lang.IllegalArgumentException", "historyRetention cannot be negative")
    return TableStore(versioned.empty_store_state(), retention if spec["versioned"] else None)


def _has_store(spec: Mapping[str, Json]) -> bool:
    """Return whether a table has a store."""
    return bool(spec["versioned"] or spec.get("materialized", True))


def _parse_predicate(predicate: Mapping[str, Json]) -> Callable[[Json], bool]:
    match predicate:
        case {"type": "even"}:
            return lambda value: value % 2 == 0
        case {"type": "gte", "value": least}:
            return lambda value: bool(value >= least)
    raise DeclinedVector(f"no predicate {predicate}")


def evaluate_nodes(nodes: Any, aggregation: str, values: Values, kept: Values | None = None) -> Values:
    """Return the value of each node (aggregation_tree.py) under an aggregation. `kept`: the values of kept nodes."""
    results: Values = []
    initial: Any = {"count": 0, "sum": 0, "trace": "0"}[aggregation]
    for what, first, second in nodes.tolist():
        if what == KEPT:
            results.append((kept or [])[first])
            continue
        before = initial if first == NOTHING else results[first]
        if what == MERGE:
            other = initial if second == NOTHING else results[second]
            results.append(f"({before}&{other})" if aggregation == "trace" else before + other)
            continue
        sign = {ADD: 1, SUBTRACT: -1}[what]
        value = None if second == NOTHING else values[second]
        match aggregation:
            case "count":
                results.append(before + sign)
            case "sum":
                results.append(before + sign * (value or 0))
            case _:
                results.append(f"{before}{'+' if sign > 0 else '-'}{'null' if value is None else value}")
    return results


_SUPPRESSED = (
    "org.apache.kafka.streams.errors.TopologyException",
    "Invalid topology: suppress() is only supported for non-versioned KTables",
)
_STEPS = ("filter", "mapValues")
_MATERIALIZING = ("count", "suppressUntilTimeLimit")
