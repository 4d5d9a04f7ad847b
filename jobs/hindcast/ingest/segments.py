"""Segments (segment_packing.py): what a run reads of a topic, with the fates of their records.

Fates wait for stream time, and for arrival, which the segments before decide: their summaries are enough to tell. A
task, or this process where there are few, then unpacks a segment by itself: as rows of the log, or as accepted records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from hindcast.ingest import arrivals, segment_packing
from hindcast.ingest.erasure_marks import MARK
from hindcast.ingest.run_division import RunDivision
from hindcast.ingest.segment_fates import FateRule, SegmentStart, decide_fates, may_more_expire
from hindcast.ingest.segment_packing import (
    COUNTS,
    FATE_COLUMNS,
    PACKED,
    Segment,
    count_fates_again,
    open_segment,
)
from hindcast.ingest.stream_times import StreamTimes
from hindcast.kafka.topics import OffsetRange, count_offsets
from hindcast.store import files
from hindcast.store.task_rows import TaskRows, collect_table

_MAX_TASK_BYTES = 128 << 20
"""So many bytes of segments a task unpacks at most: Spark hands it all of them as one batch of Arrow."""
_MOST_NAMED = 200
"""So many segments at most are named in a plan of Spark's."""

SegmentReader: TypeAlias = Callable[[pa.Table, int], pa.Table]
"""A function of the records of a segment, with their fates, and their partition."""


class MalformedRecord(NamedTuple):
    """A record that does not decode, and why."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str


class Origin(NamedTuple):
    """The ranges of a topic's partitions that segments are of, and the stream time and the arrival before each."""

    ranges: Sequence[Mapping[int, OffsetRange]]
    stream_times: Sequence[StreamTimes]
    arrivals: Sequence[StreamTimes] = ()

    def count_offsets(self) -> int:
        """Return how many offsets the ranges have."""
        return count_offsets(self.ranges)


