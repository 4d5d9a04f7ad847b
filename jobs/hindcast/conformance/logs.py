"""The records of vectors of one shape as one table, with the vector and its knobs in every row."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from hindcast.conformance.vectors import Json, Understood, Vector, plain

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


def knobs(vectors: Sequence[tuple[Vector, Understood]]) -> set[str]:
    """The names of all knobs that the vectors have."""
    return {name for _, it in vectors for name in it.knobs}


def log(spark: SparkSession, vectors: Sequence[tuple[Vector, Understood]]) -> DataFrame:
    """A row for each record of the topics that a vector's operation reads.

    `vector` is a struct of the vector's name, its last run and its knobs; `number` the partition, `value` JSON text,
    `timestamp` and `retention` in ms; `fate` is null where it is to be judged.
    """
    lines = [line for vector, it in vectors for line in _lines(vector, it)]
    schema = _LOG.append(pa.field("vector", _vector(knobs(vectors))))
    return spark.createDataFrame(pa.Table.from_pylist(lines, schema=schema))


def _lines(vector: Vector, understood: Understood) -> list[dict[str, Json]]:
    shape = understood.shape
    unmatched = {"left": {"stream", "left"}, "outer": {"left", "right"}}.get(shape.how, set())
    unmatched |= {"stream"} if shape.on_field else set()
    identity = {"name": vector.name, "runs": vector.runs}
    knobs = {name: _bounded(value) for name, value in understood.knobs.items()}
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
        lines.append(
            {
                "vector": {**identity, **knobs},
                "number": record.get("partition", 0),
                "offset": offset,
                "topic": topic,
                "key": key,
                "value": None if value is None else json.dumps(plain(value), sort_keys=True, separators=(",", ":")),
                "timestamp": record["timestamp"],
                "run": record["run"],
                "retention": None if is_stream else min(understood.retentions[topic], _FOREVER),
                "fate": fate,
            }
        )
    return lines


def _vector(knobs: Set[str]) -> pa.DataType:
    """What stands for a vector in every key and partition: its name, its last run, its knobs."""
    types = {
        name: pa.int64() if name.endswith("Ms") else _STEPS if name.endswith(".steps") else pa.string()
        for name in sorted(knobs)
    }
    return pa.struct({"name": pa.string(), "runs": pa.int32(), **types})


def _bounded(value: Json) -> Json:
    return max(-_FOREVER, min(value, _FOREVER)) if isinstance(value, int) else value
