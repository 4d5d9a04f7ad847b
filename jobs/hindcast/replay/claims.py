"""Claiming offsets: the commits by which a run appends a topic's records to its log, each made once.

A run that brings more of a topic than `HINDCAST_CHUNK` claims it in chunks, one commit each, so that it holds one chunk
at a time. A chunk has its share of every partition, in offset order: what has been claimed of a partition is always one
range, wherever a run ends. The log's commits are numbered (plans.Plan): a retry goes on with the chunk after the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hindcast.contracts import Contract
from hindcast.delta import commits, files, making, tables
from hindcast.delta.tables import Table
from hindcast.kafka import far, gaps, members
from hindcast.kafka.topics import Cluster, Offsets, made_anew
from hindcast.planning import planner, plans
from hindcast.planning.plans import Plan, Share
from hindcast.replay import forgotten, logs
from hindcast.settings import settings

KEPT = 4
"""Of so many chunks at most each record is decoded once, for log and table; of more, once more for the table."""

_ON_DISK = StorageLevel.DISK_ONLY


class Claimed(NamedTuple):
    """What a step has just appended to a log, all that it has of the runs after `after`: its accepted records, decoded.

    Held apart from Kafka, which may have lost some of them meanwhile: what is no longer held fails, and a retry reads
    the log. Of several chunks it lies on disk.
    """

    after: int
    records: DataFrame


def claim(spark: SparkSession, contract: Contract, todo: Plan, name: str) -> Claimed | None:
    """Claims a topic's planned offsets: a commit to its log for each chunk, then what it refused into quarantine.

    Returns what it has appended; None if that were more than `KEPT` chunks, if there was nothing to do, or the run did
    some of it before. Before anything of a chunk is written, TopicError if Kafka has lost offsets that the contract
    does not do without, and RecordError if more records of the run are malformed than it allows. Chunks before it stay.
    """
    log, share = tables.log(settings().warehouse, contract.pipeline, name), todo.topics[name]
    chunks, done = share.chunks, tables.published(log)
    first = todo.run + 1 - len(chunks)
    left = [number for number in range(first, todo.run + 1) if number > done]
    claimed: list[DataFrame | None] = []
    if left:
        counted = _counted(log, todo) if done >= first else Counter[str]()
        with Cluster(settings().kafka) as cluster:
            step = _Step(spark, cluster, contract, todo, name, log, chunks)
            for number in left:
                if len(chunks) > KEPT:
                    claimed.clear()  # one at a time is held
                if number > first:
                    plans.current(log.warehouse, contract.pipeline, todo.run)  # it may have been given up meanwhile
                claimed.append(step.append(number, share.after if number == first else number - 1, counted))
    logs.quarantined(spark, contract, name, log, name, limit=100 + len(chunks))
    every = [records for records in claimed if records is not None]
    return Claimed(share.after, logs.union(every)) if chunks and len(every) == len(chunks) else None


def _counted(log: Table, todo: Plan) -> Counter[str]:
    """How many records the chunks that a run has claimed so far brought, refused, and found malformed."""
    note = tables.notes(log, limit=100).get(todo.run, {})
    return Counter({what: note.get(what, 0) for what in ("records", "refused", "malformed")})


class _Step(NamedTuple):
    """What a commit to a topic's log needs to know."""

    spark: SparkSession
    cluster: Cluster
    contract: Contract
    todo: Plan
    name: str
    log: Table
    chunks: list[list[dict[int, Offsets]]]

    def append(self, number: int, after: int, counted: Counter[str]) -> DataFrame | None:
        """The commit `number`: a row for each record of its chunk that there is, and one for each gap between them.

        Returns the accepted records, decoded; None if the commit was made before.
        `counted`: what the run has brought and refused before, to which this is added.
        """
        spark, contract, todo, name = self.spark, self.contract, self.todo, self.name
        chunk = len(self.chunks) - (todo.run - number)  # the first is 1
        parts, later = self.chunks[chunk - 1], self.chunks[chunk:]
        topic, share, kafka = contract.topics[name], todo.topics[name], contract.kafka_topic(name)
        source = members.source(self.cluster, share.members, todo.run)
        held = source.available(kafka)
        lost = [gaps.lost(part, held) for part in parts]
        for missing in lost:
            gaps.refuse(contract, name, missing, share.members, gaps.why(missing, held))
        read = [gaps.left(part, missing) for part, missing in zip(parts, lost, strict=True)]

        def judge(by_client: Collection[int]) -> DataFrame:
            rows = logs.union(logs.judged(spark, contract, todo, name, self.log, part, by_client) for part in read)
            # No persist: a commit to the log would drop what was kept of a plan that reads it.
            return rows.localCheckpoint(eager=False, storageLevel=_ON_DISK if len(self.chunks) > 1 else None)

        field = f"topics.{name}.max_malformed"
        written = planner.stays(settings().warehouse, contract, todo, chunk - 1, len(self.chunks))
        place = partial(members.place, kafka, share.members)
        to_come = sum(r.end - r.start for some in later for part in some for r in part.values())
        planned = sum(r.end - r.start for part in parts for r in part.values())
        account = partial(
            logs.account,
            place=place,
            topic=topic,
            field=field,
            before=counted,
            to_come=to_come,
            written=written,
            weigh=files.few(planned),
        )
        judged, (came, bytes_) = far.tried(judge, account, share.members)
        if source.topic_id(kafka) != share.topic_id:
            raise made_anew(kafka, todo.run)
        empty = [gaps.rows(spark, missing, held) for missing in lost if missing]
        empty += self._between(judged, read, came)
        rows = logs.union([judged.drop(*logs.DECODED.values()), *empty]).withColumns(logs.origin(share, todo))
        making.ensure(self.log, making.nullable(rows.schema))
        note: dict[str, Any] = {"run": todo.run, "runId": todo.run_id, "refused": counted["refused"]}
        note |= {"validTime": topic.valid_time}
        if share.chunk:
            note |= {what: counted[what] for what in ("records", "malformed")}
            note["chunk"] = chunk
        if not commits.append(rows, self.log, number, note, after=after, few=files.few(planned, bytes_)):
            return None
        return _decoded(judged, share, todo)

    def _between(self, judged: DataFrame, read: list[dict[int, Offsets]], came: dict[int, int]) -> list[DataFrame]:
        """The offsets of what was read that have no record, with their fate; nothing where all have one."""
        wanted = Counter({p: r.end - r.start for part in read for p, r in part.items()})
        short = {p for p, n in wanted.items() if came.get(p, 0) < n}
        if not short:
            return []
        topics = members.by_topic(self.contract.kafka_topic(self.name), self.todo.topics[self.name].members, short)
        return [self._without(judged, read, topic, partitions) for topic, partitions in topics.items()]

    def _without(
        self, judged: DataFrame, read: list[dict[int, Offsets]], kafka: str, partitions: Collection[int]
    ) -> DataFrame:
        """The same of these partitions, which are of one topic in Kafka."""
        name, compacted = self.name, self.cluster.compacted(kafka)
        between = logs.union(gaps.between(judged, {p: r for p, r in part.items() if p in partitions}) for part in read)
        if compacted and self.contract.topics[name].on_gap == "stop":
            found = {row["partition"]: row for row in between.sort(F.desc("partition"), F.desc("offset")).collect()}
            gone = {p: Offsets(row["offset"], row["offset"] + row["offsets"]) for p, row in found.items()}
            gaps.refuse(self.contract, name, gone, self.todo.topics[name].members, gaps.COMPACTION)
        why = logs.why("gone", gaps.COMPACTION) if compacted else logs.why("no_record", gaps.NO_RECORD)
        return between.withColumns(why)


def _decoded(judged: DataFrame, share: Share, todo: Plan) -> DataFrame:
    """The accepted ones of judged records, with `key` and `value` decoded."""
    taken = (
        forgotten.remembered(judged)
        .where("fate = 'accepted'")
        .withColumns({name: F.col(it) for name, it in logs.DECODED.items()})
    )
    return taken.drop(*logs.DECODED.values()).withColumns(logs.origin(share, todo))
