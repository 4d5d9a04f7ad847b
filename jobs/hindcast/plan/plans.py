"""A plan: what a run will do, its known-at and, per topic and partition, a range of offsets."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property

from hindcast.common.json_values import JsonObject, JsonValue, StoredObject
from hindcast.contract import Contract
from hindcast.kafka.topic_patterns import MemberPartition
from hindcast.kafka.topics import OffsetRange, split_ranges
from hindcast.plan.purposes import (
    Approval,
    ArrivalInterval,
    Erasure,
    Purpose,
    Release,
    ReleasedKeys,
    Replay,
    Requeue,
    Upgrade,
    parse_purpose,
)
from hindcast.plan.stored_values import (
    parse_definition,
    parse_moment,
    parse_number,
    parse_optional_text,
    parse_text,
    parse_texts,
)


@dataclass(frozen=True)
class TopicPlan:
    """The offsets of one topic that a run ingests.

    `start_offsets`: per partition the first offset that was or will be replayed; missing while no record reached
    `from`. `ranges`: the offsets from where the last run ended. `earlier`: offsets before `ranges`, added because a
    start offset moved back. `epoch` counts the changes of the partition count that runs have seen. `after`: the number
    of the last commit to the log, 0 before the first. `since`: the `from` by which the start offsets were found.
    `chunk`: roughly how many offsets each commit ingests, 0 for all at once. `abandoned_ranges`: the part of `earlier`
    that an abandoned run did not reach (`cut_after_chunks`). `valid_time`: the expression that dates the records.
    `members`: the topics whose partitions these are, if the entry has a pattern; then `topic_id` is empty.
    `offsets_left`: how many offsets after `ranges` are left to later runs; only the attempt that makes the plan knows
    it, and it is not stored.
    """

    topic_id: str
    epoch: int
    after: int
    start_offsets: dict[int, int]
    ranges: dict[int, OffsetRange]
    earlier: dict[int, OffsetRange]
    since: datetime | None = None
    chunk: int = 0
    abandoned_ranges: dict[int, OffsetRange] = field(default_factory=dict)
    valid_time: str | None = None
    members: dict[int, MemberPartition] = field(default_factory=dict)
    offsets_left: int | None = field(default=None, compare=False)

    @property
    def ends(self) -> dict[int, int]:
        """By partition, the offset behind the last one that this run or an earlier one ingests."""
        return {partition: offsets.end for partition, offsets in self.ranges.items()}

    @property
    def parts(self) -> list[dict[int, OffsetRange]]:
        """The ranges that are not empty, at most one of a partition in each part; the earlier part first."""
        parts = [{p: r for p, r in ranges.items() if r.end > r.start} for ranges in (self.earlier, self.ranges)]
        return [part for part in parts if part]

    @property
    def planned_counts(self) -> dict[int, int]:
        """The number of planned offsets by partition."""
        counts = dict.fromkeys(self.ranges, 0)
        for partition, offsets in ((p, r) for part in self.parts for p, r in part.items()):
            counts[partition] += offsets.end - offsets.start
        return counts

    @property
    def chunks(self) -> list[list[dict[int, OffsetRange]]]:
        """The parts that each commit to the log ingests: all of them, or one piece of about `chunk` offsets."""
        if not self.chunk:
            return [self.parts] if self.parts else []
        return [[piece] for part in self.parts for piece in split_ranges(part, self.chunk)]

    def cut_after_chunks(self, count: int) -> TopicPlan:
        """Return the plan of what was ingested by a run that was abandoned after its first `count` chunks."""
        if not self.chunk or count >= len(self.chunks):
            return self
        reached: dict[tuple[int, bool], int] = {}
        for partition, offsets in ((p, r) for (piece,) in self.chunks[:count] for p, r in piece.items()):
            reached[partition, offsets.start < self.ranges[partition].start] = offsets.end
        return self._cut_at(reached)

    def cut_all(self) -> TopicPlan:
        """Return the plan of what was ingested by a run that was abandoned before its first commit: nothing."""
        return self._cut_at({})

    def _cut_at(self, reached: Mapping[tuple[int, bool], int]) -> TopicPlan:
        """Return the plan up to the offset that was reached in a partition, of `earlier` ones or not."""
        ranges = {p: OffsetRange(r.start, reached.get((p, False), r.start)) for p, r in self.ranges.items()}
        earlier = {p: OffsetRange(r.start, reached.get((p, True), r.start)) for p, r in self.earlier.items()}
        left = {p: OffsetRange(r.end, self.earlier[p].end) for p, r in earlier.items() if r.end < self.earlier[p].end}
        return replace(self, ranges=ranges, earlier=earlier, abandoned_ranges=left)

    def without_offsets(self) -> TopicPlan:
        """Return the plan of a run that ingests none of the topic's offsets."""
        ranges = {p: OffsetRange(r.start, r.start) for p, r in self.ranges.items()}
        offsets_left = (self.offsets_left or 0) + sum(r.end - r.start for r in self.ranges.values())
        return replace(self, ranges=ranges, earlier={}, chunk=0, offsets_left=offsets_left)

    def as_json(self) -> JsonObject:
        """Return the form in the journal."""
        partitions: list[JsonValue] = []
        for p, r in self.ranges.items():
            before = {"earlier": self.earlier, "left": self.abandoned_ranges}
            fields = {name: list(of[p]) for name, of in before.items() if p in of}
            partitions.append(
                {"partition": p, "anchor": self.start_offsets.get(p), "start": r.start, "end": r.end, **fields}
            )
        more: dict[str, JsonValue] = {"from": self.since.isoformat()} if self.since else {}
        more |= {"chunk": self.chunk} if self.chunk else {}
        more |= {"validTime": self.valid_time} if self.valid_time else {}
        more |= {"members": [[n, *member] for n, member in self.members.items()]} if self.members else {}
        return {"id": self.topic_id, "epoch": self.epoch, "after": self.after, "partitions": partitions, **more}

    @classmethod
    def from_json(cls, document: StoredObject) -> TopicPlan:
        """Return the topic plan from its form in the journal; TypeError or ValueError for an odd value."""
        parts = [{**part, "partition": parse_number(part["partition"])} for part in document["partitions"]]
        return cls(
            parse_text(document["id"]),
            parse_number(document["epoch"]),
            parse_number(document["after"]),
            {p["partition"]: parse_number(p["anchor"]) for p in parts if p["anchor"] is not None},
            {p["partition"]: _parse_range(p["start"], p["end"]) for p in parts},
            {p["partition"]: _parse_range(*p["earlier"]) for p in parts if "earlier" in p},
            parse_moment(document["from"]) if "from" in document else None,
            chunk=parse_number(document.get("chunk", 0)),
            abandoned_ranges={p["partition"]: _parse_range(*p["left"]) for p in parts if "left" in p},
            valid_time=parse_optional_text(document.get("validTime")),
            members={
                parse_number(n): MemberPartition(parse_text(topic), parse_number(partition), parse_text(topic_id))
                for n, topic, partition, topic_id in document.get("members", [])
            },
        )


