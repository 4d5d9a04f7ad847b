"""Topics as the logs of a pipeline have them, in place of a broker's: the source of a rehearsal beside that pipeline.

A log has every record with its bytes, headers and place, also those that Kafka has lost since. A `LoggedTopics` gives
a run what a `Cluster` gives: topics, offsets and records. So a run plans and decodes them with the same code as
Kafka's, and a later run goes on in Kafka after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from hindcast.bitemporal.predicates import ColumnBound
from hindcast.common.errors import RequestError
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.ingest import erasure_marks, initial_rows, trim_ledger
from hindcast.kafka import gaps, record_batches
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import taken_offsets
from hindcast.plan.runs import Run
from hindcast.plan.taken_offsets import TakenOffsets
from hindcast.store import commit_ids, duckdb_reader, table_columns, tables

_AT_ONCE, _BYTES, _MEMORY = 2_048, 32 << 20, 1 << 30
"""So many records are read at once, and a batch has about so many bytes; sorting more than `_MEMORY` takes the disk."""
_COLUMNS = ("partition", "offset", "timestampType", "key", "value", "headers")


class LoggedTopic(NamedTuple):
    """A topic of Kafka in the log of a pipeline's `entry`: Kafka's id of it, and by its partitions the offsets that the
    log has, and the numbers of these partitions there. `since`: the `from` of the entry, where the log begins. `trim`:
    the number of the log's last trim.
    """

    entry: str
    topic_id: str
    since: datetime | None
    ranges: dict[int, OffsetRange]
    numbers: dict[int, int]
    trim: int


class LoggedTopics(NamedTuple):
    """Topics by their names in Kafka, as the logs of a pipeline have them; tasks of Spark can read them, too."""

    warehouse: str
    pipeline: str
    topics: Mapping[str, LoggedTopic]

    @property
    def servers(self) -> str:
        """Where the topics are, for messages."""
        return f"the logs of {self.pipeline}"

    @property
    def missing_reason(self) -> str:
        """Why an offset has no record: the log knows no more of it."""
        return f"not in the log of {self.pipeline}: Kafka had no record there, or hindcast forget removed it"

    @contextmanager
    def open_topics(self) -> Iterator[LoggedTopics]:
        """Yield the topics, as a task opens them."""
        yield self

    def list_topics(self) -> dict[str, list[int]]:
        """Return every topic with its partitions."""
        return {topic: sorted(logged.ranges) for topic, logged in self.topics.items()}

    def has_topic(self, topic: str) -> bool:
        """Return whether a log has the topic."""
        return topic in self.topics

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of the topic when it was ingested; raise RequestError for one that no log has."""
        return self._find(topic).topic_id

    def is_compacted(self, _: str) -> bool:
        """Return False: a log keeps all records."""
        return False

    def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets that the log has of each partition."""
        return dict(self._find(topic).ranges)

    def find_offsets_for_time(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        """Return per partition the first offset whose timestamp is from `moment` to `latest`; None if there is none."""
        logged = self._find(topic)
        with self._select(logged, [], "stamped BETWEEN ? AND ?", [moment, latest]) as records:
            found = dict(records.aggregate('"partition", min("offset")').fetchall())
        return {partition: found.get(number) for partition, number in logged.numbers.items()}

    def read_batches(
        self,
        topic: str,
        ranges: Mapping[int, OffsetRange],
        patience: float = 0.0,  # noqa: ARG002  # of a broker
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of these ranges (`record_batches.SCHEMA`), each batch of one partition, in offset order."""
        logged = self._find(topic)
        for partition, (start, end) in ranges.items():
            place = [logged.numbers[partition], start, end - 1]
            bounds = [ColumnBound("partition", place[0], place[0]), ColumnBound("offset", start, end - 1)]
            with self._select(logged, bounds, '"partition" = ? AND "offset" BETWEEN ? AND ?', place) as records:
                ordered = records.order('"offset"')
                stream = getattr(ordered, "to_arrow_reader", None) or ordered.fetch_record_batch  # of DuckDB 1
                yield from _merge_batches(_convert_batch(batch, partition) for batch in stream(_AT_ONCE))

    def _find(self, topic: str) -> LoggedTopic:
        if topic not in self.topics:
            fix = f"it has {', '.join(sorted(self.topics)) or 'none'}; rehearse other topics from Kafka, without --into"
            raise RequestError("has no log of this topic", where=f"{self.pipeline}, topic {topic}", fix=fix)
        return self.topics[topic]

    @contextmanager
    def _select(
        self, logged: LoggedTopic, bounds: Sequence[ColumnBound], condition: str, values: Sequence[Any]
    ) -> Iterator[duckdb.DuckDBPyRelation]:
        """Yield the records of a topic's log that pass a condition: `_COLUMNS`, and Kafka's own timestamp as `stamped`.

        Not those that were forgotten, nor offsets without a record. Raise RequestError if the log was trimmed since.
        """
        table = tables.log_table(self.warehouse, self.pipeline, logged.entry)
        if (log := tables.open_table(table)) is None:
            raise RequestError("the log is gone", where=f"{self.pipeline}, {logged.entry}", fix="rehearse from Kafka")
        if commit_ids.read_last_run(log, table.app_id(trim_ledger.PART)) != logged.trim:
            found = "the log was trimmed during the rehearsal: it lacks records that the rehearsal needs"
            raise RequestError(found, where=f"{self.pipeline}.{logged.entry}", fix=_FROM_KAFKA)
        columns = {*table_columns.column_types(log)}
        own = [name if name in columns else f"NULL AS {name}" for name in _COLUMNS[2:]]
        stamped = 'coalesce("recordTimestamp", "timestamp")' if "recordTimestamp" in columns else '"timestamp"'
        with duckdb_reader.open_engine(log, _MEMORY) as engine:
            duckdb_reader.register_rows(engine, log, bounds)
            records = engine.sql(
                f'SELECT "partition", "offset", {", ".join(own)}, {stamped} AS stamped FROM rows '  # noqa: S608  # own names
                f"WHERE fate NOT IN {gaps.GAP_FATES} AND {erasure_marks.not_forgotten_sql(log)} AND {condition}",
                params=values,
            )
            yield records


