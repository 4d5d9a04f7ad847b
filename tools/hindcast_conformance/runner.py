"""Runs vectors, and compares what each computes with what it expects."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession

from hindcast.common import progress, step_events
from hindcast.common.errors import describe_cause
from hindcast.common.session import SMALL_STEP_SETTINGS, override_conf
from hindcast_conformance import topology
from hindcast_conformance.relations import VectorBatch
from hindcast_conformance.vectors import (
    DeclinedVector,
    Json,
    OperationShape,
    ParsedOperation,
    Vector,
    load_vectors,
    normalize_numbers,
    parse_operation,
)

OutcomeState = Literal["passed", "failed", "declined", "unjudged"]
"""Unjudged: run, but the vector does not say what it expects."""

_AT_ONCE = 3
"""The number of concurrent batches: while one is planned, another runs."""
_FATES = ("accepted", "expired", "null_key")


@dataclass(frozen=True)
class Outcome:
    """The result of a vector, in the form of its own `expected` or `{"declined": reason}`, and its time.

    `seconds` of a vector in a batch is its share of the batch's time, while other batches ran too.
    """

    vector: Vector
    computed: Json
    seconds: float

    @property
    def state(self) -> OutcomeState:
        """The comparison with `expected`: each row once, in any order except in `emitted`; numbers compare by value."""
        if set(self.computed) == {"declined"}:
            return "declined"
        if not self.vector.expected:
            return "unjudged"
        return "passed" if _comparable_text(self.computed) == _comparable_text(self.vector.expected) else "failed"


def compute_directory(spark: SparkSession, directory: Path) -> dict[str, Json]:
    """Return the result of every vector of a directory by name, or `{"declined": reason}`."""
    return {outcome.vector.name: outcome.computed for outcome in run_vectors(spark, load_vectors(directory))}


def run_vectors(spark: SparkSession, vectors: Sequence[Vector]) -> list[Outcome]:
    """Return the outcomes of vectors, in their order.

    Vectors of the `kafka` reading are run one by one, the others of one operation shape as one Spark job.
    """
    outcomes: dict[int, Outcome] = {}
    batches: dict[OperationShape, list[tuple[int, ParsedOperation]]] = defaultdict(list)
    for number, vector in enumerate(vectors):
        started = time.monotonic()
        try:
            if vector.semantics == "kafka":
                outcomes[number] = Outcome(vector, topology.compute_vector(vector), time.monotonic() - started)
                continue
            operation = parse_operation(vector)
            batches[operation.shape].append((number, operation))
        except DeclinedVector as reason:
            outcomes[number] = Outcome(vector, {"declined": str(reason)}, 0.0)

    def compute(batch: tuple[OperationShape, list[tuple[int, ParsedOperation]]]) -> None:
        shape, members = batch
        started = time.monotonic()
        computed = _compute_batch(spark, shape, [(vectors[number], operation) for number, operation in members])
        seconds = (time.monotonic() - started) / len(members)
        for (number, _), value in zip(members, computed, strict=True):
            outcomes[number] = Outcome(vectors[number], value, seconds)

    with (
        step_events.record_step("conformance", "vectors"),
        progress.report_progress(spark),
        override_conf(spark, SMALL_STEP_SETTINGS),
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        step_events.add_fields(vectors=len(vectors), vectors_done=len(outcomes))
        for _ in pool.map(compute, batches.items()):
            step_events.add_fields(vectors_done=len(outcomes))
    return [outcomes[number] for number in range(len(vectors))]


def _compute_batch(
    spark: SparkSession, shape: OperationShape, members: Sequence[tuple[Vector, ParsedOperation]]
) -> list[Json]:
    """Return the results of vectors of one shape; a vector that makes the job fail is found by halving and declined."""
    try:
        batch = VectorBatch(spark, shape, members)
        rows, fates = batch.derive_rows().collect(), batch.count_fates().collect()
    except (PySparkException, Py4JJavaError) as failure:  # not all JVM errors are converted
        if len(members) == 1 or isinstance(failure, AnalysisException):
            return [{"declined": f"failed: {describe_cause(failure)}"} for _ in members]
        half = len(members) // 2
        return _compute_batch(spark, shape, members[:half]) + _compute_batch(spark, shape, members[half:])
    rows_of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_of[row["vector"]].append(row)
    counts = Counter({(row["vector"], row["topic"], row["fate"]): row["count"] for row in fates})
    return [
        {
            "rows": sorted((_row_as_json(row, shape, vector.runs) for row in rows_of[vector.name]), key=_sort_key),
            "fates": {topic: {fate: counts[vector.name, topic, fate] for fate in _FATES} for topic in shape.topics()},
        }
        for vector, _ in members
    ]


def _row_as_json(row: Row, shape: OperationShape, runs: int) -> Json:
    last = None if row["last"] == runs else row["last"] + 1
    return read_content(row, shape.type) | {"systemFrom": row["systemFrom"], "systemTo": last}


def read_content(row: Row, operation: str) -> Json:
    """Return a row of a type of operation, without its system period, in the form of `expected`.

    It has `key`, `value` (JSON text), `start`, `end` and, of joins of streams, the offsets `records`.
    """
    value = json.loads(row["value"]) if row["value"] is not None else None
    content: dict[str, Json] = {"key": row["key"], "value": value}
    match operation:
        case "windowed_aggregate":
            content |= {"start": row["start"], "end": row["end"]}
        case "stream_table_join":
            content |= {"record": row["records"][0], "timestamp": row["start"]}
        case "stream_stream_join":
            content |= {"records": list(row["records"]), "timestamp": row["start"]}
        case _:
            content |= {"validFrom": row["start"], "validTo": row["end"]}
    return content


def _sort_key(row: Json) -> tuple[bool, bytes, int, int, str]:
    start = next(row[name] for name in ("validFrom", "start", "timestamp") if name in row)
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return row["key"] is not None, (row["key"] or "").encode(), start, row["systemFrom"], text


def _comparable_text(computed: Mapping[str, Json]) -> Json:
    if "rows" not in computed:
        return computed
    return {**computed, "rows": sorted(json.dumps(normalize_numbers(row), sort_keys=True) for row in computed["rows"])}
