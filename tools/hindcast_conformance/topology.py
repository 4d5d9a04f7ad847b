"""Topologies: a `kafka` vector through the tasks of its contract's views (`contracts`), without Spark.

What Spark does between the tasks is done here in Python: expressions, and the order in which a task gets its rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from hindcast.streams.join_processors import NULL_KEY
from hindcast.streams.task import process_task
from hindcast_conformance.contracts import VectorContract
from hindcast_conformance.exceptions import (
    GLOBAL,
    NEGATIVE,
    REDUCE,
    STORE,
    TRACE,
    StoredFilters,
    TaskRecord,
    apply_filters,
    passes_filter,
    reduced_windows,
    traced_aggregates,
)
from hindcast_conformance.translator import translate_operation
from hindcast_conformance.vectors import DeclinedVector, Json, KafkaStreamsError, Vector, decline_unreadable
from hindcast_conformance.versioned_store import compute_store

_TEXT = pa.struct([("json", pa.string())])
_ORDER = pa.struct(
    [
        *((name, pa.int64()) for name in ("run", "reached")),
        *((name, pa.int32()) for name in ("topic", "partition")),
        ("offset", pa.int64()),
        ("turn", pa.list_(pa.int32())),
    ]
)
_KINDS = {
    pa.string(): ("part",),
    pa.int32(): ("side", "partition", "home"),
    pa.int64(): ("time", "start", "end", "n"),
    pa.binary(): ("id", "other"),
    pa.bool_(): ("put", "passes"),
    _ORDER: ("order",),
    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])): ("headers",),
    _TEXT: ("key", "first", "second"),
}


def build_row_schema(measured: pa.DataType) -> pa.Schema:
    """Return the columns of a task's rows (`task_rows`), values being JSON text; `measured`: the type of a measure."""
    columns = [(name, kind) for kind, names in _KINDS.items() for name in names]
    return pa.schema([*columns, *((name, pa.struct([("m0", measured)])) for name in ("numbers", "measures"))])


_ROWS, _TRACED_ROWS = build_row_schema(pa.int64()), build_row_schema(pa.string())


def compute_vector(vector: Vector) -> Json:
    """Return the result of a `kafka` vector in the form of its own `expected`; DeclinedVector if unsupported."""
    with decline_unreadable():
        try:
            match vector.operation["type"]:
                case "store":
                    return compute_store(vector)
                case "stream_global_table_join":
                    _refuse_global_table(vector.operation)
            return VectorTask(vector.operation, vector.records).compute()
        except KafkaStreamsError as failure:
            return {"error": failure.error}


def count_exceptions(vectors: Iterable[Vector]) -> Counter[str]:
    """Return how many `kafka` vectors, by reason, are not run from their contract alone; none for unsupported ones."""
    reasons: dict[str, str | None] = {"store": STORE, "stream_global_table_join": GLOBAL}
    counts = Counter[str]()
    for vector in vectors:
        kind = vector.operation["type"]
        with suppress(DeclinedVector), decline_unreadable():
            reason = reasons[kind] if kind in reasons else translate_vector(vector.operation, vector.records).reason
            counts.update([reason] if reason is not None else [])
    return counts


def translate_vector(operation: Mapping[str, Json], records: Sequence[Mapping[str, Json]]) -> VectorContract:
    """Return a vector as a contract; DeclinedVector if its operation has no meaning."""
    return translate_operation(operation, has_null_values=any(record.get("value") is None for record in records))


