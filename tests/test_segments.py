"""Segments: what they keep of records, and that fates are those of the whole log however it is cut."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from hindcast.bitemporal import fates, intervals
from hindcast.ingest import segment_packing, segments
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin, Segments
from hindcast.kafka.topics import OffsetRange
from relations import ms

SCHEMA = "partition int, offset long, timestamp timestamp, key binary, value binary, fate string, reason string"
LOG_COLUMNS = f"{SCHEMA}, streamTime timestamp, offsets long, run long"
START = datetime(2026, 1, 1, tzinfo=UTC)


def log(*records: tuple[int, int, int | None, str | None]) -> pa.Table:
    """Records from (partition, offset, milliseconds, fate)."""
    rows = [
        {
            "partition": partition,
            "offset": offset,
            "timestamp": None if time is None else START + timedelta(milliseconds=time),
            "key": b"k%d" % offset,
            "value": b"v%d" % offset,
            "fate": fate,
            "reason": None if fate is None else f"why {offset}",
        }
        for partition, offset, time, fate in records
    ]
    arrow = {"int": pa.int32(), "long": pa.int64(), "binary": pa.binary(), "string": pa.string()}
    types = [column.split() for column in SCHEMA.split(", ")]
    schema = pa.schema([(name, arrow.get(kind, pa.timestamp("us", "UTC"))) for name, kind in types])
    return pa.Table.from_pylist(rows, schema)


def read(spark: SparkSession, batches: list[pa.Table], origin: Origin, rule: FateRule, *, few: bool) -> Segments:
    """Segments of records, a task or several for each of the batches."""
    given = [part for batch in batches for part in batch.combine_chunks().to_batches()]
    given.append(pa.RecordBatch.from_pylist([], batches[0].schema))
    packed = [it for batch in given for it in segment_packing.pack_batches(rule, iter([batch]))]
    packed.reverse()
    frame = spark.createDataFrame(pa.Table.from_batches(packed, segment_packing.PACKED), segment_packing.PACKED_SCHEMA)
    return segments.read_segments(frame.localCheckpoint(), StructType.fromDDL(SCHEMA), rule, origin, few=few)


def log_rows(found: Segments, *columns: str) -> list[tuple[Any, ...]]:
    values = {"offsets": pa.scalar(1, pa.int64()), "run": pa.scalar(7, pa.int64())}
    schema = LOG_COLUMNS + (", arrival timestamp" if "arrival" in columns else "")
    rows = found.select_log_rows(dict.fromkeys(range(3), values), StructType.fromDDL(schema)).as_frame()
    return sorted(tuple(row) for row in rows.select("partition", "offset", *columns).collect())


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("retention", [None, 0, 10])
def test_fates_are_those_of_the_whole_log_however_it_is_cut(
    spark: SparkSession, retention: int | None, few: bool
) -> None:
    """Of a log of two ranges of a partition and one of another, against `fates.decide_fates`."""
    chance = random.Random(retention or 99)  # noqa: S311  # any will do
    rows, parts, ranges = [], [], [{0: OffsetRange(0, 40)}, {0: OffsetRange(60, 120), 1: OffsetRange(5, 50)}]
    for part in ranges:
        parts.append(len(rows))
        for partition, (start, end) in part.items():
            for offset in (n for n in range(start, end) if chance.random() < 0.8):
                fate = chance.choice([None] * 8 + ["malformed", "no_change"])
                rows.append((partition, offset, chance.randrange(-30, 60) if fate is None else 9_999, fate))
    cuts = sorted({*parts, len(rows), *(chance.randrange(len(rows)) for _ in range(9))})
    batches = [log(*rows[start:end]) for start, end in pairwise(cuts)]
    before = [{}, {0: int((START + timedelta(milliseconds=40)).timestamp() * 1e6)}]
    rule = FateRule(None if retention is None else retention * 1000, "too old at ")
    found = read(spark, batches, Origin(ranges, before), rule, few=few)

    assert (found.local is not None) == few
    wanted = []
    for part, times in zip(ranges, before, strict=True):
        for partition, (start, end) in part.items():
            own = [row for row in rows if row[0] == partition and start <= row[1] < end]
            frame = spark.createDataFrame(log(*own), SCHEMA)
            reached = F.timestamp_micros(F.lit(times.get(partition)).cast("long"))
            limit = F.lit(None).cast("interval day to second") if retention is None else ms(retention)
            judged = fates.decide_fates(frame, limit, reached)
            wanted += [
                (*row[:3], f"too old at {row[4]}" if row[2] == "expired" else row[3], row[5])
                for row in judged.select(
                    "partition", "offset", "fate", "reason", F.col("streamTime").cast("string"), "streamTime"
                ).collect()
            ]
    assert log_rows(found, "fate", "reason", "streamTime") == sorted(wanted)
    every = [row[2] for row in wanted]
    assert found.count_expired() == every.count("expired")
    assert (
        sum(it.refused for it in found.starts) == sum(it.malformed for it in found.starts) == every.count("malformed")
    )
    accepted = found.select_accepted({"offset": "offset", "partition": "at"}, {"run": pa.scalar(7, pa.int64())})
    assert sorted(tuple(row) for row in accepted.as_frame().collect()) == sorted(
        (offset, partition, 7) for partition, offset, fate, *_ in wanted if fate == "accepted"
    )


def test_a_row_of_the_log_has_its_record_and_what_its_run_shares(spark: SparkSession) -> None:
    found = read(spark, [log((1, 4, 0, None))], Origin([{1: OffsetRange(4, 5)}], [{}]), FateRule(None, ""), few=True)
    assert log_rows(found, "key", "value", "offsets", "run", "streamTime") == [(1, 4, b"k4", b"v4", 1, 7, None)]


@pytest.mark.parametrize("few", [True, False])
def test_the_first_malformed_record_is_found_and_an_expired_one_has_no_say(spark: SparkSession, few: bool) -> None:
    batches = [log((0, 8, 5, None), (0, 9, None, "malformed")), log((0, 2, 90, None), (1, 1, 0, "malformed"))]
    origin = Origin([{0: OffsetRange(0, 10), 1: OffsetRange(0, 10)}], [{}])
    found = read(spark, batches, origin, FateRule(0, ""), few=few)
    assert found.find_malformed() == (0, 9, b"k9", b"v9", "why 9")
    assert found.latest == {0: int((START + timedelta(milliseconds=90)).timestamp() * 1e6)}
    assert found.count_expired() == 1


@pytest.mark.parametrize("few", [True, False])
def test_only_segments_with_more_expired_records_than_by_themselves_are_looked_into(
    spark: SparkSession, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the third one record is at stream time - retention, of the fourth one before it, and in the last one a record
    makes the next expire.
    """
    batches = [log((0, 1, 0, None), (0, 2, 10, None)), log((0, 3, 1, None)), log((0, 4, 0, None), (0, 5, 3, None))]
    batches += [log((0, 6, -1, None), (0, 7, 9, None)), log((0, 8, None, "malformed")), log((0, 9, 11, None))]
    batches.append(log((0, 10, 40, None), (0, 11, 29, None), (0, 12, 30, None)))
    found = read(spark, batches, Origin([{0: OffsetRange(0, 13)}], [{}]), FateRule(10_000, ""), few=few)
    assert [it.expired for it in found.starts] == [0] * 6 + [1]
    seen: list[int] = []
    select = Segments._select_segments
    monkeypatch.setattr(
        Segments, "_select_segments", lambda self, some: seen.extend(it.first for it in some) or select(self, some)
    )
    assert found.count_expired() == 2
    assert seen == [6]
    monkeypatch.setattr(segments, "_MOST_NAMED", 0)
    assert found.count_expired() == 2, "or all of them, if these are many"


