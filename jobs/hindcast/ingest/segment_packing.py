"""Records packed as segments: some of a partition in offset order as one Arrow value, and what is known of them.

The task that reads Kafka packs its records as it decodes them. What depends on the records of other segments is decided
later, from these summaries (segments.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from hindcast.common.arrow_streams import open_rows, pack_rows
from hindcast.common.spark_workers import map_in_workers
from hindcast.formats.headers import measure_records
from hindcast.ingest import arrivals
from hindcast.ingest.arrivals import ArrivalFacts
from hindcast.ingest.segment_fates import FateRule, find_expired_records
from hindcast.kafka.record_batches import HEADERS

MAX_BYTES = 32 << 20
"""About so many bytes of keys and values are in a segment."""
FATE_COLUMNS = ("timestamp", "fate", "reason", arrivals.COLUMN)
"""The columns of a segment that fates are decided by."""
_NOT_REFUSED = pa.array(["no_change"])
"""Of the fates that decoding decides, those of records that are not refused."""


class Segment(NamedTuple):
    """What is known of a segment: its partition, its first and last offset, how many `records` it has and how many of
    them are `malformed`, or `refused` for any reason but age; of the others how many are `expired` by those of the
    segment alone, the `earliest` timestamp of the rest, and the `latest` of all, in microseconds since 1970; its `size`
    in bytes; and what is known of its arrivals (`ArrivalFacts`).
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
    first_arrival: int | None
    latest_arrival: int | None
    ahead: int
    created: int | None


_NUMBERS = Segment._fields[1:]
PACKED = pa.schema([("partition", pa.int32()), *((name, pa.int64()) for name in _NUMBERS), ("rows", pa.binary())])
PACKED_SCHEMA = f"partition int, {', '.join(f'{name} long' for name in _NUMBERS)}, rows binary"
_COUNTED = ("malformed", "refused", "expired", "earliest", "latest")
"""Of them, what depends on the arrival of the record before."""
COUNTS = pa.schema([PACKED.field(name) for name in ("partition", "first", *_COUNTED)])


def pack_records(records: DataFrame, rule: FateRule) -> DataFrame:
    """Return decoded records as segments: a row for each, its columns those of `Segment` and `rows`.

    `records`: `partition`, `offset`, `timestamp`, `key` and `value` (bytes), `fate` (null = undecided), `reason`, and
    any others. Each task has the records of a partition in offset order, and no other task has any between them.
    """
    return map_in_workers(records, partial(pack_batches, rule), PACKED_SCHEMA)


def pack_batches(rule: FateRule, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the segments of batches of records, for Spark's mapInArrow, or for `hold_segments`."""
    for batch in (batch for batch in batches if batch.num_rows):
        packed: list[dict[str, int | bytes | None]] = []
        size = 0
        for segment in _split_batch(batch):
            packed.append(_pack_segment(segment, rule))
            size += segment.nbytes
            if size > MAX_BYTES:  # not all of a large batch twice, or in one value of Arrow, which has 2 GB
                yield pa.RecordBatch.from_pylist(packed, PACKED)
                packed, size = [], 0
        if packed:
            yield pa.RecordBatch.from_pylist(packed, PACKED)


def _split_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the records of each partition, about `MAX_BYTES` at a time."""
    headers = batch.column("headers") if "headers" in batch.schema.names else pa.nulls(batch.num_rows, HEADERS)
    sizes = measure_records(batch.column("key"), batch.column("value"), headers)
    parts = np.cumsum(sizes) // MAX_BYTES
    cuts = np.flatnonzero((np.diff(batch.column("partition").to_numpy()) != 0) | (np.diff(parts) != 0)) + 1
    for start, end in pairwise([0, *cuts.tolist(), batch.num_rows]):
        yield batch.slice(start, end - start)


def _pack_segment(records: pa.RecordBatch, rule: FateRule) -> dict[str, int | bytes | None]:
    offsets = records.column("offset").to_numpy()
    if (np.diff(offsets) <= 0).any():
        raise AssertionError(f"partition {records.column('partition')[0]}: offsets are not in order")
    rows = pack_rows(records)
    arrived = ArrivalFacts() if rule.arrival is None else arrivals.find_facts(records, rule.arrival)
    return {
        "partition": records.column("partition")[0].as_py(),
        "first": int(offsets[0]),
        "last": int(offsets[-1]),
        "records": records.num_rows,
        **_count_fates(records, rule, None),
        "size": records.nbytes,
        **arrived._asdict(),
        "rows": rows,
    }


def _count_fates(
    records: pa.Table | pa.RecordBatch, rule: FateRule, arrived_before: int | None
) -> dict[str, int | None]:
    """Return `_COUNTED` of a segment, given the arrival of the record before it."""
    if rule.arrival is not None:
        whole = records if isinstance(records, pa.Table) else pa.Table.from_batches([records])
        records = arrivals.judge_arrivals(whole, arrived_before, rule.arrival)
    fates, found = records.column("fate"), find_expired_records(records, rule)
    undecided = records.column("timestamp").filter(fates.is_null()).cast(pa.int64())
    return {
        "malformed": pc.sum(pc.equal(fates, "malformed"), min_count=0).as_py(),
        "refused": len(fates) - fates.null_count - pc.sum(pc.is_in(fates, _NOT_REFUSED), min_count=0).as_py(),
        "expired": found.expired,
        "earliest": found.earliest,
        "latest": pc.max(undecided).as_py(),
    }


def count_fates_again(
    rule: FateRule, reached: Mapping[tuple[int, int], int | None], partition: int, first: int, rows: bytes | pa.Buffer
) -> pa.Table:
    """Return `_COUNTED` of a segment with its place, given the arrivals of the records before."""
    counts = _count_fates(open_segment(rows, FATE_COLUMNS), rule, reached.get((partition, first)))
    return pa.Table.from_pylist([{"partition": partition, "first": first, **counts}], COUNTS)


def open_segment(rows: bytes | pa.Buffer, columns: Collection[str]) -> pa.Table:
    """Return those of the columns that a segment has; others are not unpacked."""
    places = [n for n, name in enumerate(open_rows(rows).schema.names) if name in columns]
    return open_rows(rows, places).read_all()