class VectorTask:
    """One vector: the records of each topic and view, and the contents of stores."""

    def __init__(self, operation: Mapping[str, Json], records: Sequence[Mapping[str, Json]]) -> None:
        self.built = translate_vector(operation, records)
        self.operation, self.records = operation, records
        self.contract, specs = self.built.checked
        self.specs = dict(specs)
        if self.built.reason == NEGATIVE:
            self.specs["result"] = replace(specs["result"], grace=operation["graceMs"])
        self._of: dict[str, list[TaskRecord]] = {}
        self._kept: dict[str, pa.Table] = {}

    def compute(self) -> Json:
        """Return the result in the form of `expected`."""
        try:
            emitted = self.list_emitted()
        except ValueError as error:
            if not str(error).startswith(NULL_KEY):
                raise
            failed = int(str(error).rpartition(" ")[2])
            before = VectorTask(self.operation, self.records[:failed]).list_emitted()
            return {"emitted": before, "error": {**_NULL_KEY, "record": failed}}
        return {"emitted": emitted, **self._format_stores()}

    def read_table(self, name: str) -> list[TaskRecord]:
        """Return the records of a topic, or what a view emits."""
        if name not in self._of:
            if name in self.contract.views:
                self._of[name] = self._process_view(name)
            elif name in self.built.fed:
                self._of[name] = self._feed_topic(self.built.fed[name])
            else:
                self._of[name] = [
                    TaskRecord(
                        record["key"],
                        record["value"],
                        record["value"] is not None,
                        True,
                        record["timestamp"],
                        _order(n),
                    )
                    for n, record in enumerate(self.records)
                    if record["topic"] == name
                ]
        return self._of[name]

    def build_rows(self, name: str) -> list[Json]:
        """Return the records of a view's inputs as rows of its task."""
        inputs = enumerate(self.contract.views[name].inputs)
        records = [(side, record) for side, source in inputs for record in self.read_table(source)]
        records.sort(key=lambda pair: pair[1].place)
        return [self._build_row(name, side, record) for side, record in records]

    def _process_view(self, name: str) -> list[TaskRecord]:
        spec, is_traced = self.specs[name], self.built.reason == TRACE and name == "result"
        rows = pa.Table.from_pylist(self.build_rows(name), schema=_TRACED_ROWS if is_traced else _ROWS)
        if is_traced:
            with traced_aggregates():
                done = process_task(replace(spec, measures=("trace",)), rows)
        elif self.built.reason == REDUCE:
            with reduced_windows():
                done = process_task(spec, rows)
        else:
            done = process_task(spec, rows)
        is_state = pc.is_valid(done["part"])
        self._kept[name] = done.filter(is_state)
        return [self._read_emitted(name, row) for row in done.filter(pc.invert(is_state)).to_pylist()]

    def _build_row(self, name: str, side: int, record: TaskRecord) -> Json:
        view, operator = self.contract.views[name], self.specs[name].operator
        value, key = record.value, None if record.key is None else record.key.encode()
        row: Json = {
            "side": side,
            "partition": 0,
            "id": key,
            "time": record.time,
            "put": record.put,
            "passes": record.passes,
        }
        row |= {"order": record.order, ("first", "second")[side]: _text(value)}
        if operator != "foreign_key" or side == 0:
            row["key"] = _name(record.key)
        if operator == "foreign_key" and side == 0:
            named = _field(value, self.operation["foreignKeyField"])
            row |= {"other": None if named is None else named.encode(), "home": 0}
        if operator in ("aggregate", "windows"):
            group = record.key if value is not None else None
            if view.group_by is not None:
                group, value = (_field(value, self.operation["groupBy"][field]) for field in ("keyField", "valueField"))
                group = group if value is not None else None
            if view.table:
                row |= {"other": None if group is None else group.encode(), "home": 0, "key": _name(group)}
            row["numbers"] = {"m0": self._measured_value(name, value)}
        if name in self.built.steps and self.built.steps[name]["op"] == "filter":
            row["passes"] = record.passes and value is not None and passes_filter(self.built.steps[name], value)
        return row

    def _measured_value(self, name: str, value: Json) -> Json:
        if value is None:
            return None
        if self.built.reason == TRACE and name == "result":
            return str(value)
        return value if self.specs[name].measures == ("sum",) else 1

    def _read_emitted(self, name: str, row: Json) -> TaskRecord:
        """Return an emitted row as a record, with its value computed."""
        spec, value = self.specs[name], None
        if row["put"]:
            sides = [None if row[side] is None else json.loads(row[side]["json"]) for side in ("first", "second")]
            value = (
                sides[0] if spec.operator in ("table", "stream") else dict(zip(("left", "right"), sides, strict=True))
            )
            if spec.measures:
                value = row["measures"]["m0"]
            if name in self.built.steps and value is not None:
                value *= self.built.steps[name].get("multiplyBy", 1)
        key = None if row["key"] is None else row["key"]["json"]
        window = (row["start"], row["end"]) if spec.operator == "windows" else None
        return TaskRecord(key, value, row["put"] or row["passes"], not row["passes"], row["time"], row["order"], window)

    def _feed_topic(self, source: str | StoredFilters) -> list[TaskRecord]:
        if isinstance(source, StoredFilters):
            return apply_filters(source, self.read_table(source.source))
        return [record._replace(put=record.value is not None, passes=True) for record in self.read_table(source)]

    def list_emitted(self) -> list[Json]:
        """Return what the vector's operation emits, as in `expected`."""
        rows = []
        for record in self.read_table(self.built.result):
            window = None if record.window is None else dict(zip(("start", "end"), record.window, strict=True))
            key = record.key if window is None else {"key": record.key, **window}
            rows.append({"key": key, "value": record.value, "timestamp": record.time, "cause": record.order["offset"]})
        return rows

    def _format_stores(self) -> Json:
        """Return the contents of all stores: `history` of versioned ones, `state` of others."""
        found: dict[str, dict[str, Json]] = {"history": {}, "state": {}}
        for store, table in self.built.stores.items():
            reader = next(name for name, view in self.contract.views.items() if table in view.inputs)
            self.read_table(reader)
            side = self.contract.views[reader].inputs.index(table)
            kept = self._kept[reader]
            rows = kept.filter(pc.equal(kept["part"], f"store {side}")).to_pylist()
            if self.contract.find_versioning(table)[0]:
                written = [record["key"] for record in self.records if record["topic"] == store.partition("-")[0]]
                keys = [r.key for r in self.read_table(self.built.result)] if store == "result" else written
                versions = {key: [row for row in rows if row["id"] == key.encode()] for key in keys if key is not None}
                found["history"][store] = {key: _list_versions(some, side) for key, some in versions.items()}
            else:
                found["state"][store] = {
                    row["id"].decode(): {"value": _stored_value(row, side), "timestamp": row["time"]} for row in rows
                }
        return {kind: stores for kind, stores in found.items() if stores}


