"""What a run will do, fixed before it does anything: its known-at and, per topic and partition, a range of offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hindcast import emitted, gaps, inputs, journal, members, valid_time
from hindcast.contracts import Contract
from hindcast.errors import AskedError, BusyError, RunError, nearest
from hindcast.journal import Run
from hindcast.members import Member, Members
from hindcast.settings import settings
from hindcast.tables import Table, located, published
from hindcast.topics import Cluster, Offsets, bounded, continued, cut, made_anew


@dataclass(frozen=True)
class Share:
    """What a run takes of one topic.

    `anchors`: per partition the first offset that was or will be replayed, none while no record reached `from`.
    `ranges`: from where the last run ended. `earlier`: what an anchor that moved back adds before them. `epoch` counts
    the changes of the partition count that runs have seen. `after`: the number that the last commit to the log has, 0
    before the first. `since`: the `from` that the anchors were found by. `chunk`: about so many offsets each commit
    claims, 0 for all at once. `left`: of a run that was given up, what it did not come to of `earlier` (`upto`).
    `valid_time`: the expression that dates the records. `members`: whose partitions these are if the entry has a
    pattern; then there is no `topic_id`.
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
        return replace(self, ranges={p: Offsets(r.start, r.start) for p, r in self.ranges.items()}, earlier={}, chunk=0)

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


_OPTIONAL = ("releases", "requeues", "forgets", "upgrade", "only", "reason", "decodings")
"""Fields of a plan that the journal has where they say something."""


@dataclass(frozen=True)
class Plan:
    """A run's plan; a retry finishes the same one. `pins`: the known-at at which each input is read.

    A run that claims a topic in chunks takes as many `numbers`, one for each commit to its log; `run` is the last.
    `releases`: of each table whose held changes a person has released: `until` when they were looked at (ISO 8601), the
    `keys` (JSON), `by` whom. Such a run brings no offsets. `only`: the one table that it is about, with all below it.
    `requeues`: which malformed records it decodes anew (`requeue.selection`); such a run brings no offsets either.
    `forgets`: of which topic it forgets what (upkeep/forget.py); such a run brings none either.
    `upgrade`: which table it brings to today's store format, and how (upkeep/upgrade.py); it brings no offsets either.
    `reason`: why there is this run, in a person's words. `decodings`: by topic, how the contract decodes records
    (`Topic.decoding`).
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

    @property
    def first(self) -> int:
        """The first number that the run takes."""
        return self.run + 1 - self.numbers

    @property
    def upgraded(self) -> str | None:
        """The table that the run begins to bring to today's store format."""
        return self.upgrade["table"] if self.upgrade.get("step") == "begin" else None

    def concerns(self, contract: Contract, name: str) -> bool:
        """Whether the run has anything to do with a table."""
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
        )


