"""Columns may have the names that our own queries use: nothing of ours takes the place of a user's, or the reverse."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.cli.main import main
from hindcast.contract import load
from hindcast.plan import closes
from hindcast.plan.closes import Close
from hindcast.query import read, restatements
from pipelines import at as second
from pipelines import pipeline, wrong
from warehouses import RUNS, T0, at, fill, place, row, shop, version

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TILL = "pipeline: till\nstart: 2026-01-01\ntopics:\n"
NUMBERS = ["sign", "later", "times", "rows", "n", "at", "kept", "signed", "Sign", "high", "low"]
KEYS = ["belief", "Belief", "layout", "nth", "held", "part", "key", "since"]
HELD = ["unit", "digest", "since", "key", "lasting", "record", "overdue", "entry", "began", "at", "table", "row", "run"]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("kind", ["int", "double"])
def test_figures_of_a_close_are_those_of_the_column(tmp_path: Path, name: str, kind: str) -> None:
    text = f"{TILL}  sales: {{read: stream, key: {{id: string}}, value: {{{name}: {kind}}}}}\n"
    with shop(tmp_path, text) as settings:
        number = float if kind == "double" else int
        sales = [("a", 5, 1, 2, 1), ("a", 7, 2, None, 1), ("b", 100, 1, None, 2), ("c", 1000, 2, None, 2)]
        fill(
            settings,
            "till",
            "sales",
            [
                row(since, until, id=key, **{name: number(value)}, timestamp=at(true), **place(n))
                for n, (key, value, since, until, true) in enumerate(sales)
            ],
        )
        closes.add_close(settings.warehouse, "till", Close("Q1", T0, at(60), RUNS[0], RUNS[1], "eva"))
        contract = load(settings.schemas / "till.yaml")
        found = restatements.restate_close(settings.warehouse, contract, "Q1", RUNS[1])
        figures = {figure.name: (figure.closed, figure.now) for figure in found.figures}
        assert figures == {"rows": (2, 3), "column rows" if name == "rows" else name: (105, 1107)}


@pytest.mark.parametrize("name", KEYS)
def test_a_healthy_table_is_verified(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"{TILL}  sales: {{read: table, key: {{{name}: string}}, value: {{n: int}}}}\n"
    with shop(tmp_path, text) as settings:
        periods = [("a", 0, None, 5), ("b", 0, 1, 5), ("b", 1, None, 6)]
        rows = [{**version(1, None, *of, n=n, **place(k)), name: key} for k, (key, *of, n) in enumerate(periods)]
        fill(settings, "till", "sales", rows)
        main(["verify", "till"])
        assert "found" not in capsys.readouterr().out


def test_records_of_such_columns_are_held_reported_and_released(
    spark: SparkSession, broker: str, tmp_path: Path
) -> None:
    columns = ", ".join(f"{name}: int" for name in HELD)
    contract = f"""
pipeline: names
start: 2026-01-01
topics:
  sales:
    read: table
    key: {{id: string, Key2: int}}
    value: {{{columns}, n: int}}
    hold: row
    expect:
      - expect_column_values_to_be_between: {{column: n, min_value: 0}}
        on_failure: quarantine
"""

    def send(n: int, true: float) -> Any:
        return ({"id": "a", "Key2": 1}, {**dict.fromkeys(HELD, n), "n": n}, true)

    with pipeline(spark, broker, tmp_path, contract) as p:
        p.send("sales", send(1, 0))
        p.run()
        p.send("sales", send(-1, 5))
        report = p.run()
        assert report["tables"]["sales"]["held"]["overdue"]["keys"] == 1, "a held record would have ended what is shown"
        with p.here():
            assert main(["release", p.name]) == 0
        history = read.history(p.warehouse, p.contract, "sales").to_pylist()
        assert sorted({(r["n"], r["unit"], r["since"]) for r in history}) == [(-1, -1, -1), (1, 1, 1)]
        assert second(5) in {r["validFrom"] for r in history}
        assert wrong(p) == []
