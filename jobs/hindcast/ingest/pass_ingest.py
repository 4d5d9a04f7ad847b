"""The ingest of a pass: the records of all its runs are read once, and appended to a topic's log in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contract.bound import BoundContract
from hindcast.formats import limits
from hindcast.ingest import ingest_commits, quarantine, topic_segments
from hindcast.ingest.ingest_commits import ReadParts, TopicIngest
from hindcast.ingest.run_division import RunDivision
from hindcast.ingest.stream_times import ReachedOffsets
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import count_offsets
from hindcast.plan.plans import Plan
from hindcast.store import commit_notes, tables
from hindcast.store.commit_notes import LogNote
from hindcast.store.task_rows import TaskRows


class PassTopic(NamedTuple):
    """A topic whose records were read for a pass: how many of each fate each run has, and how many arrivals are ahead
    of all runs.
    """

    ingest: TopicIngest
    read: ReadParts
    division: RunDivision
    fates: Sequence[Counter[str]]
    ahead: int

    @property
    def accepted_rows(self) -> TaskRows:
        """The accepted records, decoded."""
        return topic_segments.select_accepted(self.read.segments, self.ingest.plan, self.ingest.name, self.division)

    def find_refused_date(self) -> int | None:
        """Return the first run that would have more malformed records than the contract allows; None if none has."""
        topic = self.ingest.contract.topics[self.ingest.name]
        for date, counts in enumerate(self.fates):
            if counts["malformed"] > limits.malformed_limit(topic, counts.total()):
                return date
        return None

    def commit(self, plans: Sequence[Plan]) -> None:
        """Append the records to the log, and those that were refused to the quarantine."""
        ingest, plan = self.ingest, self.ingest.plan
        topic_plan, topic = plan.topics[ingest.name], ingest.contract.topics[ingest.name]
        notes = []
        for own, counts in zip(plans, self.fates, strict=True):
            refused = counts.total() - sum(counts[fate] for fate in quarantine.NOT_REFUSED)
            idle = ingest_commits.list_idle_partitions(own.topics[ingest.name], 1)
            interval = own.rehearsed_interval
            rehearses = interval.as_json() if interval is not None else {}
            note = LogNote(own.run, own.run_id, refused, topic.valid_time, idle=idle, rehearses=rehearses)
            notes.append(note.as_json())
        joined, planned = commit_notes.join_notes(plan.run, notes), count_offsets(topic_plan.parts)
        ingest.commit_parts(self.read, plan.run, joined, topic_plan.after, planned, self.division)


def read_topic(
    spark: SparkSession, source: TopicSource, contract: BoundContract, plans: Sequence[Plan], joined: Plan, name: str
) -> PassTopic:
    """Return the records of a topic for the runs of a pass, without committing anything.

    `joined`: the plan of one run with the offsets of all. Raises TopicError as an ingest does.
    """
    log = tables.log_table(contract.warehouse, contract.pipeline, name)
    parts = joined.topics[name].parts
    counted = Counter[str]()
    ingest = TopicIngest(spark, source, contract, joined, name, log, [parts], ReachedOffsets())
    read = ingest.read_parts(parts, counted, has_limit=False)
    division = RunDivision.from_plans(plans, name)
    fates = [Counter[str]() for _ in plans]
    for row in read.segments.count_fates_by_run(division).to_pylist():
        fates[row["date"]][row["fate"]] = row["n"]
    return PassTopic(ingest, read, division, fates, counted["ahead"])


def read_logged(spark: SparkSession, contract: BoundContract, plans: Sequence[Plan], name: str) -> DataFrame:
    """Return the accepted records of the runs of a pass that has committed them to a topic's log, not decoded."""
    from hindcast.ingest import topic_log

    rows = topic_log.read_accepted(spark, contract, name, after=plans[0].run - 1)
    return rows.where(F.col("run") <= plans[-1].run)