def plan(
    warehouse: str,
    servers: str,
    contract: Contract,
    run_id: str,
    interval_end: datetime | None = None,
    releases: Mapping[str, dict[str, Any]] | None = None,
    only: str | None = None,
    reason: str | None = None,
    requeues: Mapping[str, Any] | None = None,
    forgets: Mapping[str, Any] | None = None,
    upgrade: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of the run `run_id`, stored before it is returned; that of an earlier try if there is one.

    `interval_end` (UTC) bounds what is replayed (design.md 6); without it everything there is. With `releases`,
    `requeues`, `forgets` or `upgrade` (`Plan`) nothing is replayed; with `only` what `proposed` tells. BusyError if
    another run of the pipeline has not ended; a run that was stopped gives way, and its records are this run's
    leftovers.
    """
    past = journal.runs(warehouse, contract.pipeline)
    open_runs = [run for run in past if not run.finished]
    for run in open_runs:
        same = run.run_id == run_id
        if same and run.plan["contract"] == contract.hash:
            return Plan.from_json(run.plan)
        if same and _committed(warehouse, contract, Plan.from_json(run.plan)):
            raise RunError(
                "the contract was changed while the run was under way",
                where=f"{contract.pipeline}, run {run.number} ({run.run_id})",
                mend=f"put the contract back and retry, or give the run up: hindcast abandon {contract.pipeline}",
            )
        if not same and run.state != "stopped":
            again = "repeat the hindcast forget that began it" if "forgets" in run.plan else f"retry it{_again(run)}"
            raise BusyError(
                f"run {run.number} ({run.run_id}) has not ended",
                where=contract.pipeline,
                mend=f"wait for it or {again}; if it cannot be finished: hindcast abandon {contract.pipeline}",
            )
    made = proposed(warehouse, servers, contract, run_id, interval_end, past, only)
    for run in open_runs:
        abandon(warehouse, run, f"given up for {run_id}")
    if releases or requeues or forgets or upgrade:
        made = replace(
            made,
            run=made.first,
            numbers=1,
            topics={name: share.of_nothing() for name, share in made.topics.items()},
            releases=dict(releases or {}),
            requeues=dict(requeues or {}),
            forgets=dict(forgets or {}),
            upgrade=dict(upgrade or {}),
        )
    made = replace(made, reason=reason)
    journal.write(warehouse, Run(made.run, run_id, made.known_at, "planned", made.as_json(), made.as_json()))
    return made


def _again(run: Run) -> str:
    """The command that finishes a run that a command has begun."""
    known = {"cli": "run", "requeue": "requeue"}
    command = known.get(run.run_id.partition("__")[0])
    return f" (hindcast {command} {run.plan['pipeline']})" if command else ""


def proposed(
    warehouse: str,
    servers: str,
    contract: Contract,
    run_id: str,
    interval_end: datetime | None,
    past: list[Run],
    only: str | None = None,
) -> Plan:
    """What a run would do after the `past` ones if it were planned now; nothing is stored.

    With `only`, a topic, input or view, it brings that topic's records, or what that input has learnt, and nothing else
    that is new: all other topics and inputs stay where the last run left them, for the next run. That table is derived
    whole, then what is below it (`Contract.below`). AskedError unless the last run was completed under this very
    contract: otherwise the next run has to look at all tables.
    """
    if only is not None:
        _refuse_alone(contract, only, past)
    latest = max((run.known_at for run in past), default=datetime.min.replace(tzinfo=UTC))
    known_at = max(datetime.now(UTC), latest + timedelta(microseconds=1) if past else latest)
    kept = Plan.from_json(past[-1].plan).pins if only is not None else {}
    pins = {
        name: kept[name] if name in kept and name != only else inputs.pinned(warehouse, contract, name)
        for name in contract.inputs
    }
    with Cluster(servers) as cluster:
        shares = {
            name: _share(
                cluster, contract, name, _claimed(warehouse, contract.pipeline, name, past), interval_end, known_at
            )
            for name in contract.topics
        }
    if only is not None:
        shares = {name: share if name == only else share.of_nothing() for name, share in shares.items()}
    numbers = max([1, *(len(share.chunks) for share in shares.values())])
    number = max((run.number for run in past), default=0) + numbers
    decodings = {name: topic.decoding for name, topic in contract.topics.items()}
    of = (contract.pipeline, number, run_id, known_at, interval_end, contract.hash)
    return Plan(*of, shares, pins, only=only, decodings=decodings, numbers=numbers)


def _refuse_alone(contract: Contract, only: str, past: list[Run]) -> None:
    """AskedError if a run must not be about one table alone."""
    where, mend = f"{contract.pipeline}, only {only}", "run the pipeline once without `only`"
    known = (*contract.topics, *contract.inputs, *contract.views)
    if only not in known:
        raise AskedError(f"there is no table '{only}'", where=contract.pipeline, mend=nearest(only, known))
    if not past:
        raise AskedError("the first run is about all tables", where=where, mend=mend)
    if past[-1].state != "completed":
        found = f"run {past[-1].number} was not completed, so what it left concerns all tables"
        raise AskedError(found, where=where, mend=mend)
    if past[-1].plan["contract"] != contract.hash:
        found = f"the contract was changed since run {past[-1].number}, so all tables are derived anew"
        raise AskedError(found, where=where, mend=mend)


def stays(warehouse: str, contract: Contract, todo: Plan | None, done: int, chunks: int) -> str:
    """What a run has written, when it fails at a topic after the first `done` of its chunks; `todo` null: a preview."""
    again = f"give the run up (hindcast abandon {contract.pipeline})"
    if done:
        return f"{done} of its {chunks} chunks are in the log and stay: {again}, and the next one goes on after them"
    if todo is None or not _committed(warehouse, contract, todo):
        return "nothing was written"
    return f"nothing was written of this topic, but of others: when it is mended, {again}, and the next one goes on"


def abandon(warehouse: str, run: Run, reason: str) -> None:
    """Gives up a run: what it has committed stays, what it has not is left to the next one."""
    journal.write(warehouse, replace(run, state="abandoned", detail={"reason": reason}))


def current(warehouse: str, pipeline: str, number: int) -> Run:
    """The run that a step works for; RunError if it has ended or was given up meanwhile."""
    run = next((r for r in journal.runs(warehouse, pipeline) if r.number == number), None)
    if run is None or run.finished:
        state = run.state if run else "not planned"
        raise RunError(f"run {number} is {state}", where=pipeline, mend="start a new run")
    return run


def log(warehouse: str, pipeline: str, topic: str) -> Table:
    """The log table of a topic: its records as Kafka had them, with their fates."""
    return Table(warehouse, pipeline, f"logs/{topic}", "log")


def fates(warehouse: str, pipeline: str, topic: str) -> Table:
    """Where the fates of a topic's records stand that were decided anew (fates.py)."""
    return Table(warehouse, pipeline, f"fates/{topic}", "log")


def known_members(warehouse: str, contract: Contract, name: str) -> Members:
    """The members of an entry with a pattern as its runs have numbered them (members.py); none of another."""
    return members_of(journal.runs(warehouse, contract.pipeline), name) if contract.topics[name].pattern else {}


def members_of(past: list[Run], name: str) -> Members:
    """The same as the last of these runs numbers them."""
    told = (run.plan["topics"].get(name, {}) for run in reversed(past))
    return next((Share.from_json(it).members for it in told if "members" in it), {})


def _claimed(warehouse: str, pipeline: str, name: str, past: list[Run]) -> tuple[int, Share] | None:
    """The number of the last commit to a topic's log, and what its run had taken by then."""
    last = published(log(warehouse, pipeline, name))
    made = (Plan.from_json(run.plan) for run in past if run.number >= last)
    plan = next((plan for plan in made if plan.first <= last), None)
    if plan is None:
        return None
    share = plan.topics[name]
    return last, share.upto(last - plan.run + len(share.chunks))


def _share(
    cluster: Cluster,
    contract: Contract,
    name: str,
    claimed: tuple[int, Share] | None,
    interval_end: datetime | None,
    known_at: datetime,
) -> Share:
    """What a run takes of a topic, after the commit that claimed its offsets last.

    If its run was given up amid offsets before the anchor, they come first; only then the anchor moves on.
    """
    topic, kafka = contract.topics[name], contract.kafka_topic(name)
    last, before = claimed or (0, None)
    known = members.seen(cluster, contract, name, before.members if before else None)
    source = members.source(cluster, known, last)
    held, topic_id = source.available(kafka), source.topic_id(kafka)
    if before and before.topic_id != topic_id:
        raise made_anew(kafka, last)
    ends = {p: before.ranges[p].end for p in before.anchors} if before else {}
    held |= members.ended(contract, name, known, before.ranges if before else {}, held)
    continued(kafka, ends, held)
    latest = valid_time.latest(topic, known_at)
    since = source.reaching(kafka, topic.since, latest) if topic.since and _moved(topic.since, before, held) else {}
    anchors = anchored(held, before, topic.since, since)
    earlier = {p: Offsets(anchors[p], a) for p, a in (before.anchors if before else {}).items() if anchors[p] < a}
    left = before.left if before else {}
    anchors |= {p: before.anchors[p] for p in left if before}
    earlier |= left
    for p in [p for p in earlier if before and ends[p] == before.anchors[p]]:  # nothing of it was replayed yet
        ends[p] = earlier.pop(p).start
    bound = source.reaching(kafka, interval_end, latest) if interval_end else {}
    ranges = bounded(held, {p: ends.get(p, anchors.get(p, r.end)) for p, r in held.items()}, bound)
    epoch = before.epoch + (len(before.ranges) != len(held)) if before else 0
    found_by = before.since if before and left else topic.since
    share = Share(topic_id, epoch, last, anchors, ranges, earlier, found_by, 0, {}, topic.valid_time, known)
    chunk = settings().chunk
    share = replace(share, chunk=chunk) if sum(share.planned.values()) > chunk else share
    for part in share.parts:
        gaps.refuse(contract, name, gaps.lost(part, held), known, gaps.RETENTION)
    return share


def anchored(
    held: Mapping[int, Offsets], before: Share | None, since: datetime | None, reached: Mapping[int, int | None]
) -> dict[int, int]:
    """Per partition the first offset to replay: the log's beginning, or where it `reached` the contract's `from`.

    `before`: the share that was claimed last. An anchor moves back when `from` does, never on. The beginning of a
    partition that was added since is offset 0. None for a partition where no record is dated so late.
    """
    anchors = dict(before.anchors) if before else {}
    for partition, offsets in held.items():
        if since is None:
            reached = {**reached, partition: 0 if before and partition not in before.ranges else offsets.start}
        hit = reached.get(partition)
        if hit is not None:
            anchors[partition] = min(hit, anchors.get(partition, hit))
    return anchors


def _moved(since: datetime, before: Share | None, held: Mapping[int, Offsets]) -> bool:
    """Whether anchors have to be looked for: at first, under another `from`, where there is none yet."""
    return before is None or before.since != since or held.keys() != before.anchors.keys()


def _committed(warehouse: str, contract: Contract, run: Plan) -> bool:
    """Whether a run has changed anything: a log, the fates of one, what a kafka view has emitted, or a table."""
    topics = [of(warehouse, contract.pipeline, name) for of in (log, fates) for name in contract.topics]
    views = [located(warehouse, contract, name) for name in (*contract.topics, *contract.views)]
    logs = [emitted.log(warehouse, contract, name) for name, it in contract.views.items() if it.semantics == "kafka"]
    return any(published(table) >= run.first for table in (*topics, *views, *logs))
