"""Arrival: when a record could be known, in contracts, and in segments however they are cut."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from hindcast.bitemporal import valid_time
from hindcast.bitemporal.intervals import to_micros
from hindcast.common.errors import ContractError
from hindcast.contract import Topic, load
from hindcast.formats import dating
from hindcast.formats.headers import read_time_header
from hindcast.ingest import arrivals
from hindcast.ingest.arrivals import BEGINNING
from hindcast.ingest.segment_fates import FateRule
from hindcast.ingest.segments import Origin
from hindcast.kafka.record_batches import HEADERS
from hindcast.kafka.topics import OffsetRange
from test_segments import START, log, log_rows, read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLI = 1_000
CONTRACT = """
pipeline: arriving
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int, ts: bigint}
    arrival: ARRIVAL
    max_malformed: 9
"""


def contract(tmp_path: Path, arrival: str, more: str = "") -> Topic:
    path = tmp_path / "arriving.yaml"
    path.write_text(CONTRACT.replace("ARRIVAL", arrival) + more, encoding="utf-8")
    return load(path).topics["menu"]


@pytest.mark.parametrize(
    ("arrival", "header", "column"),
    [
        ("header sent.at-1", "sent.at-1", None),
        ("record_timestamp", None, (None, "record_timestamp", 1)),
        ("timestamp_millis(ts)", None, ("value", "ts", 1_000)),
        ("coalesce(timestamp_millis(ts), record_timestamp)", None, None),
    ],
)
def test_arrival_is_a_header_a_column_or_an_expression(
    tmp_path: Path, arrival: str, header: str | None, column: tuple[Any, ...] | None
) -> None:
    topic = contract(tmp_path, arrival)
    source = dating.plan_arrival(topic)
    assert source is not None
    assert (source.header, source.column) == (header, column)
    assert source.is_computed == (header is None and column is None)
    assert contract(tmp_path, "null").hash_decoding == topic.hash_decoding, "the log's bytes are decoded as before"


@pytest.mark.parametrize(
    ("arrival", "more", "found"),
    [
        ("price", "", "price is int, not a timestamp"),
        ("sent_at", "", "sent_at"),
        ("timestamp_millis(ts)", "    sensitive: [ts]\n", "arrival uses ts, which is sensitive, but periods are shown"),
        ("to_date('today')", "", "depends on the current day"),
        ("record_timestamp +", "", "record_timestamp"),
        ("header sent + 1", "", "header"),
        ("header - INTERVAL 1 DAY", "", "header"),
    ],
)
def test_what_cannot_be_an_arrival_is_refused_at_its_line(tmp_path: Path, arrival: str, more: str, found: str) -> None:
    with pytest.raises(ContractError) as refused:
        contract(tmp_path, arrival, more)
    assert found in str(refused.value)
    assert refused.value.where == f"{tmp_path}/arriving.yaml:9"


def micros(milli: int | None) -> int | None:
    return None if milli is None else to_micros(START) + milli * MILLI


def with_arrivals(records: pa.Table, own: list[int | None]) -> pa.Table:
    return records.append_column(
        "arrival", pa.array([micros(it) for it in own], pa.int64()).view(pa.timestamp("us", "UTC"))
    )


def define_arrivals(
    own: list[tuple[int, int, int | None]], reached: dict[int, int], latest: int
) -> dict[tuple[int, int], int | None]:
    """The definition: by (partition, offset), in milliseconds; None for the beginning of time."""
    found, upto = {}, dict[int, int | None](reached)
    for partition, offset, arrival in sorted(own):
        before = upto.get(partition)
        taken = None if arrival is None or arrival > latest else arrival
        upto[partition] = max((it for it in (before, taken) if it is not None), default=None)
        found[partition, offset] = upto[partition]
    return found


@pytest.mark.parametrize("few", [True, False])
@pytest.mark.parametrize("skew", [(10, None), (0, 25), (20, 28)])
def test_arrivals_and_fates_are_those_of_the_definition_however_a_log_is_cut(
    spark: SparkSession, skew: tuple[int, int | None], few: bool
) -> None:
    """Two partitions with arrivals that go back, that are missing and that lie ahead of the run."""
    chance = random.Random(sum(it or 0 for it in skew))  # noqa: S311  # any will do
    rows, own, ranges = [], [], {0: OffsetRange(0, 60), 1: OffsetRange(5, 70)}
    for partition, (start, end) in ranges.items():
        for offset in (n for n in range(start, end) if chance.random() < 0.8):
            arrival = chance.choice([None, offset, offset - chance.randrange(9), 500])
            fate = chance.choice([None] * 8 + ["malformed"])
            own.append((partition, offset, arrival))
            rows.append((partition, offset, offset + chance.randrange(-30, 30), fate))
    cuts = sorted({0, len(rows), *(chance.randrange(len(rows)) for _ in range(12))})
    batches = [with_arrivals(log(*rows[start:end]), [it for *_, it in own[start:end]]) for start, end in pairwise(cuts)]
    after, before = skew
    rule = arrivals.ArrivalRule(micros(400) or 0, after * MILLI, None if before is None else before * MILLI, False)
    reached = {1: 12}
    origin = Origin([ranges], [{}], [{p: micros(it) or 0 for p, it in reached.items()}])
    found = read(spark, batches, origin, FateRule(8 * MILLI, "too old", rule), few=few)

    wanted, stream_time = [], dict[int, int]()
    defined = define_arrivals(own, reached, 400)
    for partition, offset, time, decided in rows:
        arrival, fate = defined[partition, offset], decided
        if fate is None and arrival is not None and time > arrival + after:
            fate = "time_skew"
        if fate is None and arrival is not None and before is not None and time < arrival - before:
            fate = "time_skew"
        past = stream_time.get(partition)
        if fate is None:
            fate = "expired" if past is not None and past - time > 8 else "accepted"
            stream_time[partition] = max(time, past if past is not None else time)
        at_ = valid_time.FIRST_MOMENT if arrival is None else START + timedelta(milliseconds=arrival)
        wanted.append((partition, offset, fate, at_.replace(tzinfo=None)))
    got = log_rows(found, "fate", "arrival", "reason")
    assert [row[:4] for row in got] == sorted(wanted)
    assert {fate for _, _, fate, _ in wanted} == {"accepted", "expired", "malformed", "time_skew"}
    for row in got:
        assert ("the record's arrival" in (row[4] or "")) == (row[2] == "time_skew"), row
    counts = [it[2] for it in wanted]
    assert found.count_expired() == counts.count("expired")
    assert sum(it.malformed for it in found.starts) == counts.count("malformed")
    assert sum(it.refused for it in found.starts) == counts.count("malformed") + counts.count("time_skew")
    assert sum(it.ahead for it in found.starts) == sum(it == 500 for *_, it in own)
    assert found.latest == {p: micros(time) for p, time in stream_time.items()}


@pytest.mark.parametrize("few", [True, False])
def test_a_part_of_a_partition_goes_on_from_the_arrivals_of_the_one_before(spark: SparkSession, few: bool) -> None:
    """Of offsets that were replayed later since `from` moved back, and those after the last run's."""
    parts = [with_arrivals(log((0, 0, 1, None)), [30]), with_arrivals(log((0, 5, 1, None), (0, 6, 1, None)), [10, 40])]
    rule = FateRule(None, "", arrivals.ArrivalRule(micros(400) or 0, 99_000, None, False))
    origin = Origin([{0: OffsetRange(0, 1)}, {0: OffsetRange(5, 7)}], [{}, {}], [{}, {0: micros(20) or 0}])
    found = log_rows(read(spark, parts, origin, rule, few=few), "arrival")
    assert [row[2] for row in found] == [(START + timedelta(milliseconds=n)).replace(tzinfo=None) for n in (30, 30, 40)]


