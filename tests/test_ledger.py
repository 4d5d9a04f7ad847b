"""The ledger and the journal: views of the logs and tables, that can be made again from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql.types import LongType, StructField, StructType

from hindcast.cli import main
from hindcast.common.errors import BusyError, TableError
from hindcast.common.settings import read_settings
from hindcast.ingest import ledger
from hindcast.ops import journal_rebuild
from hindcast.plan import committed_runs, journal
from hindcast.plan.runs import Run
from hindcast.quality import held_changes
from hindcast.report import report
from hindcast.runs import run_steps
from hindcast.store import table_creation
from hindcast.store.tables import Table
from pipelines import RESTAURANT, Pipeline, pipeline, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEDGER = [  # run, state, topic, partition, first, last, accepted
    (1, "completed", "menu", 0, 0, 2, 3),
    (1, "completed", "orders", 0, 0, 3, 4),
    (2, "completed", "menu", 0, 3, 3, 1),
    (3, "completed", None, None, None, None, None),
]


@pytest.fixture
def copy(restaurant: Pipeline, tmp_path: Path) -> Pipeline:
    """The restaurant after three runs, its own to break."""
    made = Pipeline(None, restaurant.servers, tmp_path, RESTAURANT)
    made.prefix = restaurant.prefix
    made.write(RESTAURANT)
    shutil.copytree(restaurant.warehouse, made.warehouse)
    return made


def told(p: Pipeline) -> list[tuple[Any, ...]]:
    columns = ("run", "state", "topic", "partition", "first", "last", "accepted")
    return [tuple(row[c] for c in columns) for row in ledger.read_ledger(p.warehouse, p.name).to_pylist()]


def test_the_ledger_has_every_run_with_its_offsets_and_fates(restaurant: Pipeline) -> None:
    assert told(restaurant) == LEDGER


def test_the_command_prints_it(copy: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    with copy.here():
        assert main.main(["ledger"]) == 0
        text = capsys.readouterr().out
        assert text.splitlines()[0].split()[-4:] == ["partition", "first", "last", "accepted"]
        (copy.folder / "schemas" / "broken.yaml").write_text("pipeline: [", encoding="utf-8")
        assert main.main(["ledger"]) == 0
        told = capsys.readouterr()
        assert (told.out, "broken.yaml" in told.err) == (text, True)
        assert main.main(["ledger", copy.name, "--format", "json"]) == 0
        assert [row["gone"] for row in json.loads(capsys.readouterr().out)] == [0, 0, 0, None]
        assert main.main(["ledger", copy.name, "--rebuild"]) == 0
        assert "agrees with the logs; nothing was written" in capsys.readouterr().out


def test_a_journal_that_agrees_is_left_as_it_is(copy: Pipeline) -> None:
    before = journal.read_runs(copy.warehouse, copy.name)
    assert journal_rebuild.rebuild_journal(copy.warehouse, copy.contract) == []
    assert journal.read_runs(copy.warehouse, copy.name) == before


def test_a_lost_journal_is_made_again_and_runs_go_on_after_it(copy: Pipeline) -> None:
    before = {run.number: run for run in journal.read_runs(copy.warehouse, copy.name)}
    shutil.rmtree(Path(copy.warehouse) / copy.name / "runs")
    assert journal_rebuild.rebuild_journal(copy.warehouse, copy.contract) == [1, 2]
    after = {run.number: run for run in journal.read_runs(copy.warehouse, copy.name)}
    assert [(run.run_id, run.known_at) for run in after.values()] == [
        (before[n].run_id, before[n].known_at) for n in (1, 2)
    ]
    assert copy.states() == [(1, "completed"), (2, "abandoned")], "what the last one left is the next one's"
    for number in (1, 2):
        now, then = (of[number].plan.topics for of in (after, before))
        assert now["menu"] == then["menu"]
        assert now["orders"].ranges == then["orders"].ranges
    with copy.here():
        assert run_steps.plan_run(read_settings(), copy.name, "next") == 3
    [_, _, planned] = journal.read_runs(copy.warehouse, copy.name)
    assert planned.known_at > before[2].known_at
    assert [share.ranges[0] for share in planned.plan.topics.values()] == [(4, 4), (4, 4)]


def test_a_journal_that_disagrees_with_the_logs_is_put_right(copy: Pipeline) -> None:
    shutil.rmtree(Path(copy.warehouse) / copy.name / "logs" / "orders")
    assert journal_rebuild.rebuild_journal(copy.warehouse, copy.contract) == [1]
    plan = journal.read_runs(copy.warehouse, copy.name)[0].plan
    assert list(plan.topics) == ["menu"]


def test_without_logs_the_tables_tell_of_their_last_runs(copy: Pipeline) -> None:
    before = {run.number: run.known_at for run in journal.read_runs(copy.warehouse, copy.name)}
    for lost in ("runs", "logs"):
        shutil.rmtree(Path(copy.warehouse) / copy.name / lost)
    assert journal_rebuild.rebuild_journal(copy.warehouse, copy.contract) == [1, 2], (
        "orders was published last by run 1, menu by run 2"
    )
    after = {run.number: run.known_at for run in journal.read_runs(copy.warehouse, copy.name)}
    assert after == {n: before[n] for n in (1, 2)}, "to the microsecond, which statistics do not have"


def test_a_rebuilding_gives_no_number_away_before_it_has_ended(copy: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    place = journal.runs_table(copy.warehouse, copy.name).path
    DeltaTable(place).delete("entry = 'planned'")
    before = DeltaTable(place).version()
    with monkeypatch.context() as patch:
        patch.setattr(report, "build_report", kill)
        with pytest.raises(KilledError):
            journal_rebuild.rebuild_journal(copy.warehouse, copy.contract)
    with copy.here(), pytest.raises(TableError, match="the journal lacks a valid plan of run 1, 2, 3"):
        run_steps.plan_run(read_settings(), copy.name, "next")
    assert journal_rebuild.rebuild_journal(copy.warehouse, copy.contract) == [1, 2]
    assert DeltaTable(place).version() == before + 1
    assert copy.states() == [(1, "completed"), (2, "abandoned")]


def test_a_rebuilding_replaces_no_entry_of_a_run_that_was_planned_meanwhile(
    copy: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, read_ranges = journal.runs_table(copy.warehouse, copy.name).path, journal_rebuild.ledger.read_ingested_ranges
    complete = journal.read_runs(copy.warehouse, copy.name)
    DeltaTable(place).delete("run > 1")

    def plan(*arguments: Any) -> Any:
        monkeypatch.setattr(journal_rebuild.ledger, "read_ingested_ranges", read_ranges)
        journal.append_entry(copy.warehouse, Run(complete[1].plan))
        journal.append_entry(copy.warehouse, complete[1])
        return read_ranges(*arguments)

    monkeypatch.setattr(journal_rebuild.ledger, "read_ingested_ranges", plan)
    with pytest.raises(BusyError, match="run 2 was planned or ended while the journal was rebuilt") as refused:
        journal_rebuild.rebuild_journal(copy.warehouse, copy.contract)
    assert refused.value.fix == f"repeat it: hindcast ledger {copy.name} --rebuild"
    assert journal_rebuild.rebuild_journal(copy.warehouse, copy.contract) == []
    assert copy.states() == [(1, "completed"), (2, "completed")]


class KilledError(BaseException):
    """Stands for the death of the process: nothing of ours handles it."""


def kill(*_: object) -> None:
    raise KilledError


@pytest.mark.parametrize("lost", ["runs", "last", "logs", "rows"])
def test_no_run_takes_a_number_that_a_table_or_log_has(copy: Pipeline, lost: str) -> None:
    folder = Path(copy.warehouse) / copy.name
    if lost in ("runs", "rows"):
        shutil.rmtree(folder / "runs")
    else:
        DeltaTable(str(folder / "runs")).delete("run > 1")
    if lost in ("logs", "rows"):
        shutil.rmtree(folder / "logs")
    if lost == "rows":  # so that nothing tells when a run was known
        for table in ("menu", "orders", "bills"):
            DeltaTable(str(folder / table)).delete()
    with copy.here():
        with pytest.raises(TableError, match=r"run 2 committed to .*, but the last run of the journal is") as refused:
            run_steps.plan_run(read_settings(), copy.name, "next")
        assert refused.value.fix == f"hindcast ledger {copy.name} --rebuild"
        assert main.main(["ledger", copy.name, "--rebuild"]) == 0
        assert run_steps.plan_run(read_settings(), copy.name, "next") == 3


@pytest.mark.parametrize("name", ["fates/menu", "base/menu", "emitted/bills"])
def test_also_of_a_run_that_committed_to_nothing_else_no_run_takes_the_number(copy: Pipeline, name: str) -> None:
    copy.write(RESTAURANT.replace("    join:", "    semantics: kafka\n    join:"))
    table = Table(copy.warehouse, copy.name, name, "emitted" if name.startswith("emitted") else "log")
    made = table_creation.ensure_table(table, StructType([StructField("run", LongType())]))
    ids = CommitProperties(app_transactions=[Transaction(table.app_id(), 4)])
    write_deltalake(made, pa.table({"run": pa.array([], pa.int64())}), mode="append", commit_properties=ids)
    assert committed_runs.find_last_commit(copy.contract) == (4, table.path)


def test_two_pipelines_share_a_topic(broker: str, tmp_path: Path) -> None:
    """Each has a log, a journal and offsets of its own; what one replays the other still has to."""
    with pipeline(None, broker, tmp_path / "one") as one:
        one.send("menu", ("curry", {"price": 8}, 0))
        run_steps.plan_run(read_settings(), one.name, "first")
        two = Pipeline(None, broker, tmp_path / "one", RESTAURANT.replace("pipeline: restaurant", "pipeline: second"))
        two.prefix = one.prefix
        two.write(RESTAURANT.replace("pipeline: restaurant", "pipeline: second"))
        assert run_steps.plan_run(read_settings(), two.name, "first") == 1
        shares = [journal.read_active_run(p.warehouse, p.name, 1).plan.topics["menu"] for p in (one, two)]
        assert shares[0] == shares[1]
        assert one.states() == two.states() == [(1, "planned")]


HELD = """
pipeline: shop
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: int}
views:
  dear:
    table: menu
    select: {cost: price + 0}
    expect:
      - expect_column_values_to_be_between: {column: cost, max_value: 50}
        on_failure: quarantine
"""


def test_a_rebuilt_journal_gives_no_run_the_number_of_one_that_only_held_changes(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, HELD) as p:
        p.send("menu", ("tea", {"price": 2}, 1), ("rice", {"price": 3}, 1))
        p.run()
        p.write(HELD.replace("price + 0", "price + 100"))
        p.run()
        shutil.rmtree(Path(p.warehouse, p.name, "runs"))
        assert main.main(["ledger", p.name, "--rebuild"]) == 0
        p.send("menu", ("naan", {"price": 99}, 2))
        p.run()
        held = held_changes.read_held_rows(p.warehouse, p.name, 10**6).to_pylist()
        assert {row["key"] for row in held} == {f'{{"item":"{item}"}}' for item in ("tea", "rice", "naan")}
        assert [number for number, _ in p.states()] == [1, 2, 3]
        assert wrong(p) == []