def open_logged_topics(contract: BoundContract, past: list[Run]) -> LoggedTopics:
    """Return the topics of a pipeline's logs, up to what its runs have ingested by now.

    Raise RequestError if a log lacks records that its runs have ingested, because it was trimmed, or began with an
    adopted table; if it lacks earlier offsets that a run was to ingest; and if entries have different parts of a topic.
    """
    found: dict[str, list[LoggedTopic]] = {}
    for name in contract.topics:
        trim = tables.read_last_run(tables.log_table(contract.warehouse, contract.pipeline, name), trim_ledger.PART)
        _refuse_incomplete(contract, name)
        state = taken_offsets.find_taken(contract, name, past)
        if state is None or not state.taken.after:
            continue
        _refuse_missing_offsets(contract, name, state, past)
        taken, kafka = state.taken, contract.kafka_topic(name)
        own: dict[str, LoggedTopic] = {}
        for number, offsets in taken.ranges.items():
            member = taken.members.get(number, MemberPartition(kafka, number, taken.topic_id))
            logged = own.setdefault(member.topic, LoggedTopic(name, member.topic_id, taken.since, {}, {}, trim))
            logged.ranges[member.partition] = OffsetRange(taken.start_offsets.get(number, offsets.end), offsets.end)
            logged.numbers[member.partition] = number
        for topic, logged in own.items():
            found.setdefault(topic, []).append(logged)
    topics = {topic: _choose_log(contract.pipeline, topic, logs) for topic, logs in found.items()}
    return LoggedTopics(contract.warehouse, contract.pipeline, topics)