def _list_versions(rows: Sequence[Json], side: int) -> list[Json]:
    """Return the versions in the rows of a key, in ascending order; a version ends where the next begins."""
    ends = [*(row["time"] for row in rows[1:]), None]
    return [
        {"value": _stored_value(row, side), "validFrom": row["time"], "validTo": end}
        for row, end in zip(rows, ends, strict=False)
        if row["put"] and row["time"] != end
    ]


def _stored_value(row: Json, side: int) -> Json:
    return json.loads(row[("first", "second")[side]]["json"])


def _text(value: Json) -> Json:
    return None if value is None else {"json": json.dumps(value)}


def _name(key: str | None) -> Json:
    return None if key is None else {"json": key}


def _field(value: Json, name: str) -> Json:
    return value.get(name) if isinstance(value, dict) else None


def _order(number: int) -> Json:
    return {"run": 1, "reached": 0, "topic": 0, "partition": 0, "offset": number, "turn": []}


def _refuse_global_table(operation: Mapping[str, Json]) -> None:
    if operation["table"]["versioned"]:
        message = "Invalid topology: GlobalTables cannot be versioned."
        raise KafkaStreamsError("org.apache.kafka.streams.errors.TopologyException", message)
    raise DeclinedVector("a global table has no order beside the stream")


_NULL_KEY = {
    "phase": "process",
    "class": "java.lang.NullPointerException",
    "message": "key cannot be null",
    "thrownAs": "org.apache.kafka.streams.errors.StreamsException",
}