def test_records_that_are_not_in_offset_order_are_refused(spark: SparkSession) -> None:
    origin = Origin([{0: OffsetRange(0, 10)}], [{}])
    with pytest.raises(AssertionError, match="offsets are not in order"):
        read(spark, [log((0, 3, 0, None), (0, 2, 0, None))], origin, FateRule(None, ""), few=True)
    overlapping = [log((0, 1, 0, None), (0, 3, 0, None)), log((0, 2, 0, None))]
    with pytest.raises(AssertionError, match="partition 0: offset 2 was read after 3"):
        read(spark, overlapping, origin, FateRule(None, ""), few=True)


def test_large_records_are_in_segments_of_their_own_and_stay_with_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_packing, "MAX_BYTES", 100)
    batch = log(*((0, n, n, None) for n in range(50)))
    found = read(spark, [batch], Origin([{0: OffsetRange(0, 50)}], [{}]), FateRule(None, ""), few=True)
    assert len(found.starts) > 2
    assert found.local is None
    whole = sum(it.size for it in found.starts)
    monkeypatch.setattr(segments, "_MAX_TASK_BYTES", whole // 3)
    found = read(spark, [batch], Origin([{0: OffsetRange(0, 50)}], [{}]), FateRule(None, ""), few=False)
    assert found.frame.rdd.getNumPartitions() == 2 * whole // (whole // 3) + 1
    assert [row[:2] for row in log_rows(found)] == [(0, n) for n in range(50)]


@pytest.mark.parametrize("micros", [0, 1, 1_767_225_600_000_000, 1_767_225_600_120_000, 253_402_300_800_000_000])
def test_moments_in_reasons_are_as_spark_writes_them(spark: SparkSession, micros: int) -> None:
    (row,) = spark.range(1).select(F.timestamp_micros(F.lit(micros)).cast("string")).collect()
    assert intervals.format_micros(micros) == row[0]
