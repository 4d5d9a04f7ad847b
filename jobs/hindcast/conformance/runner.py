"""Running vectors: what each computes, and how it compares with what it expects."""

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

from hindcast.conformance import topology
from hindcast.conformance.relations import Batch
from hindcast.conformance.vectors import Declined, Json, Shape, Understood, Vector, load, plain, understand
from hindcast.errors import cause
from hindcast.session import SMALL, temporarily

State = Literal["passed", "failed", "declined", "unjudged"]
"""Unjudged: run, but the vector does not say what it expects."""

_AT_ONCE = 3
"""So many batches: while one is planned, another runs."""
_FATES = ("accepted", "expired", "null_key")


@dataclass(frozen=True)
class Outcome:
    """What a vector computed, in the form of its own `expected`, or `{"declined": reason}`; and its time, or its share
    of its batch's, beside which others ran.
    """

    vector: Vector
    computed: Json
    seconds: float

    @property
    def state(self) -> State:
        """Passed if just what is expected was computed: each row once, in any order, but what is emitted in its own;
        numbers compare by value.
        """
        if set(self.computed) == {"declined"}:
            return "declined"
        if not self.vector.expected:
            return "unjudged"
        return "passed" if _comparable(self.computed) == _comparable(self.vector.expected) else "failed"


def run(spark: SparkSession, directory: Path) -> dict[str, Json]:
    """Every vector of a directory by name: what was computed, or `{"declined": reason}`."""
    return {outcome.vector.name: outcome.computed for outcome in outcomes(spark, load(directory))}


def outcomes(spark: SparkSession, vectors: Sequence[Vector]) -> list[Outcome]:
    """Run vectors and return them in their order: those of the `kafka` reading one by one, of the others those of like
    operations as one Spark job.
    """
    done: dict[int, Outcome] = {}
    batches: dict[Shape, list[tuple[int, Understood]]] = defaultdict(list)
    for number, vector in enumerate(vectors):
        started = time.monotonic()
        try:
            if vector.semantics == "kafka":
                done[number] = Outcome(vector, topology.computed(vector), time.monotonic() - started)
                continue
            understood = understand(vector)
            batches[understood.shape].append((number, understood))
        except Declined as reason:
            done[number] = Outcome(vector, {"declined": str(reason)}, 0.0)

    def compute(batch: tuple[Shape, list[tuple[int, Understood]]]) -> None:
        shape, members = batch
        started = time.monotonic()
        computed = _compute(spark, shape, [(vectors[number], understood) for number, understood in members])
        seconds = (time.monotonic() - started) / len(members)
        for (number, _), value in zip(members, computed, strict=True):
            done[number] = Outcome(vectors[number], value, seconds)

    with temporarily(spark, SMALL), ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(compute, batches.items()))
    return [done[number] for number in range(len(vectors))]


def _compute(spark: SparkSession, shape: Shape, members: Sequence[tuple[Vector, Understood]]) -> list[Json]:
    """What the vectors of one shape compute. One whose data makes the job fail is found by halving, and declined."""
    try:
        batch = Batch(spark, shape, members)
        rows, fates = batch.rows().collect(), batch.fates().collect()
    except (PySparkException, Py4JJavaError) as failure:  # some of the JVM's come as they are
        if len(members) == 1 or isinstance(failure, AnalysisException):
            return [{"declined": f"failed: {cause(failure)}"} for _ in members]
        half = len(members) // 2
        return _compute(spark, shape, members[:half]) + _compute(spark, shape, members[half:])
    rows_of: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rows_of[row["vector"]].append(row)
    counted = Counter({(row["vector"], row["topic"], row["fate"]): row["count"] for row in fates})
    return [
        {
            "rows": sorted((_row(row, shape, vector.runs) for row in rows_of[vector.name]), key=_order),
            "fates": {topic: {fate: counted[vector.name, topic, fate] for fate in _FATES} for topic in shape.topics()},
        }
        for vector, _ in members
    ]


def _row(row: Row, shape: Shape, runs: int) -> Json:
    value = json.loads(row["value"]) if row["value"] is not None else None
    content: dict[str, Json] = {"key": row["key"], "value": value}
    match shape.type:
        case "windowed_aggregate":
            content |= {"start": row["start"], "end": row["end"]}
        case "stream_table_join":
            content |= {"record": row["records"][0], "timestamp": row["start"]}
        case "stream_stream_join":
            content |= {"records": list(row["records"]), "timestamp": row["start"]}
        case _:
            content |= {"validFrom": row["start"], "validTo": row["end"]}
    return content | {"systemFrom": row["systemFrom"], "systemTo": None if row["last"] == runs else row["last"] + 1}


def _order(row: Json) -> tuple[bool, bytes, int, int, str]:
    start = next(row[name] for name in ("validFrom", "start", "timestamp") if name in row)
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return row["key"] is not None, (row["key"] or "").encode(), start, row["systemFrom"], text


def _comparable(computed: Mapping[str, Json]) -> Json:
    if "rows" not in computed:
        return computed
    return {**computed, "rows": sorted(json.dumps(plain(row), sort_keys=True) for row in computed["rows"])}
