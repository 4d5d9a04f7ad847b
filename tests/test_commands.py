"""Commands for one pipeline one after another, as a person gives them; with `--connect` over Spark Connect."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hindcast.cli import main
from hindcast.common import time_limits
from hindcast.contract import query_limits
from hindcast.runs import run_steps
from pipelines import Pipeline, pipeline, tell, tuples, wrong

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.connect, pytest.mark.long]

CONTRACT = """
pipeline: cafe
start: 2026-01-01
topics:
  menu:
    read: table
    key: {item: string}
    value: {price: "decimal(8,2)"}
    history_retention: 10 seconds
  orders:
    read: stream
    max_malformed: 5
    max_record_bytes: 60
    key: {customer: string}
    value: {item: string, quantity: int}
    expect:
      - expect_column_values_to_be_between: {column: quantity, max_value: 10}
        on_failure: quarantine
views:
  bills:
    stream: orders
    join: {table: menu, on: item}
    select: {item: orders.item, amount: quantity * price}
    expect:
      - unexpected_rows_expectation: {unexpected_rows_query: "SELECT * FROM {batch} WHERE item RLIKE '^(x+)+$'"}
  spent: {stream: bills, aggregate: {spent: sum(amount), most: max(item)}}
  served: {stream: orders, join: {table: menu, on: item}, select: {item: orders.item, price: price}, semantics: kafka}
"""
STORY: dict[str, list[Any]] = {
    "menu": [("curry", {"price": 8}, 0), ("soup", {"price": 5}, 0), ("curry", {"price": 10}, 4)],
    "orders": [
        ("anna-7f3a", {"item": "curry", "quantity": 1}, 1),
        ("bob-1d4e", {"item": "soup", "quantity": 3}, 5),
        ("candace-9b", {"item": "soup", "quantity": 50}, 6),
        ("dan-77aa", {"item": "soup", "quantity": 1, "note": "a long one, longer than it may be"}, 7),
        ("eve-00ff", b"{", 8),
    ],
}
SLOW = "x" * 27 + "y"


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Gives a command, which succeeds; what it says."""

    def give(*words: str, code: int = 0) -> str:
        capsys.readouterr()
        found = main.main([*words])
        out, err = capsys.readouterr()
        assert found == code, f"{words}: {out} {err}"
        return out if code == 0 else err

    return give


def test_each_command_does_its_work(spark: SparkSession, broker: str, tmp_path: Path, said: Callable[..., str]) -> None:
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        tell(p, STORY)
        said("run", p.name)
        assert "5 offsets" in said("report", p.name)
        p.send("menu", ("curry", {"price": 9}, 2))
        assert "bills" in said("preview", p.name)

        run_steps.plan_run(p.settings, p.name, "airflow__1")
        assert "hindcast abandon cafe" in said("run", p.name, code=3)
        assert "run 2 (airflow__1) was abandoned" in said("abandon", p.name)
        assert "run 2 (airflow__1) was abandoned before" in said("abandon", p.name)
        said("run", p.name)
        p.send("menu", ("soup", {"price": 6}, 3))
        p.send("orders", ("fay-5c", {"item": "curry", "quantity": 1}, 9))
        said("run", p.name, "--only", "menu")
        assert ("soup", 6, 3, None) in p.believed("menu")
        assert not [row for row in p.believed("orders") if row[0] == "fay-5c"]
        said("run", p.name, "--only", "bills")
        said("run", p.name)
        assert [row for row in p.believed("bills") if row[0] == "fay-5c"]
        assert wrong(p) == []

        p.write(CONTRACT.replace("max_record_bytes: 60", "max_record_bytes: 600"))
        said("run", p.name)
        assert "1 accepted" in said("requeue", p.name, "--topic", "orders", "--dry-run")
        said("requeue", p.name)
        said("release", f"{p.name}.orders")
        assert {"candace-9b", "dan-77aa"} < {row[0] for row in p.believed("orders")}

        html = said("report", p.name, "--format", "html")
        assert "</html>" in html
        assert json.loads(said("report", p.name, "--format", "json"))["state"] == "completed"
        said("report", p.name, "--data-docs", str(tmp_path / "docs"))
        assert list((tmp_path / "docs").rglob("*.html"))

        for key in ("anna-7f3a", "bob-1d4e"):
            assert "rows" in said("forget", f"{p.name}.orders", "--key", key, "--dry-run")
            assert "found: nothing" in said("forget", f"{p.name}.orders", "--key", key)
            assert not [path for path in Path(p.warehouse).rglob("*.parquet") if key.encode() in path.read_bytes()]
        assert "found: nothing" in said("forget", f"{p.name}.orders", "--key", "anna-7f3a")
        assert "found: nothing" in said("forget", f"{p.name}.orders", "--offset", "0/4")
        assert wrong(p) == []

        said("maintain", p.name)
        said("trim", p.name)
        said("quarantine", p.name, "--rebuild")
        said("ledger", p.name)
        before = bills(p)
        shutil.rmtree(Path(p.warehouse) / p.name / "runs")
        said("ledger", p.name, "--rebuild")
        said("run", p.name)
        assert bills(p) == before
        assert wrong(p) == []
        said("verify", p.name, "--whole")
        for words in (
            ("query", f"{p.name}.bills"),
            ("history", f"{p.name}.bills"),
            ("failing", p.name),
            ("runs", p.name),
        ):
            said(*words)


def bills(p: Pipeline) -> list[tuple[Any, ...]]:
    """Return the current rows of a view by their columns: of runs in a rebuilt journal the known-ats are rounded."""
    return tuples([row for row in p.raw("bills") if row["systemTo"] is None], "customer", "item", "amount", "timestamp")


def test_a_slow_pattern_of_a_gate_stops_its_table(
    spark: SparkSession, broker: str, tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "MAX_SECONDS", 1.0)
    monkeypatch.setattr(query_limits, "IN_TIME", "match_within_a_second")
    with pipeline(spark, broker, tmp_path, CONTRACT) as p:
        tell(p, STORY | {"menu": [(SLOW, {"price": 8}, 0)]})
        p.send("orders", ("anna", {"item": SLOW, "quantity": 1}, 1))
        told = said("run", p.name, code=1)
        assert "a value took more than 1 seconds to match" in told, told
        assert p.believed("bills") == []
        p.write(CONTRACT.replace("(x+)+", "x+"))
        said("run", p.name)
        assert len(p.believed("bills")) == 1
