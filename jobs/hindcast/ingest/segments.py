"""Segments: what a run reads of a topic, each one some records of a partition in offset order, as one Arrow value.

The task that reads Kafka packs its records into segments as it decodes them. Their fates wait for stream time, which
the segments before them decide: their summaries are enough to tell. A task, or this process where there are few, then
unpacks a segment by itself: as rows of the log, or as accepted records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StructType

from hindcast.common.arrow_streams import open_rows, pack_rows
from hindcast.common.spark_workers import map_in_workers
from hindcast.formats.headers import measure_records
from hindcast.ingest.erasure_marks import MARK
from hindcast.ingest.segment_fates import FateRule, decide_fates, find_expired_records, may_more_expire
from hindcast.ingest.stream_times import StreamTimes
from hindcast.kafka.record_batches import HEADERS
from hindcast.kafka.topics import OffsetRange, count_offsets
from hindcast.store import files
from hindcast.store.task_rows import TaskRows, collect_table

_NUMBERS = ("first", "last", "records", "malformed", "refused", "expired", "earliest", "latest", "size")
_ARROW = pa.schema([("partition", pa.int32()), *((name, pa.int64()) for name in _NUMBERS), ("rows", pa.binary())])
PACKED_SCHEMA = f"partition int, {', '.join(f'{name} long' for name in _NUMBERS)}, rows binary"
_MAX_BYTES = 32 << 20
"""About so many bytes of keys and values are in a segment."""
_MAX_TASK_BYTES = 128 << 20
"""So many bytes of segments a task unpacks at most: Spark hands it all of them as one batch of Arrow."""
_MOST_NAMED = 200
"""So many segments at most are named in a plan of Spark's."""
_FATE_COLUMNS = ("timestamp", "fate", "reason")
"""The columns of a segment that fates are decided by."""
_NOT_REFUSED = pa.array(["no_change"])
"""Of the fates that decoding decides, those of records that are not refused."""

SegmentReader: TypeAlias = Callable[[pa.Table, int], pa.Table]
"""A function of the records of a segment, with their fates, and their partition."""


class Segment(NamedTuple):
    """What is known of a segment: its partition, its first and last offset, how many `records` it has and how many of
    them decoding has found `malformed`, or `refused` for any reason; of the others how many are `expired` by those of
    the segment alone, the `earliest` timestamp of the rest, and the `latest` of all, in microseconds since 1970; and
    its `size` in bytes.
    """

    partition: int
    first: int
    last: int
    records: int
    malformed: int
    refused: int
    expired: int
    earliest: int | None
    latest: int | None
    size: int


class MalformedRecord(NamedTuple):
    """A record that does not decode, and why."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str


class Origin(NamedTuple):
    """The ranges of a topic's partitions that segments are of, and the stream time before each."""

    ranges: Sequence[Mapping[int, OffsetRange]]
    stream_times: Sequence[StreamTimes]

    def count_offsets(self) -> int:
        """Return how many offsets the ranges have."""
        return count_offsets(self.ranges)


def pack_records(records: DataFrame, rule: FateRule) -> DataFrame:
    """Return decoded records as segments: a row for each, its columns those of `Segment` and `rows`.

    `records`: `partition`, `offset`, `timestamp`, `key` and `value` (bytes), `fate` (null = undecided), `reason`, and
    any others. Each task has
    the records of a partition in offset order, and no other task has any between them.
    """
    return map_in_workers(records, partial(pack_batches, rule), PACKED_SCHEMA)


