"""Topics of brokers, continued backwards by archives: what Kafka no longer has comes from files.

    archive   0 ... 99
    Kafka              60 ... 200     ->  0 ... 59 of the archive, 60 ... 200 of Kafka

An `ArchivedTopics` gives a run what a `Cluster` gives: topics, offsets and records. So a run plans and decodes archived
records with the same code as Kafka's. Where Kafka begins is asked once, for all that is read through one object.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple

import pyarrow as pa

from hindcast.archives import archived_records, named_files
from hindcast.archives.archived_records import PartitionReader, RecordForm
from hindcast.archives.named_files import ArchiveFile
from hindcast.common.errors import TopicError
from hindcast.common.plurals import format_count
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract
from hindcast.kafka.cluster import Cluster, floor_to_millis
from hindcast.kafka.topic_patterns import OffsetSource, TopicSource
from hindcast.kafka.topics import OffsetRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class TopicArchive(NamedTuple):
    """The archive of a topic: how its rows are read, its files by partition, and where Kafka begins, as far as it has
    been asked.
    """

    form: RecordForm
    files: dict[int, list[ArchiveFile]]
    kafka_starts: dict[int, int]

    def find_first(self, partition: int) -> int:
        """Return the first offset of a partition's files; 0 without files."""
        return self.files[partition][0].first if partition in self.files else 0


