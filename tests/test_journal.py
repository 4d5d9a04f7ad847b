"""The journal of runs: its order does not depend on clocks, and it takes no entry that contradicts another."""

from __future__ import annotations

import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from pyspark.sql.types import StructType

from bare_runs import bare_run
from hindcast.cli import main
from hindcast.common import clock
from hindcast.common.errors import BusyError, RunError, TableError
from hindcast.common.settings import read_settings
from hindcast.contract import Contract
from hindcast.contract.bound import bind_contract
from hindcast.kafka.given_topics import GivenTopics
from hindcast.kafka.topics import OffsetRange
from hindcast.ops import doctor
from hindcast.ops.verify.verify import verify_tables
from hindcast.plan import journal, planner
from hindcast.plan.entries import RANKS
from hindcast.plan.plans import Plan
from hindcast.plan.runs import Abandoned, Planned, Run, Stopped, parse_outcome
from hindcast.quality import approval, failing_rows, gate_results, held_changes
from hindcast.quality.gate_results import GateResult
from hindcast.runs import run_steps, special_runs
from hindcast.store import table_creation, tables
from pipelines import T0, Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from hindcast.plan.plans import Plan

HOUR = timedelta(hours=1)


def run_of(number: int, state: str, numbers: int = 1, **detail: str) -> Run:
    run = bare_run("shop", number, T0 + number * HOUR, run_id=f"run {number}", numbers=numbers)
    return replace(run, outcome=parse_outcome(state, detail, None)) if state != "planned" else run


