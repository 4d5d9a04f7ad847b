"""Ingest: the commits by which a run appends a topic's records to its log, each made once.

A run with more of a topic than `HINDCAST_CHUNK` ingests it in chunks, one commit each, so that it holds one chunk at a
time. A chunk takes a part of every partition, in offset order: what has been ingested of a partition is always one
range, wherever a run ends. Commits to the log are numbered (plans.Plan): a retry continues after the last chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.archives import archived_topics
from hindcast.common import step_events
from hindcast.common.json_values import JsonObject
from hindcast.common.spark_workers import map_in_workers
from hindcast.contract.bound import BoundContract
from hindcast.ingest import quarantine, record_counts, topic_log, topic_segments
from hindcast.ingest.run_division import RunDivision
from hindcast.ingest.segments import Origin, Segments
from hindcast.ingest.stream_times import ReachedOffsets
from hindcast.kafka import gaps, topic_patterns
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import OffsetRange, count_offsets, recreated_topic_error
from hindcast.plan import journal, planner
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.store import commit_history, commits, files, table_creation, tables
from hindcast.store.commit_notes import IdlePartition, LogNote
from hindcast.store.tables import Table
from hindcast.store.task_rows import TaskRows

MAX_KEPT_CHUNKS, MAX_KEPT_BYTES = 64, 32 << 30
"""Records of up to so many chunks, and so many bytes in memory, are decoded once for log and table, and kept on disk
meanwhile, compressed; more are decoded once more for the table.
"""


@dataclass(frozen=True)
class IngestedRecords:
    """The decoded accepted records that a step has just appended to a log: all that it has of runs after `after`.

    Cached apart from Kafka, which may have lost some of them meanwhile: reading fails once the cache is lost, and a
    retry reads the log. The cache is on disk, unless they are few.
    """

    after: int
    chunks: tuple[TaskRows, ...]

    @cached_property
    def records(self) -> DataFrame:
        """The records of all chunks."""
        return topic_log.union_frames(chunk.as_frame() for chunk in self.chunks)

    def list_moments(self) -> pa.Array | None:
        """Return the timestamps of the records; None if they are not in this process."""
        here = [chunk.local.column("timestamp") for chunk in self.chunks if chunk.local is not None]
        if len(here) < len(self.chunks):
            return None
        parts = [part for column in here for part in column.chunks]  # a chunk may have no record
        return pa.chunked_array(parts, here[0].type if here else None).combine_chunks()


def ingest_topic(
    spark: SparkSession, contract: BoundContract, plan: Plan, name: str, given: TopicSource | None = None
) -> IngestedRecords | None:
    """Commit a topic's planned offsets to its log, chunk by chunk, then the refused records to the quarantine.

    The records are Kafka's, or those of the `given` topics. Returns the appended records; None if they are more than
    are kept (`MAX_KEPT_CHUNKS`), if there was nothing to do, or if the run did some of it before. Before a chunk is
    written, raises TopicError if Kafka has lost offsets and the contract does not allow gaps, and RecordError if more
    records of the run are malformed than it allows. Earlier chunks stay.
    """
    log, topic_plan = tables.log_table(contract.warehouse, contract.pipeline, name), plan.topics[name]
    chunks, done = topic_plan.chunks, tables.read_last_run(log)
    first = plan.run + 1 - len(chunks)
    to_do = [number for number in range(first, plan.run + 1) if number > done]
    ingested: list[TaskRows | None] = []
    size = 0
    if to_do:
        counted = _read_counts(log, plan) if done >= first else Counter[str]()
        with archived_topics.open_source(contract, given) as source:
            step = TopicIngest(spark, source, contract, plan, name, log, chunks, ReachedOffsets())
            for number in to_do:
                if len(chunks) > MAX_KEPT_CHUNKS or size > MAX_KEPT_BYTES:
                    ingested.clear()  # hold one chunk at a time
                if number > first:  # the run may have been abandoned meanwhile
                    journal.read_active_run(log.warehouse, contract.pipeline, plan.run)
                after = topic_plan.after if number == first else number - 1
                records, bytes_ = step.append_chunk(number, after, counted)
                ingested.append(records)
                size += bytes_
    if len(chunks) > 1:
        step_events.add_fields(offsets_done=sum(topic_plan.planned_counts.values()))
    quarantine.update_quarantine(spark, contract, name, log, name, limit=100 + len(chunks))
    appended = tuple(records for records in ingested if records is not None)
    if not chunks or len(appended) < len(chunks):
        return None
    return IngestedRecords(topic_plan.after, appended)


def _read_counts(log: Table, plan: Plan) -> Counter[str]:
    """Return how many records the run's earlier chunks ingested, refused, and found malformed."""
    note = commit_history.read_notes(log, LogNote.from_json, limit=100).get(plan.run)
    names = ("records", "refused", "malformed", "ahead")
    return Counter({name: getattr(note, name) for name in names} if note else {})


