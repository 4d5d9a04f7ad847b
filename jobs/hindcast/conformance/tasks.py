"""A vector of Kafka Streams as operators of the `kafka` reading take it: records as arrays, tables and their stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hindcast.compiled import NOTHING
from hindcast.conformance.storing import versions
from hindcast.conformance.vectors import Declined, Json, Refused, Vector
from hindcast.emits import aggregates, tables, time_limit, versioned
from hindcast.emits.folds import ADD, KEPT, MERGE, SUBTRACT
from hindcast.emits.records import Records
from hindcast.emits.tables import ASKS_NOTHING, INSISTS, Changes, Kept, Step, Stored

Values = list[Any]


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
        changes, stored = tables.source(order[there], key[there], time[there], value[there], kept_as(spec), self.home)
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
                changes, stored = tables.materialized(changes, kept_as(store), self.home, unless_absent=out)
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
                changes, stored = tables.materialized(changes, kept_as(store), self.home)
            case "count":
                group = np.full(len(values), NOTHING)
                for at in (changes.value, changes.before):
                    group[at[at != NOTHING]] = changes.key[at != NOTHING]
                given = aggregates.of_table(changes, group)
                done = aggregates.aggregate(given, versioned.empty(), self.home, store.get("historyRetentionMs"))
                values = measured(done.nodes, "count", values)
                passing = np.ones(len(values), np.bool_)
                changes, stored = tables.materialized(done.changes, kept_as(store), self.home)
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
        stored = tables.materialized(changes, kept_as({"versioned": False}), self.home)[1]
        return Table(changes, stored, table.values, table.passing, {"versioned": False})


def kept_as(spec: Mapping[str, Json]) -> Kept:
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


_SUPPRESSED = (
    "org.apache.kafka.streams.errors.TopologyException",
    "Invalid topology: suppress() is only supported for non-versioned KTables",
)
_STEPS = ("filter", "mapValues")
_INSISTING = ("count", "suppressUntilTimeLimit")
