"""What a plan takes over from the plans before it: of a topic of which nothing is in the log, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from hindcast.common.errors import TopicError
from hindcast.common.settings import read_settings
from hindcast.contract import Contract
from hindcast.contract.bound import BoundContract, bind_contract
from hindcast.kafka.given_topics import GivenRecord, GivenTopics
from hindcast.kafka.topics import OffsetRange
from hindcast.plan import definitions, planner, taken_offsets
from hindcast.plan.plans import Plan, TopicPlan
from hindcast.plan.purposes import Erasure, Requeue
from hindcast.plan.runs import Run
from pipelines import at

MENU = """
pipeline: plans
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
"""
RECORD = MENU + "    on_gap: record\n"
FROM, LATER = (MENU + f"    from: 2026-01-01T00:00:{second}\n" for second in ("02", "05"))


class LosingTopics(GivenTopics):
    """Topics with a record each second, of which Kafka has `lost` the first ones."""

    lost, number = 0, 1

    def add(self, topic: str, count: int) -> None:
        first = super().read_offset_ranges(topic)[0].end
        self.append_records(topic, [GivenRecord(0, at(first + n), b"curry", b"{}") for n in range(count)])

    def topic_id(self, topic: str) -> str:
        return f"{topic} {self.number}"

    def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]:
        return {p: OffsetRange(self.lost, r.end) for p, r in super().read_offset_ranges(topic).items()}

    def find_offsets_for_time(self, topic: str, moment: datetime, latest: datetime) -> dict[int, int | None]:
        found = super().find_offsets_for_time(topic, moment, latest)
        return {p: None if hit is None else max(hit, self.lost) for p, hit in found.items()}


class History:
    """Runs that only planned: `after` is the last one that committed to the log of the menu."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.warehouse, self.past, self.after = str(folder), list[Run](), 0
        self.topics = LosingTopics(["menu", "dishes"], 1)
        for module in (planner, taken_offsets):
            monkeypatch.setattr(module, "read_last_run", lambda _: self.after)

    def bind(self, text: str) -> BoundContract:
        written = Contract.model_validate(yaml.safe_load(text))
        return bind_contract(written, replace(read_settings(), warehouse=self.warehouse, kafka="nobody"))

    def plan(self, text: str, until: float | None = None) -> TopicPlan:
        contract, end = self.bind(text), None if until is None else at(until)
        plan = planner.propose_plan(contract, "some", end, self.past, given=self.topics)
        self.past.append(Run(replace(plan, definition=definitions.list_unstored_fields(self.past, contract))))
        return plan.topics["menu"]


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    return History(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("planned", "records", "until", "text"),
    [
        (MENU, 0, None, MENU),  # there was nothing
        (FROM, 0, None, FROM),
        (MENU, 6, 0, MENU),  # it was left to later runs
        (MENU, 6, None, MENU),  # the run failed
        (MENU, 6, None, FROM),  # what is lost may be dated so late
        (FROM, 6, None, MENU),
    ],
)
def test_what_kafka_loses_before_anything_is_ingested_is_a_gap(
    history: History, planned: str, records: int, until: float | None, text: str
) -> None:
    history.topics.add("menu", records)
    first = history.plan(planned, until).start_offsets.get(0, 0)
    history.topics.add("menu", 6 - records)
    history.topics.lost = 4
    for _ in range(2):
        with pytest.raises(TopicError, match=f"offsets {first} to 3 are gone"):
            history.plan(text)
    assert history.plan(text + "    on_gap: record\n").ranges == {0: OffsetRange(first, 6)}


def test_a_from_that_moves_before_anything_is_ingested_is_looked_for_again(history: History) -> None:
    history.topics.add("menu", 6)
    assert history.plan(FROM).start_offsets == {0: 2}
    assert history.plan(LATER).ranges == {0: OffsetRange(5, 6)}
    assert history.plan(MENU).ranges == {0: OffsetRange(0, 6)}
    history.topics.lost = 1
    assert history.plan(LATER).ranges == {0: OffsetRange(5, 6)}
    with pytest.raises(TopicError, match="offsets 0 to 0 are gone"):
        history.plan(MENU)


