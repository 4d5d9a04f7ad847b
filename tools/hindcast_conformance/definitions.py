"""Definitions: the tables of `corrected` vectors as runs derive them whole from a contract (`runs/derive_whole.py`).

All vectors of one contract are derived at once, and each as known after every one of its runs: a vector and a run are a
number, which is the first column of every key and, times 16, the partition of the records.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import fates
from hindcast.common.session import SMALL_STEP_SETTINGS, override_conf
from hindcast.contract import Contract, list_shapes
from hindcast.runs.derive_whole import derive_topic_rows, derive_view_rows
from hindcast_conformance.contracts import FOREVER, VectorContract
from hindcast_conformance.runner import read_content
from hindcast_conformance.translator import translate_operation
from hindcast_conformance.vectors import DeclinedVector, Json, Vector, decline_unreadable, normalize_numbers

_RECORDS = pa.schema(
    [
        *((name, pa.string()) for name in ("topic", "vector", "key", "value")),
        *((name, pa.int64()) for name in ("timestamp", "partition", "offset", "retention")),
    ]
)
_PARTITIONS = 16
_AT_ONCE = 3
"""The number of concurrent jobs: while one is planned, another runs."""


def derive_vectors(spark: SparkSession, vectors: Sequence[Vector]) -> dict[str, list[Json]]:
    """Return by vector its `rows`, in the form of `expected`; vectors that no contract expresses are left out."""
    alike: dict[str, list[tuple[Vector, VectorContract]]] = defaultdict(list)
    for vector in vectors:
        try:
            with decline_unreadable():
                built = translate_operation(vector.operation)
                _ = built.checked
        except DeclinedVector:
            continue
        alike[json.dumps([_without_retention(built.topics), built.views])].append((vector, built))

    def derive(some: Sequence[tuple[Vector, VectorContract]]) -> dict[str, list[Json]]:
        return _derive_alike(spark, [vector for vector, _ in some], some[0][1])

    with override_conf(spark, SMALL_STEP_SETTINGS), ThreadPoolExecutor(_AT_ONCE) as pool:
        return {name: rows for results in pool.map(derive, alike.values()) for name, rows in results.items()}


def _without_retention(topics: Mapping[str, Json]) -> Json:
    return {name: {**topic, "history_retention": None} for name, topic in topics.items()}


def _derive_alike(spark: SparkSession, vectors: Sequence[Vector], built: VectorContract) -> dict[str, list[Json]]:
    """Return the rows of vectors of one contract."""
    places = [(vector, run) for vector in vectors for run in range(1, vector.runs + 1)]
    contract, _ = built.checked
    lines = [line for number, (vector, run) in enumerate(places) for line in _list_records(vector, run, number)]
    records = spark.createDataFrame(pa.Table.from_pylist(lines, schema=_RECORDS))
    known: dict[str, dict[int, list[Json]]] = defaultdict(lambda: defaultdict(list))
    for row in _derive_result(contract, built, records).collect():
        vector, run = places[row["place"]]
        known[vector.name][run].append(read_content(row, vector.operation["type"]))
    return {vector.name: _add_system_periods(known[vector.name], vector.runs) for vector in vectors}


def _list_records(vector: Vector, run: int, number: int) -> Iterator[Json]:
    for offset, record in enumerate(vector.records):
        if record["run"] > run:
            continue
        value = record["value"]
        text = json.dumps(normalize_numbers(value), sort_keys=True, separators=(",", ":"))
        yield {
            "topic": record["topic"],
            "vector": str(number),
            "key": record["key"],
            "value": None if value is None else text,
            "timestamp": record["timestamp"],
            "partition": number * _PARTITIONS + record.get("partition", 0),
            "offset": offset,
            "retention": min(_find_retention(vector.operation, record["topic"]), FOREVER),
        }


def _find_retention(operation: Json, topic: str) -> int:
    """Return the history retention of the table of a topic, wherever an operation reads it."""
    for name, part in operation.items():
        if isinstance(part, dict):
            if name == topic and "historyRetentionMs" in part:
                return int(part["historyRetentionMs"])
            found = _find_retention(part, topic)
            if found != FOREVER:
                return found
    return FOREVER


def _derive_result(contract: Contract, built: VectorContract, records: DataFrame) -> DataFrame:
    """Return the rows of the result: `place`, `key`, `value`, `start`, `end` and `records`."""
    tables = {}
    for name, topic in contract.topics.items():
        key = F.when(F.col("key").isNotNull(), F.struct("vector", F.col("key").alias("k")))
        log = records.where(F.col("topic") == name).select(
            key.alias("key"),
            F.when(F.col("value").isNotNull(), F.struct(F.col("value").alias(built.columns[name]))).alias("value"),
            F.timestamp_millis("timestamp").alias("timestamp"),
            "partition",
            "offset",
            F.when(F.col("key").isNull() | F.lit(topic.read == "stream"), F.lit("accepted")).alias("fate"),
            _interval("retention").alias("retention"),
        )
        if topic.read == "table":
            decided = fates.decide_fates(log.where("key IS NOT NULL"), F.col("retention"))
            log = decided.where("fate = 'accepted'")
        tables[name] = derive_topic_rows(topic, log)
    for name in contract.ordered_views:
        tables[name] = derive_view_rows(contract, name, tables, None)
    rows, kind = tables[built.result], list_shapes(contract)[built.result].kind
    value, place = F.col(built.columns[built.result]).cast("string").alias("value"), F.col("vector").cast("int")
    period: tuple[str, str | None]
    match kind:
        case "versions":
            period, records_of = ("validFrom", "validTo"), F.array().cast("array<bigint>")
        case "windows":
            period, records_of = ("windowStart", "windowEnd"), F.array().cast("array<bigint>")
        case "events":
            period, records_of = ("timestamp", None), F.array("_offset")
            place = F.floor(F.col("_partition") / _PARTITIONS)
        case _:
            period, records_of = ("timestamp", None), F.array("_offset", "_rightOffset")
            place = F.floor(F.coalesce("_partition", "_rightPartition") / _PARTITIONS)
    end = F.lit(None).cast("bigint") if period[1] is None else F.unix_millis(period[1])
    return rows.select(
        place.cast("int").alias("place"),
        F.col("k").alias("key"),
        value,
        F.unix_millis(period[0]).alias("start"),
        end.alias("end"),
        records_of.alias("records"),
    )


def _interval(milliseconds: str) -> Column:
    return F.timestamp_millis(milliseconds) - F.timestamp_millis(F.lit(0))


def _add_system_periods(known: Mapping[int, Sequence[Json]], runs: int) -> list[Json]:
    """Return each row for every stretch of runs after which it is current."""
    rows: list[Json] = []
    open_rows: dict[str, Json] = {}
    for run in range(1, runs + 1):
        current = {json.dumps(normalize_numbers(row), sort_keys=True): row for row in known.get(run, ())}
        rows += [open_rows.pop(text) | {"systemTo": run} for text in open_rows.keys() - current.keys()]
        for text in current.keys() - open_rows.keys():
            open_rows[text] = current[text] | {"systemFrom": run}
    return [*rows, *(row | {"systemTo": None} for row in open_rows.values())]