@dataclass(frozen=True)
class Segments:
    """The segments of records that have the columns `schema`.

    `frame`: as `pack_records` has them, checkpointed; it may have none if this process has the records of each
    (`local`). `starts`: what was reached before each segment.
    """

    frame: DataFrame
    schema: StructType
    rule: FateRule
    starts: Mapping[Segment, SegmentStart]
    local: tuple[bytes, ...] | None

    @cached_property
    def latest(self) -> StreamTimes:
        """By partition, the largest timestamp of an accepted record, in microseconds since 1970."""
        return _find_latest(self.starts, lambda it: it.latest)  # an expired record is never the latest

    @cached_property
    def latest_arrivals(self) -> StreamTimes:
        """By partition, the latest arrival of a record by itself, in microseconds since 1970."""
        return _find_latest(self.starts, lambda it: it.latest_arrival)

    @cached_property
    def size(self) -> int:
        """How many bytes the records take."""
        return sum(it.size for it in self.starts)

    def count_expired(self) -> int:
        """Return how many records are expired; looks only into segments that have more of them than by themselves."""
        aged = [it for it, start in self.starts.items() if may_more_expire(self.rule, start.stream_time, it.earliest)]
        if not aged:
            return sum(it.expired for it in self.starts)
        read = self._select_segments(aged)
        counts = read.read_each((), _count_expired, StructType().add("n", LongType()))
        others = sum(it.expired for it in self.starts.keys() - read.starts.keys())
        return others + int(pc.sum(collect_table(counts).column("n")).as_py())

    def select_log_rows(
        self,
        values: Mapping[int, Mapping[str, pa.Scalar]],
        schema: StructType,
        division: RunDivision | None = None,
    ) -> TaskRows:
        """Return the records as rows of the log, which have these columns. `values`: by partition, those of a run; of
        records that are divided among several, the `division` gives what differs.
        """
        arrow = to_arrow_schema(schema, timezone="UTC")
        return self.read_each(schema.names, partial(_complete_rows, values, division, arrow), schema)

    def select_places(self) -> TaskRows:
        """Return the `partition` and `offset` of each record."""
        schema = StructType().add("partition", IntegerType()).add("offset", LongType())
        return self.read_each(schema.names, lambda records, _: records.select(["partition", "offset"]), schema)

    def find_malformed(self) -> MalformedRecord:
        """Return the first malformed record; there must be one."""
        segment = min(it for it in self.starts if it.malformed)
        one = self._select_segments([segment])
        rows = one.local or one.frame.select("rows").collect()[0]
        records = open_segment(rows[0], [*MalformedRecord._fields, "fate"])
        record = records.filter(pc.equal(records.column("fate"), "malformed")).slice(0, 1).to_pylist()[0]
        return MalformedRecord(segment.partition, *(record[name] for name in MalformedRecord._fields[1:]))

    def select_accepted(
        self, columns: Mapping[str, str], values: Mapping[str, pa.Scalar], division: RunDivision | None = None
    ) -> TaskRows:
        """Return the accepted records: of their columns these, under other names, and `values` of the run, or of those
        among which a `division` divides them.

        Forgotten ones are left out.
        """
        types = {field.name: field.dataType for field in self.schema}
        schema = StructType()
        for name, alias in columns.items():
            schema.add(alias, types[name])
        for name, value in values.items():
            schema.add(name, from_arrow_type(value.type))
        arrow = to_arrow_schema(schema, timezone="UTC")
        read = partial(_select_accepted, tuple(columns), values, division, arrow)
        return self.read_each((*columns, MARK), read, schema)

    def count_fates_by_run(self, division: RunDivision) -> pa.Table:
        """Return how many records each run of a division has of each fate: `date`, from 0, `fate` and `n`."""
        schema = StructType().add("date", LongType()).add("fate", StringType()).add("n", LongType())
        counts = collect_table(self.read_each(("offset",), partial(_count_by_run, division), schema))
        return counts.group_by(["date", "fate"]).aggregate([("n", "sum")]).rename_columns(["date", "fate", "n"])

    def _select_segments(self, some: Collection[Segment]) -> Segments:
        """Return some of the segments; all if these are many."""
        if len(some) > _MOST_NAMED:
            return self
        places = [F.struct(F.lit(it.partition).cast("int"), F.lit(it.first).cast("long")) for it in some]
        frame = self.frame if self.local else self.frame.where(F.struct("partition", "first").isin(places))
        local = self.local and tuple(rows for it, rows in zip(self.starts, self.local, strict=True) if it in some)
        return replace(self, frame=frame, starts={it: self.starts[it] for it in self.starts if it in some}, local=local)

    def read_each(self, columns: Sequence[str], read: SegmentReader, schema: StructType) -> TaskRows:
        """Return what a function makes of those of the `columns` that each segment has, and of its fates."""
        starts = {it[:2]: start for it, start in self.starts.items()}
        return self.read_packed(partial(_read_segment, self.rule, starts, (*columns, *FATE_COLUMNS), read), schema)

    def judge_again(self, reached: Mapping[Segment, int | None]) -> Segments:
        """Return the segments with what is so of these, given the arrivals of the records before them."""
        some = self._select_segments(reached.keys())
        by_place = {it[:2]: arrival for it, arrival in reached.items()}
        counts = some.read_packed(partial(count_fates_again, self.rule, by_place), from_arrow_schema(COUNTS))
        rows = {(row.pop("partition"), row.pop("first")): row for row in collect_table(counts).to_pylist()}
        starts = {it._replace(**rows.get(it[:2], {})): start for it, start in self.starts.items()}
        return replace(self, starts=starts)

    def read_packed(self, read_segment: Callable[[int, int, bytes], pa.Table], schema: StructType) -> TaskRows:
        """Return what a function makes of each segment, given its partition, its first offset and its bytes."""
        rows = None
        if self.local is not None:
            parts = [read_segment(*it[:2], rows) for it, rows in zip(self.starts, self.local, strict=True)]
            rows = pa.concat_tables([to_arrow_schema(schema, timezone="UTC").empty_table(), *parts])
        return TaskRows(self.frame, partial(_unpack_batches, read_segment), schema, rows)