@pytest.mark.parametrize("seed", range(6))
def test_clocks_do_not_order_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Random entries, each on a random clock, beside a model: what it allows is read back in order, nothing else is."""
    dice, warehouse = random.Random(seed), str(tmp_path)  # noqa: S311  # no secret
    model: dict[int, list[str]] = {}
    monkeypatch.setattr(clock, "now", lambda: T0 + timedelta(seconds=dice.randrange(-(10**9), 10**9)))
    for step in range(14):
        last, state = max(model, default=0), dice.choice(list(RANKS))
        number = last + dice.randint(0, 2) if state == "planned" else dice.randint(max(last - 1, 1), last + 1)
        entry = run_of(number, state, numbers=dice.randint(1, max(number - last, 1)), found=f"step {step}")
        open_ = [run for run, states in model.items() if states[-1] in ("planned", "stopped")]
        allowed = not open_ and number > last if state == "planned" else number in open_
        if allowed:
            journal.append_entry(warehouse, entry)
            model.setdefault(number, []).append(state)
        else:
            with pytest.raises(RunError):
                journal.append_entry(warehouse, entry)
        told = journal.read_runs(warehouse, "shop")
        assert [(run.number, run.state) for run in told] == [(run, model[run][-1]) for run in sorted(model)]
        assert all(run.plan.pipeline == "shop" for run in told)
        if allowed and state == "stopped":
            assert told[-1].stop_error == f"step {step}", "of several stops the last one is shown"
    found = tables.open_table(journal.runs_table(warehouse, "shop"))
    assert found is not None
    assert sorted(found.to_pyarrow_table()["sequence"].to_pylist()) == list(range(1, sum(map(len, model.values())) + 1))
    assert journal.find_damage(warehouse, "shop") == []


def test_writers_at_the_same_moment_get_different_sequence_numbers(tmp_path: Path) -> None:
    """Eight of them stop one run at once: each entry is there, once, under a number of its own."""
    warehouse = str(tmp_path)
    journal.append_entry(warehouse, run_of(1, "planned"))
    barrier = threading.Barrier(8)

    def stop() -> None:
        barrier.wait()
        journal.append_entry(warehouse, run_of(1, "stopped"))

    in_parallel(*[stop] * 8)
    found = tables.open_table(journal.runs_table(warehouse, "shop"))
    assert found is not None
    assert sorted(found.to_pyarrow_table()["sequence"].to_pylist()) == list(range(1, 10))


def test_of_writers_that_plan_at_the_same_moment_one_wins(tmp_path: Path) -> None:
    """Also where they take different numbers, because one brings more chunks than another."""
    warehouse, refused = str(tmp_path), []
    journal.runs_table(warehouse, "shop")
    barrier = threading.Barrier(4)

    def plan(number: int) -> None:
        barrier.wait()
        try:
            journal.append_entry(warehouse, run_of(number, "planned", numbers=number))
        except BusyError as error:
            refused.append(str(error))

    in_parallel(*(lambda number=number: plan(number) for number in (1, 2, 3, 4)))
    assert len(journal.read_runs(warehouse, "shop")) == 1
    assert len(refused) == 3


def in_parallel(*functions: Callable[[], None]) -> None:
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_no_entry_follows_an_end(tmp_path: Path) -> None:
    warehouse = str(tmp_path)
    with pytest.raises(RunError, match="run 1 is not planned"):
        journal.append_entry(warehouse, run_of(1, "completed"))
    for number, end in ((1, "completed"), (2, "abandoned")):
        journal.append_entry(warehouse, run_of(number, "planned"))
        journal.append_entry(warehouse, run_of(number, end))
        for state in ("stopped", "completed", "abandoned"):
            with pytest.raises(RunError, match=f"run {number} is {end}"):
                journal.append_entry(warehouse, run_of(number, state))
    journal.append_entry(warehouse, run_of(3, "planned"))
    with pytest.raises(BusyError, match="run 3 has not ended"):
        journal.append_entry(warehouse, run_of(4, "planned"))


OLD = StructType(journal.SCHEMA.fields[:-1])
"""The columns of a journal before its entries had sequence numbers."""


def write_old(warehouse: str, pipeline: str, *entries: tuple[Run, datetime]) -> None:
    """Writes a journal as versions without sequence numbers did: in any order, each entry with its clock."""
    place = journal.runs_table(warehouse, pipeline)
    rows = [
        {"run": it.number, "entry": it.state, "at": at, "runId": it.run_id, "knownAt": it.known_at}
        | {"detail": json.dumps(it.detail)}
        for it, at in entries
    ]
    if tables.open_table(place) is None:
        schema = Schema.from_json(OLD.json())
        named = {"name": f"{pipeline}.runs", "description": place.description}
        DeltaTable.create(place.path, schema=schema, **named)
    types = [field for field in journal._ARROW if field.name != "sequence"]
    write_deltalake(place.path, pa.Table.from_pylist(rows, schema=pa.schema(types)), mode="append")


def test_an_old_journal_is_read_by_the_rank_of_states(tmp_path: Path) -> None:
    """Run 1 was completed on a clock half an hour behind: its report is no plan."""
    warehouse = str(tmp_path)
    stops = [(run_of(2, "stopped", found="first"), T0 + 5 * HOUR), (run_of(2, "stopped", found="last"), T0 + 6 * HOUR)]
    write_old(
        warehouse,
        "shop",
        (run_of(1, "completed", some="report"), T0 - HOUR / 2),
        (run_of(1, "planned"), T0),
        *stops,
        (run_of(2, "planned"), T0 + 7 * HOUR),
    )
    first, second = journal.read_runs(warehouse, "shop")
    assert (first.state, first.plan.pipeline, first.detail) == ("completed", "shop", {"some": "report"})
    assert (second.state, second.stop_error) == ("stopped", "last")
    journal.append_entry(warehouse, run_of(2, "completed"))
    assert [run.state for run in journal.read_runs(warehouse, "shop")] == ["completed"] * 2


@pytest.fixture
def damaged(restaurant: Pipeline, tmp_path: Path) -> Iterator[Pipeline]:
    """Three runs as an old version left them: one was dated wrongly, one is given up as well, one completed twice."""
    copy = Pipeline(None, restaurant.servers, tmp_path, restaurant.path.read_text(encoding="utf-8"))
    shutil.copytree(restaurant.warehouse, copy.warehouse)
    whole = entries_of(copy)
    shutil.rmtree(Path(copy.warehouse) / copy.name / "runs")
    wrong = [(entry, at - HOUR if (entry.number, entry.state) == (1, "completed") else at) for entry, at in whole]
    _, second, third = (run for run, _ in whole if run.state == "completed")
    later = clock.now() + HOUR
    wrong += [(replace(second, outcome=Abandoned("by hand")), later), (third, later)]
    write_old(copy.warehouse, copy.name, *wrong)
    with copy.here():
        yield copy


def entries_of(p: Pipeline) -> list[tuple[Run, datetime]]:
    found = tables.open_table(journal.runs_table(p.warehouse, p.name))
    assert found is not None
    rows = found.to_pyarrow_table().sort_by("sequence").to_pylist()
    plans = {row["run"]: Plan.from_json(json.loads(row["detail"])) for row in rows if row["entry"] == "planned"}
    outcomes = [parse_outcome(row["entry"], json.loads(row["detail"]), None) for row in rows]
    return [
        (Run(plans[row["run"]], Planned() if row["entry"] == "planned" else outcome), row["at"])
        for row, outcome in zip(rows, outcomes, strict=True)
    ]


def test_a_damaged_journal_is_found_and_put_in_order(
    damaged: Pipeline, restaurant: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    before = journal.read_runs(restaurant.warehouse, restaurant.name)
    assert journal.read_runs(damaged.warehouse, damaged.name) == before, "also before it is repaired"
    told = verify_tables(damaged.contract)
    assert {(it.check, it.table, it.fix) for it in told.findings} == {
        ("journal", "runs", f"hindcast ledger {damaged.name} --rebuild")
    }
    assert [it.found.partition(":")[0] for it in told.findings] == [
        "run 1 was entered as completed, then planned",
        "run 2 was entered as planned, then completed, then abandoned",
        "run 3 was entered as planned, then completed, then completed",
    ]
    (line,) = doctor._check_journals(doctor.settings.read_settings())
    assert (line.state, line.fix) == ("failed", told.findings[0].fix)
    assert "run 3 was entered as planned, then completed, then completed" in line.found
    assert main.main(["ledger", damaged.name, "--rebuild"]) == 0
    assert capsys.readouterr().out.endswith("rewrote run 1, 2, 3\n")
    assert journal.read_runs(damaged.warehouse, damaged.name) == before
    assert verify_tables(damaged.contract).findings == []
    assert [line.state for line in doctor._check_journals(doctor.settings.read_settings())] == ["ok"]
    assert main.main(["ledger", damaged.name, "--rebuild"]) == 0
    assert "nothing was written" in capsys.readouterr().out


def test_a_run_without_its_plan_is_told_and_made_again(damaged: Pipeline) -> None:
    DeltaTable(journal.runs_table(damaged.warehouse, damaged.name).path).delete("run = 2 AND entry = 'planned'")
    with pytest.raises(TableError, match="the journal lacks a valid plan of run 2") as refused:
        journal.read_runs(damaged.warehouse, damaged.name)
    told = verify_tables(damaged.contract)
    assert told.not_checked == ["everything else, until the journal of runs can be read"]
    assert refused.value.fix == told.findings[0].fix == f"hindcast ledger {damaged.name} --rebuild"
    assert main.main(["ledger", damaged.name, "--rebuild"]) == 0
    assert [run.state for run in journal.read_runs(damaged.warehouse, damaged.name)] == ["completed"] * 3
    assert verify_tables(damaged.contract).findings == []


def test_a_known_at_far_ahead_of_the_clock_needs_consent_once(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give_up(number: int) -> None:
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, number), "by a test")

    with pipeline(None, broker, tmp_path) as p:
        now, moment = clock.now(), datetime(2099, 1, 1, tzinfo=UTC)
        monkeypatch.setattr(clock, "now", lambda: moment)
        run_steps.plan_run(read_settings(), p.name, "first")
        give_up(1)
        monkeypatch.setattr(clock, "now", lambda: now)
        with pytest.raises(RunError, match=r"run 1 \(first\) is known at 2099-01-01T00:00:00\+00:00") as refused:
            run_steps.plan_run(read_settings(), p.name, "second")
        assert f"hindcast run {p.name} --ahead-of-clock" in refused.value.fix
        assert p.states() == [(1, "abandoned")], "nothing was written"
        assert run_steps.plan_run(read_settings(), p.name, "second", ahead=True) == 2
        give_up(2)
        assert run_steps.plan_run(read_settings(), p.name, "third") == 3, "later runs need no consent of their own"
        known = [run.known_at - moment for run in journal.read_runs(p.warehouse, p.name)]
        assert known == [timedelta(microseconds=n) for n in range(3)]
        give_up(3)
        monkeypatch.setattr(clock, "now", lambda: moment + 24 * HOUR)
        run_steps.plan_run(read_settings(), p.name, "fourth")
        give_up(4)
        monkeypatch.setattr(clock, "now", lambda: now)
        with pytest.raises(RunError, match="run 4"):
            run_steps.plan_run(read_settings(), p.name, "fifth")


def test_a_gate_that_was_asked_again_tells_what_it_told_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for outcome, moment in (("failed", T0 + HOUR), ("passed", T0)):
        monkeypatch.setattr(clock, "now", lambda moment=moment: moment)
        told = GateResult(0, "expect_x", {}, "stop", outcome, 1, None, None, "")  # type: ignore[arg-type]  # one of them
        gate_results.append_results(str(tmp_path), "shop", 1, "sales", [told])
    assert [gate.outcome for gate in gate_results.read_results(str(tmp_path), "shop", 1)["sales"]] == ["passed"]


PRICED = """
pipeline: priced
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
    expect:
      - expect_column_values_to_be_between: {column: price, min_value: 0}
        on_failure: quarantine