def test_a_header_has_a_time_or_milliseconds_and_all_else_is_none() -> None:
    texts = ["1970-01-01T00:00:01Z", "1970-01-01T02:00:01+02:00", "1970-01-01T00:00:01", "1000", "-1", "soon", ""]
    texts += [str(1 << 63), str(-(1 << 63)), str((1 << 63) // 1000), "1e3", None, "50000", "-50000"]
    headers = [[("sent", b"x"), ("sent", None if text is None else text.encode())] for text in texts]
    found = read_time_header(pa.array([*headers, [], None], HEADERS), "sent").to_pylist()
    times = [1_000_000, 1_000_000, 1_000_000, 1_000_000, -1_000]
    assert found == [*times, *[None] * 7, 50_000_000, -50_000_000, None, None]


def test_a_record_that_none_before_has_an_arrival_for_is_not_judged_by_its_skew() -> None:
    rule = arrivals.ArrivalRule(10**18, 0, 0, False)
    records = with_arrivals(log((0, 0, 5, None), (0, 1, 5, None)), [None, 4])
    judged = arrivals.judge_arrivals(records, None, rule)
    assert judged.column("fate").to_pylist() == [None, "time_skew"]
    assert judged.column("arrival").cast(pa.int64()).to_pylist() == [BEGINNING, micros(4)]