def hold_segments(
    spark: SparkSession, packed: Sequence[pa.RecordBatch], schema: StructType, rule: FateRule, origin: Origin
) -> Segments:
    """Return the segments of a few records that this process has packed (`pack_batches`)."""
    table = pa.Table.from_batches(packed, PACKED)
    rows = {Segment(*values): rows for *values, rows in zip(*(it.to_pylist() for it in table.columns), strict=True)}
    ordered = sorted(rows, key=lambda it: it[:2])
    local = tuple(rows[it] for it in ordered)
    none = spark.range(0)  # a DataFrame of the records themselves would cost more than all they need
    return _find_starts(Segments(none, schema, rule, dict.fromkeys(ordered, SegmentStart()), local), origin)


def read_segments(frame: DataFrame, schema: StructType, rule: FateRule, origin: Origin, *, few: bool) -> Segments:
    """Return the segments of a `frame` (`pack_records`), computed once, whose records have the columns `schema`.

    `few`: they may be held in this process, unless they turn out to be large.
    """
    # No persist: a commit to the log would drop the cache of a plan that reads it.
    frame = frame.localCheckpoint(eager=False, storageLevel=None if few else StorageLevel.DISK_ONLY)
    own = F.when(F.octet_length("rows") <= _find_local_limit(origin), F.col("rows")) if few else F.lit(None)
    found = frame.select(*PACKED.names[:-1], own.alias("rows"), F.spark_partition_id().alias("task")).collect()
    rows = {Segment(*row[:-2]): row["rows"] for row in sorted(found, key=lambda row: row[:2])}
    sizes = Counter[int]()
    for row in found:
        sizes[row["task"]] += row["size"]
    if max(sizes.values(), default=0) > _MAX_TASK_BYTES:
        # By columns: Spark sorts what it spreads by number.
        frame = frame.repartition(2 * sizes.total() // _MAX_TASK_BYTES + 1, "partition", "first")
    is_local = few and None not in rows.values() and files.is_small(0, sum(it.size for it in rows))
    local = tuple(map(bytes, rows.values())) if is_local else None
    return _find_starts(Segments(frame, schema, rule, dict.fromkeys(rows, SegmentStart()), local), origin)


def _find_local_limit(origin: Origin) -> int:
    """Return how large a segment may be to be brought to this process, which takes one of each partition at least."""
    return min(segment_packing.MAX_BYTES // 2, files.SMALL_BYTES // max(sum(map(len, origin.ranges)), 1))


def _find_starts(segments: Segments, origin: Origin) -> Segments:
    """Return the segments, which are in the order of their offsets, with what was reached before each."""
    if segments.rule.arrival is None:
        times = _find_reached([*segments.starts], origin.ranges, origin.stream_times, lambda it: it.latest)
        return replace(segments, starts={it: SegmentStart(time) for it, time in times.items()})
    # rule: an earlier part of a partition has arrived before a later one
    arrived = _find_reached(
        [*segments.starts], origin.ranges, origin.arrivals, lambda it: it.latest_arrival, is_continued=True
    )
    if moved := {it: before for it, before in arrived.items() if arrivals.are_moved(it.first_arrival, before)}:
        # rule: what the arrival of the record before moves is judged by that
        segments = segments.judge_again(moved)
    times = _find_reached([*segments.starts], origin.ranges, origin.stream_times, lambda it: it.latest)
    starts = zip(times.items(), arrived.values(), strict=True)
    return replace(segments, starts={it: SegmentStart(time, arrival) for (it, time), arrival in starts})


def _find_reached(
    segments: Sequence[Segment],
    ranges_read: Sequence[Mapping[int, OffsetRange]],
    reached_before: Sequence[StreamTimes],
    own: Callable[[Segment], int | None],
    *,
    is_continued: bool = False,
) -> dict[Segment, int | None]:
    """Return the time that the segments before each have reached, which are in the order of their offsets.

    `reached_before`: the times before the ranges; `own`: the latest of a segment. `is_continued`: ranges go on from
    those before them in the list.
    """
    for one, other in pairwise(segments):
        if one.partition == other.partition and other.first <= one.last:
            raise AssertionError(f"partition {one.partition}: offset {other.first} was read after {one.last}")
    starts, reached = dict[Segment, int | None].fromkeys(segments), StreamTimes()
    for ranges, before in zip(ranges_read, reached_before, strict=True):
        kept = reached if is_continued else {}
        reached = {p: max(it[p] for it in (kept, before) if p in it) for p in {*kept, *before}}
        for it in segments:
            offsets = ranges.get(it.partition)
            if offsets is None or not offsets.start <= it.first < offsets.end:
                continue
            # rule: a segment begins with the stream time of those before it
            starts[it] = reached.get(it.partition)
            if (latest := own(it)) is not None:
                reached[it.partition] = max(latest, reached.get(it.partition, latest))
    return starts


def _find_latest(segments: Iterable[Segment], own: Callable[[Segment], int | None]) -> StreamTimes:
    latest: StreamTimes = {}
    for it in segments:
        if (time := own(it)) is not None:
            latest[it.partition] = max(time, latest.get(it.partition, time))
    return latest


def _unpack_batches(
    read_segment: Callable[[int, int, bytes], pa.Table], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield what a function makes of each segment, for Spark's mapInArrow."""
    for batch in batches:
        place = (batch.column(name).to_pylist() for name in ("partition", "first"))
        for partition, first, rows in zip(*place, batch.column("rows"), strict=True):
            yield from read_segment(partition, first, rows.as_buffer()).to_batches()


def _read_segment(
    rule: FateRule,
    starts: Mapping[tuple[int, int], SegmentStart],
    columns: Collection[str],
    read: SegmentReader,
    partition: int,
    first: int,
    rows: bytes | pa.Buffer,
) -> pa.Table:
    return read(decide_fates(open_segment(rows, columns), starts[partition, first], rule), partition)


def _count_expired(records: pa.Table, _: int) -> pa.Table:
    return pa.table({"n": [pc.sum(pc.equal(records.column("fate"), "expired"), min_count=0).as_py()]})


def _count_by_run(division: RunDivision, records: pa.Table, partition: int) -> pa.Table:
    dates = division.find_dates(partition, records.column("offset").to_numpy())
    rows = pa.table({"date": pa.array(dates), "fate": records.column("fate").cast(pa.string())})
    return rows.group_by(["date", "fate"]).aggregate([([], "count_all")]).rename_columns(["date", "fate", "n"])


def _complete_rows(
    values: Mapping[int, Mapping[str, pa.Scalar]],
    division: RunDivision | None,
    schema: pa.Schema,
    records: pa.Table,
    partition: int,
) -> pa.Table:
    """Return records as rows of the log, with the values of their run."""
    has, count = {*records.column_names}, records.num_rows
    divided = {} if division is None else division.find_values(partition, records.column("offset").to_numpy())
    columns = [
        records.column(field.name)
        if field.name in has
        else divided[field.name].cast(field.type)
        if field.name in divided
        else pa.repeat(values[partition][field.name], count)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _select_accepted(
    columns: Sequence[str],
    values: Mapping[str, pa.Scalar],
    division: RunDivision | None,
    schema: pa.Schema,
    records: pa.Table,
    partition: int,
) -> pa.Table:
    taken = pc.equal(records.column("fate"), "accepted")
    if MARK in records.column_names:
        taken = pc.and_(taken, records.column(MARK).is_null())
    records = records.select(columns).filter(taken)
    divided = {} if division is None else division.find_values(partition, records.column("offset").to_numpy())
    more = [divided[name] if name in divided else pa.repeat(value, records.num_rows) for name, value in values.items()]
    return pa.table([*records.columns, *more], schema=schema)