"""


@pytest.mark.long
@pytest.mark.ci
def test_runs_and_releases_do_not_depend_on_clocks(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step has a clock of its own, up to 50 minutes from the others: workers whose clocks differ, a VM resumed."""
    dice, start = random.Random(28), clock.now()  # noqa: S311  # no secret
    monkeypatch.setattr(clock, "now", lambda: start + timedelta(minutes=dice.uniform(-25, 25)))
    with pipeline(spark, broker, tmp_path, PRICED) as p:
        p.send("menu", ("curry", {"price": 8}, 0), ("naan", {"price": 1}, 0))
        p.run()
        p.send("menu", ("curry", {"price": -8}, 1), ("naan", {"price": 2}, 1))
        monkeypatch.setattr(clock, "now", lambda: start + timedelta(minutes=50))
        p.run()
        assert p.believed("menu") == [("curry", 8, 0, None), ("naan", 1, 0, 1), ("naan", 2, 1, None)]
        monkeypatch.setattr(clock, "now", lambda: start + timedelta(minutes=dice.uniform(-5, 5)))
        seen = failing_rows.read_last_entry_time(p.warehouse, p.name)
        keys = approval.choose_keys(p.contract, seen, json.dumps(['menu {"item":"curry"}']))
        assert keys == {"menu": ['{"item":"curry"}']}, "though the clock that held it back was ahead"
        special_runs.run_release(spark, read_settings(), p.name, "approved", keys, "ann", seen)
        assert ("curry", -8, 1, None) in p.believed("menu")
        assert held_changes.read_held_rows(p.warehouse, p.name).num_rows == 0, (
            "though it was released on a clock behind"
        )
        known = [run.known_at for run in journal.read_runs(p.warehouse, p.name)]
        assert (known, p.states()) == (sorted(set(known)), [(1, "completed"), (2, "completed"), (3, "completed")])
        assert verify_tables(p.contract).findings == []


