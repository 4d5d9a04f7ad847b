"""Find the records that are to be forgotten, by key or by place, and the texts that they said."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from hashlib import sha256

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.common.column_values import ColumnValue
from hindcast.common.errors import QueryError, RequestError, suggest_nearest
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.contract.shapes import PLACE_COLUMNS
from hindcast.formats.spark_decoding import decode_records
from hindcast.ingest import erasure_marks, initial_rows, retimestamping, schemas, topic_log, trim_ledger
from hindcast.ops.erase.texts import ForgottenTexts, json_leaves, json_strings
from hindcast.plan.inputs import locate_own_table
from hindcast.query import read
from hindcast.runs import topic_records
from hindcast.store import row_reader, tables


@dataclass(frozen=True)
class ErasureRequest:
    """What is to be forgotten of a topic: a `key` (its columns' values), or `places` (partition and offset in its log).

    `text`: the request as the user wrote it, never stored.
    """

    topic: str
    text: str
    key: tuple[ColumnValue, ...] = ()
    places: tuple[tuple[int, int], ...] = ()

    def digest(self, spark: SparkSession, contract: Contract) -> str:
        """Return the sha256 that stands for the request in journal and proof; raise QueryError for an invalid key."""
        if self.places:
            return sha256(json.dumps([self.topic, self.places]).encode()).hexdigest()
        types = contract.topics[self.topic].key
        typed = {c: _typed_literal(str(types[c]), value) for c, value in zip(types, self.key, strict=True)}
        key = F.struct(*(value.alias(c) for c, value in typed.items()))
        row = spark.range(1).select(erasure_marks.key_digest(self.topic, key), *typed.values()).first()
        if row is None or any(t is None and value is not None for t, value in zip(row[1:], self.key, strict=True)):
            columns = ", ".join(f"{c} {kind}" for c, kind in types.items())
            raise QueryError("this is not a possible key", where=f"{contract.pipeline}.{self.topic}", fix=columns)
        return str(row[0])


_RECORD_SCHEMA = "partition int, offset bigint, topic string, topicPartition int, said array<string>"


def parse_request(contract: BoundContract, name: str, key: str | None, places: Sequence[str] = ()) -> ErasureRequest:
    """Return the request that a user made; raise QueryError if it names nothing.

    `name`: a topic of the contract. `key`: as `read.parse_key` takes it. `places`: texts as `partition/offset`.
    """
    if name in contract.views or name in contract.inputs:
        topics = [i for i in contract.list_upstream(name) if i in contract.topics]
        found = f"{name} is derived from topics; only keys and records of a topic can be forgotten"
        raise QueryError(
            found, where=contract.pipeline, fix=f"name the topic: {', '.join(topics) or 'of its pipeline'}"
        )
    if name not in contract.topics:
        raise QueryError(f"no topic '{name}'", where=contract.pipeline, fix=suggest_nearest(name, contract.topics))
    if (key is None) == (not places):
        found = "both a key and places were given" if places else "neither a key nor places were given"
        raise QueryError(found, fix="hindcast forget PIPELINE.TOPIC --key K, or --offset P/O")
    if key is None:
        return ErasureRequest(
            name, " ".join(sorted(places)), places=tuple(sorted(_parse_place(text) for text in places))
        )
    table = locate_own_table(contract, name)
    return ErasureRequest(name, key, key=tuple(read.parse_key(table, key)))


def read_records(spark: SparkSession, contract: BoundContract, request: ErasureRequest, marked: set[int]) -> DataFrame:
    """Return the records of the log that are to be forgotten, and those that the runs `marked` have forgotten.

    Columns: partition, offset; topic and topicPartition, the place in Kafka; said (JSON and texts).
    """
    name, topic = request.topic, contract.topics[request.topic]
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    if tables.open_table(log) is None:
        if tables.open_table(locate_own_table(contract, name)) is None:
            raise RequestError("no run has replayed the topic", where=f"{contract.pipeline}.{name}")
        return spark.createDataFrame([], _RECORD_SCHEMA)  # its table was adopted
    rows = row_reader.load_rows(spark, log)
    raw = {"_rawKey": F.col("key"), "_rawValue": F.col("value")}
    decoded = decode_records(rows.withColumns(raw), topic, writers=schemas.read_schemas(spark, contract, name))
    if request.places:
        is_requested = _is_at(request.places)
    else:
        has_key = F.col("key").isNotNull() & _key_condition(contract, request, "key.")
        key_rows = decoded.where(has_key).select("_rawKey").distinct().collect()
        keys = {bytes(row[0]) for row in key_rows if row[0] is not None} | {request.text.encode()}
        is_requested = has_key | F.col("_rawKey").isin(*(F.lit(key) for key in keys))
    is_forgotten = erasure_marks.is_forgotten(rows)
    has_marks = marked and erasure_marks.MARK in rows.columns
    is_marked = F.col(erasure_marks.MARK).isin(*marked) if has_marks else F.lit(False)
    kafka_place = {"topic": F.lit(contract.kafka_topic(name)), "topicPartition": F.col("partition")}
    kafka_place = {} if "topicPartition" in rows.columns else kafka_place
    said = [F.to_json("key"), F.to_json("value"), *(F.make_valid_utf8(F.col(c).cast("string")) for c in raw)]
    if "headers" in rows.columns:
        texts = F.transform("headers", lambda header: F.make_valid_utf8(header.getField("value").cast("string")))
        said.append(F.to_json(texts))
    found = decoded.where((~is_forgotten & F.coalesce(is_requested, F.lit(False))) | is_marked)
    return found.withColumns(kafka_place).select(
        "partition", "offset", "topic", "topicPartition", F.array(*said).alias("said")
    )


def erased_condition(contract: Contract, request: ErasureRequest) -> Column:
    """Return the condition for the rows of the topic's own table that go."""
    if request.places:
        return reduce(
            Column.__or__, ((F.col(PLACE_COLUMNS[0]) == p) & (F.col(PLACE_COLUMNS[1]) == o) for p, o in request.places)
        )
    return _key_condition(contract, request)


def find_adopted_records(spark: SparkSession, contract: BoundContract, request: ErasureRequest) -> DataFrame | None:
    """Return the records of the topic's base that are to be forgotten; None if it has none, or for places."""
    initial = initial_rows.initial_rows_table(contract.warehouse, contract.pipeline, request.topic)
    if request.places or tables.open_table(initial) is None:
        return None
    return row_reader.load_rows(spark, initial).where(_key_condition(contract, request, "key."))


def _key_condition(contract: Contract, request: ErasureRequest, struct: str = "") -> Column:
    """Return the condition that columns, or fields of a struct, have the values of the key."""
    types = contract.topics[request.topic].key
    keys = zip(types, request.key, strict=True)
    return reduce(
        Column.__and__, (F.col(f"{struct}`{c}`").eqNullSafe(_typed_literal(str(types[c]), v)) for c, v in keys)
    )


def _typed_literal(kind: str, value: ColumnValue) -> Column:
    return F.lit(value).try_cast(kind)


def find_lost_since(spark: SparkSession, contract: BoundContract, request: ErasureRequest) -> datetime | None:
    """Return the horizon of a trimmed log if a requested record was in force there, alone of its key; None otherwise.

    What such a record had replaced was trimmed. So without it nobody knows the value of its key from then on.
    """
    name = request.topic
    trim = trim_ledger.read_log_trim(tables.log_table(contract.warehouse, contract.pipeline, name))
    if trim is None or not request.places or contract.topics[name].read != "table":
        return None
    judged = topic_log.judge_again(retimestamping.read_log(spark, contract, name), contract, name)
    in_force = judged.where(_is_at(request.places) & (F.col("fate") == "accepted") & topic_log.is_trimmed_until(trim))
    return trim.horizon if topic_records.exclude_held(spark, contract, name, in_force).take(1) else None


def _is_at(places: Sequence[tuple[int, int]]) -> Column:
    return reduce(Column.__or__, ((F.col("partition") == p) & (F.col("offset") == o) for p, o in places))


def collect_texts(
    request: ErasureRequest, records: DataFrame, adopted: DataFrame | None, below: frozenset[str]
) -> ForgottenTexts:
    """Return all texts that the records of log and base said, and the key. `below`: the tables made of the topic.

    The keys of the records count too: of places nothing else says them, and they are spelled as reports spell keys.
    """
    keys = {str(value) for value in request.key if value is not None}
    texts = records.select("said")
    if adopted is not None:
        texts = texts.unionByName(adopted.select(F.array(F.to_json("key"), F.to_json("value")).alias("said")))
    every = [row[0] for row in texts.collect()]
    said = {string for row in every for text in row if text for string in json_strings(text)}
    spelled = {leaf for row in every if row[0] for leaf in json_leaves(row[0])}  # the key is the first of its texts
    return ForgottenTexts(frozenset(keys | spelled), frozenset(said | keys), below, below - {request.topic})


def _parse_place(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,18})", text)
    if match is None:
        raise QueryError(f"'{text}' is not a partition and offset", fix="write them as 0/42")
    return int(match[1]), int(match[2])
