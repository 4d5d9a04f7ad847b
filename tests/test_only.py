"""Runs about one table alone, and what is made of it: all else is left to the next run, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

import reports
from bare_runs import bare_run
from hindcast.common.errors import RequestError
from hindcast.common.settings import read_settings
from hindcast.common.yaml_loader import ContractLoader
from hindcast.contract import Contract
from hindcast.contract.bound import bind_contract
from hindcast.plan import journal, planner
from hindcast.store.tables import open_table
from pipelines import RESTAURANT, T0, Pipeline, derive_whole_up_to, pipeline
from test_inputs import TIPS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WIDER = (
    RESTAURANT
    + """\
  large:
    stream: orders
    where: quantity > 1
  spent:
    stream: bills
    aggregate: {amount: sum(amount)}
"""
)
VIEWS = ("bills", "large", "spent")


def first(p: Pipeline) -> None:
    p.send("menu", ("curry", {"price": 8}, 0))
    p.send("orders", ("anna", {"item": "curry", "quantity": 2}, 1))


def late(p: Pipeline) -> None:
    """A record for each topic; the price corrects what Anna owes."""
    p.send("menu", ("curry", {"price": 9}, 0.5))
    p.send("orders", ("bob", {"item": "curry", "quantity": 3}, 2))


@pytest.mark.long
@pytest.mark.parametrize("few", [pytest.param(10**9, id="whole"), pytest.param(0, id="by increments")])
def test_one_topic_is_brought_and_what_is_made_of_it_and_the_next_run_brings_the_rest(
    spark: SparkSession, broker: str, tmp_path: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    derive_whole_up_to(few, monkeypatch)
    with pipeline(spark, broker, tmp_path, WIDER) as p:
        first(p)
        p.run("first")
        late(p)
        seen = reports.preview_run(spark, p.name, only="menu")["tables"]
        assert (list(seen), seen["bills"]["corrected"]) == (["menu", "bills", "spent"], 1)
        before = p.versions()
        told = p.run("second", only="menu", reason="a wrong price")
        assert (told["only"], told["reason"], told["again"]) == (
            *("menu", "a wrong price"),
            "hindcast run restaurant --only menu",
        )
        assert [name for name, version in p.versions().items() if version != before[name]] == [
            *("menu", "bills", "spent", "logs/menu")
        ]
        assert {row[0]: row[2] for row in p.believed("bills")} == {"anna": 18}
        assert p.fates("orders") == [(0, "accepted")]
        p.run("third")
        assert {row[0]: row[2] for row in p.believed("bills")} == {"anna": 18, "bob": 27}
        assert [row[0] for row in p.believed("large")] == ["anna", "bob"]
        then = {name: p.believed(name) for name in VIEWS}

    with pipeline(spark, broker, tmp_path / "at once", WIDER) as once:
        first(once)
        late(once)
        once.run()
        assert {name: once.believed(name) for name in VIEWS} == then


@pytest.mark.long
@pytest.mark.ci
@pytest.mark.slow
def test_a_view_alone_is_derived_whole_and_compared(spark: SparkSession, broker: str, tmp_path: Path) -> None:
    with pipeline(spark, broker, tmp_path, WIDER) as p:
        first(p)
        p.run("first")
        then = p.believed("spent")
        spent = open_table(p.table("spent"))
        assert spent is not None
        spent.delete()
        late(p)
        p.run("second", only="spent")
        assert p.believed("spent") == then
        assert p.fates("menu") == [(0, "accepted")]


@pytest.mark.long
def test_inputs_stay_as_they_were_known_but_the_one_that_is_asked_for(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path) as other, pipeline(spark, broker, tmp_path, TIPS) as p:
        other.send("menu", ("curry", {"price": 8}, 0))
        p.send("tips", ("anna", {"item": "curry", "percent": 10}, 3))
        other.run("first")
        p.run("first")
        other.send("menu", ("curry", {"price": 9}, 2))
        other.run("second")
        p.send("tips", ("bob", {"item": "curry", "percent": 10}, 4))
        p.run("second", only="tips")
        assert [row[1] for row in p.believed("tipped")] == [0.8, 0.8]
        p.run("third", only="dishes")
        assert [row[1] for row in p.believed("tipped")] == [0.9, 0.9]
        assert p.believed("dear") == [("curry", 9.0, 2, None)]
        pins = [run.plan.as_of_system_times["dishes"] for run in journal.read_runs(p.warehouse, p.name)]
        moments = [run.known_at for run in journal.read_runs(other.warehouse, other.name)]
        assert pins == [moments[0], moments[0], moments[1]]


@pytest.mark.parametrize(
    ("only", "past", "found", "fix"),
    [
        ("meno", [], "there is no table 'meno'", "did you mean 'menu'?"),
        ("menu", [], "the first run is about all tables", "without `only`"),
        ("menu", [("completed", "same"), ("stopped", "same")], "run 2 was not completed", "without `only`"),
        ("menu", [("completed", "same"), ("abandoned", "same")], "run 2 was not completed", "without `only`"),
        ("menu", [("completed", "another")], "the contract was changed since run 1", "without `only`"),
    ],
)
def test_what_concerns_all_tables_is_not_done_for_one(
    only: str, past: list[tuple[str, str]], found: str, fix: str
) -> None:
    contract = bind_contract(parsed(WIDER), replace(read_settings(), warehouse="nowhere", kafka="nobody"))
    runs = [
        bare_run("shop", n, T0, state, contract=contract.hash if hash_ == "same" else "c0ffee")
        for n, (state, hash_) in enumerate(past, 1)
    ]
    with pytest.raises(RequestError) as refused:
        planner.propose_plan(contract, "one", None, runs, only)
    assert found in refused.value.found
    assert fix in refused.value.fix


def test_what_is_below_a_table() -> None:
    gate = "expect_foreign_keys_to_be_found: {column: item, table: dishes}"
    contract = parsed(TIPS.replace("percent: int}", f"percent: int}}\n    expect: [{{{gate}}}]"))
    assert contract.list_tables_below("tips") == {"tips", "tipped"}
    assert contract.list_tables_below("dishes") == {"dishes", "tips", "tipped", "dear"}
    assert contract.list_tables_below("tipped") == {"tipped"}


def parsed(text: str) -> Contract:
    return Contract.model_validate(yaml.load(text, Loader=ContractLoader))  # noqa: S506  # a safe loader
