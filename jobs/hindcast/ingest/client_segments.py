"""The segments of a topic whose records need nothing of Spark but its tasks.

A task reads some offsets, decodes them in Arrow and packs them; of a few this process does. The JVM sees no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hindcast.common.settings import Settings
from hindcast.common.spark_workers import BatchConverter
from hindcast.formats.decoder import Decoder, Decoding, TimeBounds
from hindcast.ingest import record_tasks, segments
from hindcast.ingest.record_tasks import TopicPlace
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin, Segments
from hindcast.kafka import record_batches
from hindcast.kafka.topic_patterns import TopicSource


def read_decoded_segments(
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
    pack = _open_packer(decoding, bounds)
    none = pa.RecordBatch.from_pylist([], record_batches.SCHEMA)
    schema = from_arrow_schema(Decoder(decoding).decode_batch(none, bounds).schema)
    few = record_tasks.read_few(source, place, origin.ranges)
    if few is not None:
        held = record_tasks.hold_batches(source, pack(few))
        if held is not None:
            return segments.hold_segments(spark, held, schema, rule, origin)
    convert = partial(_open_packer, decoding, bounds)
    frame = record_tasks.read_in_tasks(spark, settings, place, origin.ranges, convert, segments.PACKED_SCHEMA)
    return segments.read_segments(frame, schema, rule, origin, few=False)


def _open_packer(decoding: Decoding, bounds: TimeBounds) -> BatchConverter:
    decoder = Decoder(decoding)

    def pack_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return segments.pack_batches(decoder.decode_batch(batch, bounds) for batch in batches)

    return pack_batches