@dataclass(frozen=True)
class Segments:
    """The segments of records that have the columns `schema`.

    `frame`: as `pack_records` has them, checkpointed. `starts`: the stream time before each segment, None if there was
    none. `local`: the records of each, if this process has them.
    """

    frame: DataFrame
    schema: StructType
    rule: FateRule
    starts: Mapping[Segment, int | None]
    local: tuple[bytes, ...] | None

    @cached_property
    def latest(self) -> StreamTimes:
        """By partition, the largest timestamp of an accepted record, in microseconds since 1970."""
        latest: StreamTimes = {}
        # An expired record is never the latest.
        for it in self.starts:
            if it.latest is not None:
                latest[it.partition] = max(it.latest, latest.get(it.partition, it.latest))
        return latest

    @cached_property
    def size(self) -> int:
        """How many bytes the records take."""
        return sum(it.size for it in self.starts)

    def count_expired(self) -> int:
        """Return how many records are expired; looks only into segments that have more of them than by themselves."""
        aged = [it for it, start in self.starts.items() if may_more_expire(self.rule, start, it.earliest)]
        if not aged:
            return sum(it.expired for it in self.starts)
        read = self._select_segments(aged) if len(aged) <= _MOST_NAMED else self
        counts = read.read_each((), _count_expired, StructType().add("n", LongType()))
        others = sum(it.expired for it in self.starts.keys() - read.starts.keys())
        return others + int(pc.sum(collect_table(counts).column("n")).as_py())

    def select_log_rows(self, values: Mapping[int, Mapping[str, pa.Scalar]], schema: StructType) -> TaskRows:
        """Return the records as rows of the log, which have these columns. `values`: by partition, those of a run."""
        return self.read_each(
            schema.names, partial(_complete_rows, values, to_arrow_schema(schema, timezone="UTC")), schema
        )

    def select_places(self) -> TaskRows:
        """Return the `partition` and `offset` of each record."""
        schema = StructType().add("partition", IntegerType()).add("offset", LongType())
        return self.read_each(schema.names, lambda records, _: records.select(["partition", "offset"]), schema)

    def find_malformed(self) -> MalformedRecord:
        """Return the first malformed record; there must be one."""
        segment = min(it for it in self.starts if it.malformed)
        one = self._select_segments([segment])
        rows = one.local or one.frame.select("rows").collect()[0]
        records = _open_segment(rows[0], [*MalformedRecord._fields, "fate"])
        record = records.filter(pc.equal(records.column("fate"), "malformed")).slice(0, 1).to_pylist()[0]
        return MalformedRecord(segment.partition, *(record[name] for name in MalformedRecord._fields[1:]))

    def select_accepted(self, columns: Mapping[str, str], values: Mapping[str, pa.Scalar]) -> TaskRows:
        """Return the accepted records: of their columns these, under other names, and `values` of the run.

        Forgotten ones are left out.
        """
        types = {field.name: field.dataType for field in self.schema}
        schema = StructType()
        for name, alias in columns.items():
            schema.add(alias, types[name])
        for name, value in values.items():
            schema.add(name, from_arrow_type(value.type))
        arrow = to_arrow_schema(schema, timezone="UTC")
        return self.read_each((*columns, MARK), partial(_select_accepted, tuple(columns), values, arrow), schema)

    def _select_segments(self, some: Collection[Segment]) -> Segments:
        """Return some of the segments."""
        places = [F.struct(F.lit(it.partition).cast("int"), F.lit(it.first).cast("long")) for it in some]
        frame = self.frame.where(F.struct("partition", "first").isin(places))
        local = self.local and tuple(rows for it, rows in zip(self.starts, self.local, strict=True) if it in some)
        return replace(self, frame=frame, starts={it: self.starts[it] for it in self.starts if it in some}, local=local)

    def read_each(self, columns: Sequence[str], read: SegmentReader, schema: StructType) -> TaskRows:
        """Return what a function makes of those of the `columns` that each segment has, and of its fates."""
        starts = {it[:2]: start for it, start in self.starts.items()}
        read_segment = partial(_read_segment, self.rule, starts, (*columns, *_FATE_COLUMNS), read)
        rows = None
        if self.local is not None:
            parts = [read_segment(*it[:2], rows) for it, rows in zip(self.starts, self.local, strict=True)]
            rows = pa.concat_tables([to_arrow_schema(schema, timezone="UTC").empty_table(), *parts])
        return TaskRows(self.frame, partial(_unpack_batches, read_segment), schema, rows)


def hold_segments(
    spark: SparkSession, packed: Sequence[pa.RecordBatch], schema: StructType, rule: FateRule, origin: Origin
) -> Segments:
    """Return the segments of a few records that this process has packed (`pack_batches`)."""
    table = pa.Table.from_batches(packed, _ARROW).combine_chunks()
    frame = spark.createDataFrame(table, PACKED_SCHEMA)
    rows = {Segment(*values): rows for *values, rows in zip(*(it.to_pylist() for it in table.columns), strict=True)}
    ordered = sorted(rows, key=lambda it: it[:2])
    return Segments(frame, schema, rule, _find_starts(ordered, origin), tuple(rows[it] for it in ordered))