def list_idle_partitions(topic_plan: TopicPlan, chunk: int) -> tuple[IdlePartition, ...]:
    """Return the partitions of which nothing is in the log when a run has ingested this chunk, the first is 1."""
    taken = topic_plan.cut_after_chunks(chunk)
    starts = {p: taken.start_offsets.get(p) for p in taken.ranges}
    return tuple(
        IdlePartition(p, starts[p], r.end, taken.members.get(p))
        for p, r in taken.ranges.items()
        if starts[p] in (None, r.end)
    )


def _divide_rows(gap: DataFrame, division: RunDivision) -> DataFrame:
    """Return rows of a log, each with the values of its run."""
    return map_in_workers(gap, lambda batches: map(division.replace_values, batches), gap.schema)


class ReadParts(NamedTuple):
    """What was read of some ranges of a topic: the `segments` of their records, the ranges that are `lost`, those that
    were `read`, what is `available`, and how many records each partition has.
    """

    segments: Segments
    lost: Sequence[dict[int, OffsetRange]]
    read: list[dict[int, OffsetRange]]
    available: Mapping[int, OffsetRange]
    counts: Counter[int]


class TopicIngest(NamedTuple):
    """The context of the commits to a topic's log."""

    spark: SparkSession
    topics: TopicSource
    contract: BoundContract
    plan: Plan
    name: str
    log: Table
    chunks: list[list[dict[int, OffsetRange]]]
    reached: ReachedOffsets

    def append_chunk(self, number: int, after: int, counted: Counter[str]) -> tuple[TaskRows | None, int]:
        """Commit chunk `number`: a row for each of its records, and one for each gap between them.

        Returns the accepted records, decoded, None if the commit was made before; and how many bytes all records take.
        `counted`: what the run has ingested and refused before; this adds to it.
        """
        plan, name = self.plan, self.name
        chunk = len(self.chunks) - (plan.run - number)  # the first is 1
        parts, later = self.chunks[chunk - 1], self.chunks[chunk:]
        topic, topic_plan = self.contract.topics[name], plan.topics[name]
        to_come, planned = sum(map(count_offsets, later)), count_offsets(parts)
        if len(self.chunks) > 1:
            whole = sum(topic_plan.planned_counts.values())
            step_events.add_fields(offsets_planned=whole, offsets_done=whole - to_come - planned)
        read = self.read_parts(parts, counted, chunk=chunk, to_come=to_come)
        note = LogNote(
            *(plan.run, plan.run_id, counted["refused"], topic.valid_time),
            idle=list_idle_partitions(topic_plan, chunk),
            ahead=counted["ahead"],
            rehearses=rehearsed.as_json() if (rehearsed := plan.rehearsed_interval) is not None else {},
        )
        if topic_plan.chunk:
            note = replace(note, records=counted["records"], malformed=counted["malformed"], chunk=chunk)
        is_new = self.commit_parts(read, number, note.as_json(), after, planned)
        segments = read.segments
        return (topic_segments.select_accepted(segments, plan, name) if is_new else None), segments.size

    def read_parts(
        self,
        parts: list[dict[int, OffsetRange]],
        counted: Counter[str],
        *,
        chunk: int = 1,
        to_come: int = 0,
        has_limit: bool = True,
    ) -> ReadParts:
        """Return the records of some ranges, at most one of a partition in each part; nothing is committed.

        Raises TopicError if Kafka has lost offsets and the contract does not allow gaps, and RecordError if more
        records of the run are malformed than it allows; not of several runs, each of which `has_limit` of its own.
        `to_come`: how many offsets later chunks have.
        """
        spark, contract, plan, name = self.spark, self.contract, self.plan, self.name
        topic, topic_plan, kafka = contract.topics[name], plan.topics[name], contract.kafka_topic(name)
        source = topic_patterns.offset_source(self.topics, topic_plan.members, plan.run)
        available = source.read_offset_ranges(kafka)
        lost = [gaps.find_lost_ranges(part, available) for part in parts]
        for missing in lost:
            gaps.refuse_gap(contract, name, missing, topic_plan.members, gaps.describe_cause(missing, available))
        read = [gaps.remaining_ranges(part, missing) for part, missing in zip(parts, lost, strict=True)]

        times = [self.reached.read_stream_times(spark, contract, name, part) for part in parts]
        arrivals = [self.reached.read_arrivals(contract, name, part) for part in parts]
        segments = topic_segments.read_segments(spark, self.topics, contract, plan, name, Origin(read, times, arrivals))
        counts = record_counts.count_records(
            segments,
            place=partial(topic_patterns.describe_partition, kafka, topic_plan.members),
            topic=topic,
            field=f"topics.{name}.max_malformed",
            before=counted,
            to_come=to_come,
            written=planner.describe_written(contract.warehouse, contract, plan, chunk - 1, len(self.chunks)),
            hidden=contract.has_sensitive_entry(kafka),
            has_limit=has_limit,
        )
        for part, before, arrived in zip(parts, times, arrivals, strict=True):
            self.reached.advance(part, before, segments.latest, arrivals=(arrived, segments.latest_arrivals))
        if source.topic_id(kafka) != topic_plan.topic_id:
            raise recreated_topic_error(kafka, plan.run)
        return ReadParts(segments, lost, read, available, counts)

    def commit_parts(
        self,
        found: ReadParts,
        number: int,
        note: JsonObject,
        after: int,
        planned: int,
        division: RunDivision | None = None,
    ) -> bool:
        """Append what was read to the log in a commit; return whether this call made it.

        `planned`: how many offsets the ranges have. `division`: among the runs of a pass, else of one run.
        """
        topic_plan = self.plan.topics[self.name]
        empty = [gaps.lost_rows(self.spark, missing, found.available) for missing in found.lost if missing]
        empty += self._find_gap_rows(found.segments, found.read, found.counts)
        recorded = topic_segments.select_log_rows(found.segments, self.plan, self.name, division)
        rows: DataFrame | TaskRows = recorded
        if empty:
            shared = topic_log.run_columns(topic_plan, self.plan)
            between = [gap.withColumns(shared) for gap in empty]
            if division is not None:
                between = [_divide_rows(gap, division) for gap in between]
            rows = topic_log.union_frames([recorded.as_frame(), *between])
        table_creation.ensure_table(self.log, table_creation.make_nullable(rows.schema))
        few = files.is_small(planned, found.segments.size)
        return commits.append_rows(rows, self.log, number, note, after=after, few=few)

    def _find_gap_rows(
        self, segments: Segments, read: list[dict[int, OffsetRange]], read_counts: Mapping[int, int]
    ) -> list[DataFrame]:
        """Return the offsets without a record among those that were read, with their fate; empty if there are none."""
        planned = Counter[int]()
        for part in read:
            planned.update({p: r.end - r.start for p, r in part.items()})
        incomplete = {p for p, n in planned.items() if read_counts.get(p, 0) < n}
        if not incomplete:
            return []
        topics = topic_patterns.group_by_topic(
            self.contract.kafka_topic(self.name), self.plan.topics[self.name].members, incomplete
        )
        places = segments.select_places().as_frame()
        found = []
        for topic, partitions in topics.items():
            own = [{p: r for p, r in part.items() if p in partitions} for part in read]
            archived = archived_topics.find_archived_ranges(self.topics, topic)
            of_archive, of_kafka = zip(*(gaps.split_ranges_at(part, archived) for part in own), strict=True)
            if any(of_archive):
                between = topic_log.union_frames(gaps.find_missing_offsets(places, part) for part in of_archive)
                self._refuse_gaps(between, gaps.NOT_ARCHIVED)
                found.append(between.withColumns({"fate": F.lit("gone"), "reason": F.lit(gaps.NOT_ARCHIVED)}))
            found.append(self._find_gap_rows_of_topic(places, of_kafka, topic))
        return found

    def _find_gap_rows_of_topic(
        self, places: DataFrame, read: Sequence[dict[int, OffsetRange]], kafka: str
    ) -> DataFrame:
        """Return the same for ranges of one topic in Kafka, as far as Kafka has them."""
        known = self.topics.missing_reason
        compacted = known is None and self.topics.is_compacted(kafka)
        between = topic_log.union_frames(gaps.find_missing_offsets(places, part) for part in read)
        if compacted:
            self._refuse_gaps(between, gaps.COMPACTION)
        fate, reason = ("gone", known or gaps.COMPACTION) if known or compacted else ("no_record", gaps.NO_RECORD)
        return between.withColumns({"fate": F.lit(fate), "reason": F.lit(reason)})

    def _refuse_gaps(self, between: DataFrame, why: str) -> None:
        """Raise TopicError if there are any of these gaps and the contract does not say `on_gap: record`."""
        if self.contract.topics[self.name].on_gap == "stop":
            rows = {row["partition"]: row for row in between.sort(F.desc("partition"), F.desc("offset")).collect()}
            gone = {p: OffsetRange(row["offset"], row["offset"] + row["offsets"]) for p, row in rows.items()}
            gaps.refuse_gap(self.contract, self.name, gone, self.plan.topics[self.name].members, why)
