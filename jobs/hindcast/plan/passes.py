"""The runs of a pass: many rehearsed runs that are made together, from one reading of their topics (docs/adr/0039).

They are planned by one commit to the journal, and completed by another; each table has the changes of all in one
commit, under the number of the last. So either all of them are completed, or none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hindcast import __version__
from hindcast.common.errors import RunError
from hindcast.contract.bound import BoundContract
from hindcast.kafka.topic_patterns import TopicSource
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import closes, planner, rehearsals
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import ArrivalInterval, Replay
from hindcast.plan.rehearsals import RehearsedOffsets
from hindcast.plan.runs import Run


def find_open_pass(past: Sequence[Run]) -> list[Run]:
    """Return the runs of the pass that was begun and has not ended; empty if there is none."""
    return [run for run in past if run.plan.pass_numbers is not None and not run.is_finished]


def propose_pass(
    contract: BoundContract, past: list[Run], rehearsed: Sequence[RehearsedOffsets], given: TopicSource | None = None
) -> list[Plan]:
    """Return the plans of runs if they were planned now in a pass; nothing is stored."""
    interval = ArrivalInterval(rehearsed[0].interval.since, rehearsed[-1].interval.until)
    whole = RehearsedOffsets(interval, rehearsed[-1].ends, rehearsed[-1].logs)
    name = rehearsals.name_run(rehearsed[0].interval)
    return divide_plan(planner.propose_plan(contract, name, None, past, given=given, rehearsed=whole), rehearsed)


def divide_plan(plan: Plan, rehearsed: Sequence[RehearsedOffsets]) -> list[Plan]:
    """Return the plans of the runs of a pass, given the plan of one run with the offsets of all."""
    first, starts = plan.first_number, {name: topic.ranges for name, topic in plan.topics.items()}
    numbers = first, first + len(rehearsed) - 1
    plans = []
    for number, (interval, ends, logs) in enumerate(rehearsed, first):
        topics = {name: _cut_topic(topic, starts[name], ends[name]) for name, topic in plan.topics.items()}
        starts = {name: {p: OffsetRange(r.end, r.end) for p, r in it.ranges.items()} for name, it in topics.items()}
        own = replace(plan, run=number, run_id=rehearsals.name_run(interval), topics=topics, pass_numbers=numbers)
        until = interval.until
        plans.append(replace(own, known_at=until, interval_end=until, purpose=Replay(None, interval, logs), numbers=1))
    return plans


def _cut_topic(topic: TopicPlan, starts: Mapping[int, OffsetRange], ends: Mapping[int, int]) -> TopicPlan:
    """Return the part of a topic's plan from where the run before ended."""
    ranges = {
        p: OffsetRange(r.start, max(r.start, min(ends.get(p, r.start), topic.ranges[p].end))) for p, r in starts.items()
    }
    return replace(topic, ranges=ranges, chunk=0, offsets_left=None)


def join_plans(plans: Sequence[Plan]) -> Plan:
    """Return the plan of one run with the offsets of all runs of a pass: it has the number of the last."""
    first, last = plans[0], plans[-1]

    def join_ranges(name: str, topic: TopicPlan) -> TopicPlan:
        starts = first.topics[name].ranges
        return replace(topic, ranges={p: OffsetRange(starts[p].start, r.end) for p, r in topic.ranges.items()})

    return replace(last, topics={name: join_ranges(name, topic) for name, topic in last.topics.items()})


def cut_pass(plans: Sequence[Plan], count: int) -> list[Plan]:
    """Return the plans of a pass of the first of these runs."""
    return [replace(plan, pass_numbers=(plans[0].run, plans[count - 1].run)) for plan in plans[:count]]


def refuse_other_contract(contract: BoundContract, begun: Run) -> None:
    """Raise RunError if a pass that was begun cannot be finished by this contract, or this version of Hindcast."""
    plan, abandon = begun.plan, describe_abandoning(contract.pipeline)
    fix = f"put it back and repeat the hindcast rehearse; or {abandon}"
    where = f"{contract.pipeline}, run {begun.number} ({begun.run_id})"
    if plan.contract != contract.hash:
        raise RunError("the contract was changed while the rehearsal was under way", where=where, fix=fix)
    if not planner.is_of_this_version(plan):
        found = f"the run was begun by Hindcast {plan.version}, and this is {__version__}"
        raise RunError(found, where=where, fix=f"finish it with {plan.version}; or {abandon}")


def describe_abandoning(pipeline: str) -> str:
    """Return the command that abandons a pass, with what that costs."""
    return (
        f"hindcast abandon {pipeline}, after which what the runs have read is known only after the last of their dates"
    )


def is_in_order(contract: BoundContract, past: Sequence[Run], rehearsed: RehearsedOffsets) -> bool:
    """Return whether nothing is known at the end of an interval yet, so that its run can be known then."""
    kept = (close.known_at for close in closes.list_kept(contract.warehouse, contract.pipeline))
    last = max([*(run.known_at for run in past), *kept], default=None)
    return last is None or last < rehearsed.interval.until


def count_dates(plans: Sequence[Plan], most: int) -> int:
    """Return of how many runs the records, up to so many offsets, are read together; one at least."""
    counted = 0
    for done, plan in enumerate(plans):
        counted += sum(n for topic in plan.topics.values() for n in topic.planned_counts.values())
        if counted > most and done:
            return done
    return len(plans)