def read_segments(frame: DataFrame, schema: StructType, rule: FateRule, origin: Origin, *, few: bool) -> Segments:
    """Return the segments of a `frame` (`pack_records`), computed once, whose records have the columns `schema`.

    `few`: they may be held in this process, unless they turn out to be large.
    """
    # No persist: a commit to the log would drop the cache of a plan that reads it.
    frame = frame.localCheckpoint(eager=False, storageLevel=None if few else StorageLevel.DISK_ONLY)
    own = F.when(F.octet_length("rows") <= _find_local_limit(origin), F.col("rows")) if few else F.lit(None)
    found = frame.select(*_ARROW.names[:-1], own.alias("rows"), F.spark_partition_id().alias("task")).collect()
    rows = {Segment(*row[:-2]): row["rows"] for row in sorted(found, key=lambda row: row[:2])}
    sizes = Counter[int]()
    for row in found:
        sizes[row["task"]] += row["size"]
    if max(sizes.values(), default=0) > _MAX_TASK_BYTES:
        # By columns: Spark sorts what it spreads by number.
        frame = frame.repartition(2 * sizes.total() // _MAX_TASK_BYTES + 1, "partition", "first")
    is_local = few and None not in rows.values() and files.is_small(0, sum(it.size for it in rows))
    local = tuple(map(bytes, rows.values())) if is_local else None
    return Segments(frame, schema, rule, _find_starts([*rows], origin), local)


def _find_local_limit(origin: Origin) -> int:
    """Return how large a segment may be to be brought to this process, which takes one of each partition at least."""
    return min(_MAX_BYTES // 2, files.SMALL_BYTES // max(sum(map(len, origin.ranges)), 1))


def _find_starts(segments: Sequence[Segment], origin: Origin) -> dict[Segment, int | None]:
    """Return the stream time before each of the segments, which are in the order of their offsets."""
    for one, other in pairwise(segments):
        if one.partition == other.partition and other.first <= one.last:
            raise AssertionError(f"partition {one.partition}: offset {other.first} was read after {one.last}")
    starts = dict[Segment, int | None].fromkeys(segments)
    for ranges, before in zip(*origin, strict=True):
        reached = dict(before)
        for it in segments:
            own = ranges.get(it.partition)
            if own is None or not own.start <= it.first < own.end:
                continue
            # rule: a segment begins with the stream time of those before it
            starts[it] = reached.get(it.partition)
            if it.latest is not None:
                reached[it.partition] = max(it.latest, reached.get(it.partition, it.latest))
    return starts


def pack_batches(rule: FateRule, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the segments of batches of records, for Spark's mapInArrow, or for `hold_segments`."""
    for batch in (batch for batch in batches if batch.num_rows):
        packed: list[dict[str, int | bytes | None]] = []
        size = 0
        for segment in _split_batch(batch):
            packed.append(_pack_segment(segment, rule))
            size += segment.nbytes
            if size > _MAX_BYTES:  # not all of a large batch twice, or in one value of Arrow, which has 2 GB
                yield pa.RecordBatch.from_pylist(packed, _ARROW)
                packed, size = [], 0
        if packed:
            yield pa.RecordBatch.from_pylist(packed, _ARROW)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of each partition, about `_MAX_BYTES` at a time."""
    headers = batch.column("headers") if "headers" in batch.schema.names else pa.nulls(batch.num_rows, HEADERS)
    sizes = measure_records(batch.column("key"), batch.column("value"), headers)
    parts = np.cumsum(sizes) // _MAX_BYTES
    cuts = np.flatnonzero((np.diff(batch.column("partition").to_numpy()) != 0) | (np.diff(parts) != 0)) + 1
    for start, end in pairwise([0, *cuts.tolist(), batch.num_rows]):
        yield batch.slice(start, end - start)


def _pack_segment(records: pa.RecordBatch, rule: FateRule) -> dict[str, int | bytes | None]:
    offsets, fates = records.column("offset").to_numpy(), records.column("fate")
    if (np.diff(offsets) <= 0).any():
        raise AssertionError(f"partition {records.column('partition')[0]}: offsets are not in order")
    undecided = records.column("timestamp").filter(fates.is_null()).cast(pa.int64())
    found = find_expired_records(records, rule)
    rows = pack_rows(records)
    return {
        "partition": records.column("partition")[0].as_py(),
        "first": int(offsets[0]),
        "last": int(offsets[-1]),
        "records": records.num_rows,
        "malformed": pc.sum(pc.equal(fates, "malformed"), min_count=0).as_py(),
        "refused": len(fates) - fates.null_count - pc.sum(pc.is_in(fates, _NOT_REFUSED), min_count=0).as_py(),
        "expired": found.expired,
        "earliest": found.earliest,
        "latest": pc.max(undecided).as_py(),
        "size": records.nbytes,
        "rows": rows,
    }


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
    starts: Mapping[tuple[int, int], int | None],
    columns: Collection[str],
    read: SegmentReader,
    partition: int,
    first: int,
    rows: bytes | pa.Buffer,
) -> pa.Table:
    return read(decide_fates(_open_segment(rows, columns), starts[partition, first], rule), partition)


def _open_segment(rows: bytes | pa.Buffer, columns: Collection[str]) -> pa.Table:
    """Return those of the columns that a segment has; others are not unpacked."""
    places = [n for n, name in enumerate(open_rows(rows).schema.names) if name in columns]
    return open_rows(rows, places).read_all()


def _count_expired(records: pa.Table, _: int) -> pa.Table:
    return pa.table({"n": [pc.sum(pc.equal(records.column("fate"), "expired"), min_count=0).as_py()]})


def _complete_rows(
    values: Mapping[int, Mapping[str, pa.Scalar]], schema: pa.Schema, records: pa.Table, partition: int
) -> pa.Table:
    """Return records as rows of the log, with the values of their run."""
    has, count = {*records.column_names}, records.num_rows
    columns = [
        records.column(field.name) if field.name in has else pa.repeat(values[partition][field.name], count)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _select_accepted(
    columns: Sequence[str], values: Mapping[str, pa.Scalar], schema: pa.Schema, records: pa.Table, _: int
) -> pa.Table:
    taken = pc.equal(records.column("fate"), "accepted")
    if MARK in records.column_names:
        taken = pc.and_(taken, records.column(MARK).is_null())
    records = records.select(columns).filter(taken)
    more = [pa.repeat(value, records.num_rows) for value in values.values()]
    return pa.table([*records.columns, *more], schema=schema)
