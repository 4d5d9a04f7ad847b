"""Logs: the records of vectors of one shape as one table, with the vector and its knobs in every row."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from hindcast_conformance.vectors import Json, ParsedOperation, Vector, normalize_numbers

_LOG = pa.schema(
    [
        ("number", pa.int32()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("key", pa.string()),
        ("value", pa.string()),
        ("timestamp", pa.int64()),
        ("run", pa.int32()),
        ("retention", pa.int64()),
        ("fate", pa.string()),
    ]
)
_STEPS = pa.list_(pa.struct([("op", pa.string()), ("operand", pa.string())]))
_FOREVER = 10**14
"""In milliseconds; longer spans mean the same, and must not overflow."""


def list_knobs(vectors: Sequence[tuple[Vector, ParsedOperation]]) -> set[str]:
    """Return the names of all knobs of the vectors."""
    return {name for _, operation in vectors for name in operation.knobs}


def build_log(spark: SparkSession, vectors: Sequence[tuple[Vector, ParsedOperation]]) -> DataFrame:
    """Return a row for each record of the topics that the vectors' operations read.

    `vector` is a struct of the vector's name, its last run and its knobs; `number` is the partition, `value` JSON text,
    `timestamp` and `retention` are in ms; `fate` is null where it is not decided yet.
    """
    lines = [line for vector, operation in vectors for line in _record_lines(vector, operation)]
    schema = _LOG.append(pa.field("vector", _vector_type(list_knobs(vectors))))
    return spark.createDataFrame(pa.Table.from_pylist(lines, schema=schema))


def _record_lines(vector: Vector, operation: ParsedOperation) -> list[dict[str, Json]]:
    shape = operation.shape
    unmatched = {"left": {"stream", "left"}, "outer": {"left", "right"}}.get(shape.how, set())
    unmatched |= {"stream"} if shape.on_field else set()
    identity = {"name": vector.name, "runs": vector.runs}
    knobs = {name: _clamp_value(value) for name, value in operation.knobs.items()}
    lines = []
    for offset, record in enumerate(vector.records):
        topic, key = record["topic"], record["key"]
        if topic not in shape.topics():
            continue
        is_stream = topic in shape.streams
        fate = "accepted" if is_stream else None
        if key is None and not (is_stream and topic in unmatched):
            fate = "null_key"
        value = record["value"]
        text = json.dumps(normalize_numbers(value), sort_keys=True, separators=(",", ":"))
        lines.append(
            {
                "vector": {**identity, **knobs},
                "number": record.get("partition", 0),
                "offset": offset,
                "topic": topic,
                "key": key,
                "value": None if value is None else text,
                "timestamp": record["timestamp"],
                "run": record["run"],
                "retention": None if is_stream else min(operation.retentions[topic], _FOREVER),
                "fate": fate,
            }
        )
    return lines


def _vector_type(knobs: Set[str]) -> pa.DataType:
    """Return the type of the struct that identifies a vector in every key and partition: name, last run, knobs."""
    types = {
        name: pa.int64() if name.endswith("Ms") else _STEPS if name.endswith(".steps") else pa.string()
        for name in sorted(knobs)
    }
    return pa.struct({"name": pa.string(), "runs": pa.int32(), **types})


def _clamp_value(value: Json) -> Json:
    return max(-_FOREVER, min(value, _FOREVER)) if isinstance(value, int) else value