def test_a_from_that_moved_back_counts_before_what_it_brings_is_ingested(history: History) -> None:
    history.topics.add("menu", 7)
    history.plan(LATER)
    history.after = 1
    history.topics.add("menu", 2)
    assert history.plan(FROM).parts == [{0: OffsetRange(2, 5)}, {0: OffsetRange(7, 9)}]
    history.topics.lost = 4
    assert history.plan(LATER).parts == [{0: OffsetRange(7, 9)}]
    with pytest.raises(TopicError, match="offsets 2 to 3 are gone"):
        history.plan(FROM)


def test_a_topic_made_anew_is_refused_and_begins_anew_only_if_gaps_are_recorded_and_nothing_is_ingested(
    history: History,
) -> None:
    history.topics.add("menu", 3)
    history.plan(MENU)
    history.topics.number = 2
    with pytest.raises(TopicError, match="was deleted and recreated since run 1") as refused:
        history.plan(MENU)
    assert refused.value.fix.startswith("if what the former topic had may go, write on_gap: record; or")
    anew = history.plan(RECORD)
    assert (anew.topic_id, anew.ranges, anew.epoch) == ("menu 2", {0: OffsetRange(0, 3)}, 0)
    history.after, history.topics.number = 2, 3
    with pytest.raises(TopicError, match="was deleted and recreated since run 2") as refused:
        history.plan(RECORD)
    assert refused.value.fix.startswith("replay the new topic into a new pipeline")


def test_another_topic_than_the_one_that_was_read_is_not_called_recreated(history: History) -> None:
    history.topics.add("menu", 3)
    history.topics.add("dishes", 3)
    history.plan(MENU)
    history.after = 1
    with pytest.raises(TopicError, match="run 1 read menu, and the contract names another topic") as refused:
        history.plan(MENU.replace("read: table", "topic: dishes\n    read: table"))
    assert refused.value.where == "topic dishes"
    assert refused.value.fix.startswith("name menu again, or give the pipeline another name")


@pytest.mark.parametrize("change", [{"contract": ""}, {"purpose": Requeue(("menu",))}])
def test_plans_that_say_nothing_of_kafka_and_of_other_topics_do_not_count(
    history: History, change: Mapping[str, object]
) -> None:
    history.topics.add("dishes", 2)
    history.plan(MENU)
    other = history.plan(MENU + "    topic: dishes\n")
    assert (other.topic_id, other.ranges) == ("dishes 1", {0: OffsetRange(0, 2)})
    history.topics.add("menu", 6)
    history.topics.lost = 1
    with pytest.raises(TopicError, match="offsets 0 to 0 are gone"):
        history.plan(MENU)
    history.past = [replace(run, plan=replace(run.plan, **change)) for run in history.past]  # type: ignore[arg-type]
    assert history.plan(MENU).ranges == {0: OffsetRange(1, 6)}


def test_a_plan_whose_contract_is_not_stored_is_of_the_same_topic(history: History) -> None:
    history.plan(MENU)
    history.past = [replace(run, plan=replace(run.plan, definition={})) for run in history.past]
    history.topics.add("menu", 6)
    history.topics.lost = 4
    with pytest.raises(TopicError, match="offsets 0 to 3 are gone"):
        history.plan(MENU.replace("int", "long"))


@pytest.mark.parametrize("after", [0, 1])
def test_a_run_that_ingests_nothing_is_planned_whatever_became_of_a_topic(history: History, after: int) -> None:
    history.topics.add("menu", 6)
    before = history.plan(MENU)
    history.after = after

    def propose(text: str, given: LosingTopics | None = None) -> Plan:
        erasure = Erasure("menu", "digest")
        return planner.propose_plan(history.bind(text), "forget", None, history.past, instead=erasure, given=given)

    plan = propose(MENU)  # no broker answers
    end = 6 if after else 0
    nothing = replace(before, after=after, ranges={0: OffsetRange(end, end)}, valid_time=None)
    assert (plan.topics, plan.run, plan.purpose) == ({"menu": nothing}, 2, Erasure("menu", "digest"))
    wider = propose(MENU + MENU.partition("topics:\n")[2].replace("menu", "dishes"), history.topics)
    assert wider.topics["menu"] == nothing
    assert wider.topics["dishes"].ranges == {0: OffsetRange(0, 0)}  # no run has planned it
    if after:
        with pytest.raises(TopicError, match="its log was replayed from one topic, the contract says a pattern"):
            propose(MENU + "    pattern: men.*\n")
