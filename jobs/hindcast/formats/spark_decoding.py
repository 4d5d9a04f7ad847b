"""The records of DataFrames, decoded: bytes into keys and values. Pure: DataFrame in, DataFrame out.

The decision is decoder.py's, in Arrow's batches; Spark reads Avro before, and computes a `valid_time` that
is an expression between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from hindcast.bitemporal import valid_time
from hindcast.common.spark_workers import freeze_modules
from hindcast.contract import Topic
from hindcast.formats import WriterSchemas, avro
from hindcast.formats.dating import MOMENT, TimeBounds
from hindcast.formats.decoder import Decoder, Decoding, ParsedRecords, RecordFacts, RecordTimes, plan_decoding
from hindcast.formats.record_part import ddl_columns
from hindcast.kafka.topics import HEADERS_SCHEMA

Columns = Mapping[str, pa.Array]
BatchDecoder = Callable[[Decoder, Columns], pa.StructArray]

_FATES = "fate: string, reason: string"
_TIMES = "timestamp: timestamp, recordTimestamp: timestamp"
_FACTS = "problem: string, at: timestamp, has_key: boolean, has_value: boolean, has_bytes: boolean"
"""The fields of `RecordFacts`."""
_TIME_FIELDS = {"valid_time": "valid", "arrival": "arrival"}
"""The field of `RecordTimes` that a field of the contract gives."""


def decode_records(
    records: DataFrame,
    topic: Topic,
    latest: datetime | Column | None = None,
    earliest: datetime | Column | None = None,
    writers: WriterSchemas | None = None,
    *,
    within_limit: bool = False,
    with_arrival: bool = False,
) -> DataFrame:
    """Return Kafka's records with their key and value as the contract types them.

    In: `timestamp`, `key` and `value` as bytes (null allowed), `headers` if the topic has columns of them, any further
    columns. `writers`: the schemas that keys and values name by id. `within_limit`, `with_arrival`: as `plan_decoding`
    has them.
    Out: the same, but `key` a struct of the contract's key columns or null, `value` a struct of its value columns or
    null, and also `fate` and `reason`: null for what is decided later (accepted, expired), otherwise

    - malformed: the key or the value is not what the contract says; `reason` says which and how
    - null_key: a record of a table without a key
    - no_timestamp: the record has none (-1, KIP-32), or `valid_time` gives none
    - no_change: Debezium's tombstone, a record of an envelope's topic that has a key and no value
    - time_skew: dated after `latest`, or before `earliest`

    `timestamp` is the valid time, or Kafka's if there is none, within what tables can hold (years 1 to 9999), and
    `recordTimestamp` Kafka's if it differs, else null. Without `latest` the records come from a log: they keep their
    `timestamp`, and no fate depends on time. `with_arrival`, of a topic that has one, there is `arrival`, null for
    none, and no bound makes a record `time_skew`: that depends on the arrival of those before it (`ingest.arrivals`).
    """
    decoding = plan_decoding(topic, writers, within_limit=within_limit, with_arrival=with_arrival)
    given = avro.read_parts(records, [decoding.key, decoding.value], decoding.max_bytes)
    arguments = _list_arguments(records, topic, decoding)
    parts = {"key": f"struct<{ddl_columns(topic.key, ': ')}>", "value": f"struct<{ddl_columns(topic.value, ': ')}>"}
    columns = ", ".join(f"{name}: {kind}" for name, kind in parts.items())
    if latest is None:
        read = _add_struct(given, decoding, _decode, arguments, f"struct<{columns}, {_FATES}>", "_read")
        return _take_columns(read, {"_read": (*parts, "fate", "reason")})
    moments = {"latest": latest, "earliest": valid_time.FIRST_MOMENT if earliest is None else earliest}
    literal = valid_time.timestamp_literal
    bounds = {name: literal(it) if isinstance(it, datetime) else it for name, it in moments.items()}
    arrival = ", arrival: timestamp" if decoding.arrival is not None else ""
    verdict = ("fate", "reason", "timestamp", "recordTimestamp", *(["arrival"] if arrival else []))
    if not decoding.computed_times:
        form = f"struct<{columns}, {_FATES}, {_TIMES}{arrival}>"
        read = _add_struct(given, decoding, _decode, arguments | bounds, form, "_read")
        return _take_columns(read, {"_read": (*parts, *verdict)})
    form = f"struct<{columns}, {_FACTS}, {', '.join(f'{name}: timestamp' for name in RecordTimes._fields)}>"
    parsed = _add_struct(given, decoding, _parse, arguments, form, "_read")
    dated = valid_time.add_computed_times(
        parsed, topic, {name: f"_read.{name}" for name in parts}, decoding.computed_times
    )
    facts = {name: F.col(f"_read.{name}") for name in (*RecordFacts._fields, *RecordTimes._fields)}
    facts |= {_TIME_FIELDS[field]: F.col(f"_{field}") for field in decoding.computed_times}
    facts |= {"timestamp": F.col("timestamp"), **bounds}
    judged = _add_struct(dated, decoding, _judge, facts, f"struct<{_FATES}, {_TIMES}{arrival}>", "_verdict")
    return _take_columns(judged, {"_read": parts, "_verdict": verdict}).drop(
        *(f"_{field}" for field in decoding.computed_times)
    )


def _list_arguments(records: DataFrame, topic: Topic, decoding: Decoding) -> dict[str, Column]:
    """Return what is decoded of records (`avro.read_parts`)."""
    arguments = {name: F.col(name) for name in ("timestamp", "key", "value")}
    for part in avro.list_parts(decoding.key, decoding.value):
        arguments[f"avro_{part}"] = F.col(f"{avro.COLUMN}.{part}")
    needs_header = decoding.arrival is not None and decoding.arrival.header is not None
    if topic.headers or needs_header or (decoding.max_bytes is not None and "headers" in records.columns):
        arguments["headers"] = F.col("headers").cast(HEADERS_SCHEMA.partition(" ")[2])
    return arguments


def _take_columns(records: DataFrame, fields: Mapping[str, Iterable[str]]) -> DataFrame:
    """Return records with the fields of structs as columns of their own, and without the structs."""
    columns = {name: F.col(f"{struct}.{name}") for struct, names in fields.items() for name in names}
    return records.withColumns(columns).drop(*fields, avro.COLUMN)


def _add_struct(
    records: DataFrame, how: Decoding, work: BatchDecoder, arguments: Mapping[str, Column], form: str, name: str
) -> DataFrame:
    """Return records with a struct of what a function makes of some columns, in Python."""
    run = partial(_run_batches, how, work, [*arguments])

    def read(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        return run(batches)

    struct = arrow_udf(read, form)(*arguments.values())  # type: ignore[call-overload]  # its stubs know no type hints
    # Exploded of one: else Spark would compute it again wherever a part of it is named.
    return records.withColumn(name, F.explode(F.array(struct)))


def _run_batches(
    how: Decoding, work: BatchDecoder, names: list[str], batches: Iterator[tuple[pa.Array, ...]]
) -> Iterator[pa.Array]:
    freeze_modules()
    decoder = Decoder(how)
    for batch in batches:
        yield work(decoder, dict(zip(names, batch, strict=True)))


def _decode(decoder: Decoder, given: Columns) -> pa.StructArray:
    parsed = _parse_columns(decoder, given)
    times = decoder.read_times(parsed, given["timestamp"], given.get("headers"))
    verdict = decoder.judge(parsed.facts, given["timestamp"], times, _take_bounds(given))
    return pa.StructArray.from_arrays([parsed.key, parsed.value, *verdict.values()], ["key", "value", *verdict])


def _parse(decoder: Decoder, given: Columns) -> pa.StructArray:
    parsed = _parse_columns(decoder, given)
    facts = parsed.facts._replace(at=parsed.facts.at.view(MOMENT))
    found = decoder.read_times(parsed, given["timestamp"], given.get("headers"))
    times = [pa.nulls(len(facts.at), MOMENT) if it is None else it.view(MOMENT) for it in found]
    names = ["key", "value", *facts._fields, *found._fields]
    return pa.StructArray.from_arrays([parsed.key, parsed.value, *facts, *times], names)


def _judge(decoder: Decoder, given: Columns) -> pa.StructArray:
    facts = RecordFacts(*(given[name] for name in RecordFacts._fields))
    facts = facts._replace(at=facts.at.cast(pa.int64()))
    times = decoder.select_times({name: given[name].cast(pa.int64()) for name in RecordTimes._fields})
    verdict = decoder.judge(facts, given["timestamp"], times, _take_bounds(given))
    return pa.StructArray.from_arrays([*verdict.values()], [*verdict])


def _parse_columns(decoder: Decoder, given: Columns) -> ParsedRecords:
    read = {name.removeprefix("avro_"): it for name, it in given.items() if name.startswith("avro_")}
    return decoder.parse(given["key"], given["value"], given.get("headers"), read)


def _take_bounds(given: Columns) -> TimeBounds | None:
    if "latest" not in given:
        return None
    return TimeBounds(given["latest"].cast(pa.int64()), given["earliest"].cast(pa.int64()))
