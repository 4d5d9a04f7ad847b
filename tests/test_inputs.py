"""Tables of other pipelines as inputs: read as they were known when the run was planned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hindcast import changes, inputs, journal, plans, runs
from hindcast.contracts import load
from hindcast.errors import ContractError, RunError, TableError
from pipelines import Pipeline, pipeline

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
    monkeypatch.setattr(changes, "WHOLE", few)
    with pipeline(spark, broker, tmp_path) as other, pipeline(spark, broker, tmp_path, TIPS) as p:
        other.send("menu", ("curry", {"price": 8}, 0))
        p.send("tips", ("anna", {"item": "curry", "percent": 10}, 3))
        with pytest.raises(RunError, match="no completed run has published the table") as refused:
            p.run("first")
        assert refused.value.mend.startswith("hindcast run restaurant")
        other.run("first")
        p.run("first")
        assert [row[1] for row in p.believed("tipped")] == [0.8]

        p.send("tips", ("bob", {"item": "curry", "percent": 10}, 4))
        runs.plan(p.name, "second")
        other.send("menu", ("curry", {"price": 9}, 2))  # learnt by the other pipeline after the plan: not in this run
        other.run("second")
        p.run("second")
        assert [row[1] for row in p.believed("tipped")] == [0.8, 0.8]
        assert p.believed("dear") == []

        p.run("third")  # brings no record, and what the other has learnt
        assert [row[1] for row in p.believed("tipped")] == [0.9, 0.9]
        assert p.believed("dear") == [("curry", 9.0, 2, None)]
        pins = [plans.Plan.from_json(run.plan).pins["dishes"] for run in journal.runs(p.warehouse, p.name)]
        moments = [run.known_at for run in journal.runs(other.warehouse, other.name)]
        assert pins == [moments[0], moments[0], moments[1]]
        before = p.versions()
        p.run("fourth")
        assert p.versions() == before


@pytest.mark.parametrize(
    ("before", "after", "found", "mend"),
    [
        ('price: "decimal(8,2)"', "price: int", "column 'price' is decimal(8,2)", "not int"),
        ("value: {price:", "value: {cost:", "no column 'cost'", "price"),
        ("restaurant.menu, key: {item:", "restaurant.menu, key: {dish:", "holds versions with the key item", "its key"),
        ("restaurant.menu", "restaurant.bills", "holds events", "a table of versions"),
        ("restaurant.menu", "restaurant.wine", "no completed run has published the table", "hindcast run restaurant"),
    ],
)
def test_an_input_that_is_not_what_the_contract_says(
    restaurant: Pipeline, tmp_path: Path, before: str, after: str, found: str, mend: str
) -> None:
    path = tmp_path / "tips.yaml"
    text = TIPS.replace(before, after).replace("price * percent", "percent * 1")
    path.write_text(text.partition("  dear:")[0], encoding="utf-8")
    with pytest.raises((RunError, TableError)) as caught:
        inputs.pinned(restaurant.warehouse, load(path), "dishes")
    assert found in caught.value.found
    assert mend in caught.value.mend


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ("  dishes: {", "  tips: {", "'tips' is in topics too"),
        ("restaurant.menu", "tips.menu", "is a table of this pipeline"),
        ("{table: dishes, on", "{table: dishs, on", "no table 'dishs'"),
        ("value: {price:", "value: {item: int, price:", "column 'item' stands in the key"),
    ],
)
def test_inputs_that_mean_nothing(tmp_path: Path, before: str, after: str, found: str) -> None:
    path = tmp_path / "tips.yaml"
    path.write_text(TIPS.replace(before, after), encoding="utf-8")
    with pytest.raises(ContractError, match=found):
        load(path)
