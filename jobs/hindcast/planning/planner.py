"""Planning a run: what it will bring, found from the topics, the journal and the contract; and giving one up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from hindcast import clock
from hindcast.contracts import Contract
from hindcast.corrected import valid_time
from hindcast.delta import emitted, tables
from hindcast.delta.tables import Table, located, published
from hindcast.errors import AskedError, BusyError, RunError, nearest
from hindcast.kafka import gaps, members
from hindcast.kafka.topics import Cluster, Offsets, bounded, continued, made_anew
from hindcast.planning import definitions, inputs, journal
from hindcast.planning.journal import Run
from hindcast.planning.plans import Plan, Share
from hindcast.settings import settings


def plan(
    warehouse: str,
    servers: str,
    contract: Contract,
    run_id: str,
    interval_end: datetime | None = None,
    only: str | None = None,
    reason: str | None = None,
    instead: Mapping[str, Any] | None = None,
    *,
    ahead: bool = False,
) -> Plan:
    """The plan of the run `run_id`, stored before it is returned; that of an earlier try if there is one.

    `interval_end` (UTC) bounds what is replayed; without it everything there is; with `only` and `ahead` what
    `proposed` tells. `instead`: what the run does instead of replaying, `releases`, `requeues`, `forgets` or `upgrade`
    of `Plan`. BusyError if another run of the pipeline has not ended; one that was stopped gives way, be it an earlier
    try of `run_id`: its records are this run's leftovers.
    """
    past = journal.runs(warehouse, contract.pipeline)
    open_runs = [run for run in past if not run.finished]
    for run in open_runs:
        same = run.run_id == run_id
        if run.state == "stopped":
            continue
        if same and run.plan["contract"] == contract.hash:
            return Plan.from_json(run.plan)
        if same and _committed(warehouse, contract, Plan.from_json(run.plan)):
            raise RunError(
                "the contract was changed while the run was under way",
                where=f"{contract.pipeline}, run {run.number} ({run.run_id})",
                mend=f"put the contract back and retry, or give the run up: hindcast abandon {contract.pipeline}",
            )
        if not same:
            again = "repeat the hindcast forget that began it" if "forgets" in run.plan else f"retry it{_again(run)}"
            raise BusyError(
                f"run {run.number} ({run.run_id}) has not ended",
                where=contract.pipeline,
                mend=f"wait for it or {again}; if it cannot be finished: hindcast abandon {contract.pipeline}",
            )
    made = proposed(warehouse, servers, contract, run_id, interval_end, past, only, ahead=ahead)
    for run in open_runs:
        try:
            abandon(warehouse, run, f"given up for {run_id}")
        except RunError as ended:
            raise BusyError(
                f"another run was planned at the same moment: {ended.found}",
                where=contract.pipeline,
                mend="run it again when that one has ended; nothing was written",
            ) from ended
    if instead:
        nothing = {name: share.of_nothing() for name, share in made.topics.items()}
        made = replace(made, run=made.first, numbers=1, topics=nothing, **instead)
    made = replace(made, reason=reason, definition=definitions.list_unkept(past, contract))
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
    *,
    ahead: bool = False,
) -> Plan:
    """What a run would do after the `past` ones if it were planned now; nothing is stored.

    With `only`, a topic, input or view, it brings that topic's records, or what that input has learnt, and nothing else
    that is new: all other topics and inputs stay where the last run left them, for the next run. That table is derived
    whole, then what is below it (`Contract.below`). AskedError unless the last run was completed under this very
    contract: otherwise the next run has to look at all tables. RunError if its known-at would be more than an hour
    ahead of the clock, unless a person consents to that (`ahead`), or has for the run before.
    """
    if only is not None:
        _refuse_alone(contract, only, past)
    known_at, is_ahead = _known_at(contract.pipeline, past, consented=ahead)
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
    return Plan(*of, shares, pins, only=only, decodings=decodings, numbers=numbers, ahead=is_ahead)


AHEAD = timedelta(hours=1)
"""So far the known-at of a run may be ahead of the clock that plans it, unless a person consents to more."""


def _known_at(pipeline: str, past: list[Run], *, consented: bool) -> tuple[datetime, bool]:
    """Return the known-at of the run after the `past` ones, and whether it is further ahead of the clock than `AHEAD`.

    The known-ats of a pipeline grow, whatever clocks show. RunError for one that is too far ahead without consent.
    """
    now = clock.now()
    last = max(past, key=lambda run: run.known_at, default=None)
    known_at = max(now, last.known_at + timedelta(microseconds=1)) if last else now
    if last is None or known_at <= now + AHEAD:
        return known_at, False
    if not (consented or last.plan.get("ahead")):
        raise RunError(
            f"run {last.number} ({last.run_id}) is known at {last.known_at.isoformat()}, but it is "
            f"{now.isoformat(timespec='seconds')} by this machine's clock: one of the two clocks was wrong",
            where=pipeline,
            mend=f"set this machine's clock by NTP; if it was the clock of run {last.number}, continue after that "
            f"moment with: hindcast run {pipeline} --ahead-of-clock (docs/maintenance.md says what that means)",
        )
    return known_at, True


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
    if done:
        return f"{done} of its {chunks} chunks are in the log and stay: the next run goes on after them"
    if todo is None or not _committed(warehouse, contract, todo):
        return "nothing was written"
    return "nothing was written of this topic, but of others: that stays, and the next run goes on after it"


def abandon(warehouse: str, run: Run, reason: str) -> None:
    """Give up a run: what it has committed stays, what it has not is left to the next one.

    The entry lists the tables that the run had `published`, since Delta's log forgets its oldest commits.
    """
    pipeline, first = run.plan["pipeline"], Plan.from_json(run.plan).first
    fields = definitions.find_fields(journal.runs(warehouse, pipeline), run.plan["contract"]) or {}
    places = (place.split(".") for place in fields)
    names = sorted({place[1] for place in places if place[0] in ("topics", "views")})
    done = [name for name in names if published(Table(warehouse, pipeline, name, "versions")) >= first]
    journal.write(warehouse, replace(run, state="abandoned", detail={"reason": reason, "published": done}))


def _claimed(warehouse: str, pipeline: str, name: str, past: list[Run]) -> tuple[int, Share] | None:
    """The number of the last commit to a topic's log, and what its run had taken by then."""
    last = published(tables.log(warehouse, pipeline, name))
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
    beyond = sum(max(held[p].end - r.end, 0) for p, r in ranges.items())
    share = Share(topic_id, epoch, last, anchors, ranges, earlier, found_by, 0, {}, topic.valid_time, known, beyond)
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
    topics = [of(warehouse, contract.pipeline, name) for of in (tables.log, tables.fates) for name in contract.topics]
    views = [located(warehouse, contract, name) for name in (*contract.topics, *contract.views)]
    logs = [emitted.log(warehouse, contract, name) for name, it in contract.views.items() if it.semantics == "kafka"]
    return any(published(table) >= run.first for table in (*topics, *views, *logs))
