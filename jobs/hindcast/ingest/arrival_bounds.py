"""The offsets at which a topic's records reach moments of arrival, found by reading them, without writing anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hindcast.archives import archived_topics
from hindcast.bitemporal.intervals import to_micros
from hindcast.contract.bound import BoundContract
from hindcast.ingest import arrivals, stream_times, topic_segments
from hindcast.ingest.segments import Origin
from hindcast.kafka import gaps, topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.plan.plans import Plan
from hindcast.store.task_rows import collect_table

_ARROW = pa.schema([("partition", pa.int32()), ("moment", pa.int32()), ("offset", pa.int64())])


def find_arrival_bounds(
    spark: SparkSession,
    contract: BoundContract,
    plan: Plan,
    name: str,
    moments: Sequence[datetime],
    given: TopicSource | None = None,
) -> list[dict[int, int]]:
    """Return for each moment, by partition, the first offset whose record arrived then or later.

    Of the offsets that a plan would ingest of a topic with `arrival`; where none arrived so late, it is their end. The
    moments are in order; of a partition no chunk is read after that in which the last one is reached. Raises TopicError
    as `topic_segments.read_segments` does.

        arrivals 1, 5, 9 at the offsets 0, 1, 2    moments 5 and 6    ->    1 and 2
    """
    topic_plan = plan.topics[name]
    bounds = [topic_plan.ends for _ in moments]
    micros = np.array([to_micros(moment) for moment in moments])
    reached = stream_times.ReachedOffsets()
    with archived_topics.open_source(contract, given) as source:
        offsets = topic_patterns.offset_source(source, topic_plan.members, plan.run)
        available = offsets.read_offset_ranges(contract.kafka_topic(name))
        for planned in topic_plan.chunks:
            unread = [{p: r for p, r in part.items() if bounds[-1][p] >= r.start} for part in planned]
            if not any(unread):
                continue
            parts = [gaps.remaining_ranges(part, gaps.find_lost_ranges(part, available)) for part in unread]
            before = [reached.read_arrivals(contract, name, part) for part in parts]
            origin = Origin(parts, [{} for _ in parts], before)
            read = topic_segments.read_segments(spark, source, contract, plan, name, origin, store=False)
            found = read.read_each(
                ("offset",), partial(_find_first_offsets, micros.tolist()), from_arrow_schema(_ARROW)
            )
            for row in collect_table(found).to_pylist():
                own = bounds[row["moment"]]
                own[row["partition"]] = min(row["offset"], own[row["partition"]])
            for part, arrived in zip(parts, before, strict=True):
                reached.advance(part, arrivals=(arrived, read.latest_arrivals))
    return bounds


def _find_first_offsets(moments: Sequence[int], records: pa.Table, partition: int) -> pa.Table:
    """Return the first offset of a segment that arrived at each moment or later, for those that any record reached."""
    arrived = records.column(arrivals.COLUMN).cast(pa.int64()).to_numpy()
    offsets = records.column("offset").to_numpy()
    places = np.searchsorted(arrived, np.array(moments))
    reached = np.flatnonzero(places < len(arrived))
    columns = [np.full(len(reached), partition), reached, offsets[places[reached]]]
    return pa.table([pa.array(it, field.type) for it, field in zip(columns, _ARROW, strict=True)], schema=_ARROW)