def refuse_earlier_start(logs: LoggedTopics, contract: Contract) -> None:
    """Raise RequestError if a contract begins a topic before its log does: records of then are in no log."""
    for name, topic in contract.topics.items():
        for kafka in topic.select_topics(sorted(logs.topics)) or [contract.kafka_topic(name)]:
            logged = logs.topics.get(kafka)
            if logged is None or logged.since is None or (topic.since is not None and topic.since >= logged.since):
                continue
            found = f"the log of {logs.pipeline} has the topic {kafka} from {logged.since.isoformat()} on"
            fix = f"write from: {logged.since.isoformat()} or later; or rehearse from Kafka, without --into"
            raise RequestError(found, where=f"{contract.pipeline}.{name}", fix=fix)


def _choose_log(pipeline: str, topic: str, logs: Sequence[LoggedTopic]) -> LoggedTopic:
    """Return the log that has all offsets of a topic that any has: several entries may read it."""
    every = {partition for logged in logs for partition in logged.ranges}
    spans = [[logged.ranges[p] for logged in logs if p in logged.ranges] for p in sorted(every)]
    whole = [OffsetRange(min(it.start for it in span), max(it.end for it in span)) for span in spans]
    complete = (logged for logged in logs if [logged.ranges.get(p) for p in sorted(every)] == whole)
    if (chosen := next(complete, None)) is None:
        entries = ", ".join(logged.entry for logged in logs)
        found = f"none of {entries} has all offsets of the topic {topic} that the others have"
        raise RequestError(
            found, where=pipeline, fix=f"hindcast run {pipeline}; or rehearse from Kafka, without --into"
        )
    return chosen


def _refuse_incomplete(contract: BoundContract, name: str) -> None:
    if (trim := trim_ledger.read_log_trim(tables.log_table(contract.warehouse, contract.pipeline, name))) is not None:
        found = f"the log was trimmed up to {trim.horizon.isoformat()}: records that had arrived by then are gone"
        raise RequestError(found, where=f"{contract.pipeline}.{name}", fix=_FROM_KAFKA)
    if initial_rows.has_initial_rows(contract, name):
        found = "the table began with rows of a table that was adopted: no log says when they arrived"
        raise RequestError(found, where=f"{contract.pipeline}.{name}", fix=_FROM_KAFKA)


_FROM_KAFKA = "rehearse from Kafka, under another name and without --into"


def _refuse_missing_offsets(contract: BoundContract, name: str, state: TakenOffsets, past: list[Run]) -> None:
    """Raise RequestError if `from` was moved back, and the log has later offsets but not all of the earlier ones; also
    if a rebuilt journal does not tell with which `from` the log began.
    """
    taken, found = state.taken, ""
    is_rebuilt = any(run.number == state.run and run.plan.is_rebuilt for run in past)
    if count := sum(offsets.end - offsets.start for offsets in taken.abandoned_ranges.values()):
        found = f"run {state.run} was to ingest earlier offsets of the topic, and {count} of them are not in the log"
    elif is_rebuilt and any(taken.start_offsets.get(partition) != 0 for partition in taken.ranges):
        found = "the journal was rebuilt, and does not say from when on the log has the topic"
    if found:
        fix = f"hindcast run {contract.pipeline}, then repeat this; or rehearse from Kafka, without --into"
        raise RequestError(found, where=f"{contract.pipeline}.{name}", fix=fix)


def _convert_batch(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Return records of a log as Kafka had them, with the number of their partition in Kafka."""
    columns = {name: batch.column(name) for name in _COLUMNS} | {"timestamp": batch.column("stamped")}
    columns["partition"] = pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows)
    cast = [columns[field.name].cast(field.type) for field in record_batches.SCHEMA]
    return pa.RecordBatch.from_arrays(cast, schema=record_batches.SCHEMA)


def _merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches in larger ones, of about `_BYTES`."""
    waiting, size = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)
