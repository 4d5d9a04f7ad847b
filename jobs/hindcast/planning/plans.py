"""A plan: what a run will do, its known-at and, per topic and partition, a range of offsets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from hindcast.contracts import Contract
from hindcast.errors import RunError
from hindcast.kafka.members import Member, Members
from hindcast.kafka.topics import Offsets, cut
from hindcast.planning import journal
from hindcast.planning.journal import Run


@dataclass(frozen=True)
class Share:
    """What a run takes of one topic.

    `anchors`: per partition the first offset that was or will be replayed, none while no record reached `from`.
    `ranges`: from where the last run ended. `earlier`: what an anchor that moved back adds before them. `epoch` counts
    the changes of the partition count that runs have seen. `after`: the number that the last commit to the log has, 0
    before the first. `since`: the `from` that the anchors were found by. `chunk`: about so many offsets each commit
    claims, 0 for all at once. `left`: of a run that was given up, what it did not come to of `earlier` (`upto`).
    `valid_time`: the expression that dates the records. `members`: whose partitions these are if the entry has a
    pattern; then there is no `topic_id`. `beyond`: how many offsets there are after the ranges, which are left to later
    runs; told by the try that makes the plan, and not kept.
    """

    topic_id: str
    epoch: int
    after: int
    anchors: dict[int, int]
    ranges: dict[int, Offsets]
    earlier: dict[int, Offsets]
    since: datetime | None = None
    chunk: int = 0
    left: dict[int, Offsets] = field(default_factory=dict)
    valid_time: str | None = None
    members: dict[int, Member] = field(default_factory=dict)
    beyond: int | None = field(default=None, compare=False)

    @property
    def parts(self) -> list[dict[int, Offsets]]:
        """The ranges that hold offsets, at most one of a partition in each part; the earlier part first."""
        parts = [{p: r for p, r in ranges.items() if r.end > r.start} for ranges in (self.earlier, self.ranges)]
        return [part for part in parts if part]

    @property
    def planned(self) -> dict[int, int]:
        """How many offsets each partition brings."""
        counts = dict.fromkeys(self.ranges, 0)
        for partition, offsets in ((p, r) for part in self.parts for p, r in part.items()):
            counts[partition] += offsets.end - offsets.start
        return counts

    @property
    def chunks(self) -> list[list[dict[int, Offsets]]]:
        """What each commit to the log claims, as `parts`: all of them, or in turn about `chunk` offsets of one."""
        if not self.chunk:
            return [self.parts] if self.parts else []
        return [[piece] for part in self.parts for piece in cut(part, self.chunk)]

    def upto(self, count: int) -> Share:
        """The share as a run has taken it that was given up after the first `count` of its chunks."""
        if not self.chunk or count >= len(self.chunks):
            return self
        reached: dict[tuple[int, bool], int] = {}
        for partition, offsets in ((p, r) for (piece,) in self.chunks[:count] for p, r in piece.items()):
            reached[partition, offsets.start < self.ranges[partition].start] = offsets.end
        ranges = {p: Offsets(r.start, reached.get((p, False), r.start)) for p, r in self.ranges.items()}
        earlier = {p: Offsets(r.start, reached.get((p, True), r.start)) for p, r in self.earlier.items()}
        left = {p: Offsets(r.end, self.earlier[p].end) for p, r in earlier.items() if r.end < self.earlier[p].end}
        return replace(self, ranges=ranges, earlier=earlier, left=left)

    def of_nothing(self) -> Share:
        """The share of a run that brings none of the topic's offsets."""
        ranges = {p: Offsets(r.start, r.start) for p, r in self.ranges.items()}
        beyond = (self.beyond or 0) + sum(r.end - r.start for r in self.ranges.values())
        return replace(self, ranges=ranges, earlier={}, chunk=0, beyond=beyond)

    def as_json(self) -> dict[str, Any]:
        """The form in the journal."""
        partitions = []
        for p, r in self.ranges.items():
            before = {"earlier": self.earlier, "left": self.left}
            told = {name: list(of[p]) for name, of in before.items() if p in of}
            partitions.append({"partition": p, "anchor": self.anchors.get(p), "start": r.start, "end": r.end, **told})
        more: dict[str, Any] = {"from": self.since.isoformat()} if self.since else {}
        more |= {"chunk": self.chunk} if self.chunk else {}
        more |= {"validTime": self.valid_time} if self.valid_time else {}
        more |= {"members": [[n, *it] for n, it in self.members.items()]} if self.members else {}
        return {"id": self.topic_id, "epoch": self.epoch, "after": self.after, "partitions": partitions, **more}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Share:
        """The share that `as_json` told."""
        parts = told["partitions"]
        return cls(
            told["id"],
            told["epoch"],
            told["after"],
            {p["partition"]: p["anchor"] for p in parts if p["anchor"] is not None},
            {p["partition"]: Offsets(p["start"], p["end"]) for p in parts},
            {p["partition"]: Offsets(*p["earlier"]) for p in parts if "earlier" in p},
            datetime.fromisoformat(told["from"]) if "from" in told else None,
            chunk=told.get("chunk", 0),
            left={p["partition"]: Offsets(*p["left"]) for p in parts if "left" in p},
            valid_time=told.get("validTime"),
            members={n: Member(*of) for n, *of in told.get("members", [])},
        )


