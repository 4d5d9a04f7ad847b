"""The translator: an operation of a vector, of either reading, becomes a contract with its topics and views."""

from __future__ import annotations

from collections.abc import Mapping

from hindcast.streams.tables import NO_OLD_VALUES, OLD_VALUES_MATERIALIZED
from hindcast_conformance.contracts import FOREVER, VectorContract, history_retention
from hindcast_conformance.exceptions import NEGATIVE, REDUCE, TRACE
from hindcast_conformance.vectors import DeclinedVector, Json, join_kind

Operation = Mapping[str, Json]


def translate_operation(operation: Operation, *, has_null_values: bool = False) -> VectorContract:
    """Return an operation as a contract; DeclinedVector for one without meaning.

    `has_null_values`: a record of the vector has no value.
    """
    built = VectorContract(operation)
    shape = _SHAPES.get(operation["type"])
    if shape is None:
        raise DeclinedVector(f"no operator for {operation['type']!r}")
    built.result = shape(built, operation)
    aggregation = operation.get("aggregation", "count")
    if not built.is_kafka:
        return built
    if aggregation == "trace":
        built.reason = TRACE
    elif aggregation == "sum" and has_null_values and operation.get("window", {"kind": "sliding"})["kind"] != "sliding":
        built.reason = REDUCE
    elif aggregation not in ("count", "sum"):
        raise KeyError(aggregation)
    built.read_stores()
    return built


def _table_transform(built: VectorContract, operation: Operation) -> str:
    name = _add_table(built, operation["table"], "table")
    return name if name in built.views else built.add_view(f"{name}_read", {"table": name})


def _to_table(built: VectorContract, operation: Operation) -> str:
    built.stores["result"] = built.add_topic("stream", operation["materialized"])
    return built.add_view("stream_read", {"table": "stream"})


def _stream_table_join(built: VectorContract, operation: Operation) -> str:
    join = {"how": join_kind(operation), "table": _add_table(built, operation["table"], "table")}
    if operation.get("graceMs") is not None and built.is_kafka:
        join["grace"] = f"{max(operation['graceMs'], 0)} ms"
        if operation["graceMs"] < 0:
            built.reason = NEGATIVE
    return built.add_view("result", {"stream": built.add_topic("stream", None), "join": join})


def _table_table_join(built: VectorContract, operation: Operation) -> str:
    how = join_kind(operation)
    asks = [OLD_VALUES_MATERIALIZED if how in kinds else NO_OLD_VALUES for kinds in (("left", "outer"), ("outer",))]
    left, right = (
        _add_table(built, operation[side], side, ask) for side, ask in zip(("left", "right"), asks, strict=True)
    )
    return _add_result(built, operation, {"table": left, "join": {"table": right, "how": how}})


def _foreign_key_join(built: VectorContract, operation: Operation) -> str:
    left, right = (_add_table(built, operation[side], side, OLD_VALUES_MATERIALIZED) for side in ("left", "right"))
    on = _json_field(built.columns[left], operation["foreignKeyField"])
    join = {"table": right, "how": join_kind(operation), "on": on if built.is_kafka else ["vector", on]}
    return _add_result(built, operation, {"table": left, "join": join})


def _table_aggregate(built: VectorContract, operation: Operation) -> str:
    table, by = _add_table(built, operation["table"], "table", OLD_VALUES_MATERIALIZED), operation["groupBy"]
    group, counted = (_json_field(built.columns[table], by[name]) for name in ("keyField", "valueField"))
    text = _aggregate(operation["aggregation"], counted, f"count({counted})")
    return _add_result(built, operation, {"table": table, "group_by": built.group_by(group), "aggregate": {"v": text}})


def _stream_aggregate(built: VectorContract, operation: Operation) -> str:
    text = _aggregate(operation["aggregation"], "stream_v", built.count)
    return _add_result(built, operation, {"stream": built.add_topic("stream", None), "aggregate": {"v": text}})


def _windowed_aggregate(built: VectorContract, operation: Operation) -> str:
    spec = operation["window"]
    lengths = {name: f"{spec[knob]} ms" for name, knob in _LENGTHS.get(spec["kind"], {}).items()}
    if not lengths:
        raise DeclinedVector(f"no window {spec['kind']!r}")
    window = {
        **lengths,
        "grace": f"{min(spec['graceMs'], FOREVER)} ms",
        **({"emit": operation["emit"]} if built.is_kafka else {}),
    }
    if spec.get("storeRetentionMs") is not None:
        window["store_retention"] = f"{min(spec['storeRetentionMs'], FOREVER)} ms"
    text = _aggregate(operation["aggregation"], "stream_v", built.count)
    stream = built.add_topic("stream", None)
    return built.add_view("result", {"stream": stream, "aggregate": {"v": text}, "window": window})


def _stream_stream_join(built: VectorContract, operation: Operation) -> str:
    left, right = (built.add_topic(side, None) for side in ("left", "right"))
    names = ("before", "after", "grace") if built.is_kafka else ("before", "after")
    knobs = {name: f"{min(operation['window'][f'{name}Ms'], FOREVER)} ms" for name in names}
    return built.add_view("result", {"stream": left, "join": {"stream": right, "how": join_kind(operation), **knobs}})


_SHAPES = {
    "table_transform": _table_transform,
    "to_table": _to_table,
    "stream_table_join": _stream_table_join,
    "table_table_join": _table_table_join,
    "foreign_key_join": _foreign_key_join,
    "table_aggregate": _table_aggregate,
    "stream_aggregate": _stream_aggregate,
    "windowed_aggregate": _windowed_aggregate,
    "stream_stream_join": _stream_stream_join,
}
_LENGTHS = {
    "tumbling": {"tumbling": "sizeMs"},
    "hopping": {"hopping": "sizeMs", "advance": "advanceMs"},
    "sliding": {"sliding": "timeDifferenceMs"},
    "session": {"session": "inactivityGapMs"},
}


def _add_table(built: VectorContract, spec: Operation, topic: str, asks: int = NO_OLD_VALUES) -> str:
    """Add a table of an operation; in the `corrected` reading it may be a join."""
    if "join" in spec:
        joined = _SHAPES[spec["join"]["type"]](built, spec["join"])
        return built.add_views(joined, topic, spec.get("transforms") or (), 0)
    return built.add_table(spec, topic, asks)


def _json_field(column: str, dotted: str) -> str:
    return f"get_json_object({column}, '$.{dotted}')"


def _aggregate(aggregation: str, argument: str, count: str) -> str:
    """Return an aggregate of JSON text; `count` for a trace as well, which contracts do not have."""
    return count if aggregation in ("count", "trace") else f"{aggregation}(cast({argument} AS double))"


def _add_result(built: VectorContract, operation: Operation, view: Json) -> str:
    """Add the view of a result that may be materialized; that of an aggregate always is."""
    store = operation.get("materialized")
    if not built.is_kafka:
        return built.add_view("result" if built.operation is operation else "joined", view)
    if store is not None or "aggregate" in view:
        built.stores["result"] = "result"
    return built.add_view("result", {**view, **history_retention(store or {"versioned": False})})