def test_of_two_that_give_up_a_stopped_run_at_once_the_second_is_told_to_wait(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(None, broker, tmp_path) as p:
        run_steps.plan_run(read_settings(), p.name, "first")
        first = journal.read_active_run(p.warehouse, p.name, 1)
        journal.append_entry(p.warehouse, replace(first, outcome=Stopped("menu", "by a test")))
        propose = planner.propose_plan

        def propose_late(*given: Any, **named: Any) -> Plan:
            """The other one gives the run up in the meantime."""
            monkeypatch.setattr(planner, "propose_plan", propose)
            run_steps.plan_run(read_settings(), p.name, "other")
            return propose(*given, **named)

        monkeypatch.setattr(planner, "propose_plan", propose_late)
        with pytest.raises(BusyError, match="another run was planned at the same moment: run 1 is abandoned"):
            run_steps.plan_run(read_settings(), p.name, "second")
        assert p.states() == [(1, "abandoned"), (2, "planned")]


def test_a_known_at_a_little_ahead_of_the_clock_needs_none(
    broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pipeline(None, broker, tmp_path) as p:
        now = clock.now()
        run_steps.plan_run(read_settings(), p.name, "first")
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, 1), "by a test")
        monkeypatch.setattr(clock, "now", lambda: now - HOUR / 2)
        run_steps.plan_run(read_settings(), p.name, "second")
        first, second = journal.read_runs(p.warehouse, p.name)
        assert second.known_at == first.known_at + timedelta(microseconds=1)


def test_a_run_is_known_after_all_that_was_answered_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks before the plan is entered gets an answer without the run, which may not change."""
    answered: list[datetime] = []

    class SlowTopics(GivenTopics):
        def read_offset_ranges(self, topic: str) -> dict[int, OffsetRange]:
            answered.append(clock.now())
            return super().read_offset_ranges(topic)

    commit = journal._commit_rows

    def commit_late(*given: Any) -> None:
        answered.append(clock.now())
        if len(answered) < 4:  # another writer comes first
            raise CommitFailedError
        commit(*given)
        moments.append(given[1][0]["knownAt"])

    moments: list[datetime] = []
    monkeypatch.setattr(journal, "_commit_rows", commit_late)
    written = Contract.model_validate(yaml.safe_load(PRICED))
    contract = bind_contract(written, replace(read_settings(), warehouse=str(tmp_path)))
    topics = SlowTopics([contract.kafka_topic("menu")], 1)
    plan = planner.ensure_plan(contract, "first", given=topics)
    assert len(answered) == 4
    assert answered[-2] < plan.known_at <= answered[-1]
    assert [plan] == [run.plan for run in journal.read_runs(contract.warehouse, contract.pipeline)]
    assert moments == [plan.known_at]


@pytest.mark.parametrize("detail", ["no JSON", "[]", "null", "{}", "[" * 100_000])
def test_an_entry_that_is_none_is_an_error_of_the_journal(tmp_path: Path, detail: str) -> None:
    table = journal.runs_table(str(tmp_path), "shop")
    entry = {"run": 1, "entry": "completed", "detail": detail, "at": datetime.now(UTC), "sequence": 1}
    planned = entry | {"entry": "planned", "sequence": 0}
    rows = pa.Table.from_pylist([planned, entry], table_creation.arrow_schema(journal.SCHEMA))
    write_deltalake(table_creation.ensure_table(table, journal.SCHEMA), rows, mode="append")
    with pytest.raises(TableError, match=r"the journal (has an entry that is none|lacks a valid plan)"):
        journal.read_runs(str(tmp_path), "shop")
