"""What earlier runs have taken of a topic: the offsets after which the next run goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from hindcast.contract.bound import BoundContract
from hindcast.plan import definitions
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Replay
from hindcast.plan.runs import Run
from hindcast.store import tables
from hindcast.store.tables import read_last_run


class TakenOffsets(NamedTuple):
    """What was `taken` of a topic before a run: a plan cut to what its run ingested. `run`: the one that planned it."""

    run: int
    taken: TopicPlan


def find_taken(contract: BoundContract, name: str, past: list[Run]) -> TakenOffsets | None:
    """Return what was taken of a topic, with the number of the last commit to its log as `after`; None before any plan.

    A later plan of which nothing was ingested counts too: its partitions, members and start offsets show what Kafka
    lost since. After a commit it does not if `from` was another; before any commit its start offsets do not count then.
    """
    since, log = contract.topics[name].since, tables.log_table(contract.warehouse, contract.pipeline, name)
    last, moved = read_last_run(log), None
    for plan in (run.plan for run in reversed(past) if name in run.plan.topics):
        topic_plan = plan.topics[name]
        if plan.first_number <= last <= plan.run:
            taken = topic_plan.cut_after_chunks(last - plan.run + len(topic_plan.chunks))
            return TakenOffsets(plan.run, replace(taken, after=last))
        # Of a pass that has ingested nothing of a topic, the first run says where that goes on.
        is_later_date = plan.pass_numbers is not None and plan.run > plan.pass_numbers[0]
        if plan.run > last and not is_later_date and _has_planned_topic(contract, name, plan, past):
            state = TakenOffsets(plan.run, replace(topic_plan.cut_all(), after=last))
            if topic_plan.since == since:
                return state
            moved = moved or state
    return TakenOffsets(moved.run, replace(moved.taken, start_offsets={})) if moved and not last else None


def _has_planned_topic(contract: BoundContract, name: str, plan: Plan, past: list[Run]) -> bool:
    """Return whether a run was to ingest what there was of a topic in Kafka, of the same one as the contract's.

    A rebuilt plan knows only what the log has. Where the text of its contract is not stored, it was the same topic.
    """
    if not plan.contract or not isinstance(plan.purpose, Replay) or plan.only not in (None, name):
        return False
    planned = contract if plan.contract == contract.hash else definitions.find_contract(past, plan.contract)
    return planned is None or (name in planned.topics and planned.kafka_topic(name) == contract.kafka_topic(name))
