"""Which records a table takes, and stream time."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from hindcast.bitemporal import fates
from hindcast.ingest import stream_times
from hindcast.kafka.topics import OffsetRange
from hindcast.store import arrow_reader
from relations import at, ms, records, rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOG_SCHEMA = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("fate", pa.string())]
)

LOG = [(0, "a", 1, 30), (0, "b", 1, 20), (0, "a", 1, 19), (0, "a", 1, 40), (0, "a", 1, 29), (1, "a", 1, 0)]


def test_a_record_expires_when_it_is_older_than_stream_time_of_its_partition_less_retention(
    spark: SparkSession,
) -> None:
    judged = fates.decide_fates(records(spark, LOG), ms(10))
    wanted = ["accepted", "accepted", "expired", "accepted", "expired", "accepted"]
    assert rows(judged, "offset", "fate") == list(enumerate(wanted))


@pytest.mark.parametrize("cut", range(len(LOG) + 1))
def test_fates_do_not_depend_on_how_runs_cut_the_log(spark: SparkSession, cut: int) -> None:
    whole = records(spark, LOG)
    reached = max((time for partition, _, _, time in LOG[:cut] if partition == 0), default=None)
    earlier = F.when(F.col("partition") == 0, F.lit(None) if reached is None else at(reached))
    first = fates.decide_fates(whole.where(F.col("offset") < cut), ms(10))
    second = fates.decide_fates(whole.where(F.col("offset") >= cut), ms(10), earlier.cast("timestamp"))
    assert rows(first.union(second), "offset", "fate") == rows(fates.decide_fates(whole, ms(10)), "offset", "fate")


@pytest.mark.parametrize("retention", [None, 0, 9, 10, 11, 12])
def test_judged_again_fates_are_those_of_the_other_retention(spark: SparkSession, retention: int | None) -> None:
    log = records(spark, LOG).withColumn("fate", F.when(F.col("offset") == 3, F.lit("malformed")))
    other = ms(retention) if retention is not None else F.lit(None).cast("interval day to second")
    again = fates.redecide_fates(fates.decide_fates(log, ms(10)), other)
    assert rows(again, "offset", "fate") == rows(fates.decide_fates(log, other), "offset", "fate")


def test_a_fate_decided_before_stays_and_moves_no_time(spark: SparkSession) -> None:
    malformed = F.when(F.col("offset") == 0, F.lit("malformed"))
    judged = fates.decide_fates(records(spark, LOG).withColumn("fate", malformed), ms(10))
    assert rows(judged, "offset", "fate")[:3] == [(0, "malformed"), (1, "accepted"), (2, "accepted")]


def test_stream_time_of_events_is_by_source_partition_and_counts_only_events(spark: SparkSession) -> None:
    log = [(0, "a", 1, 5), (0, None, 1, 90), (0, "a", None, 80), (0, "b", 1, 3), (1, "a", 1, 2), (0, "a", 1, 7)]
    timed = fates.add_stream_time(records(spark, log))
    assert rows(timed, "position.offset", "streamTime") == [(0, 5), (1, 5), (2, 5), (3, 5), (4, 2), (5, 7)]


def test_the_stream_time_that_a_log_has_reached_is_found_in_its_latest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of random logs in many files, with ranges that begin within and after them."""
    chance, reads = random.Random(7), []  # noqa: S311  # any will do
    read = arrow_reader.read_rows
    monkeypatch.setattr(stream_times.arrow_reader, "read_rows", lambda *args: reads.append(args) or read(*args))
    for n in range(6):
        rows, ends = [], Counter[int]()
        for second in range(300):
            partition = chance.randrange(4)
            moment = EPOCH + timedelta(seconds=second - chance.randrange(20), microseconds=chance.randrange(1000))
            fate = chance.choice(["accepted"] * 4 + ["expired", "malformed"])
            moment = moment + timedelta(days=9) if fate == "malformed" and n % 2 else moment
            rows.append({"partition": partition, "offset": ends[partition], "timestamp": moment, "fate": fate})
            ends[partition] += 1
        for start in range(0, 300, 25):
            table = pa.Table.from_pylist(rows[start : start + 25], LOG_SCHEMA)
            write_deltalake(tmp_path / str(n), table, mode="append")
        for begin in (ends, {p: end // 2 for p, end in ends.items()}, {0: 0, 2: ends[2], 7: 5}):
            reads.clear()
            found = stream_times._find_latest_in_files(
                DeltaTable(tmp_path / str(n)), {p: OffsetRange(start, start + 9) for p, start in begin.items()}
            )
            accepted = [
                row for row in rows if row["fate"] == "accepted" and row["offset"] < begin.get(row["partition"], 0)
            ]
            expected: dict[int, int] = {}
            for row in accepted:
                micros = (row["timestamp"] - EPOCH) // timedelta(microseconds=1)
                expected[row["partition"]] = max(micros, expected.get(row["partition"], micros))
            assert found == expected
            assert begin is not ends or n % 2 or len(reads) < 6