class ArchivedTopics:
    """The topics of a cluster, of which some have `archives`."""

    missing_reason = None

    def __init__(self, cluster: Cluster, archives: Mapping[str, TopicArchive]) -> None:
        self._cluster, self.archives, self.servers = cluster, archives, cluster.servers
        self._open_filesystem = cache(lambda topic: named_files.open_filesystem(archives[topic].form.archive))

    def list_topics(self) -> dict[str, list[int]]:
        """Return every topic of the cluster with its partitions."""
        return self._cluster.list_topics()

    def has_topic(self, topic: str) -> bool:
        """Return whether the cluster has the topic."""
        return self._cluster.has_topic(topic)

    def topic_id(self, topic: str) -> str:
        """Return Kafka's id of the topic."""
        return self._cluster.topic_id(topic)

    def is_compacted(self, topic: str) -> bool:
        """Return whether Kafka keeps only the last record of a key."""
        return self._cluster.is_compacted(topic)

    def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]:
        """Return the offsets of each partition: from the first of its archive, or of Kafka, to Kafka's end.

        A partition without any file begins at 0: what Kafka has no longer is missing.

        Raise TopicError if the archive has a partition that the topic has not, or goes on after Kafka ends.
        """
        held = self._cluster.read_offset_ranges(topic)
        if (archive := self.archives.get(topic)) is None:
            return held
        if more := sorted(archive.files.keys() - held.keys()):
            has = format_count(len(held), "partition")
            found = f"the archive has partition {more[0]}, and the topic in Kafka has {has}"
            where = f"{archive.form.archive.path}, {archive.files[more[0]][0].path}"
            raise TopicError(found, where=where, fix="name the archive of this topic, or add the partitions in Kafka")
        for partition, files in archive.files.items():
            if files[-1].first > held[partition].end:
                found = f"the archive goes on at offset {files[-1].first}, and Kafka ends at {held[partition].end}"
                where = f"{archive.form.archive.path}, {files[-1].path}"
                fix = "name the archive of this topic; that of a topic which was recreated since cannot continue it"
                raise TopicError(found, where=where, fix=fix)
        for partition, offsets in held.items():
            archive.kafka_starts.setdefault(partition, offsets.start)
        return {p: OffsetRange(min(r.start, archive.find_first(p)), r.end) for p, r in held.items()}

    def find_archived_ranges(self, topic: str) -> dict[int, OffsetRange]:
        """Return by partition the offsets that are not in Kafka, from the first of the archive to Kafka's first."""
        if topic not in self.archives:
            return {}
        starts = self._find_kafka_starts(topic)
        firsts = {p: self.archives[topic].find_first(p) for p in starts}
        return {p: OffsetRange(first, starts[p]) for p, first in firsts.items() if first < starts[p]}

    def find_archive_gaps(self, topic: str) -> dict[int, OffsetRange]:
        """Return by partition the offsets after the last one of the archive and before Kafka's first."""
        gaps = {}
        for partition, (first, end) in self.find_archived_ranges(topic).items():
            reader = self._open_partition(topic, partition)
            if all(it.first < end for it in reader.files[-1:]) and (last := max(reader.find_end(end), first)) < end:
                gaps[partition] = OffsetRange(last, end)
        return gaps

    def find_offsets_for_time(
        self, topic: str, moment: datetime, latest: datetime, taken: Mapping[int, int] | None = None
    ) -> dict[int, int | None]:
        """Return per partition the first offset whose timestamp is from `moment` to `latest`; None if there is none.

        `taken`: archived offsets before these are passed over. Of offsets that are missing directly before the first
        one that was found, nobody knows the timestamps: it is the first of them.
        """
        offsets = self._cluster.find_offsets_for_time(topic, moment, latest)
        for partition, (first, end) in self.find_archived_ranges(topic).items():
            left = OffsetRange(max(first, (taken or {}).get(partition, first)), end)
            reached = left.start
            for record in self._open_partition(topic, partition).read_records(left):
                if record.timestamp is not None and moment <= _build_moment(record.timestamp) <= latest:
                    offsets[partition] = record.offset
                    break
                reached = record.offset + 1
            else:
                if offsets[partition] == end:
                    offsets[partition] = min(reached, end)
        return offsets

    def read_batches(
        self, topic: str, ranges: Mapping[int, OffsetRange], patience: float = 0.0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of these ranges (`record_batches.SCHEMA`), each batch of one partition, in offset order."""
        left = dict(ranges)
        for partition, archived in self.find_archived_ranges(topic).items():
            if partition not in ranges or ranges[partition].start >= archived.end:
                continue
            start, end = ranges[partition]
            reader = self._open_partition(topic, partition)
            records = reader.read_records(OffsetRange(start, min(end, archived.end)))
            yield from archived_records.build_batches(records, partition, reader.form.archive.timestamp_type)
            left[partition] = OffsetRange(min(end, archived.end), end)
        if left := {p: r for p, r in left.items() if r.end > r.start}:
            yield from self._cluster.read_batches(topic, left, patience)

    def _find_kafka_starts(self, topic: str) -> Mapping[int, int]:
        if not self.archives[topic].kafka_starts:
            self.read_offset_ranges(topic)
        return self.archives[topic].kafka_starts

    def _open_partition(self, topic: str, partition: int) -> PartitionReader:
        archive = self.archives[topic]
        files = archive.files.get(partition, [])
        return PartitionReader(self._open_filesystem(topic), archive.form, topic, partition, files)


@contextmanager
def open_source(contract: BoundContract, given: TopicSource | None = None) -> Iterator[TopicSource]:
    """Yield the `given` topics; without them those of the brokers that a contract's settings name, with its archives.

    Raise TopicError if an archive cannot be listed.
    """
    if given is not None:
        yield given
        return
    archives = list_archives(contract)
    with Cluster(contract.settings.kafka) as cluster:
        yield ArchivedTopics(cluster, archives) if archives else cluster


def find_archived_ranges(source: object, topic: str) -> dict[int, OffsetRange]:
    """Return `ArchivedTopics.find_archived_ranges`; none of another source of topics."""
    return source.find_archived_ranges(topic) if isinstance(source, ArchivedTopics) else {}


def find_bounds(
    source: OffsetSource, topic: str, moment: datetime, latest: datetime, taken: Mapping[int, int]
) -> dict[int, int | None]:
    """Return `find_offsets_for_time` of a source; of an archive only from the offsets that are not `taken` yet."""
    if isinstance(source, ArchivedTopics):
        return source.find_offsets_for_time(topic, moment, latest, taken)
    return source.find_offsets_for_time(topic, moment, latest)


def find_archive_gaps(source: object, topic: str, ranges: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """Return the offsets of these ranges after the last one of an archive and before Kafka's first.

    Files are read only if a range begins before Kafka does.
    """
    if not isinstance(source, ArchivedTopics):
        return {}
    archived = source.find_archived_ranges(topic)
    if not any(r.start < archived[p].end for p, r in ranges.items() if p in archived):
        return {}
    found = {p: (ranges[p], gap) for p, gap in source.find_archive_gaps(topic).items() if p in ranges}
    cut = {p: OffsetRange(max(r.start, gap.start), min(r.end, gap.end)) for p, (r, gap) in found.items()}
    return {p: r for p, r in cut.items() if r.end > r.start}


def list_archives(contract: Contract) -> dict[str, TopicArchive]:
    """Return the archives of a contract's topics by their names in Kafka, with their files.

    Raise TopicError if a folder cannot be listed or has no file of the topic.
    """
    archives = {}
    for name, topic in contract.topics.items():
        kafka = contract.kafka_topic(name)
        if topic.archive is not None and kafka not in archives:
            form = archived_records.build_form(topic, topic.archive)
            archives[kafka] = TopicArchive(form, named_files.list_files(topic.archive, kafka), {})
    return archives


def _build_moment(micros: int) -> datetime:
    """Return a timestamp as Kafka stores it, in whole milliseconds; the last that Python has for a later one."""
    try:
        return floor_to_millis(_EPOCH + micros * _MICROSECOND)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