def _parse_pass(numbers: JsonValue) -> tuple[int, int] | None:
    if numbers is None:
        return None
    if not isinstance(numbers, list):
        raise TypeError("the numbers of a pass are not a list")
    first, last = (parse_number(number, 1) for number in numbers)
    return first, last


def _parse_range(start: JsonValue, end: JsonValue) -> OffsetRange:
    return OffsetRange(parse_number(start), parse_number(end))


@dataclass(frozen=True)
class Plan:
    """The plan of a run; a retry continues it. `as_of_system_times`: the known-at at which each input is read.

    A run that ingests a topic in chunks takes as many `numbers`, one for each commit to its log; `run` is the last.
    `ahead`: its known-at is more than an hour ahead of the clock that planned it, and a person has consented to that.
    `reason`: why there is this run, in a person's words. `decodings`: by topic, how the contract decodes records
    (`Topic.hash_decoding`). `definition`: the contract's fields with their texts, if no earlier plan has them
    (definitions.py). A run whose `purpose` is not `Replay` ingests no offsets. `version`: of the Hindcast that planned
    it; empty in older plans. `pass_numbers`: the first and the last run of the pass that makes the run (passes.py).
    """

    pipeline: str
    run: int
    run_id: str
    known_at: datetime
    interval_end: datetime | None
    contract: str
    topics: Mapping[str, TopicPlan]
    as_of_system_times: Mapping[str, datetime] = field(default_factory=dict)
    purpose: Purpose = field(default_factory=Replay)
    reason: str | None = None
    decodings: Mapping[str, str] = field(default_factory=dict)
    numbers: int = 1
    ahead: bool = False
    definition: Mapping[str, str] = field(default_factory=dict)
    version: str = ""
    pass_numbers: tuple[int, int] | None = None

    @cached_property
    def definition_digest(self) -> str:
        """A text that is equal for equal definitions only."""
        fields = [*self.definition.items()]
        return hashlib.sha256(repr(fields).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def ends(self) -> dict[str, dict[int, int]]:
        """The `ends` of each topic."""
        return {name: topic.ends for name, topic in self.topics.items()}

    @property
    def first_number(self) -> int:
        """The first of the numbers that the run takes."""
        return self.run + 1 - self.numbers

    @property
    def is_rebuilt(self) -> bool:
        """True for a plan from a rebuilt journal (`ops.journal_rebuild`): its contract is not known."""
        return not self.contract

    @property
    def ingests_offsets(self) -> bool:
        """True if the run was to ingest offsets of a topic."""
        return any(topic_plan.parts for topic_plan in self.topics.values())

    @property
    def only(self) -> str | None:
        """The one table that the run is about, with all below it; None for a run about all tables."""
        return self.purpose.only if isinstance(self.purpose, Replay) else None

    @property
    def rehearsed_interval(self) -> ArrivalInterval | None:
        """The interval of arrival that a rehearsed run is of; None for any other run."""
        return self.purpose.arrival if isinstance(self.purpose, Replay) else None

    @property
    def released_keys(self) -> Mapping[str, ReleasedKeys]:
        """By table, the keys whose held changes a person released; empty unless that is what the run is for."""
        return self.purpose.tables if isinstance(self.purpose, Release) else {}

    @property
    def approval(self) -> Approval | None:
        """Who approved what the run releases, and when the last of them did; None if it is no release."""
        if not (released := self.released_keys.values()):
            return None
        names = dict.fromkeys(keys.by for keys in released if keys.by)
        return Approval(", ".join(names) or None, max((keys.at for keys in released if keys.at), default=None))

    @property
    def requeue(self) -> Requeue | None:
        """Which malformed records the run decodes again; None unless that is what it is for."""
        return self.purpose if isinstance(self.purpose, Requeue) else None

    @property
    def erasure(self) -> Erasure | None:
        """What the run forgets; None unless that is what it is for."""
        return self.purpose if isinstance(self.purpose, Erasure) else None

    @property
    def upgrade(self) -> Upgrade | None:
        """Which table the run upgrades; None unless that is what it is for."""
        return self.purpose if isinstance(self.purpose, Upgrade) else None

    @property
    def upgraded_table(self) -> str | None:
        """The table whose upgrade to the current store format this run begins."""
        return self.upgrade.table if self.upgrade is not None and self.upgrade.step == "begin" else None

    @property
    def skipped_tables(self) -> tuple[str, ...]:
        """The tables that the run skips because each waits for an upgrade of its own."""
        return self.upgrade.without if self.upgrade is not None else ()

    def has_work_for(self, contract: Contract, name: str) -> bool:
        """Return whether the run may change a table."""
        if any(name in contract.list_tables_below(table) for table in self.skipped_tables):
            return False
        return self.only is None or name in contract.list_tables_below(self.only)

    def as_json(self) -> JsonObject:
        """Return the form in the journal."""
        optional: dict[str, JsonValue] = {
            "reason": self.reason,
            "decodings": self.decodings,
            "ahead": self.ahead,
            "definition": [list(field) for field in self.definition.items()],
            "numbers": self.numbers if self.numbers > 1 else None,
            "version": self.version,
            "pass": self.pass_numbers,
        }
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "runId": self.run_id,
            "knownAt": self.known_at.isoformat(),
            "intervalEnd": self.interval_end.isoformat() if self.interval_end else None,
            "contract": self.contract,
            "topics": {name: topic_plan.as_json() for name, topic_plan in self.topics.items()},
            "inputs": {name: moment.isoformat() for name, moment in self.as_of_system_times.items()},
            **self.purpose.as_json(),  # also of a release of no keys: it replays nothing
            **{name: value for name, value in optional.items() if value},
        }

    @classmethod
    def from_json(cls, document: StoredObject) -> Plan:
        """Return the plan from its form in the journal; TypeError or ValueError for an odd value."""
        end, run = document["intervalEnd"], parse_number(document["run"], 1)
        numbers = parse_number(document.get("numbers", 1), 1)
        if numbers > run:
            raise ValueError("the numbers of a run begin before 1")
        return cls(
            parse_text(document["pipeline"]),
            run,
            parse_text(document["runId"]),
            parse_moment(document["knownAt"]),
            parse_moment(end) if end else None,
            parse_text(document["contract"]),
            {name: TopicPlan.from_json(topic_plan) for name, topic_plan in document["topics"].items()},
            {name: parse_moment(moment) for name, moment in document.get("inputs", {}).items()},
            parse_purpose(document),
            parse_optional_text(document.get("reason")),
            parse_texts(document.get("decodings", {})),
            numbers,
            bool(document.get("ahead", False)),
            parse_definition(document.get("definition", ())),
            parse_optional_text(document.get("version")) or "",
            _parse_pass(document.get("pass")),
        )
