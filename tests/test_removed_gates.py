"""What becomes of what is held back, and of an approval that waits, when its gate or its table is removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import reports
from hindcast.airflow import approval_tasks
from hindcast.cli import main
from hindcast.common.errors import ContractError, RequestError
from hindcast.common.settings import read_settings
from hindcast.quality import held_changes
from hindcast.runs import run_steps, special_runs
from pipelines import Pipeline, pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPICS = """
pipeline: shop
start: 2026-01-01
topics:
  menu: {read: table, key: {item: string}, value: {price: int}}
"""
VIEW = """
views:
  dear:
    table: menu
    select: {price: price}
"""
GATE = """
    expect:
      - expect_column_values_to_be_between: {column: price, max_value: 50}
        on_failure: quarantine
"""
TRUFFLE = 'dear {"item":"truffle"}'


class Events(dict[Any, Any]):
    """Airflow's events, to which each alias can be added."""

    def __missing__(self, _: Any) -> Any:
        return self

    def add(self, asset: Any, extra: Any) -> None:
        self[asset] = extra


def hold(p: Pipeline) -> tuple[str, ...]:
    """A first run, which holds the truffle; the answer of a person who approves it, as tasks of Airflow have it."""
    p.send("menu", ("curry", {"price": 8}, 0), ("truffle", {"price": 90}, 0))
    p.run()
    shown = approval_tasks.read_held_changes("shop")
    assert shown["keys"] == [TRUFFLE]
    return "shop", "approved", shown["until"], "ann", json.dumps(shown["keys"])


def finish_release(p: Pipeline, approval: tuple[str, ...]) -> str:
    """Plan, release and report an approval as its tasks do; the report as text."""
    assert p.spark is not None
    assert approval_tasks.plan_release(*approval).is_done
    approval_tasks.release(*approval[:2], spark=p.spark)
    approval_tasks.finish_release("shop", "approved", Events())
    assert p.states()[-1][1] == "completed"
    return reports.format_report(run_steps.finish_run(read_settings(), "shop", p.states()[-1][0]).as_json())


@pytest.mark.long
@pytest.mark.ci
def test_an_approval_is_published_when_the_last_gate_was_removed_meanwhile(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, TOPICS + VIEW + GATE) as p:
        approval = hold(p)
        p.write(TOPICS + VIEW)
        said = finish_release(p, approval)
        assert "views.dear.expect.expect_column_values_to_be_between removed" in said
        assert "no longer held: 1 released" in said
        assert p.believed("dear") == [("curry", 8, 0, None), ("truffle", 90, 0, None)]
        assert not held_changes.read_held_rows(p.warehouse, "shop").num_rows


@pytest.mark.long
@pytest.mark.ci
def test_an_approval_ends_well_when_a_run_without_the_gate_came_first(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, TOPICS + VIEW + GATE) as p:
        approval = hold(p)
        p.write(TOPICS + VIEW)
        told = p.run()
        assert told["tables"]["dear"]["noLongerHeld"] == {"mended": 1}
        assert "no longer held: 1 mended" in reports.render_page(told)
        assert "dear                 unchanged" in finish_release(p, approval)
        assert f"{TRUFFLE}: is no longer held as it was shown; it is left unchanged" in capsys.readouterr().out


def test_a_release_under_a_contract_that_no_run_accepts_is_not_planned(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    with pipeline(spark, broker, tmp_path, TOPICS + VIEW + GATE) as p:
        hold(p)
        p.write(TOPICS + VIEW + GATE.replace("max_value: 50", "most: 50"))
        with pytest.raises(ContractError, match="most"):
            special_runs.plan_release(
                read_settings(), "shop", "too early", {"dear": ['{"item":"truffle"}']}, "ann", p.contract.start
            )
        assert p.states() == [(1, "completed")]


@pytest.mark.long
@pytest.mark.ci
def test_an_approval_ends_well_when_its_table_was_removed(
    spark: SparkSession, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pipeline(spark, broker, tmp_path, TOPICS + VIEW + GATE) as p:
        approval = hold(p)
        p.write(TOPICS)
        finish_release(p, approval)
        assert f"{TRUFFLE}: its table is no longer in the contract; it is left unchanged" in capsys.readouterr().out
        # Nobody is asked about it again, and no command fails half-way.
        assert main.main(["release", "shop"]) == 1
        assert "shop.dear: not in the contract; its held changes stay as they are" in capsys.readouterr().err
        assert main.main(["release", "shop.dear"]) == 1
        assert "the contract has no table dear" in capsys.readouterr().err
        with pytest.raises(RequestError, match="the contract has no table dear"):
            special_runs.plan_release(
                read_settings(), "shop", "by a program", {"dear": ["{}"]}, "ann", p.contract.start
            )
        assert p.states()[-1] == (2, "completed")
        # It is derived anew when its table is back.
        p.write(TOPICS + VIEW)
        assert p.run()["tables"]["dear"]["noLongerHeld"] == {"mended": 1}
        assert ("truffle", 90, 0, None) in p.believed("dear")
