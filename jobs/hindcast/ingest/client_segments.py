"""The segments of a topic whose records are decoded and packed at once, in one go through Arrow's batches.

Of most topics the task that reads some offsets does so; of a few records this process. The JVM then sees no record. Of
Avro a task does so after Spark has read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from hindcast.common.settings import Settings
from hindcast.common.spark_workers import map_in_workers
from hindcast.formats import avro, decoder
from hindcast.formats.dating import TimeBounds
from hindcast.formats.decoder import Decoder, Decoding
from hindcast.ingest import record_tasks, segment_packing, segments
from hindcast.ingest.record_tasks import TopicPlace
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin, Segments
from hindcast.kafka import record_batches
from hindcast.kafka.topic_patterns import TopicSource


def read_decoded(
    spark: SparkSession,
    source: TopicSource,
    settings: Settings,
    decoding: Decoding,
    bounds: TimeBounds,
    place: TopicPlace,
    rule: FateRule,
    origin: Origin,
) -> Segments:
    """Return the records of ranges of a topic as segments, decoded where they are read."""
    schema = decoded_schema(decoding, bounds)
    if (few := record_tasks.read_few(source, place, origin.ranges)) is not None:
        with closing(few):
            held = record_tasks.hold_batches(source, _pack_batches(decoding, bounds, rule, few))
        if held is not None:
            return segments.hold_segments(spark, held, schema, rule, origin)
    convert = partial(_pack_batches, decoding, bounds, rule)
    frame = record_tasks.read_in_tasks(
        spark, source, settings, place, origin.ranges, convert, segment_packing.PACKED_SCHEMA
    )
    return segments.read_segments(frame, schema, rule, origin, few=False)


def pack_avro(raw: DataFrame, decoding: Decoding, bounds: TimeBounds, rule: FateRule) -> DataFrame:
    """Return records (`topics.RECORD_SCHEMA`) with parts in Avro as packed segments, a row for each."""
    given = avro.read_parts(raw, [decoding.key, decoding.value], decoding.max_bytes)
    return map_in_workers(given, partial(_pack_batches, decoding, bounds, rule), segment_packing.PACKED_SCHEMA)


def decoded_schema(decoding: Decoding, bounds: TimeBounds) -> StructType:
    """Return the columns of the records of such segments."""
    none = pa.Table.from_pylist([], record_batches.SCHEMA)
    parts = {part.name: decoder.part_type(part) for part in (decoding.key, decoding.value) if part.format == "avro"}
    if parts:
        none = none.append_column(avro.COLUMN, pa.array([], pa.struct(parts)))
    (batch,) = none.to_batches() or [pa.RecordBatch.from_pylist([], none.schema)]
    return from_arrow_schema(Decoder(decoding).decode_batch(batch, bounds).schema)


def _pack_batches(
    decoding: Decoding, bounds: TimeBounds, rule: FateRule, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    decode = Decoder(decoding).decode_batch
    yield from segment_packing.pack_batches(rule, (decode(batch, bounds) for batch in batches))
