"""Tables of other pipelines as inputs: read as they were known when the run was planned."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bare_runs import bare_run
from hindcast.bitemporal.predicates import Question
from hindcast.common.errors import ContractError, QueryError, RunError, TableError
from hindcast.common.settings import read_settings
from hindcast.contract import load
from hindcast.contract.definition import list_fields
from hindcast.kafka import produce
from hindcast.ops.erase import forget, records
from hindcast.plan import inputs, journal, planner
from hindcast.plan.runs import Abandoned, Completed, Outcome
from hindcast.query import read
from hindcast.runs import incremental_state, preview, run_steps
from pipelines import RESTAURANT, Pipeline, derive_whole_up_to, pipeline
from warehouses import RUNS, shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIPS = """
pipeline: tips
start: 2026-01-01
topics:
  tips:
    read: stream
    key: {customer: string}
    value: {item: string, percent: int}
inputs:
  dishes: {table: restaurant.menu, key: {item: string}, value: {price: "decimal(8,2)"}}
views:
  tipped:
    stream: tips
    join: {table: dishes, on: item}
    select: {tip: price * percent / 100}
  dear:
    table: dishes
    where: price > 8
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "few", [pytest.param(10**9, id="whole", marks=pytest.mark.long), pytest.param(0, id="by increments")]
)
def test_an_input_is_read_as_it_was_known_when_the_run_was_planned(
    spark: SparkSession, broker: str, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive_whole_up_to(few, monkeypatch)
    menu = RESTAURANT.partition("  orders:")[0]
    with pipeline(spark, broker, tmp_path, menu) as other, pipeline(spark, broker, tmp_path, TIPS) as p:
        other.send("menu", ("curry", {"price": 8}, 0))
        p.send("tips", ("anna", {"item": "curry", "percent": 10}, 3))
        with pytest.raises(RunError, match="no completed run has published the table") as refused:
            p.run("first")
        assert refused.value.fix.startswith("hindcast run restaurant")
        other.run("first")
        run_steps.plan_run(read_settings(), p.name, "first")
        other.send("menu", ("curry", {"price": 9}, 2))  # learnt by the other pipeline after the plan: not in this run
        other.run("second")
        p.run("first")
        assert [row[1] for row in p.believed("tipped")] == [0.8]
        assert p.believed("dear") == []

        p.send("tips", ("bob", {"item": "curry", "percent": 20}, 4))
        p.run("second")  # brings a record, and what the other has learnt
        assert sorted(row[1] for row in p.believed("tipped")) == [0.9, 1.8]
        assert p.believed("dear") == [("curry", 9.0, 2, None)]
        pins = [run.plan.as_of_system_times["dishes"] for run in journal.read_runs(p.warehouse, p.name)]
        moments = [run.known_at for run in journal.read_runs(other.warehouse, other.name)]
        assert pins == [moments[0], moments[1]]
        before = p.versions()
        p.run("third")
        assert p.versions() == before


def run_both(other: Pipeline, p: Pipeline) -> None:
    """Two dishes, each with a tip for it, and a run of each pipeline."""
    other.send("menu", ("curry", {"price": 9}, 0), ("naan", {"price": 10}, 0))
    p.send("tips", ("anna", {"item": "curry", "percent": 10}, 3), ("bob", {"item": "naan", "percent": 10}, 3))
    other.run()
    p.run()


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_what_another_pipeline_has_forgotten_is_believed_no_more(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By increments too, though what was removed there is no change on the system axis."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    menu = RESTAURANT.partition("  orders:")[0]
    with pipeline(spark, broker, tmp_path, menu) as other, pipeline(spark, broker, tmp_path, TIPS) as p:
        run_both(other, p)
        forget.forget_records(spark, other.contract, records.parse_request(other.contract, "menu", "curry", ()))
        other.send("menu", ("naan", {"price": 11}, 2))
        other.run()
        p.run()
        assert p.believed("dear") == [("naan", 10.0, 0, 2), ("naan", 11.0, 2, None)]
        assert [row[:2] for row in p.believed("tipped")] == [("bob", 1.1)]


@pytest.mark.long
@pytest.mark.ci
def test_nobody_reads_a_table_while_what_a_forgetting_has_removed_is_not_derived_again(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    menu = RESTAURANT.partition("  orders:")[0] + "views: {dear: {table: menu, where: price > 8, semantics: kafka}}\n"
    reader = TIPS.replace("restaurant.menu", "restaurant.dear")
    with pipeline(spark, broker, tmp_path, menu) as other, pipeline(spark, broker, tmp_path, reader) as p:
        other.send("menu", ("curry", {"price": 9}, 0), ("naan", {"price": 10}, 0))
        other.run()
        p.run()
        assert len(p.believed("dear")) == 2
        p.send("tips", ("bob", {"item": "naan", "percent": 10}, 3))
        planned = run_steps.plan_run(read_settings(), p.name, "planned before")
        request = records.parse_request(other.contract, "menu", "curry")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run_steps, "execute_table_steps", lambda *_: 1 // 0)
            with pytest.raises(ZeroDivisionError):
                forget.forget_records(spark, other.contract, request)
        for known_at in (None, datetime.now(UTC)):
            with pytest.raises(QueryError, match=r"has not ended|has removed rows that it forgets"):
                read.query(other.warehouse, other.contract, "dear", Question(known_at=known_at))
        with pytest.raises(TableError, match="run 2 has forgotten something of it"):
            p.run("planned before")
        planner.abandon_run(p.warehouse, journal.read_active_run(p.warehouse, p.name, planned), "by a test")
        with pytest.raises(RunError, match="is gone: run 2 has forgotten something"):
            p.run()
        assert forget.forget_records(spark, other.contract, request).is_proven
        p.run()
        assert [row[0] for row in p.believed("dear")] == ["naan"]
        assert [row[:2] for row in p.believed("tipped")] == [("bob", 1.0)]


@pytest.mark.long
def test_a_table_of_another_pipeline_that_was_created_again(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only its former rows said is believed no more; nor does a run that was planned before take it for empty."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    menu = RESTAURANT.partition("  orders:")[0]
    with pipeline(spark, broker, tmp_path, menu) as other, pipeline(spark, broker, tmp_path, TIPS) as p:
        run_both(other, p)
        p.send("tips", ("candace", {"item": "curry", "percent": 20}, 4))
        run_steps.plan_run(read_settings(), p.name, "planned before")
        shutil.rmtree(Path(other.warehouse, other.name))
        other.write(menu.replace("read: table", f"read: table\n    topic: {other.kafka('menu2')}"))
        produce.create_topics(broker, other.kafka("menu2"))
        other.send("menu2", ("curry", {"price": 12}, 2))
        other.run()
        with pytest.raises(
            TableError, match=r"reads dishes \(restaurant.menu\) as known at .* has only rows known from"
        ) as refused:
            p.run("planned before")
        assert "hindcast abandon" in refused.value.fix
        open_run = journal.read_runs(p.warehouse, p.name)[-1]
        planner.abandon_run(p.warehouse, open_run, "its input is another one")
        p.run()
        assert p.believed("dear") == [("curry", 12.0, 2, None)]
        assert [row[:2] for row in p.believed("tipped")] == [("anna", 1.2), ("candace", 2.4)]


@pytest.mark.slow
def test_a_view_of_a_table_whose_folder_was_removed(
    spark: SparkSession, broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table that is created again has no trace of the row that the tombstone has ended."""
    monkeypatch.setattr(incremental_state, "MAX_WHOLE_ROWS", 0)
    menu = RESTAURANT.partition("  orders:")[0] + "views: {dear: {table: menu, where: price > 8}}\n"
    with pipeline(spark, broker, tmp_path, menu) as p:
        p.send("menu", ("curry", {"price": 9}, 0), ("naan", {"price": 9}, 0))
        p.run()
        shutil.rmtree(Path(p.warehouse, p.name, "menu"))
        p.send("menu", ("curry", None, 5))
        p.run()
        assert p.believed("dear") == [("curry", 9.0, 0, 5), ("naan", 9.0, 0, None)]


VAULT = """
pipeline: vault
start: 2026-01-01
topics:
  customers: {read: table, key: {id: string}, value: {name: string, city: string}, sensitive: [name]}
views:
  named: {table: customers, select: {title: upper(name), city: city}}
"""
SPY = """
pipeline: spy
start: 2026-01-01
topics:
  none: {read: table, key: {id: string}, value: {x: int}}
inputs:
  customers: {table: vault.named, key: {id: string}, value: {title: string, city: string}MARKED}
views:
  copied: {table: customers}
"""


@pytest.mark.slow
def test_a_column_that_is_sensitive_where_it_comes_from_must_be_marked_by_its_readers(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    """Whether its own pipeline marks it or computes it from one that is marked; also if its contract is gone."""
    with pipeline(spark, broker, tmp_path, VAULT) as vault:
        rome, oslo, bern = ({"name": "Mallory", "city": city} for city in ("Rome", "Oslo", "Bern"))
        vault.send("customers", ("1", rome, 0), ("1", bern, 9))
        run_steps.plan_run(vault.settings, vault.name, "given up")  # the one plan that has the contract's text
        planner.abandon_run(vault.warehouse, journal.read_active_run(vault.warehouse, vault.name, 1), "by a test")
        vault.run("first")
        vault.path.unlink()
        with pipeline(spark, broker, tmp_path, SPY.replace("MARKED", "")) as p:
            with pytest.raises(TableError, match="title: sensitive in pipeline vault, not marked here") as refused:
                p.run("first")
            assert refused.value.fix == "write sensitive: [title] in this input"
            assert journal.read_runs(p.warehouse, p.name) == []
        with pipeline(spark, broker, tmp_path, SPY.replace("MARKED", ", sensitive: [title]")) as p:
            p.run("first")
            assert p.believed("copied") == [("1", "MALLORY", "Rome", 0, 9), ("1", "MALLORY", "Bern", 9, None)]
            vault.write(VAULT)
            vault.send("customers", ("1", oslo, 4))
            vault.run("second")
            vault.write(VAULT.replace("sensitive: [name]", "sensitive: [name, city]"))
            shown = preview.preview_run(spark, p.settings, p.name).tables["copied"].examples
            hidden = {"title": "***", "city": "***"}
            assert [row[side] for row in shown for side in ("before", "after") if row[side]] == [hidden] * 2


SPENT = """
pipeline: spent
start: 2026-01-01
topics:
  members: {read: table, key: {customer: string}, value: {level: int}}
inputs:
  bills:
    {table: restaurant.bills, read: stream, key: {customer: string}, value: {item: string, amount: "decimal(19,2)"}}
views:
  by_level:
    stream: bills
    join: {table: members, how: left}
    select: {level: level, amount: amount}
  by_minute:
    stream: bills
    group_by: {item: item}
    window: {tumbling: 1 minute}
    aggregate: {spent: sum(amount)}
"""


@pytest.mark.long
@pytest.mark.parametrize("few", [pytest.param(10**9, id="whole"), pytest.param(0, id="by increments")])
def test_a_stream_of_another_pipeline(
    spark: SparkSession, broker: str, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive_whole_up_to(few, monkeypatch)
    with pipeline(spark, broker, tmp_path) as other, pipeline(spark, broker, tmp_path, SPENT) as p:
        other.send("menu", ("curry", {"price": 8}, 0))
        other.send(
            "orders", ("anna", {"item": "curry", "quantity": 1}, 3), ("bob", {"item": "curry", "quantity": 2}, 5)
        )
        p.send("members", ("anna", {"level": 1}, 0))
        other.run("first")
        p.run("first")
        assert p.believed("by_level") == [("anna", 1, 8.0, 3), ("bob", None, 16.0, 5)]
        assert p.believed("by_minute") == [("curry", 24.0, 0, 60)]

        # a price that comes late corrects a bill of theirs, an order comes in, and a member is told late
        other.send("menu", ("curry", {"price": 9}, 4))
        other.send("orders", ("anna", {"item": "curry", "quantity": 1}, 70))
        p.send("members", ("bob", {"level": 2}, 0))
        other.run("second")
        told = p.run("second")
        assert p.believed("by_level") == [("anna", 1, 8.0, 3), ("anna", 1, 9.0, 70), ("bob", 2, 18.0, 5)]
        assert p.believed("by_minute") == [("curry", 26.0, 0, 60), ("curry", 9.0, 60, 120)]
        assert [row for row in p.history("by_minute") if row[-1] is not None] == [("curry", 24.0, 0, 60, 1, 2)]
        assert told["tables"]["by_minute"]["closedUpTo"] is None, "how many partitions theirs has is not known here"


@pytest.mark.parametrize(
    ("before", "after", "found", "fix"),
    [
        ('price: "decimal(8,2)"', "price: int", "column 'price' is decimal(8,2)", "not int"),
        ("value: {price:", "value: {cost:", "no column 'cost'", "price"),
        ("restaurant.menu, key: {item:", "restaurant.menu, key: {dish:", "holds versions with the key item", "its key"),
        ("restaurant.menu", "restaurant.bills", "holds events", "read: stream"),
        ("restaurant.menu", "restaurant.wine", "no completed run has published the table", "hindcast run restaurant"),
    ],
)
def test_an_input_that_is_not_what_the_contract_says(
    restaurant: Pipeline, tmp_path: Path, before: str, after: str, found: str, fix: str
) -> None:
    path = tmp_path / "tips.yaml"
    text = TIPS.replace(before, after).replace("price * percent", "percent * 1")
    path.write_text(text.partition("  dear:")[0], encoding="utf-8")
    with pytest.raises((RunError, TableError)) as caught:
        inputs.read_as_of_system_time(restaurant.warehouse, load(path), "dishes")
    assert found in caught.value.found
    assert fix in caught.value.fix


PEEP = """
pipeline: peep
start: 2026-01-01
topics:
  none: {read: table, key: {id: string}, value: {x: int}}
inputs:
  folk: {table: shop.people, key: {id: int}, value: {city: string}MARKED}
views:
  copied: {table: folk}
"""


@pytest.mark.parametrize(
    ("change", "marked", "found", "fix"),
    [
        (None, "", "is not stored, so its sensitive columns are not known", "hindcast run shop"),
        ({}, "", "", ""),
        ({"topics.people.sensitive": '["city"]'}, "", "city: sensitive in pipeline shop", "sensitive: [city]"),
        ({"topics.people.gone": "3"}, "", "whether id, city are sensitive is not known", "[id, city]"),
        ({"topics.people.gone": "3"}, ", sensitive: true", "", ""),
        ({"topics.people.gone": "3", "topics.people.sensitive": "", "topics.secrets.sensitive": ""}, "", "", ""),
    ],
    ids=["not stored", "stored", "marked", "no contract today", "all marked here", "no contract today, nothing marked"],
)
def test_marks_of_a_contract_that_is_not_stored_or_cannot_be_read_count_as_set(
    tmp_path: Path, change: dict[str, str] | None, marked: str, found: str, fix: str
) -> None:
    """Two runs of an older program have stored no text; a third one stores it, with fields changed, or absent ("")."""
    peep = tmp_path / "peep.yaml"
    peep.write_text(PEEP.replace("MARKED", marked), encoding="utf-8")
    with shop(tmp_path, stored=False) as settings:
        if change is not None:
            fields = list_fields(load(settings.schemas / "shop.yaml")) | change
            stored = {place: text for place, text in fields.items() if text}
            for state in ("planned", "completed"):
                run = bare_run("shop", 3, RUNS[1] + timedelta(days=1), state, contract="3", definition=stored)
                journal.append_entry(settings.warehouse, run)
        with pytest.raises(TableError) if found else nullcontext() as refused:
            inputs.read_as_of_system_time(settings.warehouse, load(peep), "folk")
        if refused is not None:
            assert found in refused.value.found
            assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("state", "change", "found"),
    [
        ("completed", {"topics.people.sensitive": '["city"]'}, "city: sensitive in pipeline shop, not marked here"),
        ("published", {"topics.people.sensitive": '["city"]'}, "city: sensitive in pipeline shop, not marked here"),
        ("completed", {}, ""),
        ("completed", {"topics.people.gone": "3"}, "whether id, city are sensitive is not known"),
        ("abandoned", {}, "whether id, city are sensitive is not known"),
    ],
    ids=["completed", "published and abandoned", "not marked", "no contract today", "not stored"],
)
def test_marks_of_a_table_that_left_its_contract_count_as_set(
    tmp_path: Path, state: str, change: dict[str, str], found: str
) -> None:
    """The last contract that had it counts, of a run that published it; older programs have stored no text."""
    peep = tmp_path / "peep.yaml"
    peep.write_text(PEEP.replace("MARKED", ""), encoding="utf-8")
    with shop(tmp_path, stored=False) as settings:
        fields = list_fields(load(settings.schemas / "shop.yaml"))
        without = {
            place: text for place, text in fields.items() if place.split(".")[1:2] not in (["people"], ["cities"])
        }
        outcomes = {"completed": Completed({}), "abandoned": Abandoned(""), "published": Abandoned("", ("people",))}
        runs: list[tuple[dict[str, str], Outcome]] = [(fields | change, outcomes[state]), (without, Completed({}))]
        for number, (stored, outcome) in enumerate(runs, 3):
            known_at = RUNS[1] + timedelta(days=number)
            run = bare_run("shop", number, known_at, contract=str(number), definition=stored)
            journal.append_entry(settings.warehouse, run)
            journal.append_entry(settings.warehouse, replace(run, outcome=outcome))
        with pytest.raises(TableError) if found else nullcontext() as refused:
            inputs.read_as_of_system_time(settings.warehouse, load(peep), "folk")
        if refused is not None:
            assert found in refused.value.found


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("  dishes: {", "  tips: {", "'tips' is also in topics"),
        ("restaurant.menu", "tips.menu", "is a table of this pipeline"),
        ("{table: dishes, on", "{table: dishs, on", "no table 'dishs'"),
        ("value: {price:", "value: {item: int, price:", "column 'item' is also in the key"),
        ("  dishes: {", "  dishes: {read: stream, ", "'dishes' is read as a stream, not as a table"),
    ],
)
def test_inputs_that_mean_nothing(tmp_path: Path, before: str, after: str, found: str) -> None:
    path = tmp_path / "tips.yaml"
    path.write_text(TIPS.replace(before, after), encoding="utf-8")
    with pytest.raises(ContractError, match=found):
        load(path)


DEAR = """
pipeline: dear
start: 2026-01-01
topics:
  tips: {read: stream, key: {customer: string}, value: {item: string}}
inputs:
  dishes: {table: restaurant.menu, key: {item: string}, value: {price: "decimal(8,2)"}}
views:
  dear:
    table: dishes
    where: price > 1
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 9}
        on_failure: quarantine
  warned:
    table: dishes
    where: price > 1
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 9}
        on_failure: warn
"""


@pytest.mark.long
@pytest.mark.ci
def test_gates_of_views_of_an_input(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    """Their failing rows have no topic of this pipeline."""
    menu = RESTAURANT.partition("  orders:")[0]
    with pipeline(spark, broker, tmp_path, menu) as other, pipeline(spark, broker, tmp_path, DEAR) as p:
        other.send("menu", ("curry", {"price": 8}, 0), ("caviar", {"price": 90}, 0))
        other.run("first")
        p.run("first")
        believed = {name: [row[0] for row in p.believed(name)] for name in ("dear", "warned")}
        assert believed == {"dear": ["curry"], "warned": ["caviar", "curry"]}
        assert sorted((row["table"], row["entry"], row["key"], row["topic"]) for row in p.raw("failing")) == [
            ("dear", "held", '{"item":"caviar"}', None),
            ("warned", "warned", '{"item":"caviar"}', None),
        ]