_OPTIONAL = ("releases", "requeues", "forgets", "upgrade", "only", "reason", "decodings", "ahead", "definition")
"""Fields of a plan that the journal has where they say something."""


@dataclass(frozen=True)
class Plan:
    """A run's plan; a retry finishes the same one. `pins`: the known-at at which each input is read.

    A run that claims a topic in chunks takes as many `numbers`, one for each commit to its log; `run` is the last.
    `releases`: of each table whose held changes a person has released: `until` when they were looked at (ISO 8601), the
    `keys` (JSON), `by` whom. Such a run brings no offsets. `only`: the one table that it is about, with all below it.
    `requeues`: which malformed records it decodes anew (`requeue.selection`); such a run brings no offsets either.
    `forgets`: of which topic it forgets what (upkeep/forgetting/forget.py); such a run brings none either.
    `upgrade`: which table it brings to today's store format, and how (building/adopting.py), `without` which others;
    such a run brings none.
    `ahead`: its known-at is more than an hour ahead of the clock that planned it, and a person has consented to that.
    `reason`: why there is this run, in a person's words. `decodings`: by topic, how the contract decodes records
    (`Topic.decoding`). `definition`: the contract's fields, each with its text, where no plan before has them
    (definitions.py).
    """

    pipeline: str
    run: int
    run_id: str
    known_at: datetime
    interval_end: datetime | None
    contract: str
    topics: dict[str, Share]
    pins: dict[str, datetime] = field(default_factory=dict)
    releases: dict[str, dict[str, Any]] = field(default_factory=dict)
    requeues: dict[str, Any] = field(default_factory=dict)
    only: str | None = None
    reason: str | None = None
    decodings: dict[str, str] = field(default_factory=dict)
    upgrade: dict[str, Any] = field(default_factory=dict)
    numbers: int = 1
    forgets: dict[str, Any] = field(default_factory=dict)
    ahead: bool = False
    definition: list[list[str]] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The first number that the run takes."""
        return self.run + 1 - self.numbers

    @property
    def upgraded(self) -> str | None:
        """The table that the run begins to bring to today's store format."""
        return self.upgrade["table"] if self.upgrade.get("step") == "begin" else None

    @property
    def without(self) -> list[str]:
        """The tables that the run leaves alone: each waits for an upgrade of its own."""
        named: list[str] = self.upgrade.get("without", [])
        return named

    def concerns(self, contract: Contract, name: str) -> bool:
        """Whether the run has anything to do with a table."""
        if any(name in contract.below(it) for it in self.without):
            return False
        return self.only is None or name in contract.below(self.only)

    def as_json(self) -> dict[str, Any]:
        """The form in the journal."""
        return {
            "pipeline": self.pipeline,
            "run": self.run,
            "runId": self.run_id,
            "knownAt": self.known_at.isoformat(),
            "intervalEnd": self.interval_end.isoformat() if self.interval_end else None,
            "contract": self.contract,
            "topics": {name: share.as_json() for name, share in self.topics.items()},
            "inputs": {name: pin.isoformat() for name, pin in self.pins.items()},
            **{name: told for name in _OPTIONAL if (told := getattr(self, name))},
            **({"numbers": self.numbers} if self.numbers > 1 else {}),
        }

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Plan:
        """The plan that `as_json` told."""
        end = told["intervalEnd"]
        return cls(
            told["pipeline"],
            told["run"],
            told["runId"],
            datetime.fromisoformat(told["knownAt"]),
            datetime.fromisoformat(end) if end else None,
            told["contract"],
            {name: Share.from_json(share) for name, share in told["topics"].items()},
            {name: datetime.fromisoformat(pin) for name, pin in told.get("inputs", {}).items()},
            told.get("releases", {}),
            told.get("requeues", {}),
            told.get("only"),
            told.get("reason"),
            told.get("decodings", {}),
            told.get("upgrade", {}),
            numbers=told.get("numbers", 1),
            forgets=told.get("forgets", {}),
            ahead=told.get("ahead", False),
            definition=told.get("definition", []),
        )


def current(warehouse: str, pipeline: str, number: int) -> Run:
    """The run that a step works for; RunError if it has ended or was given up meanwhile."""
    run = next((r for r in journal.runs(warehouse, pipeline) if r.number == number), None)
    if run is None or run.finished:
        state = run.state if run else "not planned"
        raise RunError(f"run {number} is {state}", where=pipeline, mend="start a new run")
    return run


def known_members(warehouse: str, contract: Contract, name: str) -> Members:
    """The members of an entry with a pattern as its runs have numbered them (members.py); none of another."""
    return members_of(journal.runs(warehouse, contract.pipeline), name) if contract.topics[name].pattern else {}


def members_of(past: list[Run], name: str) -> Members:
    """The same as the last of these runs numbers them."""
    told = (run.plan["topics"].get(name, {}) for run in reversed(past))
    return next((Share.from_json(it).members for it in told if "members" in it), {})
